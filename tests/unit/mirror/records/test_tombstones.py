"""Deletes of which compaction has left the tombstone only, in a real Spark."""

import json
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from cdcd.mirror.records.changes import parse
from cdcd.mirror.records.tombstones import bare_tombstones
from tests.spark.topic_model import NEW, TOPIC


def value(op: str, lsn: int, event: int, key: int) -> str:
    source = {"commit_lsn": lsn, "event_serial_no": event, "schema_id": "new"}
    row = {"id": key, "note": "x"}
    return json.dumps({"op": op, "before": row if op == "d" else None, "after": row, "source": source})


def records(spark: SparkSession, *given: tuple[int, int, int, str | None]) -> DataFrame:
    """Partition, offset, key, value."""
    rows = spark.createDataFrame(list(given), "partition int, offset bigint, id int, text string")
    return rows.select(
        sf.encode(sf.concat(sf.lit('{"id":'), sf.col("id"), sf.lit("}")), "UTF-8").alias("key"),
        sf.encode("text", "UTF-8").alias("value"),
        sf.lit(TOPIC).alias("topic"),
        "partition",
        "offset",
        sf.current_timestamp().alias("timestamp"),
        sf.lit(None).cast("array<struct<key:string,value:binary>>").alias("headers"),
    )


def deletes(given: DataFrame, start: dict[int, int], had: Any = ()) -> list[tuple[int, int, int, int]]:
    """Partition and key, and where each delete lies."""
    found = bare_tombstones(given, start, NEW.schema, NEW.rules, dict(had), keep=True)
    assert {row["op"] for row in found.collect()} <= {"d"}
    rows = found.select("partition", "key.id", "commit_lsn", "event_no").collect()
    return sorted((row[0], row[1], row[2], row[3]) for row in rows)


def test_a_tombstone_behind_its_delete_says_nothing_new(spark: SparkSession):
    given = records(
        spark,
        (0, 8, 1, value("d", 10, 1, 1)),
        (0, 9, 1, None),
        (0, 10, 2, value("d", 20, 1, 2)),
        (0, 11, 2, None),
        (0, 12, 2, value("c", 20, 2, 2)),
    )
    # Also where the delete was in the batch before.
    assert deletes(given, {0: 9}) == []
    assert deletes(given, {0: 11}, {0: (20, 1)}) == []


def test_one_without_its_delete_lies_between_the_records_around_it(spark: SparkSession):
    given = records(
        spark,
        (0, 5, 7, value("c", 10, 1, 7)),
        (0, 9, 1, None),
        (0, 12, 8, value("c", 30, 4, 8)),
        (1, 3, 2, None),
        (1, 6, 9, value("c", 40, 1, 9)),
        (2, 4, 7, value("u", 50, 2, 7)),
        (2, 8, 3, None),
        (3, 8, 4, None),
        (4, 8, 5, None),
    )
    assert deletes(given, dict.fromkeys(range(5), 0), {2: (45, 1), 3: (60, 3)}) == [
        (0, 1, 30, 3),
        (1, 2, 40, 0),
        (2, 3, 50, 3),
        (3, 4, 60, 4),
        (4, 5, 0, 1),
    ]


def test_it_never_lies_before_what_the_table_has(spark: SparkSession):
    # Other partitions were read further, and the position of the table is theirs.
    given = records(spark, (0, 5, 7, value("c", 10, 1, 7)), (0, 9, 1, None))
    assert deletes(given, {0: 6}, {0: (70, 2)}) == [(0, 1, 70, 3)]


def test_it_has_the_columns_of_a_change(spark: SparkSession):
    given = records(spark, (0, 9, 1, None))
    for keep in (False, True):
        changes = parse(given, NEW.schema, NEW.rules, keep=keep)
        found = bare_tombstones(given, {}, NEW.schema, NEW.rules, {}, keep=keep)
        assert {part.name: part.dataType for part in found.schema} == {
            part.name: part.dataType for part in changes.schema
        }
        (row,) = changes.unionByName(found).collect()
        assert (row["schema_id"], row["problem"], row["before"]["id"]) == ("new", None, 1)


def test_a_key_of_another_form_is_left_out(spark: SparkSession):
    given = records(spark, (0, 9, 1, None)).withColumn("key", sf.encode(sf.lit('{"pk":1}'), "UTF-8"))
    assert deletes(given, {}) == []
