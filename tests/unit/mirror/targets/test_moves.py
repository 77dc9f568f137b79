"""Values that stay behind at an old key, in a real Spark."""

from typing import Any

from pyspark.sql import DataFrame, SparkSession

from cdcd.mirror.targets.moves import resolved
from cdcd.mirror.targets.reduction import prepared, reduced
from tests.spark.source_model import FORM, change, frame

PARTIAL = ["title"]


def moved(lsn: int, old: int, new: int, **more: Any) -> list[dict[str, Any]]:
    """Both halves of a change of a key, of which the title is not sent."""
    return [
        change("d", lsn, old, new_key=(new,)),
        change("c", lsn, new, title=None, unchanged=["title"], old_key=(old,), **more),
    ]


def table(spark: SparkSession, *rows: tuple[int, int, str | None, list[str] | None]) -> DataFrame:
    """As a target has it: key, commit LSN of the row, title, and what is unknown of it."""
    return spark.createDataFrame(
        [(key, title, lsn, 1, unknown) for key, lsn, title, unknown in rows],
        "id bigint, title string, _cdcd_commit_lsn bigint, _cdcd_event_no bigint, _cdcd_unknown array<string>",
    )


def titles(spark: SparkSession, target: DataFrame, *changes: dict[str, Any]) -> dict[int, tuple[Any, ...]]:
    given = prepared(frame(spark, list(changes)))
    rows = resolved(reduced(given, FORM, PARTIAL), given, FORM, PARTIAL, target).collect()
    return {
        row["id"]: (row["title"], row["_cdcd_keep"], row["_cdcd_lost"])
        for row in rows
        if row["_cdcd_op"] != "d"
    }


def test_a_value_is_followed_through_every_key_that_the_row_had(spark: SparkSession):
    changes = [change("c", 10, 1, title="mine"), *moved(20, 1, 2), *moved(30, 2, 3)]
    assert titles(spark, table(spark), *changes) == {3: ("mine", [], [])}


def test_what_the_batch_does_not_have_the_target_has_as_it_was_before_the_move(spark: SparkSession):
    target = table(spark, (1, 5, "there", None), (2, 25, "too late", None), (4, 5, None, ["title"]))
    changes = [*moved(20, 1, 11), *moved(20, 2, 12, event_no=2), *moved(21, 3, 13), *moved(22, 4, 14)]
    assert titles(spark, target, *changes) == {
        11: ("there", [], []),
        12: (None, [], ["title"]),
        13: (None, [], ["title"]),
        14: (None, [], ["title"]),
    }


def test_a_row_that_moved_has_nothing_of_one_that_was_deleted_at_its_key_before(spark: SparkSession):
    # The record that made the row that moves is in quarantine.
    changes = [change("u", 10, 1, title="of a former row"), change("d", 15, 1), *moved(20, 1, 2)]
    target = table(spark, (1, 5, "of a former row", None))
    assert titles(spark, target, *changes) == {2: (None, [], ["title"])}
    assert titles(spark, target, change("d", 15, 1), *moved(20, 1, 2)) == {2: (None, [], ["title"])}


def test_a_value_that_came_later_than_the_move_needs_no_looking_for(spark: SparkSession):
    changes = [*moved(20, 1, 2), change("u", 30, 2, title="sent")]
    assert titles(spark, table(spark), *changes) == {2: ("sent", [], [])}


def test_a_marked_row_at_the_old_key_is_not_the_row_that_moved(spark: SparkSession):
    there = table(spark, (1, 5, "live", None), (2, 5, "deleted", None))
    target = there.withColumn("_cdcd_deleted", there["id"] == 2)
    changes = [*moved(20, 1, 11), *moved(20, 2, 12, event_no=2)]
    assert titles(spark, target, *changes) == {11: ("live", [], []), 12: (None, [], ["title"])}
