import json
from collections.abc import Mapping
from typing import Any, cast

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from cdcd.core.errors import PositionError, SinkError
from cdcd.mirror.base.checkpoints import Covered, complete, covered, newest_checkpoints
from cdcd.mirror.kafka import KafkaSource, Offsets


def checkpoint(**fields: object) -> bytes:
    return json.dumps({"commit_lsn": "0/2A", "end_lsn": "0/50", "events_done": 0, **fields}).encode()


def test_a_checkpoint_in_the_middle_of_a_transaction_covers_what_committed_before_it():
    assert covered(checkpoint(), "t@1") == Covered(42, 79)
    assert covered(checkpoint(end_lsn="0/2A", events_done=7), "t@1") == Covered(41, 41)


@pytest.mark.parametrize("value", [b"", b"{}", b"[]", checkpoint(commit_lsn="x")])
def test_what_is_no_checkpoint_is_refused(value: bytes):
    with pytest.raises(PositionError, match=r"shop\.checkpoint@9"):
        covered(value, "shop.checkpoint@9")


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


class Partitions(KafkaSource):
    """Records by partition and offset."""

    def __init__(self, records: Mapping[int, Mapping[int, str]]) -> None:
        super().__init__("nobody:1")
        object.__setattr__(self, "records", records)

    def read(self, spark: SparkSession, topic: str, start: Offsets, end: Offsets) -> DataFrame:
        found = [
            (partition, offset, value)
            for partition, values in cast("Any", self).records.items()
            for offset, value in values.items()
            if partition in end and start.get(partition, 0) <= offset < end[partition]
        ]
        rows = spark.createDataFrame(found, "partition int, offset bigint, text string")
        return rows.select("partition", "offset", sf.encode("text", "UTF-8").alias("value"))


def written(lsn: str, end: str) -> str:
    return json.dumps({"commit_lsn": lsn, "end_lsn": end, "events_done": 0})


class Ends:
    def __init__(self, ends: dict[str, dict[int, int]]) -> None:
        self._ends = ends

    def ends(self, _topics: Any) -> dict[str, dict[int, int]]:
        return self._ends


def test_checkpoints_of_one_transaction_count_as_one(spark: SparkSession):
    records = {0: written("0/10", "0/20"), 2: written("0/30", "0/40"), 3: written("0/50", "0/60")}
    admin = cast("Any", Ends({"c": {0: 5}}))
    last, former = newest_checkpoints(spark, Partitions({0: records}), admin, "c")
    assert (last.end_lsn, former.end_lsn) == (0x5F, 0x1F)
    last, former = newest_checkpoints(spark, Partitions({0: {}}), admin, "c")
    assert (last.end_lsn, former.end_lsn) == (0, 0)
    with pytest.raises(SinkError, match=r"no topic shop\.checkpoint"):
        newest_checkpoints(spark, Partitions({}), cast("Any", Ends({})), "shop.checkpoint")
