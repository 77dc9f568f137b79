from typing import Any, cast

import pytest
from pyspark.sql import DataFrame, SparkSession

from cdcd.errors import PositionError
from cdcd.spark.schema import TableSchema
from cdcd.spark.table import TableMirror, _slice, is_due
from cdcd.spark.targets.reduction import UNFIT
from cdcd.spark.targets.state import State
from cdcd.spark.targets.target import Applied, Kind, UnfitError
from tests.spark.topic_model import NEW, TOPIC, Described, Topic, record


def test_a_batch_that_is_small_enough_is_taken_whole():
    assert _slice({0: 5}, {0: 10, 1: 3}, 8) == {0: 10, 1: 3}


def test_a_larger_one_goes_on_in_every_partition_in_proportion():
    assert _slice({0: 0, 1: 100}, {0: 900, 1: 200}, 100) == {0: 90, 1: 110}


def test_slices_come_to_the_end():
    ends = {0: 1000, 1: 7, 2: 0}
    start: dict[int, int] = {}
    turns = 0
    while any(start.get(partition, 0) < end for partition, end in ends.items()):
        start = _slice(start, ends, 100)
        turns += 1
    assert start == ends
    assert turns <= 12


def test_an_idle_table_is_maintained_after_its_last_change_and_when_that_is_old_enough_and_then_left_alone():
    assert is_due(100, None, 101, 1000)
    assert is_due(100, 50, 101, 1000)
    assert not is_due(100, 101, 1099, 1000)
    assert is_due(100, 101, 1100, 1000)
    assert not is_due(100, 1100, 9999, 1000)


class FakeTarget:
    """Takes down what it is given, and refuses what is unfit, as every target does."""

    def __init__(self, has: TableSchema | None) -> None:
        self.has = has
        self.applied: list[tuple[bool, list[int]]] = []
        self.quarantined: list[int] = []

    def name_of(self, schema: TableSchema, kind: Kind) -> str:
        return schema.name

    def own_name(self, name: str) -> str:
        return name

    def schema(self, _spark: Any, _name: str) -> TableSchema | None:
        return self.has

    def reached(self, _spark: Any, _name: str) -> State:
        return State()

    def prepare(self, _spark: Any, _name: str, schema: TableSchema, *_: Any) -> TableSchema:
        self.has = schema
        return schema

    def apply(self, _name: str, changes: DataFrame, *, new: Any = None, **_: Any) -> Applied:
        at_once = UNFIT in changes.columns
        if at_once and not changes.filter(UNFIT).isEmpty():
            raise UnfitError
        self.has = self.has or new[0]
        ids = sorted(row["key"]["id"] for row in changes.collect())
        self.applied.append((at_once, ids))
        return Applied(len(ids), len(ids), State(commit_lsn=99))

    def append(self, _name: str, rows: DataFrame, _unique: Any) -> int:
        self.quarantined += sorted(row["offset"] for row in rows.collect())
        return len(self.quarantined)


class FakeAdmin:
    def __init__(self) -> None:
        self.topic_id = "first"

    def topic_ids(self, topics: Any) -> dict[str, str]:
        return dict.fromkeys(topics, self.topic_id)

    def beginnings(self, _topics: Any) -> dict[str, dict[int, int]]:
        return {TOPIC: {0: 0}}


def test_a_batch_goes_in_at_once_where_all_of_it_fits(spark: SparkSession):
    def mirror(target: FakeTarget, *values: str) -> TableMirror:
        fakes = cast("Any", {"admin": FakeAdmin(), "target": target, "descriptions": Described()})
        return TableMirror(spark, Topic(*values), TOPIC, **fakes)

    two = [record("new", lsn, {"id": lsn, "note": "x"}) for lsn in (1, 2)]
    # Also the first one, for a table that is not there yet.
    fresh = FakeTarget(None)
    table = mirror(fresh, *two, *two)
    assert table.advance({0: 2}, 1).changes == 2
    step = table.advance({0: 4}, 2)
    assert (step.records, step.changes, step.quarantined, step.commit_lsn) == (2, 2, 0, 99)
    assert fresh.applied == [(True, [1, 2]), (True, [1, 2])]
    assert fresh.has == NEW.schema
    # An older form, and what is no change: refused as a whole, and sorted out then.
    mixed = FakeTarget(NEW.schema)
    step = mirror(mixed, *two, record("old", 3, {"id": 3}), "{").advance({0: 4}, 1)
    assert (step.records, step.changes, step.quarantined) == (4, 3, 1)
    assert mixed.applied == [(False, [1, 2, 3])]
    assert mixed.quarantined == [3]


def test_a_topic_that_is_made_anew_while_the_mirror_runs_is_noticed_before_it_is_read(spark: SparkSession):
    admin, target = FakeAdmin(), FakeTarget(None)
    records = [record("new", lsn, {"id": lsn, "note": "x"}) for lsn in (1, 2)]
    fakes = cast("Any", {"admin": admin, "target": target, "descriptions": Described()})
    table = TableMirror(spark, Topic(*records), TOPIC, **fakes)
    table.advance({0: 1}, 1)
    admin.topic_id = "second"
    with pytest.raises(PositionError, match="deleted and made anew"):
        table.advance({0: 2}, 2)
    assert target.applied == [(True, [1])]
