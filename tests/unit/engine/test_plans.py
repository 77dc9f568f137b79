"""Plans that wait, end and begin again, with answers made by hand."""

import pytest

from cdcd.engine.actions import Busy, Writers
from cdcd.engine.plans import RETRY_S, WAITING_S
from cdcd.facts import (
    SnapshotWaiting,
)
from cdcd.snapshots.table_task import TableTask
from cdcd.snapshots.visibility import Visibility
from tests.unit.engine.beside import Daemon, T, asked_for, reading
from tests.unit.engine.tables import PAGE, looked, rows, table


def test_whom_a_table_waits_for_is_said_once_after_a_while():
    daemon = Daemon(asked_for())
    daemon.answer(looked(table()))
    for _ in range(40):
        daemon.answer(Writers(frozenset({"b", "a"}), Visibility(100, 100)))
        daemon.now += 1.0
    assert daemon.facts.of(SnapshotWaiting) == [SnapshotWaiting(table=T, writers=["a", "b"])]
    assert daemon.now > WAITING_S


def test_a_question_that_has_no_answer_yet_is_asked_again_less_and_less_often():
    daemon = Daemon(asked_for())
    waits = []
    for _ in range(8):
        daemon.answer(Busy("canceling statement due to lock timeout"))
        at = daemon.incremental.next_at()
        assert at is not None
        waits.append(at - daemon.now)
        daemon.now = at
    assert waits[0] == RETRY_S
    assert waits[-1] == pytest.approx(1.0)


def test_answers_of_a_plan_that_is_over_are_dropped():
    daemon = reading(chunk_bytes=2 * PAGE)
    (first, _), (second, _) = daemon.ask(), daemon.ask()
    daemon.incremental.answered(first, rows(1, after=2000), daemon.now)
    daemon.incremental.redefined(1)
    daemon.incremental.answered(second, rows(2), daemon.now)
    daemon.between(5000)
    assert daemon.rendering.put_rows == []
    # THEN both connections are free for the plan that follows
    daemon.plan()
    daemon.answers(rows(1), rows(2))
    daemon.between()
    assert daemon.rendering.ids == [1, 2]


def test_a_cancelled_table_ends_and_answers_for_it_are_dropped():
    daemon = reading()
    asked, _ = daemon.ask()
    daemon.incremental.plans.end(daemon.progress.tasks[0], "cancelled")
    daemon.incremental.answered(asked, rows(1), daemon.now)
    daemon.between()
    assert daemon.rendering.put_rows == []
    assert daemon.progress.outcomes[0].error == "cancelled"
    assert not daemon.incremental.watched.watches
    assert daemon.asks_nothing()


def test_a_table_that_is_asked_for_again_after_it_was_cancelled_is_read_by_a_new_plan():
    daemon = reading()
    asked, _ = daemon.ask()
    daemon.incremental.plans.end(daemon.progress.tasks[0], "cancelled")
    daemon.incremental.tasks.add([TableTask(T, request="again")])
    daemon.incremental.answered(asked, rows(1), daemon.now)
    daemon.between()
    assert daemon.rendering.put_rows == []
    daemon.plan()
    daemon.answer(rows(1, 2))
    daemon.between()
    assert daemon.rendering.ids == [1, 2]


def test_a_table_waits_until_the_stream_has_got_to_where_it_got_its_name():
    daemon = Daemon(asked_for())
    daemon.owned[1] = "public.before"
    daemon.answer(looked(table()))
    assert daemon.asks_nothing()
    assert daemon.rendering.names == {}, "the topic is that of the name"
    daemon.owned.clear()
    daemon.now = RETRY_S * 2
    daemon.plan()
    daemon.answer(rows(1))
    daemon.between()
    assert daemon.rendering.ids == [1]


def test_rows_that_were_read_under_a_name_which_another_table_took_in_the_stream_are_read_again():
    daemon = reading(chunk_bytes=2 * PAGE)
    daemon.answers(rows(1, after=500), rows(2, after=500))
    daemon.owned[1] = "public.after"
    daemon.between()
    assert daemon.rendering.put_rows == []
    daemon.owned.clear()
    daemon.now = RETRY_S * 2
    daemon.plan()
    daemon.answers(rows(1), rows(2))
    daemon.between()
    assert daemon.rendering.ids == [1, 2]
    assert daemon.is_done()
