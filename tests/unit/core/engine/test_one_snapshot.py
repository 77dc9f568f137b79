"""A table without a key is read at one snapshot, which has a place in the stream."""

from typing import Any

import pytest

from cdcd.core.engine.actions import Busy, FindWriters, Gone, LetGo, Look, Lost, Read, Taken, TakeSnapshot
from cdcd.core.engine.one_snapshot import HOLD_S, TRIES_MAX
from cdcd.core.errors import TransientError
from cdcd.core.facts.snapshot import SnapshotRestarted, SnapshotTableFailed
from cdcd.core.protocol.frames import XLOG_HEADER
from cdcd.core.protocol.messages import Delete, Insert, Truncate
from cdcd.core.protocol.writer import write_message
from cdcd.core.snapshot.reading import PageQuery, Refused, Rows, Visibility
from cdcd.core.snapshot.table_task import TableTask
from tests.unit.core.engine.beside import Daemon, T, asked_for
from tests.unit.core.engine.tables import PAGE, looked, nobody, table

SEEN = Visibility(100, 110, frozenset({100, 105}))


def frame(message: Any) -> bytes:
    return b"w" + bytes(XLOG_HEADER - 1) + write_message(message)


INSERT = frame(Insert(None, 1, (b"1", b"x")))
DELETE = frame(Delete(None, 1, "O", (b"1", b"x")))


def whole(*ids: int) -> Rows:
    lines = [b"%d\tx\n" % each for each in ids]
    return Rows(lines, sum(map(len, lines)))


def keyless(*tasks: TableTask, **options: Any) -> Daemon:
    """A daemon that asks for the snapshot of a table without a key."""
    daemon = Daemon(asked_for(*tasks), **{"chunk_bytes": 2 * PAGE, **options})
    daemon.rendering.keyless = {1}
    daemon.answers(looked(table()), nobody())
    return daemon


def placed(*tasks: TableTask) -> Daemon:
    """A daemon that reads the rows of such a table."""
    daemon = keyless(*tasks)
    daemon.answer(Taken(SEEN, 500))
    daemon.between(400)
    daemon.answer(looked(table()))
    return daemon


def holds(daemon: Daemon) -> bool:
    return daemon.incremental.snapshots.holds


def test_former_rows_end_between_two_transactions_and_then_all_rows_of_the_snapshot_follow():
    daemon = keyless()
    question = daemon.answer(Taken(SEEN, 500))
    assert isinstance(question, TakeSnapshot)
    assert (question.number, question.table.oid) == (1, 1)
    assert daemon.asks_nothing(), "no row is read before the snapshot has its place"
    assert daemon.rendering.ended == []
    daemon.between(400)
    assert daemon.rendering.ended == [1]
    assert daemon.progress.tasks[0].ended, "a restart must read all rows again"
    # The pages of now are looked up behind the snapshot, so that it sees no row on another page.
    assert daemon.answer(looked(table(pages=4))) == Look(1, T, "")
    asked, read = daemon.ask()
    assert isinstance(read, Read)
    assert read.kept == 1
    assert daemon.asks_nothing(), "one question at a time is asked of the session that keeps the snapshot"
    daemon.incremental.plan_answered(asked, whole(1, 2), 0.0)
    daemon.between(400)
    daemon.answer(whole(3))
    daemon.between(400)
    assert daemon.rendering.ids == [1, 2, 3]
    # Changes that the snapshot sees may still come.
    assert not daemon.is_done()
    daemon.between(500)
    assert daemon.is_done()
    assert daemon.answer(Gone()) == LetGo(1)
    assert not holds(daemon)


def test_a_change_that_the_snapshot_sees_is_left_out_behind_its_place():
    daemon = placed()
    rest = daemon.incremental.snapshots.rest
    assert rest(99, INSERT, False) == (None, True)
    assert rest(109, DELETE, False) == (None, True)
    # A transaction that the snapshot does not see goes on, and no window remembers it.
    assert rest(105, INSERT, False) == (INSERT, False)
    assert rest(110, INSERT, False) == (INSERT, False)
    # Other tables are none of its business.
    other = frame(Insert(None, 2, (b"1", b"x")))
    assert rest(99, other, False) == (other, True)
    both = frame(Truncate(None, False, False, (1, 2)))
    left, is_noted = rest(99, both, False)
    assert (left, is_noted) == (frame(Truncate(None, False, False, (2,))), True)
    assert not daemon.rendering.put_rows


def test_nothing_is_left_out_before_the_place():
    daemon = keyless()
    daemon.answer(Taken(SEEN, 500))
    assert not daemon.incremental.snapshots.filters
    assert daemon.incremental.snapshots.rest(99, INSERT, False) == (INSERT, True)


def test_a_change_that_the_snapshot_lacks_before_the_place_makes_the_stream_wait_for_the_next_one():
    daemon = keyless()
    daemon.answer(Taken(SEEN, 500))
    # WHEN the stream has passed a change that the snapshot does not see
    daemon.incremental.watched.note(112, T, None, None, moved=False)
    daemon.between(400)
    # THEN nothing has ended, and the next snapshot is taken while the stream waits
    assert daemon.rendering.ended == []
    assert holds(daemon)
    assert daemon.answer(Gone()) == LetGo(1)
    assert isinstance(daemon.answer(Taken(Visibility(113, 113), 600)), TakeSnapshot)
    daemon.between(400)
    assert daemon.rendering.ended == [1]
    assert not holds(daemon)


def test_the_stream_does_not_wait_for_ever_for_a_transaction_that_stays_unseen():
    daemon = keyless()
    tries = 0
    daemon.incremental.watched.note(112, T, None, None, moved=False)
    while holds(daemon) or not tries:
        daemon.now += 10
        question = daemon.answer(Gone() if daemon.incremental.plans.let_go else Taken(SEEN, 500))
        tries += isinstance(question, TakeSnapshot)
        daemon.between(400)
    assert tries == TRIES_MAX + 1
    assert daemon.rendering.ended == []
    # THEN the table is looked up anew
    daemon.now += 10
    daemon.answer(Gone())
    assert daemon.answer(looked(table())) == Look(1, T, "")
    assert isinstance(daemon.ask()[1], FindWriters)


@pytest.mark.parametrize("answer", [Busy("locked"), Lost(TransientError("gone"))])
def test_the_stream_waits_for_no_connection(answer: Any):
    daemon = keyless()
    daemon.answer(Taken(SEEN, 500))
    daemon.incremental.watched.note(112, T, None, None, moved=False)
    daemon.between(400)
    assert holds(daemon)
    daemon.answers(Gone(), answer)
    assert not holds(daemon)
    daemon.now += 10
    assert isinstance(daemon.ask()[1], TakeSnapshot)


def test_an_insert_may_stand_between_the_rows_and_a_delete_may_not():
    daemon = placed()
    daemon.answer(whole(1))
    daemon.between(400)
    assert daemon.incremental.snapshots.rest(120, INSERT, False) == (INSERT, False)
    daemon.between(450)
    assert daemon.facts.of(SnapshotRestarted) == []
    # WHEN a row is deleted that is perhaps still to be sent
    daemon.answer(whole(2))
    daemon.incremental.snapshots.rest(121, DELETE, False)
    daemon.between(460)
    # THEN no row follows before another truncate record, and the stream waits from there on until the rows are sent
    assert daemon.rendering.ids == [1]
    (restarted,) = daemon.facts.of(SnapshotRestarted)
    assert "no key" in restarted.reason
    daemon.answers(Gone(), looked(table()), nobody())
    assert not holds(daemon)
    daemon.answer(Taken(Visibility(122, 122), 700))
    daemon.between(460)
    assert daemon.rendering.ended == [1, 1]
    daemon.answers(looked(table()), whole(1))
    daemon.between(460)
    assert holds(daemon)
    daemon.answer(whole(2))
    daemon.between(460)
    assert not holds(daemon)
    assert daemon.rendering.ids == [1, 1, 2]
    assert not daemon.is_done()
    daemon.between(700)
    assert daemon.is_done()


def test_a_table_that_is_updated_all_the_time_holds_up_the_others_for_a_limited_time():
    # GIVEN a reading that was disturbed, so that the stream waits for the next one
    daemon = placed(TableTask(T, 1, request="me"))
    daemon.incremental.snapshots.rest(121, DELETE, False)
    daemon.between(460)
    daemon.answers(Gone(), looked(table()), nobody(), Taken(Visibility(122, 122), 700))
    daemon.between(460)
    daemon.answers(looked(table()), whole(1))
    daemon.now += HOLD_S
    daemon.between(460)
    assert holds(daemon)
    # WHEN its rows are not all read in time
    daemon.now += 1
    daemon.between(460)
    # THEN the stream goes on, and the table fails by its name
    assert not holds(daemon)
    (failed,) = daemon.facts.of(SnapshotTableFailed)
    assert "The topic lacks rows" in failed.error


def test_a_delete_behind_the_last_row_disturbs_nothing():
    daemon = placed()
    daemon.answer(whole(1))
    daemon.between(400)
    daemon.answer(whole(2))
    daemon.between(400)
    daemon.incremental.snapshots.rest(121, DELETE, False)
    daemon.between(500)
    assert daemon.is_done()
    assert daemon.facts.of(SnapshotRestarted) == []


def test_a_lost_connection_begins_the_table_again_behind_another_truncate_record():
    daemon = placed()
    daemon.answer(whole(1))
    daemon.between(400)
    daemon.answer(Lost(TransientError("gone")))
    daemon.now += 10
    daemon.answers(Gone(), looked(table()), nobody(), Taken(Visibility(130, 130), 600))
    daemon.between(500)
    assert daemon.rendering.ended == [1, 1]
    daemon.answers(looked(table()))
    _, read = daemon.ask()
    assert isinstance(read, Read)
    assert isinstance(read.query, PageQuery)
    assert (read.query.begin, read.kept) == (0, 2), "pages of a former snapshot do not count"


def test_a_restart_reads_all_rows_again():
    daemon = placed()
    daemon.answer(whole(1))
    daemon.between(400)
    again = Daemon(type(daemon.progress).from_json(daemon.progress.to_json()), chunk_bytes=2 * PAGE)
    again.rendering.keyless = {1}
    again.answers(looked(table()), nobody(), Taken(SEEN, 500))
    again.between(400)
    assert again.rendering.ended == [1]
    again.answer(looked(table()))
    _, read = again.ask()
    assert isinstance(read, Read)
    assert isinstance(read.query, PageQuery)
    assert read.query.begin == 0


def test_a_condition_is_refused_because_the_other_rows_would_be_lost():
    daemon = Daemon(asked_for(TableTask(T, 1, request="me", where="id > 1")))
    daemon.rendering.keyless = {1}
    daemon.answer(looked(table()))
    (failed,) = daemon.facts.of(SnapshotTableFailed)
    assert "without a where" in failed.error


def test_a_table_that_cannot_be_read_after_its_former_rows_ended_says_so():
    daemon = placed(TableTask(T, 1, request="me"))
    daemon.answer(Refused("permission denied"))
    (failed,) = daemon.facts.of(SnapshotTableFailed)
    assert "read the table again" in failed.error


def test_a_snapshot_that_is_taken_after_its_plan_is_over_is_let_go_of():
    daemon = keyless()
    asked, _ = daemon.ask()
    daemon.incremental.redefined(1)
    assert daemon.answer(Gone()) == LetGo(1)
    daemon.incremental.plan_answered(asked, Taken(SEEN, 500), 0.0)
    assert daemon.answer(Gone()) == LetGo(1)


def test_under_a_name_that_the_stream_does_not_have_yet_nothing_ends():
    daemon = keyless()
    daemon.answer(Taken(SEEN, 500))
    daemon.owned[1] = "public.former"
    daemon.between(400)
    assert daemon.rendering.ended == []
