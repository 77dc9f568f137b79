"""Differences between topics and tables become records, in one attempt for all tables."""

import json
from dataclasses import replace
from typing import Any

import pytest

from cdcd.build import is_compiled
from cdcd.core.catalog.oids import Oids
from cdcd.core.catalog.relations import TableDescription
from cdcd.core.engine.actions import Busy, Compare, Compared, Differences, NextDifferences, NotComparable
from cdcd.core.engine.checkpoint import AsideTable
from cdcd.core.engine.fates import TOPIC, Fates
from cdcd.core.engine.healing import NOT_READ, OTHER_ROWS, Healing
from cdcd.core.engine.rendering import SnapshotRows
from cdcd.core.engine.snapshot_tasks import SnapshotTasks
from cdcd.core.engine.topics import Topics
from cdcd.core.facts import Fact
from cdcd.core.facts.tables import GapHealed, TableHealed, TableNotHealed
from cdcd.core.records.available import record_stream
from cdcd.core.records.encoder import EncoderSettings
from cdcd.core.records.gaps import Gap
from cdcd.core.snapshot.progress import Progress
from cdcd.core.snapshot.reading import SourceTable
from tests.unit.core.engine.tables import relation
from tests.unit.core.engine.test_queue import make

KEYED = TableDescription(primary_key=("id",))


class World:
    tasks: SnapshotTasks

    def __init__(self, *oids: int, aside: Any = (), tombstones: bool = True) -> None:
        self.facts: list[Fact] = []
        self.queue = make(progress=lambda: self.tasks.progress)
        self.tables = {oid: SourceTable(relation(oid, f"t{oid}"), "", ()) for oid in oids}
        progress = Progress(healing=Oids(oids), gap=50, waiting=Oids(oids), outdated=Oids(oids), event_no=10)
        self.tasks = SnapshotTasks(progress, names={}, observe=self.facts.append, changed=lambda: None)
        encoder = record_stream(EncoderSettings("1", "p", "d", tombstones=tombstones))
        self.rendering = SnapshotRows(encoder, self.queue, Topics(), gap=Gap("p.schemas", 50))
        for table in self.tables.values():
            self.rendering.define(table.relation, KEYED, {})
        self._aside = aside
        self.begin()

    def begin(self) -> None:
        self.healing = Healing(
            self.tasks,
            self.rendering,
            self.tables,
            Fates([AsideTable(oid, 1, TOPIC) for oid in self._aside], {}, observe=self.facts.append),
            chunk_bytes=100,
            observe=self.facts.append,
        )

    def answer(self, answer: Any) -> Any:
        found = self.healing.next_question(1.0)
        assert found is not None
        self.healing.comparison_answered(found[0], answer, 1.0)
        return found[1]

    def records(self) -> list[Any]:
        found: list[Any] = []
        while (batch := self.queue.cut_batch(1e9)).records:
            found += batch.records
            self.queue.release(batch)
        return found


def test_each_difference_is_an_ordinary_record_at_the_slots_first_position():
    world = World(1)
    assert isinstance(world.answer(Compared(1, 1, 1)), Compare)
    assert isinstance(world.answer(Differences(((b"1",),), (b"2\tb\n",), (b"3\tc\n",))), NextDifferences)
    world.answer(Differences())
    assert world.healing.next_question(2.0) is None
    assert world.healing.is_done
    deleted, tombstone, updated, inserted, gap = world.records()
    keys = [json.loads(record[1]) for record in (deleted, tombstone, updated, inserted)]
    assert keys == [{"id": 1}, {"id": 1}, {"id": 2}, {"id": 3}]
    assert tombstone[2] is None
    values = [json.loads(record[2]) for record in (deleted, updated, inserted)]
    assert [value["op"] for value in values] == ["d", "u", "c"]
    assert [value["before"] for value in values] == [{"id": 1, "note": None}, None, None]
    assert [value["after"] for value in values] == [None, {"id": 2, "note": "b"}, {"id": 3, "note": "c"}]
    assert [value["source"]["event_serial_no"] for value in values] == [11, 12, 13]
    assert {(value["source"]["snapshot"], value["source"]["txId"]) for value in values} == {("false", None)}
    told = json.loads(gap[2])["gap"]
    assert gap[0] == "p.schemas"
    assert told["healed"] == [{"table": "public.t1", "deletes": 1, "updates": 1, "inserts": 1}]
    assert [type(fact) for fact in world.facts] == [TableHealed, GapHealed]


def test_the_checkpoint_names_the_attempt_until_the_last_table_is_healed():
    world = World(1, 2)
    world.answer(Compared(0, 0, 0))
    world.answer(Differences())
    progress = world.tasks.progress
    assert (progress.healing, progress.outdated, progress.waiting) == (Oids((1, 2)),) * 3
    world.answer(Compared(0, 0, 0))
    world.answer(Differences())
    world.healing.next_question(2.0)
    progress = world.tasks.progress
    assert (progress.healing, progress.outdated, progress.waiting) == (Oids(()),) * 3
    assert (progress.gap, progress.complete, progress.tables_left) == (0, 2, 0)


def test_a_table_that_cannot_be_compared_is_left_to_be_read():
    for answer in (NotComparable("retention"), Busy("locked")):
        world = World(1, 2, 3, aside=[3])
        world.answer(answer)
        world.answer(Compared(0, 0, 0))
        world.answer(Differences())
        assert world.healing.next_question(2.0) is None, "tables that are set aside are not compared"
        progress = world.tasks.progress
        assert (progress.healing, progress.waiting, progress.outdated) == (
            Oids(()),
            Oids((1, 3)),
            Oids((1, 3)),
        )
        assert [fact.table for fact in world.facts if isinstance(fact, TableNotHealed)] == ["public.t1"]


def test_a_table_that_is_set_aside_while_it_is_healed_is_not_healed():
    world = World(1)
    world.answer(Compared(1, 0, 0))
    asked = world.healing.next_question(1.0)
    assert asked is not None
    world.healing.leave(1)
    world.healing.comparison_answered(asked[0], Differences(((b"1",),)), 1.0)
    assert world.healing.next_question(2.0) is None
    assert world.tasks.progress.waiting == Oids((1,))


def test_a_delete_goes_to_the_topic_that_has_the_row():
    world = World(1)
    world.answer(Compared(2, 0, 0))
    own = world.rendering.topic_of(1)
    world.answer(Differences(((b"1",),), topic="p.other"))
    world.answer(Differences(((b"2",),), topic=own))
    assert [record[0] for record in world.records()] == ["p.other"] * 2 + [own] * 2


def test_tables_that_are_not_compared_at_all_are_named_with_the_reason():
    world = World(1)
    for oid in (2, 3):
        world.tables[oid] = SourceTable(relation(oid, f"t{oid}"), "", ())
    world.tasks.replace(replace(world.tasks.progress, outdated=Oids((1, 2))))
    world.begin()
    world.answer(Compared(0, 0, 0))
    world.answer(Differences())
    world.healing.next_question(2.0)
    told = {fact.table: fact.reason for fact in world.facts if isinstance(fact, TableNotHealed)}
    assert told == {"public.t2": OTHER_ROWS, "public.t3": NOT_READ}


def test_without_tombstones_a_delete_is_one_record():
    world = World(1, tombstones=False)
    world.answer(Compared(1, 0, 0))
    world.answer(Differences(((b"1",),)))
    assert len(world.records()) == 1


def test_the_record_of_the_gap_is_delivered_with_the_end_of_the_attempt():
    world = World(1)
    world.answer(Compared(1, 0, 0))
    world.answer(Differences(((b"1",),)))
    world.answer(Differences())
    world.healing.next_question(2.0)
    ended: dict[str, bool] = {}
    while (batch := world.queue.cut_batch(1e9)).records:
        assert batch.snapshot is not None
        ended |= {record[0]: not len(batch.snapshot.healing) for record in batch.records}
        world.queue.release(batch)
    assert ended == {world.rendering.topic_of(1): False, "p.schemas": True}


@pytest.mark.skipif(is_compiled(), reason="a method of a compiled queue cannot be replaced")
def test_each_batch_of_differences_has_another_progress():
    world = World(1)
    world.answer(Compared(2, 0, 0))
    before = []
    insert = world.queue.insert

    def inserted(*given: Any) -> None:
        before.append(world.tasks.progress)
        insert(*given)

    world.queue.insert = inserted  # type: ignore[assignment,method-assign]
    world.answer(Differences(((b"1",),)))
    world.answer(Differences(((b"2",),)))
    world.answer(Differences())
    world.healing.next_question(2.0)
    assert len({each.event_no for each in before}) == len(before) == 3
