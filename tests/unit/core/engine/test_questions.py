"""Questions beside the stream: about tables whose enums' labels changed, and about tables that were dropped."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from cdcd.build import is_compiled
from cdcd.core.catalog.bindings import Bindings
from cdcd.core.catalog.relations import TableDescription
from cdcd.core.engine.actions import Ask, Enums, FindEnums, ListPublished, Look, Looked, Published
from cdcd.core.engine.labels import EnumQuestions, Labels
from cdcd.core.engine.questions import PUBLISHED_S, Questions
from cdcd.core.engine.snapshot_tasks import SnapshotTasks
from cdcd.core.protocol.messages import Column, Relation
from cdcd.core.snapshot.progress import Progress
from cdcd.core.snapshot.reading import Visibility
from tests.unit.core.engine.tables import no_fates

TABLE = SimpleNamespace(
    oid=7, name="public.t", relation=Relation(None, 7, "public", "t", "d", (Column(1, "id", 23, -1),))
)


@pytest.mark.skipif(is_compiled(), reason="the questions' parts are stand-ins here")
def test_tables_that_were_dropped_lose_what_rules_are_bound_to():
    bindings = Bindings()
    bindings.bind("rule", 7, [2])
    bindings.bind("rule", 8, [2])
    tables: Any = SimpleNamespace(known_oids=frozenset, outdated=list, listed=lambda _answer: [])
    tasks = SnapshotTasks(Progress(), names={}, observe=lambda _: None, changed=lambda: None)
    incremental: Any = SimpleNamespace(tasks=tasks)
    enums: Any = SimpleNamespace(labels=Labels(tasks))
    rendering: Any = SimpleNamespace(encoder=SimpleNamespace(tables=SimpleNamespace(bindings=bindings)))
    questions = Questions(incremental, None, tables, enums, rendering=rendering, fates=no_fates(), now=0.0)
    ask = questions.next(PUBLISHED_S)
    assert isinstance(ask, Ask)
    assert ask.question == ListPublished(frozenset())
    assert ask.question.bound == {7, 8}
    questions.dispatch(ask.ticket, Published({}, 100, {}, dropped=(7,)), PUBLISHED_S)
    assert bindings.text(99) != ""
    assert bindings.of_table("rule", 7)
    bindings.text(100)
    assert not bindings.of_table("rule", 7)
    assert bindings.of_table("rule", 8)


@pytest.mark.skipif(is_compiled(), reason="the questions' parts are stand-ins here")
@pytest.mark.parametrize("is_new", [False, True])
def test_a_table_is_relabelled_only_under_the_name_that_the_stream_has(is_new: bool):
    """Under a name that the stream has not got to, the topic may still have the rows of another table."""
    tasks = SnapshotTasks(Progress(), names={}, observe=lambda _: None, changed=lambda: None)
    incremental: Any = SimpleNamespace(progress=tasks.progress, tasks=tasks)
    labels = Labels(tasks)
    defined: list[int] = []
    relabelled: list[int] = []
    tables: Any = SimpleNamespace(
        known_oids=frozenset, outdated=list, listed=lambda _answer: [], is_new=lambda _oid, _name: is_new
    )
    rendering: Any = SimpleNamespace(
        encoder=SimpleNamespace(tables=SimpleNamespace(bindings=Bindings())),
        has_room=False,
        is_altered=lambda _relation: False,
        is_defined=lambda table, *_: is_defined(table),
    )
    relations: Any = SimpleNamespace(relabelled=lambda oid, *_: relabelled.append(oid))

    def is_defined(table: Relation) -> bool:
        defined.append(table.oid)
        return True

    fates = no_fates()
    questions = Questions(
        incremental,
        None,
        tables,
        EnumQuestions(labels, incremental, tables, rendering, relations, fates),
        rendering=rendering,
        fates=fates,
        now=0.0,
    )
    answers: list[Any] = [
        Published({7: "public.t"}, 100, {}, labels=5),
        Enums((7,)),
        Looked(cast("Any", TABLE), TableDescription(), {}, "", Visibility.parse("10:20:")),
    ]
    asked = []
    for answer in answers:
        ask = questions.next(PUBLISHED_S)
        assert isinstance(ask, Ask)
        asked.append(type(ask.question))
        questions.dispatch(ask.ticket, answer, PUBLISHED_S)
    assert asked[1:] == [FindEnums, Look]
    assert defined == relabelled == ([] if is_new else [7])
