"""A table that is read beside the stream, with answers made by hand."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from cdcd.build import is_compiled
from cdcd.engine.actions import Busy, FindWriters, Look, Lost, Question, Read, Writers
from cdcd.engine.incremental import RETRY_S, WAITING_S, Incremental
from cdcd.errors import SourceError, TransientError
from cdcd.facts import (
    SnapshotFinished,
    SnapshotRestarted,
    SnapshotStarted,
    SnapshotTableFailed,
    SnapshotTableFinished,
    SnapshotWaiting,
)
from cdcd.snapshots.oids import Oids
from cdcd.snapshots.progress import OWED_KEYS_MAX, Part, Progress, TableTask
from cdcd.snapshots.reading import Changed, KeyQuery, PageQuery, Refused, TooLarge
from cdcd.snapshots.visibility import Visibility
from tests.unit.engine.tables import PAGE, Facts, Rendering, key, looked, nobody, rows, table, values

T = "public.t"


class Daemon:
    """An `Incremental` with what it needs; `ask` and `answer` are the engine's two verbs."""

    def __init__(self, progress: Progress | None = None, **options: Any) -> None:
        self.rendering = Rendering()
        self.facts = Facts()
        self.changes = 0
        self.now = 0.0
        self.owned: dict[int, str] = {}
        """Tables that have other names in the stream than they have by now."""
        names: Mapping[int, str] = options.pop("names", {1: T, 2: "public.u"})
        self.incremental = Incremental(
            progress or Progress(),
            self.rendering,
            chunk_bytes=options.pop("chunk_bytes", 4 * PAGE),
            parallelism=options.pop("parallelism", 2),
            names=names,
            observe=self.facts,
            changed=self._changed,
            owns=lambda oid, name: self.owned.get(oid, name) == name,
        )

    def _changed(self) -> None:
        self.changes += 1

    @property
    def progress(self) -> Progress:
        return self.incremental.progress

    def is_done(self) -> bool:
        return self.progress.is_done

    def ask(self) -> tuple[object, Question]:
        found = self.incremental.next_question(self.now)
        assert found is not None, "nothing is asked"
        return found

    def asks_nothing(self) -> bool:
        return self.incremental.next_question(self.now) is None

    def answer(self, answer: Any) -> Question:
        """Answer the next question; returns it."""
        asked, question = self.ask()
        self.incremental.answered(asked, answer, self.now)
        return question

    def answers(self, *answers: Any) -> None:
        for each in answers:
            self.answer(each)

    def between(self, position: int = 1000) -> None:
        self.incremental.between(position, self.now)

    def plan(self, found: Any = None, seen: int = 100) -> None:
        """Everything up to the first chunk."""
        found = table() if found is None else found
        self.answers(looked(found, seen=seen), nobody(seen), looked(found, seen=seen))


def asked_for(*tasks: TableTask) -> Progress:
    return Progress().add(tasks or [TableTask(T, 1)])


def reading(progress: Progress | None = None, found: Any = None, **options: Any) -> Daemon:
    """A daemon with a plan for the table."""
    daemon = Daemon(progress or asked_for(), **options)
    daemon.plan(found)
    return daemon


# One table from its first question to its end.


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
    daemon.between(500)
    assert daemon.rendering.put_rows == [(1, [1, 2])]
    assert daemon.is_done()
    assert daemon.progress.outcomes[0].rows == 2
    assert daemon.facts.of(SnapshotTableFinished) == [SnapshotTableFinished(table=T, rows=2, seconds=0.0)]
    assert daemon.facts.of(SnapshotFinished) == [SnapshotFinished(rows=2)]
    assert not daemon.incremental.watches


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


def test_a_table_whose_topic_is_not_there_waits_for_it_and_then_asks_who_writes():
    daemon = Daemon(asked_for())
    daemon.rendering.missing = {T}
    daemon.answer(looked(table()))
    assert daemon.asks_nothing()
    daemon.incremental.topics_ready(daemon.now)
    assert daemon.asks_nothing()
    daemon.rendering.missing = set()
    daemon.incremental.topics_ready(daemon.now)
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


def test_a_lost_connection_is_no_failure_of_the_table():
    daemon = Daemon(asked_for())
    daemon.answer(Lost(TransientError("gone")))
    daemon.now += 1
    daemon.plan()
    asked, _ = daemon.ask()
    daemon.incremental.answered(asked, Lost(TransientError("gone")), daemon.now)
    assert daemon.asks_nothing()
    daemon.now += 1
    # THEN it is planned anew, and goes on
    daemon.plan()
    daemon.answer(rows(1))
    daemon.between()
    assert daemon.is_done()
    assert daemon.incremental.failure is None


# Tables that end otherwise.


def test_a_table_that_is_not_published_ends_with_that_reason():
    daemon = Daemon(asked_for())
    daemon.answer(looked(None))
    assert daemon.progress.outcomes[0].error == "there is no such table in the publication"
    assert len(daemon.facts.of(SnapshotTableFailed)) == 1


def test_a_condition_that_can_not_be_used_ends_the_request():
    daemon = Daemon(asked_for(TableTask(T, request="me", where="1/0")))
    daemon.answer(looked(table(), problem="division by zero"))
    assert daemon.progress.outcomes[0].error == "the where can not be used: division by zero"


def test_a_table_that_can_have_no_topic_ends():
    daemon = Daemon(asked_for())
    daemon.rendering.refused = {1}
    daemon.answer(looked(table()))
    assert daemon.progress.outcomes[0].error == "no topic"


def test_a_table_without_a_key_ends_a_request_and_the_session_of_an_initial_snapshot():
    requested = Daemon(asked_for(TableTask(T, request="me")))
    requested.rendering.keyless = {1}
    requested.answer(looked(table()))
    assert "no key" in requested.progress.outcomes[0].error
    assert requested.incremental.failure is None
    initial = Daemon(asked_for())
    initial.rendering.keyless = {1}
    initial.answer(looked(table()))
    assert isinstance(initial.incremental.failure, SourceError)
    assert "snapshot.mode: never" in initial.incremental.failure.hint


def test_rows_that_may_not_be_read_end_a_request_and_the_session_of_an_initial_snapshot():
    requested = reading(asked_for(TableTask(T, request="me")))
    requested.answer(Refused("permission denied"))
    assert requested.progress.outcomes[0].error == "permission denied"
    initial = reading()
    initial.answer(Refused("permission denied", "Grant it:"))
    assert initial.incremental.failure is not None
    assert (initial.incremental.failure.hint, initial.is_done()) == ("Grant it:", False)


# Plans.


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
    daemon.incremental.note(301, T, key(8), values(8), moved=False)
    daemon.incremental.answered(asked, rows(9, seen=300), daemon.now)
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


def test_a_table_that_lost_a_partition_after_its_window_opened_is_planned_without_it():
    daemon = Daemon(asked_for())
    daemon.answers(looked(table(leaves={10: 1, 11: 1})), nobody(), looked(table(leaves={11: 1})))
    assert isinstance(daemon.ask()[1], Read)


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


def test_a_look_of_a_plan_that_is_over_is_dropped():
    daemon = Daemon(asked_for())
    asked, _ = daemon.ask()
    daemon.incremental.redefined(1)
    daemon.incremental.answered(asked, looked(table()), daemon.now)
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
    daemon.incremental.answered(first, looked(table()), daemon.now)
    daemon.answers(nobody(), looked(table()), rows(1))
    daemon.between()
    daemon.incremental.redefined(1)
    again, question = daemon.ask()
    assert question == Look(1, T, "")
    daemon.incremental.answered(second, looked(table(name="renamed")), daemon.now)
    # WHEN what was read of it is no part of the task any more
    daemon.incremental.answered(again, looked(table(name="renamed")), daemon.now)
    # THEN nobody asks what a change means to it
    daemon.incremental.note(150, "public.renamed", key(1), values(1), moved=False)


# Changes that overtake rows.


def test_a_row_whose_change_the_stream_has_already_is_left_out():
    daemon = reading()
    asked, _ = daemon.ask()
    daemon.incremental.note(150, T, key(2), None, moved=False)
    daemon.incremental.answered(asked, rows(1, 2, 3, seen=120), daemon.now)
    daemon.between()
    assert daemon.rendering.ids == [1, 3]
    assert daemon.progress.outcomes[0].rows == 2


def test_a_change_that_came_before_the_window_is_waited_for_by_its_writer_and_not_noted():
    daemon = Daemon(asked_for())
    daemon.incremental.note(90, T, key(1), None, moved=False)
    assert not daemon.incremental.watches
    daemon.plan()
    daemon.answer(rows(1))
    daemon.between()
    assert daemon.rendering.ids == [1]


def test_a_truncate_that_the_snapshot_does_not_see_makes_the_chunk_be_read_again():
    daemon = reading()
    asked, _ = daemon.ask()
    daemon.incremental.truncated(150, [1])
    daemon.incremental.answered(asked, rows(1, seen=120), daemon.now)
    daemon.between()
    assert daemon.rendering.put_rows == []
    daemon.answer(rows(seen=151))
    daemon.between()
    assert daemon.rendering.put_rows == [(1, [])]
    assert daemon.is_done()


def test_a_backlog_that_every_chunk_sees_leaves_nothing_in_the_window():
    daemon = reading()
    for xid in range(1, 100):
        daemon.incremental.note(xid, T, key(xid), None, moved=False)
    daemon.answer(rows(*range(1, 100), seen=100))
    daemon.between()
    assert len(daemon.rendering.ids) == 99


def test_a_window_that_gave_up_is_planned_anew_with_what_was_delivered(monkeypatch: pytest.MonkeyPatch):
    daemon = reading(chunk_bytes=2 * PAGE, parallelism=2)
    daemon.answer(rows(1, seen=100))
    daemon.between()
    asked, _ = daemon.ask()
    give_up(daemon)
    daemon.incremental.answered(asked, rows(2, seen=100), daemon.now)
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
        daemon.incremental.note(1000 + number, T, key(number), None, moved=False)


def test_several_chunks_that_wait_when_the_window_gives_up_are_all_dropped():
    daemon = reading(chunk_bytes=2 * PAGE)
    daemon.answers(rows(1, after=500), rows(2, after=500))
    give_up(daemon)
    daemon.between(500)
    assert daemon.rendering.put_rows == []
    assert isinstance(daemon.ask()[1], Look)


# Rows that are owed.


def test_a_row_whose_value_was_never_sent_is_read_by_its_key_before_the_table_is_complete():
    daemon = reading()
    asked, _ = daemon.ask()
    # GIVEN a change that the chunk does not see, and that leaves a value of the row out
    daemon.incremental.note(150, T, key(2), values(2), moved=False)
    daemon.incremental.answered(asked, rows(1, 2, seen=120), daemon.now)
    daemon.between()
    assert daemon.rendering.ids == [1]
    assert not daemon.is_done()
    # THEN the row is read by its key
    _, read = asked = daemon.ask()
    assert isinstance(read, Read)
    assert read.query == KeyQuery(table(), ("id",), (values(2),), ("", ""))
    daemon.incremental.answered(asked[0], rows(2, seen=151), daemon.now)
    daemon.between()
    assert daemon.rendering.ids == [1, 2]
    assert daemon.is_done()
    assert daemon.progress.outcomes[0].rows == 2


def test_a_row_that_moved_to_a_page_which_was_read_is_read_by_its_key():
    daemon = reading(chunk_bytes=2 * PAGE, parallelism=1)
    daemon.answer(rows(1))
    daemon.between()
    # GIVEN a row that moves from the second chunk's pages to the first's, by an update that the second chunk sees
    daemon.incremental.note(150, T, key(2), values(2), moved=False)
    _, read = daemon.ask()
    assert isinstance(read, Read)
    assert isinstance(read.query, KeyQuery)


def test_a_row_that_a_chunk_delivers_after_its_change_is_owed_no_longer():
    daemon = reading(chunk_bytes=2 * PAGE, parallelism=1)
    asked, _ = daemon.ask()
    daemon.incremental.note(150, T, key(1), values(1), moved=False)
    daemon.incremental.answered(asked, rows(1, seen=151), daemon.now)
    daemon.between()
    _, read = daemon.ask()
    assert isinstance(read, Read)
    assert isinstance(read.query, PageQuery)


def test_a_row_that_changes_once_more_while_it_is_read_by_key_is_read_once_more():
    daemon = reading(parallelism=1)
    asked, _ = daemon.ask()
    daemon.incremental.note(150, T, key(2), values(2), moved=False)
    daemon.incremental.answered(asked, rows(1, 2, seen=120), daemon.now)
    daemon.between()
    asked, _ = daemon.ask()
    daemon.incremental.note(160, T, key(2), values(2), moved=False)
    daemon.incremental.answered(asked, rows(2, seen=155), daemon.now)
    daemon.between()
    assert daemon.rendering.ids == [1]
    daemon.answer(rows(2, seen=161))
    daemon.between()
    assert daemon.rendering.ids == [1, 2]
    assert daemon.is_done()


def test_a_row_that_is_gone_when_it_is_read_by_key_is_owed_no_longer():
    daemon = reading()
    asked, _ = daemon.ask()
    daemon.incremental.note(150, T, key(2), values(2), moved=False)
    daemon.incremental.answered(asked, rows(1, 2, seen=120), daemon.now)
    daemon.between()
    daemon.answer(rows(seen=170))
    daemon.between()
    assert daemon.is_done()


def test_keys_whose_rows_are_too_large_together_are_read_in_smaller_numbers():
    daemon = reading()
    asked, _ = daemon.ask()
    for number in range(4):
        daemon.incremental.note(150, T, key(number), values(number), moved=False)
    daemon.incremental.answered(asked, rows(seen=120), daemon.now)
    daemon.between()
    asked_for_keys = []
    for answer in (TooLarge(), TooLarge(), rows(0, seen=170)):
        question = daemon.answer(answer)
        assert isinstance(question, Read)
        assert isinstance(question.query, KeyQuery)
        asked_for_keys.append((len(question.query.keys), question.bytes_max > 1 << 40))
    # THEN one row is read however large it is
    assert asked_for_keys == [(4, False), (2, False), (1, True)]


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
    assert daemon.incremental.watches
    daemon.incremental.defined(1, T)
    assert daemon.incremental.is_watched(T)
    daemon.incremental.note(50, T, key(3), values(3), moved=False)
    written = daemon.incremental.to_write_down()
    assert written is not None
    assert written.tasks[0].owed == (values(3),)


def test_so_it_is_after_the_initial_snapshot_left_a_table_in_the_same_session():
    daemon = Daemon(asked_for())
    task = daemon.progress.tasks[0]
    parts = (Part(1, 100, 4, 4 * PAGE),)
    daemon.incremental.replace(daemon.progress.plan(task, 1, T, parts, 1).deliver(task, 1, 0, 1, 5))
    daemon.incremental.defined(1, T)
    assert daemon.incremental.watches
    daemon.incremental.note(50, T, key(3), values(3), moved=False)
    written = daemon.incremental.to_write_down()
    assert written is not None
    assert written.tasks[0].owed == (values(3),)


def test_a_truncate_settles_what_is_owed():
    daemon = reading()
    asked, _ = daemon.ask()
    daemon.incremental.note(150, T, key(2), values(2), moved=False)
    daemon.incremental.truncated(160, [1])
    daemon.incremental.answered(asked, rows(seen=170), daemon.now)
    daemon.between()
    assert daemon.is_done()


def test_more_than_the_checkpoint_can_hold_is_written_down_as_unsettled_and_read_again_after_a_restart():
    daemon = reading(chunk_bytes=2 * PAGE, parallelism=1)
    daemon.answer(rows(1))
    daemon.between()
    for number in range(OWED_KEYS_MAX + 1):
        daemon.incremental.note(150, T, key(number), values(number), moved=False)
    written = daemon.incremental.to_write_down()
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
        daemon.incremental.note(50, T, key(number), values(number), moved=False)
    written = daemon.incremental.to_write_down()
    assert written is not None
    assert written.tasks[0].unsettled or not written.tasks[0].has_begun
    daemon.incremental.answered(asked, rows(1), daemon.now)
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
        daemon.incremental.note(50, T, key(number), values(number), moved=False)
    daemon.between(500)
    assert daemon.progress.tasks[0].parts is None
    assert isinstance(daemon.ask()[1], Look)


# Several tasks.


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
    daemon.incremental.answered(first, looked(renamed), daemon.now)
    daemon.incremental.answered(second, looked(renamed), daemon.now)
    # THEN only one of the two is read: each would have taken the other's changes
    daemon.answers(nobody(), looked(renamed))
    reads = [daemon.ask(), daemon.ask()]
    assert all(isinstance(question, Read) for _, question in reads)
    assert daemon.asks_nothing()
    daemon.incremental.note(150, "public.renamed", key(1), None, moved=False)
    for asked, _ in reads:
        daemon.incremental.answered(asked, rows(1, seen=120), daemon.now)
    daemon.between()
    assert daemon.rendering.ids == []
    # THEN the other one follows
    assert daemon.answer(looked(renamed)) == Look(1, "public.renamed", "")
    assert len(daemon.progress.tasks) == 1


def test_so_many_tables_are_read_at_a_time():
    daemon = Daemon(replace(Progress(), waiting=Oids((1, 2, 3))), parallelism=2)
    assert [daemon.ask()[1], daemon.ask()[1]] == [Look(1, T, ""), Look(2, "public.u", "")]
    assert daemon.asks_nothing()


def test_so_many_rows_are_asked_for_at_a_time():
    daemon = reading(chunk_bytes=PAGE, parallelism=2)
    daemon.ask()
    daemon.ask()
    assert daemon.asks_nothing()


@pytest.mark.skipif(is_compiled(), reason="a compiled constant can not be replaced")
def test_rows_that_wait_for_their_place_have_a_limit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("cdcd.engine.incremental.WAITING_BYTES_MAX", 5)
    daemon = reading(chunk_bytes=PAGE)
    daemon.answers(rows(1, after=5000), rows(2, after=5000))
    assert daemon.asks_nothing()
    daemon.between(5000)
    assert isinstance(daemon.ask()[1], Read)


def test_a_table_that_is_read_again_is_the_same_task_from_its_beginning():
    daemon = reading(chunk_bytes=2 * PAGE, parallelism=1)
    daemon.answer(rows(1))
    daemon.between()
    daemon.incremental.read_anew(1, T, "replaced")
    assert daemon.progress.tables_left == 1
    assert daemon.progress.tasks[0].parts is None
    assert not daemon.incremental.watches, "nothing is owed of it"
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
        daemon.incremental.note(150 + number, T, key(number), None, moved=False)
    daemon.incremental.answered(asked, rows(2), daemon.now)
    daemon.between(5000)
    assert daemon.rendering.put_rows == []
    # THEN it goes on with a plan of its own
    daemon.incremental.set_paused(False)
    daemon.plan(seen=5000)
    assert isinstance(daemon.ask()[1], Read)
    assert daemon.progress.paused is False


def test_a_cancelled_table_ends_and_answers_for_it_are_dropped():
    daemon = reading()
    asked, _ = daemon.ask()
    daemon.incremental.cancel(daemon.progress.tasks[0], "cancelled")
    daemon.incremental.answered(asked, rows(1), daemon.now)
    daemon.between()
    assert daemon.rendering.put_rows == []
    assert daemon.progress.outcomes[0].error == "cancelled"
    assert not daemon.incremental.watches
    assert daemon.asks_nothing()


def test_a_table_that_is_asked_for_again_after_it_was_cancelled_is_read_by_a_new_plan():
    daemon = reading()
    asked, _ = daemon.ask()
    daemon.incremental.cancel(daemon.progress.tasks[0], "cancelled")
    daemon.incremental.add([TableTask(T, request="again")])
    daemon.incremental.answered(asked, rows(1), daemon.now)
    daemon.between()
    assert daemon.rendering.put_rows == []
    daemon.plan()
    daemon.answer(rows(1, 2))
    daemon.between()
    assert daemon.rendering.ids == [1, 2]


def test_nothing_is_written_down_where_nothing_was_ever_asked_for():
    assert Daemon().incremental.to_write_down() is None
