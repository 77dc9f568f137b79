"""Tables that are read beside the stream, from the first question to the end, with answers made by hand."""

from dataclasses import replace

from cdcd.core.catalog.oids import Oids
from cdcd.core.engine.actions import FindWriters, Look, Read
from cdcd.core.facts.snapshot import SnapshotFinished, SnapshotStarted, SnapshotTableFinished
from cdcd.core.snapshot.progress import Progress
from cdcd.core.snapshot.reading import PageQuery
from cdcd.core.snapshot.table_task import TableTask
from tests.unit.core.engine.beside import Daemon, T, asked_for, reading
from tests.unit.core.engine.tables import PAGE, key, looked, nobody, rows, table


def test_a_table_is_looked_up_waited_for_planned_and_read():
    daemon = Daemon(asked_for(TableTask(T, request="me", where="id > 5")))
    assert daemon.answer(looked(table())) == Look(0, T, "id > 5")
    assert daemon.answer(nobody()) == FindWriters((1, 1))
    # The condition is examined once.
    assert daemon.answer(looked(table())) == Look(1, T, "")
    _, read = daemon.ask()
    assert isinstance(read, Read)
    assert read.query == PageQuery('"public"."1"', 1, 100, 0, 4, table(), ("", "id > 5"))
    assert (read.bytes_max, read.exported) == (8 * PAGE, False)
    assert daemon.asks_nothing()


def test_its_rows_have_their_place_when_the_stream_is_past_what_their_snapshot_sees():
    daemon = reading()
    daemon.answer(rows(1, 2, after=500))
    daemon.between(499)
    assert daemon.rendering.put_rows == []
    before = daemon.progress
    daemon.between(500)
    assert daemon.rendering.put_rows == [(1, [1, 2])]
    assert daemon.is_done()
    assert daemon.progress.outcomes[0].rows == 2
    # They are reported when Kafka holds the rows.
    assert daemon.incremental.tasks.report_delivered(before, 5.0) == set()
    assert daemon.facts.of(SnapshotTableFinished) == daemon.facts.of(SnapshotFinished) == []
    assert daemon.incremental.tasks.report_delivered(daemon.progress, 7.0) == {1}
    assert daemon.facts.of(SnapshotTableFinished) == [SnapshotTableFinished(table=T, rows=2, seconds=7.0)]
    assert daemon.facts.of(SnapshotFinished) == [SnapshotFinished(rows=2)]
    daemon.incremental.tasks.report_delivered(daemon.progress, 8.0)
    assert len(daemon.facts.of(SnapshotFinished)) == 1
    assert not daemon.incremental.watched.watches


def test_a_table_that_is_read_once_more_still_needs_its_description():
    daemon = reading()
    daemon.answer(rows(1, 2, after=500))
    daemon.between(500)
    tasks = daemon.incremental.tasks
    first = daemon.progress
    tasks.add([TableTask(T, 1, request="again")])
    assert tasks.report_delivered(first, 7.0) == set()
    tasks.end(tasks.progress.tasks[0])
    second = tasks.progress
    tasks.add([TableTask(T, 1, request="and again")])
    tasks.end(tasks.progress.tasks[0])
    # Rows of the third reading may wait for Kafka.
    assert tasks.report_delivered(second, 8.0) == set()
    assert tasks.report_delivered(tasks.progress, 9.0) == {1}


def test_rows_are_numbered_on():
    daemon = reading(replace(asked_for(), event_no=40), chunk_bytes=2 * PAGE)
    daemon.answers(rows(1, 2, 3), rows(4))
    daemon.between()
    assert daemon.rendering.numbers == [40, 43]
    assert daemon.progress.event_no == 44


def test_what_begins_is_said_once():
    daemon = Daemon(asked_for(TableTask(T, 1), TableTask("public.u", 2)), parallelism=1)
    for each in (table(), table(2, "u")):
        daemon.plan(each)
        daemon.answer(rows())
        daemon.between()
    assert daemon.facts.of(SnapshotStarted) == [
        SnapshotStarted(tables=2, bytes=4 * PAGE, method="incremental")
    ]
    assert daemon.is_done()


def test_an_empty_table_is_complete_when_it_is_planned():
    daemon = Daemon(asked_for())
    daemon.plan(table(pages=0))
    assert daemon.is_done()
    assert daemon.rendering.put_rows == []


def test_two_requests_for_one_table_are_read_one_after_the_other():
    daemon = Daemon(asked_for(TableTask(T, 1), TableTask(T, 1, request="me", where="id > 1")))
    daemon.plan()
    daemon.ask()
    assert daemon.asks_nothing()


def test_also_when_one_is_known_by_its_name_only():
    daemon = Daemon(asked_for(TableTask(T, 1), TableTask(T, request="me", where="id > 1")))
    daemon.ask()
    assert daemon.asks_nothing()


def test_also_when_the_table_waits_for_the_initial_snapshot():
    # GIVEN a request for a table by a name that nobody knew at the start
    progress = replace(asked_for(TableTask("public.renamed", request="me")), waiting=Oids((1,)))
    daemon = Daemon(progress, chunk_bytes=2 * PAGE)
    renamed = table(name="renamed")
    (first, _), (second, _) = daemon.ask(), daemon.ask()
    daemon.incremental.plan_answered(first, looked(renamed), daemon.now)
    daemon.incremental.plan_answered(second, looked(renamed), daemon.now)
    # THEN only one of the two is read: each would have taken the other's changes
    daemon.answers(nobody(), looked(renamed))
    reads = [daemon.ask(), daemon.ask()]
    assert all(isinstance(question, Read) for _, question in reads)
    assert daemon.asks_nothing()
    daemon.incremental.watched.note(150, "public.renamed", key(1), None, moved=False)
    for asked, _ in reads:
        daemon.incremental.plan_answered(asked, rows(1, seen=120), daemon.now)
    daemon.between()
    assert daemon.rendering.ids == []
    # THEN the other one follows
    assert daemon.answer(looked(renamed)) == Look(1, "public.renamed", "")
    assert len(daemon.progress.tasks) == 1


def test_so_many_tables_are_read_at_a_time():
    daemon = Daemon(replace(Progress(), waiting=Oids((1, 2, 3))), parallelism=2)
    assert [daemon.ask()[1], daemon.ask()[1]] == [Look(1, T, ""), Look(2, "public.u", "")]
    assert daemon.asks_nothing()


def test_a_table_that_is_read_again_is_the_same_task_from_its_beginning():
    daemon = reading(chunk_bytes=2 * PAGE, parallelism=1)
    daemon.answer(rows(1))
    daemon.between()
    daemon.incremental.read_anew(1, T, "replaced")
    assert daemon.progress.tables_left == 1
    assert daemon.progress.tasks[0].parts is None
    assert not daemon.incremental.watched.watches, "nothing is owed of it"
    daemon.incremental.read_anew(2, "public.u", "replaced")
    assert [task.request for task in daemon.progress.tasks] == ["", "replaced"]


def test_reading_stops_while_it_is_paused_and_its_window_goes():
    daemon = reading(chunk_bytes=2 * PAGE)
    asked, _ = daemon.ask()
    daemon.answer(rows(1, after=5000))
    daemon.incremental.set_paused(True)
    assert daemon.asks_nothing()
    assert daemon.incremental.next_at() is None
    # GIVEN hours of changes
    for number in range(1000):
        daemon.incremental.watched.note(150 + number, T, key(number), None, moved=False)
    daemon.incremental.plan_answered(asked, rows(2), daemon.now)
    daemon.between(5000)
    assert daemon.rendering.put_rows == []
    # THEN it goes on with a plan of its own
    daemon.incremental.set_paused(False)
    daemon.plan(seen=5000)
    assert isinstance(daemon.ask()[1], Read)
    assert daemon.progress.paused is False
