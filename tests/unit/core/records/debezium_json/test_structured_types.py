"""Dates, times and intervals as objects, beside what `test_debezium_modes.py` compares with a real Debezium."""

import json
from typing import Any

import pytest

from cdcd.core.catalog.binary_text import interval_text
from cdcd.core.catalog.modes import Modes
from cdcd.core.catalog.relations import TableDescription
from cdcd.core.protocol.frames import XLogData, write_frame
from cdcd.core.protocol.messages import Column, Insert, Relation
from cdcd.core.protocol.writer import write_message
from cdcd.core.records.available import record_stream
from cdcd.core.records.debezium_json.converters import converter_for
from cdcd.core.records.encoder import EncoderSettings, Record
from cdcd.core.records.unwritable import UnwritableError

MODES = Modes(time_precision="structured")
DATE, TIME, TIMETZ, TIMESTAMP, TIMESTAMPTZ, INTERVAL = 1082, 1083, 1266, 1114, 1184, 1186
NULL_DAY = {"year": None, "month": None, "day": None}


def made(oid: int, text: str, modifier: int = -1) -> Any:
    return json.loads(converter_for(oid, modifier, {}, MODES).json(text))


def test_an_infinity_has_only_its_name_and_the_precision():
    assert made(DATE, "-infinity") == {**NULL_DAY, "specialValue": "NEGATIVE_INFINITY"}
    found = made(TIMESTAMPTZ, "infinity", 3)
    assert {name: value for name, value in found.items() if value is not None} == {
        "specialValue": "POSITIVE_INFINITY",
        "precision": 3,
    }


def test_an_era_and_far_years_are_numbers_of_the_gregorian_calendar():
    assert [made(DATE, text)["year"] for text in ("0001-12-31 BC", "4714-11-24 BC", "5874897-12-31")] == [
        0,
        -4713,
        5_874_897,
    ]


def test_a_time_with_time_zone_keeps_its_zone_to_the_second():
    found = made(TIMETZ, "23:59:59.000001-15:59:59")
    assert (found["nanos"], found["offsetSeconds"], found["hour"]) == (1000, -57_599, 23)


@pytest.mark.parametrize(
    ("oid", "text"),
    [
        (DATE, "2023-02-29"), (DATE, "2024-13-01"), (DATE, "now"), (DATE, ""), (TIME, "25:00:00"), (TIME, "infinity"),
        (TIMETZ, "12:00:00"), (TIMESTAMP, "2024-01-31 12:00:00+00"), (TIMESTAMPTZ, "2024-01-31 12:00:00"),
        (TIMESTAMPTZ, "2024-01-31 12:00:00+02"), (INTERVAL, ""), (INTERVAL, "P1Y"),
    ],
)  # fmt: skip
def test_a_text_of_another_form_is_refused(oid, text):
    with pytest.raises(ValueError, match=r"."):
        made(oid, text)


@pytest.mark.parametrize(
    ("modifier", "precision"), [(-1, 6), (0x7FFF << 16 | 3, 3), (0x0006 << 16 | 0xFFFF, 6), (0x7FFF << 16, 0)]
)
def test_an_interval_has_its_declared_precision(modifier, precision):
    assert made(INTERVAL, "1 day", modifier)["precision"] == precision


@pytest.mark.parametrize("text", ["infinity", "-infinity", "2147483648:00:00", "-2147483648:00:00"])
def test_an_interval_without_a_form_is_named_and_has_another_one_in_a_key(text):
    with pytest.raises(UnwritableError) as refused:
        made(INTERVAL, text)
    assert "time_precision_mode" in refused.value.hint
    assert abs(made(INTERVAL, refused.value.nearest)["hours"]) == 2_147_483_647
    assert (made(INTERVAL, refused.value.nearest)["hours"] < 0) == text.startswith("-")


def test_binary_transfer_gives_the_same_objects():
    data = (3_600_000_001).to_bytes(8, "big") + (2).to_bytes(4, "big") + (-14).to_bytes(4, "big", signed=True)
    assert json.loads(converter_for(INTERVAL, -1, {}, MODES).binary(data)) == made(
        INTERVAL, interval_text(data)
    )
    assert made(INTERVAL, interval_text(data))["months"] == -2


def test_a_key_is_an_object_too():
    encoder = record_stream(EncoderSettings("1", "p", "d", modes=MODES))
    relation = Relation(None, 5, "public", "t", "d", (Column(1, "day", DATE, -1),))
    encoder.define(relation, TableDescription(("day",)), {})
    encoder.begin(1, 2, 3, None)
    out: list[Record] = []
    row = write_message(Insert(None, 5, (b"2024-01-31",)))
    encoder.encode(write_frame(XLogData(1, 1, 0, row)), False, 0, out)
    assert json.loads(out[-1][1] or b"") == {
        "day": {"year": 2024, "month": 1, "day": 31, "specialValue": None}
    }
