"""Events beside those of a real Debezium (`tests/debezium/capture_events.py`)."""

import json
from datetime import datetime
from typing import Any

import pytest

from cdcd.core.catalog.relations import TableDescription
from cdcd.core.protocol.frames import XLogData, write_frame
from cdcd.core.protocol.messages import POSTGRES_EPOCH_US
from cdcd.core.protocol.writer import write_message
from cdcd.core.records.available import record_stream
from cdcd.core.records.cloud_events import CloudEvents
from cdcd.core.records.encoder import EncoderSettings, Record
from tests.debezium.capture import CHANGES
from tests.debezium.capture_events import GOLDEN, VARIANTS
from tests.unit.core.records.debezium_json.test_debezium_modes import CHANGED, LOG
from tests.unit.core.records.debezium_json.test_debezium_schemas import ORDERS

CAPTURED: dict[str, list[dict[str, Any]]] = json.loads(GOLDEN.read_text())["records"]

RENAMED = {"iodebeziumtxId": "iodebeziumsourcetxid"}
"""A name that is no attribute's by the specification: it has a capital letter."""

OWN = {"iodebeziumcommitlsn", "iodebeziumeventserialno"}
"""Attributes that cdcd's source block adds."""

RUN = {
    "id", "time", "iodebeziumversion", "iodebeziumtsms", "iodebeziumtsus", "iodebeziumtsns", "iodebeziumsequence",
    "iodebeziumsourcetxid", "iodebeziumlsn", "iodebeziumtxid",
}  # fmt: skip
"""Attributes whose values differ from run to run."""


def settings_of(prefix: str) -> EncoderSettings:
    variant = VARIANTS[prefix]
    return EncoderSettings(
        "1",
        prefix,
        "postgres",
        value_format="cloudevents",
        events=CloudEvents(
            data="json_schema" if variant["value.converter.json.schemas.enable"] == "true" else "json",
            extensions=variant.get("value.converter.extension.attributes.enable") != "false",
        ),
        transaction_topic=f"{prefix}.transaction" if "provide.transaction.metadata" in variant else None,
    )


def made(prefix: str) -> list[Record]:
    encoder = record_stream(settings_of(prefix))
    encoder.define(ORDERS, TableDescription(("Order no", "line")), {})
    encoder.define(LOG, TableDescription(), {})
    records: list[Record] = []
    # The last of these is one of the modes' own changes.
    for xid, events in enumerate(CHANGED[:-1], 764):
        encoder.begin(xid, 1000 * xid, 0, 900)
        for message in events:
            encoder.encode(write_frame(XLogData(500, 500, 0, write_message(message))), False, 0, records)
    return records


@pytest.mark.parametrize("prefix", VARIANTS)
@pytest.mark.parametrize("table", ["orders", "log"])
def test_the_events_are_debeziums(prefix, table):
    assert len([change for change in CHANGES if f" {table}" in change]) >= 3
    captured = CAPTURED[f"{prefix}.public.{table}"]
    ours = [record for record in made(prefix) if record[0] == f"{prefix}.public.{table}"]
    assert len(ours) == len(captured)
    for (_, key, value, headers), theirs in zip(ours, captured, strict=True):
        assert (None if key is None else json.loads(key)) == theirs["key"]
        assert [name for name, _ in headers or [] if name != "content-type"] == theirs["headers"]
        if theirs["value"] is None:
            assert value is None
            continue
        event = json.loads(value or b"")
        # Debezium writes null for what is not there.
        expected = {
            RENAMED.get(name, name): each for name, each in theirs["value"].items() if each is not None
        }
        assert [name for name in event if name not in OWN] == list(expected)
        for name, said in expected.items():
            if name not in RUN:
                assert event[name] == said


@pytest.mark.parametrize(
    "at", ["2026-11-25T03:53:17.851Z", "2026-11-25T03:53:17.000Z", "1970-01-01T00:00:00.000Z"]
)
def test_the_time_is_written_as_debezium_does(at):
    unix_us = round(datetime.fromisoformat(at).timestamp() * 1_000_000)
    encoder = record_stream(settings_of("plain"))
    encoder.define(LOG, TableDescription(), {})
    encoder.begin(1, 1000, unix_us + 7 - POSTGRES_EPOCH_US, None)
    out: list[Record] = []
    encoder.encode(write_frame(XLogData(5, 5, 0, write_message(CHANGED[4][0]))), False, 0, out)
    assert json.loads(out[0][2] or b"")["time"] == at


def test_debezium_has_one_id_for_rows_of_one_command_and_null_for_messages():
    # What cdcd does otherwise, and why: these are Debezium's records.
    assert [record["value"] for record in CAPTURED["plain.message"]] == [None]
    both_halves = [record["value"] for record in CAPTURED["plain.public.orders"][2:5] if record["value"]]
    assert len(both_halves) == 2
    assert len({event["id"] for event in both_halves}) == 1
