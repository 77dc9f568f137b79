"""The initial snapshot at the slot's own snapshot, with answers made by hand."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from cdcd.core.engine.actions import Busy, Lost, Read
from cdcd.core.engine.checkpoint import AsideTable
from cdcd.core.engine.exported import Exported
from cdcd.core.engine.fates import TOPIC, Fates
from cdcd.core.engine.incremental import Incremental
from cdcd.core.engine.session_start import ExportedTables
from cdcd.core.engine.settings import SnapshotSettings
from cdcd.core.errors import TransientError
from cdcd.core.facts.snapshot import (
    SnapshotFinished,
    SnapshotPostponed,
    SnapshotTableFailed,
    SnapshotTableFinished,
    SnapshotWaiting,
)
from cdcd.core.snapshot.beginning import initial
from cdcd.core.snapshot.progress import Progress
from cdcd.core.snapshot.reading import Changed, PageQuery, Refused, Rows, SourceTable, TooLarge
from tests.unit.core.engine.tables import KEYED, PAGE, Facts, Rendering, table, tasks

NOTHING: Mapping[int, str] = {}
T, U = table(1, "t", pages=2), table(2, "u", pages=1)


def lines(*ids: int) -> Rows:
    found = [b"%d\tx\n" % each for each in ids]
    return Rows(found, sum(map(len, found)))


class Daemon:
    """An `Exported` with what it needs."""

    def __init__(
        self,
        *tables: SourceTable,
        published: Mapping[int, str] | None = None,
        excluded: tuple[str, ...] = (),
        parallelism: int = 2,
        locked: Mapping[int, str] = NOTHING,
        aside: Collection[int] = (),
    ) -> None:
        names = {each.oid: each.name for each in tables} if published is None else published
        self.rendering, self.facts = Rendering(), Facts()
        settings = SnapshotSettings(chunk_bytes=PAGE, parallelism=parallelism)
        fates = Fates([AsideTable(oid, 1, TOPIC) for oid in aside], names, observe=self.facts)
        for each in [each for each in tables if each.oid not in aside]:
            self.rendering.define(each.relation, KEYED, {})
        self.incremental = Incremental(
            tasks(initial(Progress(), names, excluded, exported=True), names, self.facts),
            self.rendering,
            settings,
            fates,
            observe=self.facts,
        )
        self.exported = Exported(
            self.incremental.tasks,
            self.rendering,
            ExportedTables({each.oid: each for each in tables}, dict.fromkeys(locked, KEYED), {}, locked),
            settings,
            fates,
            ends_rows=False,
        )

    @property
    def progress(self) -> Progress:
        return self.incremental.progress

    def ask(self) -> tuple[object, Read]:
        found = self.exported.next_question(0.0)
        assert found is not None, "nothing is asked"
        assert isinstance(found[1], Read)
        return found[0], found[1]

    def answers(self, *answers: Any) -> None:
        for each in answers:
            asked, _ = self.ask()
            self.exported.chunk_read(asked, each, 0.0)

    def finish(self) -> None:
        assert self.exported.is_done
        self.exported.finish(0.0)


def test_all_tables_are_read_at_the_slots_snapshot_page_by_page():
    daemon = Daemon(T, U)
    asked = []
    for answer in (lines(1), lines(2), lines(3)):
        chunk, read = daemon.ask()
        assert isinstance(read.query, PageQuery)
        asked.append((read.query.oid, read.query.begin, read.query.end, read.exported))
        daemon.exported.chunk_read(chunk, answer, 0.0)
    assert asked == [(1, 0, 1, True), (1, 1, 2, True), (2, 0, 1, True)]
    daemon.finish()
    assert daemon.rendering.put_rows == [(1, [1]), (1, [2]), (2, [3])]
    assert daemon.rendering.numbers == [0, 1, 2]
    assert daemon.rendering.markers == [
        ("first", "true"),
        ("true", "last_in_data_collection"),
        ("first_in_data_collection", "last"),
    ]
    assert daemon.progress.is_done
    daemon.incremental.tasks.report_delivered(daemon.progress, 0.0)
    assert [each.rows for each in daemon.facts.of(SnapshotTableFinished)] == [2, 1]
    assert daemon.facts.of(SnapshotFinished) == [SnapshotFinished(rows=3)]


def test_so_many_chunks_are_read_at_a_time():
    daemon = Daemon(T, U, parallelism=2)
    daemon.ask()
    daemon.ask()
    assert daemon.exported.next_question(0.0) is None
    assert not daemon.exported.is_done


def test_progress_goes_out_with_the_rows_that_it_counts():
    daemon = Daemon(T, U, parallelism=1)
    daemon.answers(lines(1))
    # The last chunk that was read is held back, for it might be the last of the table.
    assert daemon.progress.tasks[0].pages_done == 0
    daemon.answers(lines(2))
    assert daemon.progress.tasks[0].pages_done == 1
    assert daemon.progress.tables_left == 2


def test_tables_without_pages_end_at_once_and_need_no_topic():
    daemon = Daemon(table(1, "empty", pages=0), U, table(3, "late", pages=0))
    assert daemon.exported.topics() == ("public.u",)
    daemon.answers(lines(1))
    daemon.finish()
    assert daemon.progress.is_done
    assert {each.name for each in daemon.progress.outcomes} == {"public.empty", "public.u", "public.late"}
    assert daemon.rendering.markers == [("first", "last")]


def test_tables_that_are_excluded_are_neither_read_nor_given_topics():
    daemon = Daemon(T, U, excluded=("public.t",))
    assert daemon.exported.topics() == ("public.u",)
    daemon.answers(lines(1))
    daemon.finish()
    assert daemon.rendering.put_rows == [(2, [1])]
    assert [each.name for each in daemon.progress.outcomes] == ["public.u"]


def test_tables_that_are_set_aside_before_they_are_defined_are_given_no_topics():
    daemon = Daemon(T, U, aside=[1])
    assert daemon.exported.topics() == ("public.u",)


def test_a_chunk_without_rows_counts_at_once():
    daemon = Daemon(T)
    daemon.answers(lines(), lines())
    assert daemon.progress.is_done
    daemon.finish()
    assert daemon.rendering.put_rows == []


def test_a_table_that_was_gone_at_the_slots_snapshot_ends_by_its_name():
    daemon = Daemon(U, published={1: "public.dropped", 2: "public.u", 3: "public.dropped_too"})
    daemon.answers(lines(1))
    daemon.finish()
    assert daemon.progress.is_done
    assert [each.table for each in daemon.facts.of(SnapshotTableFailed)] == [
        "public.dropped",
        "public.dropped_too",
    ]


def test_a_table_that_changed_since_the_snapshot_is_left_to_be_read_beside_the_stream():
    daemon = Daemon(T, U)
    (first, _), (second, _) = daemon.ask(), daemon.ask()
    daemon.exported.chunk_read(first, lines(1), 0.0)
    daemon.exported.chunk_read(second, Changed("its columns have changed"), 0.0)
    daemon.answers(lines(3))
    daemon.finish()
    # THEN its rows so far count, and no row of it is said to be its last
    assert sorted(daemon.rendering.put_rows) == [(1, [1]), (2, [3])]
    assert [each[1] for each in daemon.rendering.markers if each].count("last") == 1
    assert [(task.name, task.pages_done) for task in daemon.progress.tasks] == [("public.t", 1)]
    assert not daemon.progress.is_done


def test_a_chunk_that_comes_back_after_its_table_changed_is_dropped():
    daemon = Daemon(T)
    (first, _), (second, _) = daemon.ask(), daemon.ask()
    daemon.exported.chunk_read(first, Changed("dropped"), 0.0)
    daemon.exported.chunk_read(second, lines(2), 0.0)
    daemon.finish()
    assert daemon.rendering.put_rows == []
    assert daemon.progress.tasks[0].pages_done == 0


def test_rows_that_are_too_large_are_read_in_halves():
    whole = replace(T, parts=(replace(T.parts[0], part=replace(T.parts[0].part, size=2)),))
    daemon = Daemon(whole)
    daemon.answers(TooLarge())
    spans = []
    for answer in (lines(1), lines(2)):
        chunk, read = daemon.ask()
        assert isinstance(read.query, PageQuery)
        spans.append((read.query.begin, read.query.end))
        daemon.exported.chunk_read(chunk, answer, 0.0)
    assert spans == [(0, 1), (1, 2)]


def test_a_locked_table_is_left_to_be_read_beside_the_stream_and_the_others_are_read():
    daemon = Daemon(T, U, parallelism=1)
    daemon.answers(lines(1), Busy("locked by server process 7"), lines(3))
    daemon.finish()
    # THEN nobody waits for it, its rows so far count, and somebody is told what to do
    assert sorted(daemon.rendering.put_rows) == [(1, [1]), (2, [3])]
    assert [(task.name, task.pages_done) for task in daemon.progress.tasks] == [("public.t", 1)]
    (postponed,) = daemon.facts.of(SnapshotPostponed)
    assert (postponed.table, postponed.reason) == ("public.t", "locked by server process 7")
    assert "pg_terminate_backend" in postponed.hint


def test_a_locked_table_of_which_several_chunks_are_out_is_told_of_once():
    daemon = Daemon(T)
    (first, _), (second, _) = daemon.ask(), daemon.ask()
    daemon.exported.chunk_read(first, Busy("locked"), 0.0)
    daemon.exported.chunk_read(second, Busy("locked"), 0.0)
    daemon.finish()
    assert len(daemon.facts.of(SnapshotPostponed)) == 1
    assert [(task.name, task.pages_done) for task in daemon.progress.tasks] == [("public.t", 0)]


def test_a_table_that_was_locked_before_the_snapshot_could_be_looked_at_is_left_too():
    daemon = Daemon(
        U, published={1: "public.t", 2: "public.u", 3: "public.v"}, locked={1: "locked", 3: "locked"}
    )
    daemon.answers(lines(3))
    daemon.finish()
    assert [task.name for task in daemon.progress.tasks] == ["public.t", "public.v"]
    assert [each.table for each in daemon.facts.of(SnapshotPostponed)] == ["public.t", "public.v"]
    assert daemon.facts.of(SnapshotTableFailed) == []


def test_a_locked_table_without_a_key_is_asked_for_again_when_all_others_are_read():
    daemon = Daemon(T, U, parallelism=1)
    daemon.rendering.keyless.add(1)
    daemon.answers(Busy("lock timeout"))
    asked = []
    for answer in (lines(3), Busy("lock timeout"), Busy("lock timeout"), lines(1), lines(2)):
        chunk, read = daemon.ask()
        assert isinstance(read.query, PageQuery)
        asked.append((read.query.oid, read.query.begin))
        assert not daemon.exported.is_done
        daemon.exported.chunk_read(chunk, answer, 0.0)
    daemon.finish()
    assert asked == [(2, 0), (1, 1), (1, 0), (1, 1), (1, 0)]
    assert daemon.progress.is_done
    # AND that is said once
    assert daemon.facts.of(SnapshotWaiting) == [SnapshotWaiting(table="public.t", writers=["lock timeout"])]


def test_a_locked_table_without_a_key_is_given_up_by_name_and_holds_up_nothing_for_ever():
    daemon = Daemon(T, U, parallelism=1)
    daemon.rendering.keyless.add(1)
    # GIVEN a part of the table that was read before somebody locked the table
    chunk, _ = daemon.ask()
    daemon.exported.chunk_read(chunk, lines(2), 0.0)
    chunk, _ = daemon.ask()
    daemon.exported.chunk_read(chunk, Busy("locked by server process 7"), 10.0)
    # WHEN the other table is read, however long that takes
    chunk, read = daemon.ask()
    assert isinstance(read.query, PageQuery)
    assert read.query.oid == 2
    daemon.exported.chunk_read(chunk, lines(3), 100.0)
    assert daemon.facts.of(SnapshotTableFailed) == []
    # THEN the lock is waited for no longer
    chunk, _ = daemon.ask()
    daemon.exported.chunk_read(chunk, Busy("locked by server process 7"), 105.0)
    assert daemon.exported.is_done
    daemon.finish()
    (failed,) = daemon.facts.of(SnapshotTableFailed)
    assert failed.table == "public.t"
    assert "locked by server process 7" in failed.error
    assert daemon.exported.failure is None
    assert daemon.progress.is_done


def test_the_lock_of_a_table_that_was_set_aside_meanwhile_does_not_matter():
    daemon = Daemon(T, U, parallelism=1)
    chunk, _ = daemon.ask()
    daemon.exported.leave(1, "it is set aside")
    # Kafka holds that the table has ended, so its description is forgotten.
    del daemon.rendering.names[1]
    daemon.rendering.keyless.add(1)
    daemon.exported.chunk_read(chunk, Busy("locked by server process 7"), 10.0)
    assert daemon.facts.of(SnapshotWaiting) == daemon.facts.of(SnapshotPostponed) == []
    daemon.answers(lines(3))
    daemon.finish()
    assert [oid for oid, _ in daemon.rendering.put_rows] == [2]


def test_a_lock_that_is_short_costs_a_table_without_a_key_nothing():
    daemon = Daemon(T, parallelism=1)
    daemon.rendering.keyless.add(1)
    for answer, now in (
        (Busy("locked"), 0.0),
        (Busy("locked"), 29.0),
        (lines(1), 31.0),
        (Busy("locked"), 32.0),
    ):
        chunk, _ = daemon.ask()
        daemon.exported.chunk_read(chunk, answer, now)
    assert not daemon.exported.is_done
    chunk, _ = daemon.ask()
    daemon.exported.chunk_read(chunk, lines(1), 40.0)
    daemon.finish()
    assert daemon.facts.of(SnapshotTableFailed) == []
    assert daemon.progress.is_done


def test_rows_that_may_not_be_read_end_the_session_with_what_to_do():
    daemon = Daemon(U)
    daemon.answers(Refused("permission denied for table u", "Grant SELECT on public.u:"))
    assert daemon.exported.failure is not None
    assert daemon.exported.failure.message == (
        "The rows of public.u cannot be read: permission denied for table u"
    )
    assert daemon.exported.failure.hint == "Grant SELECT on public.u:"


def test_a_lost_connection_ends_the_session():
    daemon, error = Daemon(U), TransientError("gone")
    daemon.answers(Lost(error))
    assert daemon.exported.failure is error


def test_nothing_to_read_is_done_at_once():
    daemon = Daemon()
    daemon.finish()
    assert daemon.progress.is_done
