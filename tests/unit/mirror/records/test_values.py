"""Records in each format as the log has them, and as the JSON that is parsed: real Spark, and the daemon's encoders."""

from types import SimpleNamespace
from typing import Any, Final, cast

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sf

from cdcd.core.records.encoder import Record
from cdcd.core.records.flattening import Flattening
from cdcd.mirror.base.part import records_of
from cdcd.mirror.kafka import KafkaSource
from cdcd.mirror.log.table import rows
from cdcd.mirror.records.changes import PROBLEM, parse
from cdcd.mirror.records.descriptions import Descriptions
from cdcd.mirror.records.values import as_json
from tests.unit.core.records.test_change_headers import FLAT, FORMATS
from tests.unit.core.records.test_change_headers import records_of as encoded

TOPIC: Final = next(topic for topic, *_ in encoded("json", None) if "full" in topic)
SAID: Final = ("op", "after", "key", "old_key", "new_key", "commit_lsn", "event_no", "commit_time", PROBLEM)
READ: Final = [each for each in FORMATS if each != "protobuf"]
HEAD: Final = (
    '{"op":"c","source":{"ts_us":1,"schema":"public","table":"t","commit_lsn":5,"event_serial_no":1}}'
)


def in_log(spark: SparkSession, records: list[Record]) -> DataFrame:
    """The rows of a log for records of the table's topic."""
    given = [
        (key, value, topic, 0, offset, headers)
        for offset, (topic, key, value, headers) in enumerate(records)
        if topic == TOPIC
    ]
    frame = spark.createDataFrame(
        given,
        "key binary, value binary, topic string, partition int, offset bigint, headers array<struct<key: string, "
        "value: binary>>",
    ).withColumn("timestamp", sf.lit(None).cast("timestamp"))
    return rows(frame, {TOPIC: "id"}, {})


def described(records: list[Record]) -> Descriptions:
    admin = SimpleNamespace(ends=lambda _: {"p.schemas": {}})
    known = Descriptions(
        cast("Any", None), KafkaSource("b:1"), cast("Any", admin), "p.schemas", mirrored=True, by_header=True
    )
    for topic, _, value, _ in records:
        if topic == "p.schemas":
            known._take(value or b"", "p.schemas")
    assert known.problems == {}
    return known


def changes(spark: SparkSession, records: list[Record]) -> tuple[list[str], list[Row]]:
    """The kinds of the rows of the log, and the changes."""
    log = in_log(spark, records).persist()
    form = described(records).newest(TOPIC)
    kept = log.filter(sf.col("kind").isin("change", "truncate"))
    parsed = parse(as_json(records_of(kept), form.values), form.schema, form.rules)
    found = parsed.orderBy("offset").select(*SAID).collect()
    return [row["kind"] for row in log.orderBy("off").collect()], found


@pytest.mark.parametrize("value_format", READ)
def test_changes_in_each_format_are_those_in_json(spark: SparkSession, value_format: str):
    expected = changes(spark, encoded("json", None, change_header=False))
    assert [row["op"] for row in expected[1]] == ["c", "u", "d", "c", "d", "t", "t", "r", "r", "r"]
    assert {row[PROBLEM] for row in expected[1]} == {None}
    assert changes(spark, encoded(value_format, None)) == expected


@pytest.mark.parametrize("value_format", READ)
@pytest.mark.parametrize("flattening", FLAT.values(), ids=FLAT)
def test_flattened_changes_in_each_format_are_those_in_json(
    spark: SparkSession, value_format: str, flattening: Flattening
):
    _, expected = changes(spark, encoded("json", None))
    kinds, found = changes(spark, encoded(value_format, flattening))
    assert found == expected
    assert set(kinds) <= {"change", "truncate", "tombstone"}
    assert kinds.count("truncate") == 2


CASES: Final[list[tuple[str, bytes | None, str, str | None]]] = [
    (HEAD, b"\0\xff\xfe", "change", None),
    (HEAD.replace('"c"', '"d"'), None, "change", None),
    (HEAD.replace('"c"', '"t"'), None, "truncate", None),
    (HEAD, None, "unreadable", "no value"),
    ("", b"{}", "unreadable", "header cdcd.change"),
    ("{", b"{}", "unreadable", "header cdcd.change"),
    ("\xff\0", b"{}", "unreadable", "header cdcd.change"),
    ("[" * 5000, b"{}", "unreadable", "header cdcd.change"),
    (HEAD.replace("5", "1e400"), b"{}", "unreadable", "header cdcd.change"),
    (HEAD.replace('"c"', '"x"'), b"{}", "unreadable", "its op is no change"),
    ("{}", b"{}", "unreadable", "its op is no change"),
    ('{"op":"c"}', b"{}", "unreadable", "no source.commit_lsn"),
]
"""Header and value of a record, its kind in the log, and words of the reason."""


def test_whatever_a_header_says_is_a_row_of_the_log(spark: SparkSession):
    records: list[Record] = [
        (TOPIC, b"{}", value, [("cdcd.change", header.encode("latin-1"))]) for header, value, *_ in CASES
    ]
    found = in_log(spark, records).orderBy("off").collect()
    assert [row["kind"] for row in found] == [kind for *_, kind, _ in CASES]
    for row, (_, value, _, reason) in zip(found, CASES, strict=True):
        assert row["value"] == value
        assert (row["reason"] is None) == (reason is None)
        assert reason is None or reason in row["reason"]
