"""Rows that a table owes, and what the checkpoint says of them."""

from cdcd.core.engine.actions import Look, Read
from cdcd.core.facts.snapshot import SnapshotRestarted
from cdcd.core.snapshot.progress import Progress
from cdcd.core.snapshot.reading import KeyQuery, PageQuery
from cdcd.core.snapshot.table_task import OWED_KEYS_MAX, Part, TableTask
from tests.unit.core.engine.beside import Daemon, T, asked_for, reading
from tests.unit.core.engine.tables import PAGE, key, looked, nobody, rows, table, values


def test_a_row_whose_value_was_never_sent_is_read_by_its_key_before_the_table_is_complete():
    daemon = reading()
    asked, _ = daemon.ask()
    # GIVEN a change that the chunk does not see, and that leaves a value of the row out
    daemon.incremental.watched.note(150, T, key(2), values(2), moved=False)
    daemon.incremental.plan_answered(asked, rows(1, 2, seen=120), daemon.now)
    daemon.between()
    assert daemon.rendering.ids == [1]
    assert not daemon.is_done()
    # THEN the row is read by its key
    _, read = asked = daemon.ask()
    assert isinstance(read, Read)
    assert read.query == KeyQuery(table(), ("id",), (values(2),), ("", ""))
    daemon.incremental.plan_answered(asked[0], rows(2, seen=151), daemon.now)
    daemon.between()
    assert daemon.rendering.ids == [1, 2]
    assert daemon.is_done()
    assert daemon.progress.outcomes[0].rows == 2


def test_a_change_before_the_table_is_planned_is_owed_if_snapshots_do_not_see_it_yet():
    # GIVEN two changes that were streamed before the table was planned. Snapshots see only the first change
    daemon = Daemon(asked_for())
    daemon.answer(looked(table(), seen=100))
    daemon.incremental.watched.note(90, T, key(1), values(1), moved=False)
    daemon.incremental.watched.note(150, T, key(2), values(2), moved=False)
    daemon.answers(nobody(120), looked(table(), seen=120))
    # THEN the second row is read by its key, and the first one is not
    by_key, read = daemon.ask()
    assert isinstance(read, Read)
    assert read.query == KeyQuery(table(), ("id",), (values(2),), ("", ""))
    # AND the pages give all rows but the second one
    daemon.answer(rows(1, 2, seen=120))
    daemon.between()
    assert daemon.rendering.ids == [1]
    assert not daemon.is_done()
    daemon.incremental.plan_answered(by_key, rows(2, seen=151), daemon.now)
    daemon.between()
    assert daemon.rendering.ids == [1, 2]
    assert daemon.is_done()


def test_a_part_of_which_nothing_was_read_is_planned_with_the_pages_of_now():
    daemon = reading(parallelism=1)
    daemon.incremental.redefined(1)
    daemon.plan(table(pages=9))
    assert daemon.progress.tasks[0].pages == 9


def test_a_row_that_moved_to_a_page_which_was_read_is_read_by_its_key():
    daemon = reading(chunk_bytes=2 * PAGE, parallelism=1)
    daemon.answer(rows(1))
    daemon.between()
    # GIVEN a row that moves from the second chunk's pages to the first's, by an update that the second chunk sees
    daemon.incremental.watched.note(150, T, key(2), values(2), moved=False)
    _, read = daemon.ask()
    assert isinstance(read, Read)
    assert isinstance(read.query, KeyQuery)


def test_a_row_that_a_chunk_delivers_after_its_change_is_owed_no_longer():
    daemon = reading(chunk_bytes=2 * PAGE, parallelism=1)
    asked, _ = daemon.ask()
    daemon.incremental.watched.note(150, T, key(1), values(1), moved=False)
    daemon.incremental.plan_answered(asked, rows(1, seen=151), daemon.now)
    daemon.between()
    _, read = daemon.ask()
    assert isinstance(read, Read)
    assert isinstance(read.query, PageQuery)


def test_a_row_that_changes_once_more_while_it_is_read_by_key_is_read_once_more():
    daemon = reading(parallelism=1)
    asked, _ = daemon.ask()
    daemon.incremental.watched.note(150, T, key(2), values(2), moved=False)
    daemon.incremental.plan_answered(asked, rows(1, 2, seen=120), daemon.now)
    daemon.between()
    asked, _ = daemon.ask()
    daemon.incremental.watched.note(160, T, key(2), values(2), moved=False)
    daemon.incremental.plan_answered(asked, rows(2, seen=155), daemon.now)
    daemon.between()
    assert daemon.rendering.ids == [1]
    daemon.answer(rows(2, seen=161))
    daemon.between()
    assert daemon.rendering.ids == [1, 2]
    assert daemon.is_done()


def test_a_row_that_is_gone_when_it_is_read_by_key_is_owed_no_longer():
    daemon = reading()
    asked, _ = daemon.ask()
    daemon.incremental.watched.note(150, T, key(2), values(2), moved=False)
    daemon.incremental.plan_answered(asked, rows(1, 2, seen=120), daemon.now)
    daemon.between()
    daemon.answer(rows(seen=170))
    daemon.between()
    assert daemon.is_done()


def test_what_an_earlier_session_owed_is_read_by_its_key():
    # GIVEN a table of which every page was delivered, and a row is owed
    task = TableTask(T, 1, parts=(Part(1, 100, 4, 4 * PAGE, ((0, 4),)),), owed=(values(7),), rows=9)
    daemon = Daemon(Progress().add([task]))
    daemon.plan()
    question = daemon.answer(rows(7))
    assert isinstance(question, Read)
    assert isinstance(question.query, KeyQuery)
    daemon.between()
    assert daemon.rendering.ids == [7]
    assert daemon.progress.outcomes[0].rows == 10


def test_what_the_stream_changes_before_the_table_is_planned_again_is_owed():
    # GIVEN an interrupted snapshot of which a page was read; a row moves to that page while nothing is read
    task = TableTask(T, 1, parts=(Part(1, 100, 4, 4 * PAGE, ((0, 1),)),))
    daemon = Daemon(Progress().add([task]))
    assert daemon.incremental.watched.watches
    daemon.incremental.watched.defined(1, (T,))
    assert daemon.incremental.watched.is_watched(T)
    daemon.incremental.watched.note(50, T, key(3), values(3), moved=False)
    written = daemon.incremental.watched.write_down()
    assert written is not None
    assert written.tasks[0].owed == (values(3),)


def test_so_it_is_after_the_initial_snapshot_left_a_table_in_the_same_session():
    daemon = Daemon(asked_for())
    task = daemon.progress.tasks[0]
    parts = (Part(1, 100, 4, 4 * PAGE),)
    daemon.incremental.tasks.replace(daemon.progress.plan(task, 1, T, parts, 1).deliver(task, 1, 0, 1, 5))
    daemon.incremental.watched.defined(1, (T,))
    assert daemon.incremental.watched.watches
    daemon.incremental.watched.note(50, T, key(3), values(3), moved=False)
    written = daemon.incremental.watched.write_down()
    assert written is not None
    assert written.tasks[0].owed == (values(3),)


def test_a_truncate_settles_what_is_owed():
    daemon = reading()
    asked, _ = daemon.ask()
    daemon.incremental.watched.note(150, T, key(2), values(2), moved=False)
    daemon.incremental.watched.truncated(160, [1])
    daemon.incremental.plan_answered(asked, rows(seen=170), daemon.now)
    daemon.between()
    assert daemon.is_done()


def test_more_than_the_checkpoint_can_hold_is_written_down_as_unsettled_and_read_again_after_a_restart():
    daemon = reading(chunk_bytes=2 * PAGE, parallelism=1)
    daemon.answer(rows(1))
    daemon.between()
    for number in range(OWED_KEYS_MAX + 1):
        daemon.incremental.watched.note(150, T, key(number), values(number), moved=False)
    written = daemon.incremental.watched.write_down()
    assert written is not None
    assert written.tasks[0].unsettled
    again = Daemon(Progress.from_json(written.to_json()))
    assert again.progress.tasks[0].parts is None
    assert not again.progress.tasks[0].unsettled
    assert len(again.facts.of(SnapshotRestarted)) == 1
    assert again.changes == 1


def test_more_than_memory_may_hold_makes_the_table_be_read_from_its_beginning():
    daemon = reading(chunk_bytes=2 * PAGE, parallelism=1)
    asked, _ = daemon.ask()
    for number in range(200_001):
        daemon.incremental.watched.note(50, T, key(number), values(number), moved=False)
    written = daemon.incremental.watched.write_down()
    assert written is not None
    assert written.tasks[0].unsettled or not written.tasks[0].has_begun
    daemon.incremental.plan_answered(asked, rows(1), daemon.now)
    daemon.between()
    assert daemon.progress.tasks[0].parts is None
    assert [fact.reason for fact in daemon.facts.of(SnapshotRestarted)] == [
        "too many rows were to be read again by their keys"
    ]
    assert isinstance(daemon.ask()[1], Look)


def test_so_it_is_with_chunks_that_wait_then():
    daemon = reading(chunk_bytes=2 * PAGE)
    daemon.answers(rows(1, after=500), rows(2, after=500))
    for number in range(200_001):
        daemon.incremental.watched.note(50, T, key(number), values(number), moved=False)
    daemon.between(500)
    assert daemon.progress.tasks[0].parts is None
    assert isinstance(daemon.ask()[1], Look)


def test_nothing_is_written_down_where_nothing_was_ever_asked_for():
    assert Daemon().incremental.watched.write_down() is None


def test_changes_in_all_topics_of_a_table_matter():
    daemon = reading()
    watched = daemon.incremental.watched
    watched.defined(1, (T, "elsewhere"))
    assert watched.is_watched("elsewhere")
    assert not watched.is_watched("nowhere")
    asked, _ = daemon.ask()
    watched.note(150, "elsewhere", key(2), None, moved=False)
    daemon.incremental.plan_answered(asked, rows(1, 2, seen=120), daemon.now)
    daemon.between()
    assert daemon.rendering.ids == [1]
    assert daemon.is_done()
