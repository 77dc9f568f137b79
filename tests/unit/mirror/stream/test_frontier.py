"""How far a topic with several partitions can be applied, in a real Spark where it reads."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from cdcd.core.errors import SinkError
from cdcd.core.records.encoder import HEADER_NEW_KEY
from cdcd.mirror.kafka import KafkaSource, Offsets
from cdcd.mirror.stream.consistency import newest_checkpoints
from cdcd.mirror.stream.frontier import PEEK, Tip, Tips, complete, first_change

HEADERS = "array<struct<key:string,value:binary>>"


def at(lsn: int, event: int | None = 1) -> str:
    return json.dumps({"op": "c", "source": {"commit_lsn": lsn, "event_serial_no": event}})


class Partitions(KafkaSource):
    """Records by partition and offset; those named in `halves` are of a change of a key."""

    def __init__(self, records: Mapping[int, Mapping[int, str | None]], halves: tuple[int, ...] = ()) -> None:
        super().__init__("nobody:1")
        object.__setattr__(self, "records", records)
        object.__setattr__(self, "halves", halves)
        object.__setattr__(self, "reads", [])

    def read(self, spark: SparkSession, topic: str, start: Offsets, end: Offsets) -> DataFrame:
        mine = cast("Any", self)
        mine.reads.append(dict(end))
        found = [
            (partition, offset, value, offset in mine.halves)
            for partition, values in mine.records.items()
            for offset, value in values.items()
            if partition in end and start.get(partition, 0) <= offset < end[partition]
        ]
        rows = spark.createDataFrame(found, "partition int, offset bigint, text string, half boolean")
        header = sf.struct(
            sf.lit(HEADER_NEW_KEY).alias("key"), sf.encode(sf.lit("{}"), "UTF-8").alias("value")
        )
        headers = sf.when(sf.col("half"), sf.array(header)).cast(HEADERS)
        value = sf.encode("text", "UTF-8").alias("value")
        return rows.select("partition", "offset", value, headers.alias("headers"))


@pytest.mark.parametrize(
    ("ends", "written", "lsn"),
    [
        ({0: 10, 1: 5}, {0: 10, 1: 5}, 70),
        ({0: 12, 1: 5}, {0: 10, 1: 5}, 70),
        # A transaction is open, or its marker is not in all partitions yet.
        ({0: 10, 1: 5}, {0: 10, 1: 6}, 60),
        ({0: 10}, {0: 10, 1: 1}, 60),
    ],
)
def test_the_last_checkpoint_counts_where_no_transaction_is_open_else_the_one_before(
    ends: dict[int, int], written: dict[int, int], lsn: int
):
    assert complete(70, 60, ends, written) == lsn


def test_the_next_record_of_each_partition_that_is_not_read_to_its_end_sets_the_bound(spark: SparkSession):
    source = Partitions(
        {0: {4: at(50, 2), 6: at(60)}, 1: {3: at(40, 7), 5: at(70)}, 2: {8: at(5)}}, halves=(3,)
    )
    assert first_change(spark, source, "t", {0: 4, 1: 4}, {0: 7, 1: 6}) == (50, 2)
    # Both halves of a change of a key have one number, and the other one may have been read.
    assert first_change(spark, source, "t", {0: 4, 1: 3}, {0: 7, 1: 6}) == (40, 6)
    assert first_change(spark, source, "t", {0: 4}, {}) is None


def test_tombstones_markers_and_what_is_no_change_are_passed_over(spark: SparkSession):
    far = PEEK * 20
    source = Partitions({0: {0: None, 1: "{", far: at(90, None)}, 1: {7: None}})
    assert first_change(spark, source, "t", {0: 0, 1: 0}, {0: far + 1, 1: 9}) == (90, 0)
    assert cast("Any", source).reads == [{0: PEEK, 1: 9}, {0: far + 1}]
    assert first_change(spark, source, "t", {1: 0}, {1: 9}) is None


def checkpoint(lsn: str, end: str) -> str:
    return json.dumps({"commit_lsn": lsn, "end_lsn": end, "events_done": 0})


class Ends:
    def __init__(self, ends: dict[str, dict[int, int]]) -> None:
        self._ends = ends

    def ends(self, _topics: Any) -> dict[str, dict[int, int]]:
        return self._ends


def test_checkpoints_of_one_transaction_count_as_one(spark: SparkSession):
    records = {0: checkpoint("0/10", "0/20"), 2: checkpoint("0/30", "0/40"), 3: checkpoint("0/50", "0/60")}
    admin = cast("Any", Ends({"c": {0: 5}}))
    last, former = newest_checkpoints(spark, Partitions({0: records}), admin, "c")
    assert (last.end_lsn, former.end_lsn) == (0x5F, 0x1F)
    last, former = newest_checkpoints(spark, Partitions({0: {}}), admin, "c")
    assert (last.end_lsn, former.end_lsn) == (0, 0)
    with pytest.raises(SinkError, match=r"no topic shop\.checkpoint"):
        newest_checkpoints(spark, Partitions({}), cast("Any", Ends({})), "shop.checkpoint")


def test_tips_are_looked_up_once_and_a_topic_that_is_gone_is_named():
    looked: list[list[str]] = []
    there = {"a": Tip({0: 1}, 5), "c": Tip({0: 2}, 5), "late": Tip({0: 3}, 6)}

    def look(topics: Sequence[str]) -> dict[str, Tip]:
        looked.append(list(topics))
        return {topic: there[topic] for topic in topics if topic in there}

    found = Tips(look, ["a", "b", "c"])
    assert (found.of("a"), found.of("c"), found.of("a")) == (there["a"], there["c"], there["a"])
    assert looked == [["a", "b", "c"]]
    # One that nobody thought would be asked for is looked up by itself.
    assert found.of("late") == there["late"]
    with pytest.raises(SinkError, match="there is no topic b"):
        found.of("b")
    assert looked[1:] == [["late"], ["b"]]
