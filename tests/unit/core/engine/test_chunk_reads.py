"""Chunks that are read, wait for their place and are sent, with answers made by hand."""

import pytest

from cdcd.build import is_compiled
from cdcd.core.engine.actions import Look, Lost, Read
from cdcd.core.errors import TransientError
from cdcd.core.snapshot.reading import KeyQuery, PageQuery, Refused, TooLarge
from cdcd.core.snapshot.table_task import TableTask
from tests.unit.core.engine.beside import Daemon, T, asked_for, reading
from tests.unit.core.engine.tables import PAGE, key, rows, values


def test_a_lost_connection_is_no_failure_of_the_table():
    daemon = Daemon(asked_for())
    daemon.answer(Lost(TransientError("gone")))
    daemon.now += 1
    daemon.plan()
    asked, _ = daemon.ask()
    daemon.incremental.plan_answered(asked, Lost(TransientError("gone")), daemon.now)
    assert daemon.asks_nothing()
    daemon.now += 1
    # THEN it is planned again, and goes on
    daemon.plan()
    daemon.answer(rows(1))
    daemon.between()
    assert daemon.is_done()
    assert daemon.incremental.failure is None


def test_rows_that_may_not_be_read_end_a_request_and_the_session_of_an_initial_snapshot():
    requested = reading(asked_for(TableTask(T, request="me")))
    requested.answer(Refused("permission denied"))
    assert requested.progress.outcomes[0].error == "permission denied"
    initial = reading()
    initial.answer(Refused("permission denied", "Grant it:"))
    assert initial.incremental.failure is not None
    assert (initial.incremental.failure.hint, initial.is_done()) == ("Grant it:", False)


def test_rows_that_are_too_large_are_read_in_halves():
    daemon = reading()
    daemon.answer(TooLarge())
    spans = []
    for _ in range(2):
        _, read = daemon.ask()
        assert isinstance(read, Read)
        assert isinstance(read.query, PageQuery)
        spans.append((read.query.begin, read.query.end))
    assert spans == [(0, 2), (2, 4)]


def test_keys_whose_rows_are_too_large_together_are_read_in_smaller_numbers():
    daemon = reading()
    asked, _ = daemon.ask()
    for number in range(4):
        daemon.incremental.watched.note(150, T, key(number), values(number), moved=False)
    daemon.incremental.plan_answered(asked, rows(seen=120), daemon.now)
    daemon.between()
    asked_for_keys = []
    for answer in (TooLarge(), TooLarge(), rows(0, seen=170)):
        question = daemon.answer(answer)
        assert isinstance(question, Read)
        assert isinstance(question.query, KeyQuery)
        asked_for_keys.append((len(question.query.keys), question.bytes_max > 1 << 40))
    # THEN one row is read however large it is
    assert asked_for_keys == [(4, False), (2, False), (1, True)]


def test_so_many_rows_are_asked_for_at_a_time():
    daemon = reading(chunk_bytes=PAGE, parallelism=2)
    daemon.ask()
    daemon.ask()
    assert daemon.asks_nothing()


@pytest.mark.skipif(is_compiled(), reason="a compiled constant cannot be replaced")
def test_rows_that_wait_for_their_place_have_a_limit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("cdcd.core.engine.chunk_reads.WAITING_BYTES_MAX", 5)
    daemon = reading(chunk_bytes=PAGE)
    daemon.answers(rows(1, after=5000), rows(2, after=5000))
    assert daemon.asks_nothing()
    daemon.between(5000)
    assert isinstance(daemon.ask()[1], Read)


def test_a_row_whose_change_the_stream_has_already_is_left_out():
    daemon = reading()
    asked, _ = daemon.ask()
    daemon.incremental.watched.note(150, T, key(2), None, moved=False)
    daemon.incremental.plan_answered(asked, rows(1, 2, 3, seen=120), daemon.now)
    daemon.between()
    assert daemon.rendering.ids == [1, 3]
    assert daemon.progress.outcomes[0].rows == 2


def test_a_change_that_came_before_the_window_is_waited_for_by_its_writer_and_not_noted():
    daemon = Daemon(asked_for())
    daemon.incremental.watched.note(90, T, key(1), None, moved=False)
    assert not daemon.incremental.watched.watches
    daemon.plan()
    daemon.answer(rows(1))
    daemon.between()
    assert daemon.rendering.ids == [1]


def test_a_truncate_that_the_snapshot_does_not_see_makes_the_chunk_be_read_again():
    daemon = reading()
    asked, _ = daemon.ask()
    daemon.incremental.watched.truncated(150, [1])
    daemon.incremental.plan_answered(asked, rows(1, seen=120), daemon.now)
    daemon.between()
    assert daemon.rendering.put_rows == []
    daemon.answer(rows(seen=151))
    daemon.between()
    assert daemon.rendering.put_rows == [(1, [])]
    assert daemon.is_done()


def owing_one_row() -> Daemon:
    """All pages of the table are delivered. Only the row 1 must be read again by its key."""
    daemon = reading()
    asked, _ = daemon.ask()
    daemon.incremental.watched.note(150, T, key(1), values(1), moved=False)
    daemon.incremental.plan_answered(asked, rows(2, seen=120), daemon.now)
    daemon.between()
    return daemon


def test_a_truncate_while_the_last_rows_are_read_by_key_ends_the_table():
    daemon = owing_one_row()
    asked, read = daemon.ask()
    assert isinstance(read, Read)
    assert isinstance(read.query, KeyQuery)
    # WHEN the table is emptied, which the answer does not see
    daemon.incremental.watched.truncated(160, [1])
    daemon.incremental.plan_answered(asked, rows(1, seen=155), daemon.now)
    daemon.between()
    # THEN the answer is dropped, and no row is owed
    assert daemon.rendering.ids == [2]
    assert daemon.is_done()


def test_a_change_that_sends_the_last_owed_row_while_nothing_is_read_ends_the_table():
    daemon = owing_one_row()
    # WHEN the row comes whole before it is asked for
    daemon.incremental.watched.note(160, T, key(1), None, moved=False)
    daemon.between()
    assert daemon.is_done()


def test_a_backlog_that_every_chunk_sees_leaves_nothing_in_the_window():
    daemon = reading()
    for xid in range(1, 100):
        daemon.incremental.watched.note(xid, T, key(xid), None, moved=False)
    daemon.answer(rows(*range(1, 100), seen=100))
    daemon.between()
    assert len(daemon.rendering.ids) == 99


def test_a_window_that_gave_up_is_planned_anew_with_what_was_delivered(monkeypatch: pytest.MonkeyPatch):
    daemon = reading(chunk_bytes=2 * PAGE, parallelism=2)
    daemon.answer(rows(1, seen=100))
    daemon.between()
    asked, _ = daemon.ask()
    give_up(daemon)
    daemon.incremental.plan_answered(asked, rows(2, seen=100), daemon.now)
    daemon.between()
    assert daemon.rendering.ids == [1]
    daemon.plan(seen=10_000_000)
    daemon.answer(rows(2, seen=10_000_000))
    daemon.between()
    assert daemon.rendering.ids == [1, 2]
    assert daemon.is_done()


def give_up(daemon: Daemon) -> None:
    """More changes than a window remembers."""
    for number in range(200_001):
        daemon.incremental.watched.note(1000 + number, T, key(number), None, moved=False)


def test_several_chunks_that_wait_when_the_window_gives_up_are_all_dropped():
    daemon = reading(chunk_bytes=2 * PAGE)
    daemon.answers(rows(1, after=500), rows(2, after=500))
    give_up(daemon)
    daemon.between(500)
    assert daemon.rendering.put_rows == []
    assert isinstance(daemon.ask()[1], Look)
