"""Changes to one row for each key, in a real Spark."""

from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sf

from cdcd.mirror.targets.reduction import UNFIT, fresh, prepared, reduced, rounded, summary
from cdcd.mirror.targets.state import Place, State
from tests.spark.source_model import FORM, change, frame


def given(spark: SparkSession, *changes: dict[str, Any]) -> DataFrame:
    return prepared(frame(spark, list(changes)))


def rows(spark: SparkSession, *changes: dict[str, Any], partial: tuple[str, ...] = ()) -> list[Row]:
    found: list[Row] = reduced(given(spark, *changes), FORM, partial).orderBy("id").collect()
    return found


def test_the_later_change_wins_by_commit_lsn_and_number_whenever_it_arrived(spark: SparkSession):
    found = rows(
        spark,
        change("u", 30, 1, n=9, offset=1, event_no=10),
        change("u", 30, 1, n=2, offset=99, event_no=9),
        change("c", 10, 1, n=1, offset=100),
        change("d", 20, 2),
        change("c", 10, 2, offset=7),
    )
    assert [(row["_cdcd_op"], row["id"], row["n"], row["_cdcd_changes"]) for row in found] == [
        ("u", 1, 9, 3),
        ("d", 2, None, 2),
    ]


def test_truncates_are_one_row_without_a_key(spark: SparkSession):
    found = rows(spark, change("t", 10, None), change("t", 20, None), change("c", 15, 1))
    assert [(row["_cdcd_op"], row["id"], row["_cdcd_commit_lsn"]) for row in found] == [
        ("t", None, 20),
        ("c", 1, 15),
    ]


def test_a_value_that_was_not_sent_is_the_last_one_that_was_or_is_kept(spark: SparkSession):
    changes = (
        change("c", 10, 1, title="old"),
        change("u", 20, 1, title=None, body="new", unchanged=["title"]),
        change("u", 20, 2, title=None, unchanged=["title"]),
        # A row that is deleted and made again has nothing of what it had.
        change("d", 15, 3),
        change("c", 20, 3, title=None),
    )
    found = rows(spark, *changes, partial=("title",))
    assert [(row["title"], row["_cdcd_keep"]) for row in found] == [
        ("old", []),
        (None, ["title"]),
        (None, []),
    ]


def test_no_value_is_carried_across_a_delete_though_the_insert_after_it_is_in_quarantine(spark: SparkSession):
    left: dict[str, Any] = {"title": None, "unchanged": ["title"]}
    changes = (
        # The insert between the delete and the update is not there: in the batch, the value before is another row's.
        change("u", 10, 1, title="of a former row"),
        change("d", 20, 1),
        change("u", 40, 1, **left),
        # Nor has the target's row the value.
        change("d", 20, 2),
        change("u", 40, 2, **left),
        # The insert is there.
        change("d", 20, 3),
        change("c", 30, 3, title="new"),
        change("u", 40, 3, **left),
        # The row came by a move, which `moves` follows; the move of a former row is none of it.
        change("d", 20, 4),
        change("c", 30, 4, old_key=(9,), **left),
        change("c", 10, 5, old_key=(9,), **left),
        change("d", 20, 5),
        change("u", 40, 5, **left),
    )
    found = rows(spark, *changes, partial=("title",))
    assert [
        (row["title"], row["_cdcd_keep"], row["_cdcd_lost"], row["_cdcd_moved"] is not None) for row in found
    ] == [
        (None, [], ["title"], False),
        (None, [], ["title"], False),
        ("new", [], [], False),
        (None, ["title"], [], True),
        (None, [], ["title"], False),
    ]


def test_a_deleted_row_that_is_marked_has_the_values_from_before_its_delete(spark: SparkSession):
    changes = given(
        spark,
        change("c", 10, 1, title="had"),
        change("u", 20, 1, n=2, title=None, unchanged=["title"]),
        change("d", 30, 1),
    )
    (row,) = reduced(changes, FORM, ("title",), marks=True).collect()
    assert (row["_cdcd_op"], row["n"], row["title"], row["_cdcd_lost"]) == ("m", 2, "had", [])


def test_what_the_table_has_is_left_out_partition_by_partition(spark: SparkSession):
    state = State(partitions={0: Place(20, 5, 0, 100)}, truncated=(12, 1))
    changes = given(
        spark,
        change("u", 19, 1),
        change("u", 20, 2, event_no=4),
        change("d", 20, 3, event_no=5),
        change("c", 20, 4, event_no=5),
        change("u", 21, 5),
        # Rows that were read have their offsets for that.
        change("r", 5, 6, offset=100, event_no=None),
        change("r", 50, 7, offset=101, event_no=None),
        # Another partition has nothing yet, but a truncate was after the one change.
        change("u", 11, 8, partition=1),
        change("u", 13, 9, partition=1),
    )
    assert [row["key"]["id"] for row in fresh(changes, state).orderBy("key").collect()] == [4, 5, 7, 9]


def test_a_summary_has_in_a_few_numbers_what_a_target_asks_for(spark: SparkSession):
    changes = given(
        spark,
        change("c", 10, 5),
        change("u", 20, 5, unchanged=["body"], body=None),
        change("d", 30, 7, partition=1, offset=3),
        change("t", 15, None, partition=1, offset=1),
        change("d", 40, -2, new_key=(9,), offset=8),
    )
    found = summary(reduced(changes, FORM, ()), FORM)
    assert (found.changes, found.keys, found.truncated, found.key_range) == (5, 3, (15, 1), (-2, 7))
    assert (found.partial, found.moves) == (frozenset({"body"}), False)
    assert found.unfit == 0


def test_changes_that_are_unfit_are_counted_whatever_they_lack(spark: SparkSession):
    nothing = dict.fromkeys(change("u", 10, 1)) | {"partition": 0, "offset": 7}
    changes = frame(spark, [change("u", 10, 1), nothing]).withColumn(UNFIT, sf.col("op").isNull())
    kept = fresh(prepared(changes), State(partitions={0: Place(10, 1, 1, 100)}))
    found = summary(reduced(kept, FORM, ()), FORM)
    assert (found.changes, found.unfit) == (1, 1)


@pytest.mark.parametrize(
    ("least", "greatest", "around"),
    [
        (0, 0, (0, 0)),
        (-2, 7, (-2, 7)),
        (1, 1000, (0, 1024)),
        (1, 1020, (0, 1024)),
        (1001, 1030, (768, 1280)),
        (-1000, -999, (-1024, -896)),
        (5, 2**63 - 1, (0, 2**63 - 1)),
        (-(2**63), 0, (-(2**63), 0)),
    ],
)
def test_a_range_of_keys_is_rounded_outward_and_stays_in_the_type(
    least: int, greatest: int, around: tuple[int, int]
):
    assert rounded(least, greatest) == around


def test_a_key_that_was_deleted_has_the_values_from_before_if_they_are_wanted(spark: SparkSession):
    changes = [
        change("c", 10, 1, n=1, title="first"),
        change("u", 11, 1, n=2, title=None, unchanged=["title"]),
        change("d", 12, 1),
        change("d", 13, 2),
        change("u", 14, 3, title=None, unchanged=["title"]),
        change("d", 15, 3),
        change("d", 16, 4),
        change("c", 17, 4, n=4),
    ]
    rows = reduced(given(spark, *changes), FORM, ("title",), marks=True).orderBy("id").collect()
    found = [
        (row["_cdcd_op"], row["_cdcd_commit_lsn"], row["n"], row["title"], row["_cdcd_keep"]) for row in rows
    ]
    assert found == [
        ("m", 12, 2, "first", []),
        ("d", 13, None, None, []),
        ("m", 15, 0, None, ["title"]),
        ("c", 17, 4, "title 4", []),
    ]
    assert summary(reduced(given(spark, *changes), FORM, (), marks=True), FORM).partial == {"title"}
