from collections.abc import Mapping
from typing import Any, cast

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from cdcd.core.errors import PositionError
from cdcd.mirror.platform.kafka_admin import TopicFacts
from cdcd.mirror.records.schema import TableSchema
from cdcd.mirror.stream.frontier import Tip
from cdcd.mirror.stream.slices import Slice
from cdcd.mirror.stream.table import TableMirror, is_due
from cdcd.mirror.targets.layout import PLAIN, Layout
from cdcd.mirror.targets.reduction import UNFIT
from cdcd.mirror.targets.state import WHOLE, Reach, State
from cdcd.mirror.targets.target import Applied, Kind, Maintained, Maintenance, UnfitError
from cdcd.mirror.watching.progress import Progress
from tests.spark.topic_model import NEW, TOPIC, Described, Topic, record


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

    def check_newest(self, _spark: Any, _name: str) -> None:
        """Nobody rolls it back."""

    def schema(self, _spark: Any, _name: str) -> TableSchema | None:
        return self.has

    def layout(self, _spark: Any, _name: str) -> Layout | None:
        return PLAIN

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

    def id_of(self, _topic: str) -> str:
        return self.topic_id

    def facts(self, _topic: str) -> TopicFacts:
        return TopicFacts(self.topic_id, {0: 0})


def fakes(admin: FakeAdmin, target: Any) -> Any:
    """What a table is made of beside its topic."""
    return {
        "admin": admin,
        "facts": admin.facts,
        "topic_id": admin.id_of,
        "target": target,
        "descriptions": Described(),
    }


def test_a_batch_goes_in_at_once_where_all_of_it_fits(spark: SparkSession):
    def mirror(target: FakeTarget, *values: str) -> TableMirror:
        return TableMirror(spark, Topic(*values), TOPIC, **fakes(FakeAdmin(), target))

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
    table = TableMirror(spark, Topic(*records), TOPIC, **fakes(admin, target))
    table.advance({0: 1}, 1)
    admin.topic_id = "second"
    with pytest.raises(PositionError, match="deleted and made again"):
        table.advance({0: 2}, 2)
    assert target.applied == [(True, [1])]


class Wide(FakeAdmin):
    """A topic with two partitions."""

    def facts(self, _topic: str) -> TopicFacts:
        return TopicFacts(self.topic_id, {0: 0, 1: 0})


def reaches(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, *held: Mapping[int, int], tip: Tip, **more: Any
) -> list[Reach]:
    """Which parts of a topic with two partitions a table takes, of which the target holds so much back each time."""
    taken: list[Reach] = []
    target = FakeTarget(NEW.schema)
    admin = Wide()
    table = TableMirror(spark, Topic(), TOPIC, **fakes(admin, target), slice_max=10)

    def step(part: Slice) -> Progress:
        back, reach = held[len(taken)] if len(taken) < len(held) else {}, part.reach
        assert part.cut == (reach.bound[0] if "cut" in more and reach.bound is not None else None)
        taken.append(reach)
        table._next = {**reach.until, **back}
        return Progress("public.item", held=len(back))

    monkeypatch.setattr(table, "_step", step)
    monkeypatch.setattr("cdcd.mirror.stream.table.first_change", lambda *_: more.get("first"))
    table.advance(more.get("ends", {0: 4, 1: 4}), 1, more.get("cut"), lambda: tip)
    return taken


def test_a_table_that_is_nearly_there_goes_on_to_where_its_topic_ends_by_now(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
):
    tip = Tip({0: 4, 1: 6}, 99)
    assert reaches(spark, monkeypatch, tip=tip) == [Reach({0: 4, 1: 6}, (99, WHOLE))]
    # What is held there waits for a later checkpoint.
    assert len(reaches(spark, monkeypatch, {1: 2}, tip=tip)) == 1


def test_a_table_that_is_far_behind_goes_as_far_as_the_next_record_of_each_partition_allows(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
):
    ends = {0: 40, 1: 0}
    taken = reaches(spark, monkeypatch, tip=Tip(ends, 99), first=(50, 3), ends=ends)
    assert [(reach.until[0], reach.bound) for reach in taken] == [
        (10, (50, 3)), (20, (50, 3)), (30, (50, 3)), (40, (99, WHOLE)),
    ]  # fmt: skip


def test_a_transaction_that_is_larger_than_a_slice_is_taken_in_a_larger_one(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
):
    ends = {0: 40, 1: 0}
    nothing = {0: 0}
    taken = reaches(spark, monkeypatch, nothing, nothing, tip=Tip(ends, 99), first=(50, 3), ends=ends)
    assert [reach.until[0] for reach in taken] == [10, 20, 40]


def test_a_consistent_mirror_that_is_far_behind_has_each_slice_as_of_an_lsn(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
):
    ends = {0: 40, 1: 0}
    taken = reaches(spark, monkeypatch, tip=Tip(ends, 0), first=(50, 3), ends=ends, cut=99)
    assert [(reach.until[0], reach.bound) for reach in taken] == [
        (10, (49, WHOLE)), (20, (49, WHOLE)), (30, (49, WHOLE)), (40, (99, WHOLE)),
    ]  # fmt: skip
    # What commits later than the common LSN waits.
    assert len(reaches(spark, monkeypatch, {0: 35}, tip=Tip(ends, 0), ends={0: 4, 1: 0}, cut=99)) == 1


def test_a_table_whose_maintenance_failed_is_still_due():
    done = Maintained(0, 0, 0)
    answers: list[Maintained | Exception] = [AnalysisException("conflict"), done]

    class Target(FakeTarget):
        def maintain(self, _spark: Any, _name: str, _policy: Maintenance, _pinned: Any) -> Maintained:
            answer = answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

    admin = FakeAdmin()
    given = {
        "facts": admin.facts,
        "topic_id": admin.id_of,
        "target": Target(NEW.schema),
        "descriptions": Described(),
    }
    made = cast("Any", {"admin": admin, **given})
    table = TableMirror(cast("Any", None), Topic(), TOPIC, **made)
    table._start()
    with pytest.raises(AnalysisException):
        list(table.maintain(Maintenance()))
    assert [each for _, each in table.maintain(Maintenance())] == [done]
    assert list(table.maintain(Maintenance())) == []
