"""What is known of a table before its rows are read, with answers made by hand."""

from dataclasses import replace
from typing import Any

import pytest

from cdcd.core.engine.actions import FindWriters, Look, Looked, Question, Read, Writers
from cdcd.core.engine.look_ups import HELD_S
from cdcd.core.engine.plans import RETRY_S
from cdcd.core.errors import ConfigError, SourceError
from cdcd.core.facts.snapshot import (
    SnapshotPartitions,
    SnapshotRestarted,
    SnapshotTableFailed,
    SnapshotTableGone,
)
from cdcd.core.snapshot.reading import Changed, PageQuery, Visibility
from cdcd.core.snapshot.signals import OWN_REQUESTS, REPLACED, RESUMED
from cdcd.core.snapshot.table_task import TableTask
from tests.unit.core.engine.beside import Daemon, T, asked_for, reading
from tests.unit.core.engine.tables import PAGE, key, looked, nobody, rows, table, values


def test_a_table_whose_topic_is_not_there_waits_for_it_and_then_asks_who_writes():
    daemon = Daemon(asked_for())
    daemon.rendering.missing = {T}
    daemon.answer(looked(table()))
    assert daemon.asks_nothing()
    daemon.incremental.look_ups.topics_ready(daemon.now)
    assert daemon.asks_nothing()
    daemon.rendering.missing = set()
    daemon.incremental.look_ups.topics_ready(daemon.now)
    assert daemon.answer(nobody()) == FindWriters((1, 1))


def test_whoever_wrote_when_the_window_opened_is_waited_for_and_nobody_else():
    daemon = Daemon(asked_for())
    daemon.answer(looked(table()))
    daemon.answer(Writers(frozenset({"a", "b"}), Visibility(100, 100)))
    assert daemon.asks_nothing()
    assert daemon.incremental.next_at() == RETRY_S
    daemon.now = RETRY_S
    daemon.answer(Writers(frozenset({"b", "c"}), Visibility(101, 101)))
    daemon.now += 2 * RETRY_S
    assert isinstance(daemon.answer(Writers(frozenset({"c"}), Visibility(102, 102))), FindWriters)
    assert isinstance(daemon.ask()[1], Look)


def test_a_table_that_is_not_published_ends_with_that_reason():
    daemon = Daemon(asked_for(TableTask(T, request="me")))
    daemon.answer(looked(None))
    assert daemon.progress.outcomes[0].error == "there is no such table in the publication"
    assert len(daemon.facts.of(SnapshotTableFailed)) == 1


@pytest.mark.parametrize("request_", OWN_REQUESTS)
def test_a_table_that_is_gone_before_it_is_read_is_no_failure_of_another_table_with_its_name(request_: str):
    daemon = Daemon(asked_for(TableTask(T, 1, request=request_)))
    daemon.answer(looked(None))
    assert daemon.progress.is_done
    assert daemon.progress.outcomes == ()
    assert [(fact.table, fact.oid) for fact in daemon.facts.of(SnapshotTableGone)] == [(T, 1)]
    assert daemon.facts.of(SnapshotTableFailed) == []


def test_a_table_whose_present_name_is_left_out_is_not_gone():
    daemon = Daemon(asked_for(TableTask(T, 1, request=REPLACED)))
    daemon.answer(looked(None, problem="tables.exclude leaves the table out"))
    assert daemon.facts.of(SnapshotTableGone) == []
    (failed,) = daemon.facts.of(SnapshotTableFailed)
    assert (failed.table, "leaves the table out" in failed.error) == (T, True)


def test_a_table_that_is_gone_fails_for_whoever_waits_for_its_rows():
    daemon = Daemon(asked_for(TableTask(T, 1, request=RESUMED, askers=("me",))))
    daemon.answer(looked(None))
    assert daemon.progress.outcomes[0].error == "there is no such table in the publication"


def test_a_condition_that_can_not_be_used_ends_the_request():
    daemon = Daemon(asked_for(TableTask(T, request="me", where="1/0")))
    daemon.answer(looked(table(), problem="division by zero"))
    assert daemon.progress.outcomes[0].error == "the where cannot be used: division by zero"


def test_a_table_that_can_have_no_topic_ends():
    daemon = Daemon(asked_for())
    daemon.rendering.refused = {1}
    daemon.answer(looked(table()))
    assert daemon.progress.outcomes[0].error == "no topic"


def test_without_truncate_records_a_table_without_a_key_ends_a_request_and_the_session_of_an_initial_snapshot():
    requested = Daemon(asked_for(TableTask(T, request="me")), ends_rows=False)
    requested.rendering.keyless = {1}
    requested.answer(looked(table()))
    assert "no key" in requested.progress.outcomes[0].error
    assert requested.incremental.failure is None
    initial = Daemon(asked_for(), ends_rows=False)
    initial.rendering.keyless = {1}
    initial.answer(looked(table()))
    assert isinstance(initial.incremental.failure, SourceError)
    assert "snapshot.mode: never" in initial.incremental.failure.hint


def test_a_table_whose_columns_changed_is_read_from_its_beginning_in_its_new_form():
    daemon = reading(chunk_bytes=2 * PAGE, parallelism=1)
    daemon.answer(rows(1))
    daemon.between()
    daemon.answer(Changed("its columns have changed"))
    assert daemon.asks_nothing()
    daemon.now += 1
    daemon.plan(table(columns="id,note,more"))
    _, read = daemon.ask()
    assert isinstance(read, Read)
    assert isinstance(read.query, PageQuery)
    assert (read.query.begin, read.query.end, read.query.table.columns) == (0, 2, "id,note,more")
    assert [fact.reason for fact in daemon.facts.of(SnapshotRestarted)] == ["its columns were altered"]


def test_a_table_that_was_rewritten_is_read_from_its_beginning():
    daemon = reading(chunk_bytes=2 * PAGE, parallelism=1)
    asked, _ = daemon.ask()
    # GIVEN a row that the table owes
    daemon.incremental.watched.note(301, T, key(8), values(8), moved=False)
    daemon.incremental.plan_answered(asked, rows(9, seen=300), daemon.now)
    daemon.between()
    daemon.incremental.redefined(1)
    daemon.plan(table(filenode=101), seen=400)
    _, read = daemon.ask()
    assert isinstance(read, Read)
    assert isinstance(read.query, PageQuery), "nothing is owed of pages that are all read again"
    assert (read.query.begin, read.query.filenode) == (0, 101)
    assert [fact.reason for fact in daemon.facts.of(SnapshotRestarted)] == ["it was rewritten"]


def test_a_partition_that_was_rewritten_is_read_again_and_the_others_are_not():
    daemon = reading(found=table(leaves={10: 2, 11: 2}), chunk_bytes=2 * PAGE, parallelism=1)
    daemon.answer(rows(1))
    daemon.between()
    daemon.incremental.redefined(1)
    other = table(leaves={10: 2, 11: 2})
    parts = (other.parts[0], replace(other.parts[1], part=replace(other.parts[1].part, filenode=999)))
    daemon.plan(replace(other, parts=parts))
    _, read = daemon.ask()
    assert isinstance(read, Read)
    assert isinstance(read.query, PageQuery)
    assert (read.query.oid, read.query.filenode) == (11, 999)
    assert daemon.facts.of(SnapshotRestarted) == []


@pytest.mark.parametrize(
    "other",
    [table(2), table(name="renamed"), table(columns="id"), table(leaves={1: 4, 5: 1})],
    ids=["oid", "name", "columns", "partition"],
)
def test_a_table_that_changed_between_its_window_and_its_plan_is_looked_at_again(other: Any):
    daemon = Daemon(asked_for())
    daemon.answers(looked(table()), nobody(), looked(other))
    assert daemon.answer(looked(other)) == Look(1, T, "")
    assert isinstance(daemon.ask()[1], FindWriters)


def test_a_table_that_is_dropped_while_it_is_looked_at_is_planned_anew_and_ends_by_its_name():
    # GIVEN looks that found the table just before it was dropped
    daemon = Daemon(asked_for(TableTask(T, 1), TableTask("public.u", 2)), parallelism=1)
    daemon.answers(looked(table()), nobody(), looked(table()))
    # WHEN its rows cannot be read any more
    daemon.answer(Changed("relation public.t does not exist"))
    daemon.now += 1
    # THEN it is looked at again, which ends it, and the next table is read
    assert daemon.answer(looked(None)) == Look(1, T, "")
    assert [fact.table for fact in daemon.facts.of(SnapshotTableGone)] == [T]
    assert daemon.incremental.failure is None
    assert daemon.answer(looked(table(2, "u"))) == Look(2, "public.u", "")
    daemon.answers(nobody(), looked(table(2, "u")))
    assert isinstance(daemon.ask()[1], Read)


def test_a_table_that_is_dropped_between_its_window_and_its_plan_ends_with_its_window():
    daemon = Daemon(asked_for(), parallelism=1)
    daemon.answers(looked(table()), nobody(), looked(None))
    assert daemon.is_done()
    assert not daemon.incremental.watched.has_window(T)
    assert [fact.table for fact in daemon.facts.of(SnapshotTableGone)] == [T]


def test_a_table_that_lost_a_partition_after_its_window_opened_is_planned_without_it():
    daemon = Daemon(asked_for())
    daemon.answers(looked(table(leaves={10: 1, 11: 1})), nobody(), looked(table(leaves={11: 1})))
    assert isinstance(daemon.ask()[1], Read)


def test_a_look_of_a_plan_that_is_over_is_dropped():
    daemon = Daemon(asked_for())
    asked, _ = daemon.ask()
    daemon.incremental.redefined(1)
    daemon.incremental.plan_answered(asked, looked(table()), daemon.now)
    assert isinstance(daemon.ask()[1], Look)


def test_the_rows_of_a_renamed_table_go_to_the_topic_of_its_new_name_all_of_them():
    daemon = reading(chunk_bytes=2 * PAGE, parallelism=1)
    daemon.answer(rows(1))
    daemon.between()
    daemon.incremental.redefined(1)
    daemon.plan(table(name="renamed"))
    daemon.answers(rows(1), rows(2))
    daemon.between()
    assert daemon.rendering.ids == [1, 1, 2]
    assert daemon.progress.outcomes[0].name == "public.renamed"


def test_changes_go_on_while_a_renamed_table_waits_for_another_request_of_it():
    # GIVEN a table of which a part is read, and a request for it by its new name, which is looked at first
    progress = asked_for(TableTask(T, 1), TableTask("public.renamed", request="me", where="id > 1"))
    daemon = Daemon(progress, chunk_bytes=2 * PAGE, parallelism=2)
    first, _ = daemon.ask()
    second, _ = daemon.ask()
    daemon.incremental.plan_answered(first, looked(table()), daemon.now)
    daemon.answers(nobody(), looked(table()), rows(1))
    daemon.between()
    daemon.incremental.redefined(1)
    again, question = daemon.ask()
    assert question == Look(1, T, "")
    daemon.incremental.plan_answered(second, looked(table(name="renamed")), daemon.now)
    # WHEN what was read of it is no part of the task any more
    daemon.incremental.plan_answered(again, looked(table(name="renamed")), daemon.now)
    # THEN nobody asks what a change means to it
    daemon.incremental.watched.note(150, "public.renamed", key(1), values(1), moved=False)


PARENT = TableTask("public.parent", request="me", where="id > 1", askers=("me",), asked=7)


def of_partitions(leaves: dict[int, str]) -> Looked:
    return replace(looked(None), leaves=leaves)


def test_a_partitioned_table_that_is_published_through_its_partitions_stands_for_them():
    progress = asked_for(PARENT).request("me", 1, 7)
    daemon = Daemon(progress, parallelism=1)
    assert daemon.answer(of_partitions({11: "public.p_1", 12: "public.p_2"})) == Look(
        0, "public.parent", "id > 1"
    )
    assert [(task.oid, task.name) for task in daemon.progress.tasks] == [
        (11, "public.p_1"),
        (12, "public.p_2"),
    ]
    assert {(task.request, task.where, task.askers, task.asked) for task in daemon.progress.tasks} == {
        ("me", "id > 1", ("me",), 7)
    }
    assert [request.tables for request in daemon.progress.requests] == [2]
    assert daemon.facts.of(SnapshotPartitions) == [
        SnapshotPartitions(table="public.parent", partitions=["public.p_1", "public.p_2"], count=2)
    ]
    # THEN each is looked up by its oid, with the condition
    assert daemon.ask()[1] == Look(11, "public.p_1", "id > 1")


def test_a_request_for_a_table_and_one_of_its_partitions_waits_for_each_partition_once():
    part = replace(PARENT, name="public.p_1")
    progress = asked_for(PARENT, part).request("me", 2, 7)
    daemon = Daemon(progress, parallelism=1)
    daemon.answer(of_partitions({11: "public.p_1"}))
    assert [task.name for task in daemon.progress.tasks] == ["public.p_1"]
    assert [request.tables for request in daemon.progress.requests] == [1]


def test_more_partitions_than_the_checkpoint_has_room_for_are_refused():
    daemon = Daemon(asked_for(PARENT).request("me", 1, 7))
    daemon.answer(of_partitions({number: f"public.partition_{number}" for number in range(1, 1001)}))
    assert daemon.is_done()
    (failed,) = daemon.facts.of(SnapshotTableFailed)
    assert "published through 1000 partitions" in failed.error
    assert [request.code for request in daemon.progress.requests] == [ConfigError.exit_code]


def test_a_table_that_nobody_publishes_has_no_partitions_either():
    daemon = Daemon(asked_for(PARENT))
    daemon.answer(looked(None))
    assert [fact.table for fact in daemon.facts.of(SnapshotTableFailed)] == ["public.parent"]


def looks(daemon: Daemon, count: int) -> list[tuple[object, Question]]:
    """The next questions, each of which looks for another table."""
    found = [daemon.ask() for _ in range(count)]
    assert all(isinstance(question, Look) for _, question in found)
    return found


def test_many_tables_are_looked_up_at_a_time_and_small_ones_are_read_as_soon_as_a_connection_is_free():
    tasks = [TableTask(f"public.t{oid}", oid) for oid in range(1, 8)]
    daemon = Daemon(asked_for(*tasks), parallelism=2, ahead=3, names={})
    asked = looks(daemon, 5)
    assert daemon.asks_nothing()
    for oid, (plan, _) in enumerate(asked, start=1):
        daemon.incremental.plan_answered(plan, looked(table(oid, f"t{oid}")), 0.0)
    questions = [daemon.ask() for _ in range(5)]
    assert [type(question) for _, question in questions] == [FindWriters] * 5
    for plan, _ in questions:
        daemon.incremental.plan_answered(plan, nobody(), 0.0)
    questions = [daemon.ask() for _ in range(5)]
    for oid, (plan, _) in enumerate(questions, start=1):
        daemon.incremental.plan_answered(plan, looked(table(oid, f"t{oid}")), 0.0)
    # Two connections read, and the rows of others wait for them.
    reads = [daemon.ask() for _ in range(2)]
    assert [type(question) for _, question in reads] == [Read] * 2
    assert daemon.asks_nothing()
    daemon.incremental.plan_answered(reads[0][0], rows(1), 0.0)
    assert isinstance(daemon.ask()[1], Read)


def test_a_large_table_that_was_looked_up_ahead_is_not_watched_before_a_connection_is_free():
    tasks = [TableTask(f"public.t{oid}", oid) for oid in range(1, 5)]
    daemon = Daemon(asked_for(*tasks), parallelism=2, ahead=2, names={})
    for oid, (plan, _) in enumerate(looks(daemon, 4), start=1):
        daemon.incremental.plan_answered(plan, looked(table(oid, f"t{oid}", pages=5)), 0.0)
    assert [question for _, question in (daemon.ask(), daemon.ask())] == [
        FindWriters((1, 1)),
        FindWriters((2, 2)),
    ]
    assert daemon.asks_nothing()
    windows = [plan.window for plan in daemon.incremental.plans]
    assert [window is not None for window in windows] == [True, True, False, False]
    # The others are looked up again after a while, each by the time that its turn may have come.
    assert daemon.incremental.next_at() == HELD_S
    daemon.now = HELD_S
    assert looks(daemon, 2)
    assert daemon.asks_nothing()
