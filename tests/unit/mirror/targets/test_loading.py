from dataclasses import replace
from datetime import UTC, datetime

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import IntegerType, LongType, StringType

from cdcd.core.errors import PositionError
from cdcd.mirror.records.schema import ColumnSchema, TableSchema
from cdcd.mirror.targets.applying import Asked
from cdcd.mirror.targets.changelog import Found
from cdcd.mirror.targets.layout import DELETED
from cdcd.mirror.targets.loading import in_form, loaded
from cdcd.mirror.targets.merge import UNKNOWN
from cdcd.mirror.targets.state import Origin, Place, State

A = ColumnSchema("a", 1, "integer", 23, -1, IntegerType())
B = ColumnSchema("b", 2, "integer", 23, -1, IntegerType())
C = ColumnSchema("c", 3, "text", 25, -1, StringType())
OLD = TableSchema("s.p.t", "p", "t", "1", ("a",), (A, B, C), oid=7)
COMMITTED = datetime(2026, 1, 1, tzinfo=UTC)
NEW = Found({}, rows=1, unfit=0, commit_time=COMMITTED, first_lsn=None, held={}, waiting=2)


def test_what_the_snapshot_sees_is_not_new_any_more_wherever_it_lies():
    state = loaded("t", State(), 500, {0: 10, 1: 0})
    assert state.commit_lsn == 500
    assert state.consistent_lsn == 500
    assert state.truncated == (500, 0)
    # Where the topic has something, reading goes on behind it; elsewhere it begins at the beginning.
    assert state.partitions == {0: Place(500, 1, 1, 9)}
    assert State.from_json(state.to_json()) == state


def test_a_table_that_is_loaded_once_more_keeps_how_far_its_topic_was_read():
    before = State(
        commit_lsn=400, partitions={0: Place(400, 3, 1, 70), 1: Place(90, 1, 1, 5)}, truncated=(50, 2)
    )
    state = loaded("t", before, 500, {0: 20})
    assert state.partitions == {0: Place(500, 1, 1, 70), 1: Place(90, 1, 1, 5)}
    assert state.truncated == (500, 0)


def test_a_table_with_later_changes_is_not_taken_back():
    with pytest.raises(PositionError, match="after the snapshot's"):
        loaded("t", State(commit_lsn=501), 500, {})


def test_a_cut_before_the_snapshot_is_no_point_of_the_table():
    state = loaded("t", State(), 500, {})
    before = Asked(batch_id=1, consistent_lsn=499).after(state, {0: Place(510, 1, 1, 3)}, None, NEW)
    assert before.consistent_lsn == 500
    after = Asked(batch_id=2, consistent_lsn=520).after(before, {0: Place(515, 1, 1, 4)}, None, NEW)
    assert after.consistent_lsn == 520
    # When its newest change was committed is known by then; a snapshot has no such time.
    assert (state.commit_time, before.commit_time, before.held) == (None, COMMITTED, 2)
    assert loaded("t", before, 600, {}).commit_time is None


def test_places_in_a_former_topic_are_forgotten_with_it():
    before = State(commit_lsn=400, partitions={0: Place(400, 1, 1, 90)}, origin=Origin("a", {0: 0}))
    state = loaded("t", before, 500, {0: 20}, Origin("b"))
    assert state.origin == Origin("b")
    assert state.partitions[0].offset == 19


def test_rows_that_stay_under_another_form_have_what_fits_it_and_name_what_does_not(spark: SparkSession):
    former = spark.createDataFrame(
        [(1, 2, "x", 10, 1, None, True), (3, 4, None, 20, 2, ["c"], False)],
        f"a int, b int, c string, _cdcd_commit_lsn bigint, _cdcd_event_no bigint, {UNKNOWN} array<string>,"
        f" {DELETED} boolean",
    )
    wide = replace(A, name="id", spark=LongType(), type="bigint")
    new = replace(
        OLD,
        schema_id="2",
        key=("id",),
        columns=(
            wide,
            replace(B, spark=StringType(), type="text"),
            replace(C, name="note"),
            replace(C, name="d", id=4),
        ),
    )
    rows = in_form(former, OLD, new)
    assert rows is not None
    assert rows.schema["id"].dataType == LongType()
    assert sorted(map(tuple, rows.collect())) == [
        (1, None, "x", None, 10, 1, ["b"], True),
        (3, None, None, None, 20, 2, ["note", "b"], False),
    ]


def test_rows_that_stay_have_no_value_of_columns_that_changed_places(spark: SparkSession):
    former = spark.createDataFrame(
        [(1, 2, "x", 10, 1, None, True)],
        f"a int, b int, c string, _cdcd_commit_lsn bigint, _cdcd_event_no bigint, {UNKNOWN} array<string>,"
        f" {DELETED} boolean",
    )
    old = replace(OLD, columns=(A, replace(B, id=None), replace(C, id=None)))
    rows = in_form(former, old, replace(OLD, schema_id="2", columns=(A, C, replace(B, id=5))))
    assert rows is not None
    assert [tuple(row) for row in rows.collect()] == [(1, None, None, 10, 1, ["c", "b"], True)]


@pytest.mark.parametrize(
    "other", [replace(OLD, key=("a", "b")), replace(OLD, key=("b",)), replace(OLD, oid=8)]
)
def test_rows_of_another_key_or_relation_do_not_stay(spark: SparkSession, other: TableSchema):
    assert in_form(spark.createDataFrame([], "a int"), OLD, other) is None
