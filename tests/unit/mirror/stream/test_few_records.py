from collections.abc import Mapping
from typing import Any, cast

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from cdcd.core.records.encoder import HEADER_UNCHANGED
from cdcd.mirror.kafka import KafkaSource, Offsets
from cdcd.mirror.stream.few_records import (
    GROUP_RECORDS_MAX,
    VALUE_BYTES_MAX,
    FewRecords,
    SmallSlice,
    _grouped,
)
from cdcd.mirror.stream.sessions import Sessions
from cdcd.mirror.targets.few import Raw

HEADERS = "array<struct<key:string,value:binary>>"


class Topics(KafkaSource):
    """Topics with the records that are given; counts how often they are read."""

    def __init__(self, rows: list[tuple[Any, ...]]) -> None:
        super().__init__("nobody:1")
        object.__setattr__(self, "rows", rows)
        object.__setattr__(self, "reads", [])

    def read_all(self, spark: SparkSession, places: Mapping[str, tuple[Offsets, Offsets]]) -> DataFrame:
        cast("Any", self).reads.append(sorted(places))
        if "gone" in places:
            raise AnalysisException("no")
        schema = "topic string, partition int, offset bigint, value binary, headers array<string>"
        rows = spark.createDataFrame(cast("Any", self).rows, schema)
        name = sf.lit(HEADER_UNCHANGED)
        headers = sf.transform(
            "headers", lambda text: sf.struct(name.alias("key"), text.cast("binary").alias("value"))
        )
        return rows.filter(sf.col("topic").isin(*places)).withColumn("headers", headers)


def test_a_question_for_one_slice_reads_them_all_and_gives_each_once(spark: SparkSession):
    large = b"x" * (VALUE_BYTES_MAX + 1)
    topics = Topics(
        [
            ("a", 0, 5, b"{}", None),
            ("a", 0, 6, None, None),
            ("b", 1, 7, b"[]", ['["note"]']),
            ("c", 0, 1, b"{}", None),
            ("c", 0, 2, large, None),
        ]
    )
    slices = [SmallSlice(topic, {0: 5}, {0: 9}) for topic in "abcd"]
    few = FewRecords(Sessions(spark), topics, slices)
    assert few.of("a", {0: 5}, {0: 9}) == [Raw(0, 5, b"{}"), Raw(0, 6, None)]
    assert few.of("a", {0: 5}, {0: 9}) is None
    # The table is elsewhere by now.
    assert few.of("b", {0: 6}, {0: 9}) is None
    assert few.of("c", {0: 5}, {0: 9}) is None
    assert few.of("d", {0: 5}, {0: 9}) == []
    assert few.of("e", {0: 5}, {0: 9}) is None
    assert cast("Any", topics).reads == [["a", "b", "c", "d"]]
    again = FewRecords(Sessions(spark), topics, slices)
    assert again.of("b", {0: 5}, {0: 9}) == [Raw(1, 7, b"[]", '["note"]')]


def test_what_cannot_be_read_together_is_left_to_the_tables(spark: SparkSession):
    topics = Topics([("a", 0, 5, b"{}", None)])
    few = FewRecords(Sessions(spark), topics, [SmallSlice(topic, {0: 5}, {0: 9}) for topic in ("a", "gone")])
    assert few.of("a", {0: 5}, {0: 9}) is None
    assert few.of("gone", {0: 5}, {0: 9}) is None
    assert len(cast("Any", topics).reads) == 1


def test_a_group_has_so_many_records_that_the_driver_can_hold_them():
    half = GROUP_RECORDS_MAX // 2
    slices = [SmallSlice(topic, {0: 0}, {0: half}) for topic in "abcde"]
    assert [[each.topic for each in group] for group in _grouped(slices)] == [["a", "b"], ["c", "d"], ["e"]]
    assert list(_grouped([])) == []
