from collections.abc import Mapping
from typing import Any

from cdcd.engine.actions import Look, Looked, Published
from cdcd.engine.incremental import Incremental
from cdcd.engine.tables import PublishedTables
from cdcd.facts import Fact, TableAdded
from cdcd.protocol.messages import Column, Relation
from cdcd.records.relations import TableDescription
from cdcd.snapshots.progress import Oids, Part, Progress, TableTask
from cdcd.snapshots.reading import Rows, SourcePart, SourceTable
from cdcd.snapshots.visibility import Visibility

SEEN = Visibility(10, 10)


class Renderer:
    """What makes records of rows, as far as the choice of tables needs it."""

    def __init__(self) -> None:
        self.defined: list[int] = []

    def define(self, relation: Relation, description: TableDescription, types: Mapping[int, Any]) -> str:
        self.defined.append(relation.oid)
        return relation.name

    def key_columns(self, oid: int) -> tuple[str, ...]:
        return ("id",)

    def topic_is_ready(self, topic: str) -> bool:
        return True

    def topic_of(self, oid: int) -> str:
        return f"t{oid}"

    def put(self, oid: int, rows: Rows, **options: Any) -> None:
        raise AssertionError("no rows are read here")


def table(oid: int, name: str) -> SourceTable:
    relation = Relation(None, oid, "public", name, "d", (Column(1, "id", 23, -1),))
    return SourceTable(relation, "", (SourcePart(Part(oid, oid, 3, 8192 * 3), name),), name, False, "1:id")


def incremental(progress: Progress) -> tuple[Incremental, Renderer]:
    rendering = Renderer()
    made = Incremental(
        progress,
        rendering,
        chunk_bytes=8192,
        parallelism=4,
        names={},
        observe=lambda fact: None,
        changed=lambda: None,
    )
    return made, rendering


def published(progress: Progress, said: list[Fact], tables: Mapping[int, str]) -> PublishedTables:
    return PublishedTables(
        incremental(progress)[0],
        tables,
        reads=True,
        reads_added=True,
        excluded=lambda name: False,
        observe=said.append,
    )


def test_a_table_whose_first_change_comes_before_the_list_is_added_all_the_same():
    said: list[Fact] = []
    tables = published(Progress(known=Oids([1], {1: "public.one"})), said, {1: "public.one"})

    assert not tables.described(2, "public.two")
    assert tables.known_oids() == frozenset({1})
    tables.listed(Published({1: "public.one", 2: "public.two"}, 100, {2: 70}))

    assert said == [TableAdded(table="public.two", rows=70, read=True, command="")]
    assert tables.known_oids() == frozenset({1, 2})


def test_a_table_that_was_described_under_another_name_takes_the_place_of_the_one_that_had_it():
    said: list[Fact] = []
    tables = published(Progress(known=Oids([1], {1: "public.one"})), said, {1: "public.one"})
    tables.described(2, "public.two")

    assert tables.listed(Published({1: "public.two", 2: "public.one"}, 100, {})) == [1, 2]

    assert tables.due(99, lambda oid: True) == []
    assert tables.due(100, lambda oid: True) == [1, 2]


def test_a_table_that_is_being_read_by_request_is_not_begun_by_the_initial_snapshot_too():
    progress = Progress(waiting=Oids([1])).add([TableTask("public.one", request="signal")])
    reading, rendering = incremental(progress)

    first = reading.next_question(0.0)
    second = reading.next_question(0.0)
    assert first is not None
    assert second is not None
    assert first[1] == Look(0, "public.one")
    assert second[1] == Look(1, "")
    for ticket, _ in (first, second):
        reading.answered(ticket, Looked(table(1, "one"), TableDescription(), {}, "", SEEN), 0.0)

    assert rendering.defined == [1]
    assert [task.oid for task in reading.progress.tasks] == [1, 1]


def test_what_the_configuration_asks_for_can_not_be_cancelled_because_somebody_asked_for_it_before():
    asked = Progress().add([TableTask("public.one", request="signal")])

    assert [task.request for task in asked.add([TableTask("public.one", 1, request="added")]).tasks] == [
        "added"
    ]
    assert asked.add([TableTask("public.one", request="another")]) is asked

    reading, _ = incremental(Progress(tasks=(TableTask("public.one", 1, request="signal", number=1),)))
    reading.read_anew(1, "public.one", "replaced")
    assert [task.request for task in reading.progress.tasks] == ["replaced"]


def test_a_table_that_takes_the_name_of_one_that_waits_is_read_too():
    waiting = Progress().add([TableTask("public.one", 1, request="replaced")])

    both = waiting.add([TableTask("public.one", 2, request="replaced")])

    assert [(task.name, task.oid) for task in both.tasks] == [("public.one", 1), ("public.one", 2)]
    assert (
        both.add([TableTask("public.one", 2, request="added"), TableTask("public.one", request="x")]) is both
    )


def test_a_vacated_name_is_remembered_over_a_restart_until_somebody_takes_it():
    said: list[Fact] = []
    known = Oids([1, 2], {1: "public.one", 2: "public.two"})
    reading, _ = incremental(Progress.from_json(Progress(known=known).to_json()))
    made = [
        PublishedTables(
            reading,
            {2: "public.two"},
            reads=True,
            reads_added=True,
            excluded=lambda name: False,
            observe=said.append,
        )
    ]
    made[0].listed(Published({2: "public.two", 3: "public.three"}, 100, {}))

    again, _ = incremental(Progress.from_json(reading.progress.to_json()))
    tables = PublishedTables(
        again,
        {2: "public.two"},
        reads=True,
        reads_added=True,
        excluded=lambda name: False,
        observe=said.append,
    )

    assert tables.described(4, "public.one")
    assert not tables.described(4, "public.one")
    assert tables.described(2, "public.one")
    assert tables.described(2, "public.two"), (
        "it had the name before, and what was deleted meanwhile is in the topic"
    )
