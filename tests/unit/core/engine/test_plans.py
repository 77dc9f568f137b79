"""Plans that wait, end and begin again, with answers made by hand."""

import pytest

from cdcd.core.engine.actions import Busy, FindWriters, Look, Writers
from cdcd.core.engine.plans import RETRY_S, WAITING_S
from cdcd.core.facts.snapshot import SnapshotWaiting
from cdcd.core.snapshot.reading import Visibility
from cdcd.core.snapshot.table_task import TableTask
from tests.unit.core.engine.beside import Daemon, T, asked_for, reading
from tests.unit.core.engine.tables import PAGE, looked, nobody, rows, table


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
    daemon.incremental.plan_answered(first, rows(1, after=2000), daemon.now)
    daemon.incremental.redefined(1)
    daemon.incremental.plan_answered(second, rows(2), daemon.now)
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
    daemon.incremental.plan_answered(asked, rows(1), daemon.now)
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
    daemon.incremental.plan_answered(asked, rows(1), daemon.now)
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


LOCKED = Busy("locked by server process 7")
THREE = (TableTask(T, 1), TableTask("public.u", 2), TableTask("public.v", 3))


def test_a_table_that_is_locked_keeps_no_other_one_waiting():
    daemon = Daemon(asked_for(*THREE), parallelism=1)
    daemon.answer(LOCKED)
    assert daemon.answer(looked(table(2, "u"))) == Look(2, "public.u")
    # THEN as many wait for locks as there are connections, and the table that is read has one for itself
    assert daemon.answer(nobody()) == FindWriters((2, 2))
    daemon.now += 1.0
    assert daemon.ask()[1] == Look(1, T)


def test_only_so_many_locked_tables_are_waited_for_as_there_are_connections():
    daemon = Daemon(asked_for(*THREE), parallelism=1)
    daemon.answers(LOCKED, LOCKED)
    assert daemon.asks_nothing()
    daemon.now += 1.0
    assert daemon.answer(looked(table())) == Look(1, T)
    daemon.now += 1.0
    # THEN the first table is free and takes its turn, and the third one still waits
    assert {str(daemon.ask()[1]) for _ in range(2)} == {str(FindWriters((1, 1))), str(Look(2, "public.u"))}
    assert daemon.asks_nothing()


def test_a_table_that_is_locked_while_it_is_read_lets_another_one_go_on():
    daemon = reading(asked_for(*THREE), parallelism=1)
    asked, _ = daemon.ask()
    assert daemon.asks_nothing()
    daemon.incremental.plan_answered(asked, LOCKED, daemon.now)
    assert daemon.ask()[1] == Look(2, "public.u")


def test_who_has_locked_a_table_is_said_with_its_name():
    daemon = Daemon(asked_for())
    while daemon.now <= WAITING_S:
        daemon.answer(LOCKED)
        daemon.now += 1.0
    daemon.answer(LOCKED)
    assert daemon.facts.of(SnapshotWaiting) == [
        SnapshotWaiting(table=T, writers=["locked by server process 7"])
    ]
