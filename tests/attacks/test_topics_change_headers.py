"""Who can write into the topic of a table forges the header `cdcd.change`, or the value that belongs to it."""

import json
from typing import Final

import pytest
from pyspark.sql import SparkSession

from cdcd.core.records.encoder import Record
from cdcd.core.records.flattening import Flattening
from cdcd.mirror.base.part import records_of
from cdcd.mirror.records.changes import PROBLEM, parse
from cdcd.mirror.records.values import as_json
from tests.unit.core.records.test_change_headers import FLAT
from tests.unit.core.records.test_change_headers import records_of as encoded
from tests.unit.mirror.records.test_values import READ, TOPIC, described, in_log

VALUES: Final = (
    b"",
    b"\0",
    b"\3\0\1",
    b"{",
    b"[1]",
    b'{"id":"x"}',
    b"\0\0\0\0\1",
    # Avro: a text of two billion bytes, and one of a negative length, in each schema.
    *[b"\0\0\0\0%c" % number + row for number in range(1, 9) for row in (
        b"\2\2\2\xfe\xff\xff\xff\x0f", b"\2\2\xfe\xff\xff\xff\x0f", b"\2\2\1",
    )],
    b'}},"op":"t"',
)  # fmt: skip


@pytest.mark.attack(gains="a fold that ends, or rows without a key", before="withstood")
@pytest.mark.parametrize("value_format", READ)
@pytest.mark.parametrize("flattening", [None, FLAT["tombstone"]], ids=["envelope", "flat"])
def test_a_forged_value_behind_a_sound_header_is_no_change_of_the_form_and_ends_nothing(
    spark: SparkSession, value_format: str, flattening: Flattening | None
):
    form = described(encoded(value_format, flattening)).newest(TOPIC)
    source = {"commit_lsn": 5, "event_serial_no": 1, "schema_id": form.schema.schema_id}
    records: list[Record] = [
        (
            TOPIC,
            value,
            value,
            [
                ("cdcd.change", json.dumps({"op": op, "source": source}).encode()),
                ("__debezium.oldkey", value),
            ],
        )
        for value in VALUES
        for op in "cdu"
    ]
    log = in_log(spark, records)
    found = parse(as_json(records_of(log), form.values), form.schema, form.rules).collect()
    # Each record is there, and whoever can write to the topic can write rows; but no row lacks its key.
    assert len(found) == len(records)
    assert [row for row in found if row[PROBLEM] is None and row["key"]["id"] is None] == []
    assert any(row[PROBLEM] for row in found)
