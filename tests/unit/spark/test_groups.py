"""What a parsed batch consists of, in a real Spark."""

from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from cdcd.spark.changes import PROBLEM
from cdcd.spark.groups import grouped, reason, up_to
from tests.spark.source_model import change, frame


def parsed(spark: SparkSession, *changes: dict[str, Any], problem: str | None = None) -> DataFrame:
    return frame(spark, list(changes)).withColumn(PROBLEM, sf.lit(problem).cast("string"))


def test_a_batch_is_told_apart_by_form_soundness_and_side_of_the_cut(spark: SparkSession):
    sound = parsed(
        spark,
        change("c", 10, 1, schema_id="old"),
        change("u", 20, 1, schema_id="new"),
        change("r", 20, 2, schema_id="new", event_no=None),
        change("u", 31, 1, schema_id="new", offset=8),
        change("u", 30, 2, schema_id="new", offset=9),
    )
    poison = parsed(spark, {"partition": 0, "offset": 5}, problem="no JSON")
    found = grouped(sound.unionByName(poison), 20)
    assert {
        (group.schema_id, group.sound, group.held, group.count, group.last, tuple(group.first_held.items()))
        for group in found
    } == {
        ("old", True, False, 1, (10, 1), ()),
        ("new", True, False, 2, (20, 1), ()),
        ("new", True, True, 2, (31, 1), ((0, 8),)),
        (None, False, False, 1, (0, 0), ()),
    }
    assert not any(group.held for group in grouped(sound, None))


def test_a_cut_lets_through_what_committed_at_or_before_it(spark: SparkSession):
    changes = parsed(spark, *[change("c", lsn, lsn) for lsn in (10, 20, 30)])
    assert [row.commit_lsn for row in up_to(changes, 20).orderBy("commit_lsn").collect()] == [10, 20]
    assert up_to(changes, None).count() == 3


def test_a_record_of_a_form_that_nobody_described_is_poison_for_that(spark: SparkSession):
    rows = spark.createDataFrame([("f", None), (None, "no JSON"), (None, None)], "id string, problem string")
    said = [row[0] for row in rows.select(reason(sf.col("id"), sf.col("problem"))).collect()]
    assert said[0] == "no description is known of its source.schema_id f"
    assert said[1] == "no JSON"
    assert said[2].startswith("it has no source.schema_id")
