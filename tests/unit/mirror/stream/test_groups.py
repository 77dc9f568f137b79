"""What a parsed batch consists of, in a real Spark."""

from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from cdcd.mirror.records.changes import PROBLEM
from cdcd.mirror.stream.groups import grouped, reason, up_to
from cdcd.mirror.targets.state import WHOLE, At, Place, State
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
    found = grouped(sound.unionByName(poison), (20, WHOLE))
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


def test_a_bound_lets_through_what_does_not_lie_after_it(spark: SparkSession):
    changes = parsed(spark, *[change("c", lsn, lsn) for lsn in (10, 20, 30)], change("c", 30, 31, event_no=2))

    def through(bound: At | None) -> list[int]:
        return [row["key"]["id"] for row in up_to(changes, bound).orderBy("key").collect()]

    assert through((20, WHOLE)) == [10, 20]
    assert through((30, 1)) == [10, 20, 30]
    assert through(None) == [10, 20, 30, 31]


def test_a_record_without_a_form_is_poison_for_that_or_for_what_is_wrong_with_it(spark: SparkSession):
    rows = spark.createDataFrame([("no JSON",), (None,)], "problem string")
    said = [row[0] for row in rows.select(reason(sf.col("problem"))).collect()]
    assert said[0] == "no JSON"
    assert "topics.schemas off" in said[1]


def test_what_each_target_has_is_told_apart_whatever_its_form(spark: SparkSession):
    changes = parsed(
        spark,
        change("c", 10, 1, schema_id="old"),
        change("t", 20, 1, schema_id="old", partition=1),
        change("c", 30, 1, schema_id="new"),
    ).unionByName(parsed(spark, {"partition": 0, "offset": 5}, problem="no JSON"))
    loaded, behind = State(truncated=(25, 0)), State(partitions={0: Place(10, 1, 1, 99)})
    found = {
        (group.schema_id, group.last[0]): group.new for group in grouped(changes, None, [loaded, behind])
    }
    assert found == {
        ("old", 10): (False, False),
        ("old", 20): (False, True),
        ("new", 30): (True, True),
        (None, 0): (True, True),
    }
