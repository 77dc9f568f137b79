"""Which question about tables is asked next, and which object gets its answer.

The rule: an initial snapshot is read to its end before the stream begins. While the stream runs, the publication is
listed at an interval. Tables that replaced other tables, and tables of enums whose labels changed, are looked up.
Tables are read as long as the queue has room.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from cdcd.core.catalog.oids import Oids
from cdcd.core.engine.actions import (
    Answer,
    Ask,
    BeginStream,
    ListPublished,
    Look,
    Looked,
    Published,
    Question,
)
from cdcd.core.engine.exported import Exported
from cdcd.core.engine.fates import Fates
from cdcd.core.engine.healing import Healing
from cdcd.core.engine.incremental import Incremental
from cdcd.core.engine.labels import EnumQuestions
from cdcd.core.engine.rendering import SnapshotRows
from cdcd.core.engine.snapshot_tasks import SnapshotTasks
from cdcd.core.engine.tables import PublishedTables
from cdcd.core.engine.topics import SLICE
from cdcd.core.errors import CdcdError
from cdcd.core.snapshot.progress import INCREMENTAL

PUBLISHED_S: Final = 5.0
"""Interval at which the publication is listed, to find tables that were added or have another name, and labels of enums
that were added or renamed."""

ENDS_AT_ONCE: Final = 500
"""Number of tables whose earlier rows are ended in one batch before an initial snapshot. The truncate records for
them take about 300 kB."""

Answered = Callable[[object, Answer, float], None]
"""Takes the subject of a question, the answer to it, and the time (monotonic seconds)."""


class BeforeStream:
    """Reads the initial snapshot of a session: `next` returns a question with the method that takes its answer.

    Args:
        healing: heals topics before the snapshot is read.
    """

    def __init__(
        self,
        exported: Exported,
        healing: Healing,
        tables: PublishedTables,
        tasks: SnapshotTasks,
        rendering: SnapshotRows,
    ) -> None:
        self._exported = exported
        self._healing: Healing | None = healing
        self._tables = tables
        self._tasks = tasks
        self._rendering = rendering
        self._has_topics = False

    @property
    def failure(self) -> CdcdError | None:
        """The error because of which the session cannot go on; None if there is none."""
        failure = None if self._healing is None else self._healing.failure
        return failure or self._exported.failure

    def next(self, now: float) -> tuple[Answered, object, Question] | BeginStream | None:
        """Return the next question, what it is about, and the method that takes its answer; `BeginStream` when the
        snapshot is complete; None if there is nothing to ask now.
        """
        exported, tasks, rendering = self._exported, self._tasks, self._rendering
        tasks.report(now)
        if not self._has_topics:
            self._has_topics = True
            for topic in (*exported.topics(), *map(rendering.topic_of, self._outdated())):
                rendering.topic_is_ready(topic)
            if rendering.awaits_topics:
                # The topics are requested before the first question, because they take longest.
                return None
        if not rendering.has_room or rendering.awaits_schemas:
            return None
        healing = self._healing
        if healing is not None:
            if not healing.is_done and rendering.awaits_topics:
                return None
            question = healing.next_question(now)
            if question is not None:
                return healing.comparison_answered, *question
            if not healing.is_done:
                return None
            exported.skip(healing.healed)
            self._healing = None
        outdated = self._outdated()[:ENDS_AT_ONCE]
        if outdated:
            if rendering.awaits_topics:
                return None
            self._end_former_rows(outdated)
            return None
        found = exported.next_question(now)
        if found is not None:
            return exported.chunk_read, *found
        if not exported.is_done:
            return None
        exported.finish(now)
        if tasks.progress.method != INCREMENTAL:
            tasks.replace(replace(tasks.progress, method=INCREMENTAL))
        return BeginStream()

    def _outdated(self) -> list[int]:
        """Return the tables that are described at the slot's snapshot and whose topics have rows from before a gap."""
        return [oid for oid in self._tables.outdated() if self._exported.has(oid)]

    def _end_former_rows(self, oids: list[int]) -> None:
        """End the earlier rows of these tables. The truncate records and the new progress are in the same batch."""
        self._tables.end_outdated(oids)
        self._rendering.end_former_rows(oids, self._tasks.take_numbers(len(oids)))

    def leave(self, oid: int, reason: str) -> None:
        """Stop reading the table, because it is set aside."""
        if self._healing is not None:
            self._healing.leave(oid)
        self._exported.leave(oid, reason)


class Questions:
    """Asks the questions of a session: `next` returns one, and the caller returns the answer by `dispatch`.

    Args:
        before: reads the initial snapshot; None if the session has none.
        fates: the tables that are set aside. It takes the faults of tables.
    """

    def __init__(
        self,
        incremental: Incremental,
        before: BeforeStream | None,
        tables: PublishedTables,
        enums: EnumQuestions,
        *,
        rendering: SnapshotRows,
        fates: Fates,
        now: float,
    ) -> None:
        self._bindings = rendering.encoder.tables.bindings
        self._fates = fates
        self._aside: Mapping[int, object] = fates.aside
        self._incremental = incremental
        self._before = before
        self._tables = tables
        self._enums = enums
        self._rendering = rendering
        self._asked: dict[int, tuple[Answered, object]] = {}
        """The method that takes the answer to each question, and what the question was about, by ticket."""
        self._next_ticket = 1
        self._to_look_up: deque[int] = deque()
        """Oids of tables that replaced other tables, or whose topics have rows from before a gap."""
        self._listing = False
        self._list_at = now if tables.outdated() else now + PUBLISHED_S
        self._topics_of: Oids | None = None
        self._topics_until = 0
        """For how many of the waiting tables (`_topics_of`) the topics were requested."""

    @property
    def failure(self) -> CdcdError | None:
        """The error because of which the session cannot go on; None if there is none."""
        before = None if self._before is None else self._before.failure
        return before or self._incremental.failure

    def next_before_stream(self, now: float) -> Ask | BeginStream | None:
        """Return the next question for the initial snapshot, or `BeginStream` when it is complete; None if there is
        nothing to ask now.
        """
        if self._before is None:
            return None
        found = self._before.next(now)
        if isinstance(found, BeginStream):
            self._before = None
            return found
        return None if found is None else self._ask(*found)

    def list_soon(self, now: float) -> None:
        """List the published tables as soon as possible, which finds tables that came back."""
        self._list_at = min(self._list_at, now)

    def leave(self, oid: int, reason: str) -> None:
        """Stop reading the table, because it is set aside."""
        self._tables.forget(oid)
        self._incremental.leave(oid, reason)
        if self._before is not None:
            self._before.leave(oid, reason)

    def next(self, now: float) -> Ask | None:
        """Return the next question beside the stream; None if there is nothing to ask now."""
        if not self._listing and now >= self._list_at:
            self._listing = True
            return self._ask(
                self._listed, None, ListPublished(self._tables.known_oids(), self._bindings.oids())
            )
        if self._to_look_up:
            oid = self._to_look_up.popleft()
            return self._ask(self._looked, oid, Look(oid, ""))
        enums = self._enums.next()
        if enums is not None:
            return self._ask(self._enums.enums_answered, *enums)
        if not self._rendering.has_room:
            return None
        self._incremental.tasks.report(now)
        found = self._incremental.next_question(now)
        return None if found is None else self._ask(self._incremental.plan_answered, *found)

    def topics_ahead(self) -> tuple[str, ...]:
        """Return topics of tables that are read later, which are created while earlier tables are read; () if there is
        nothing to create now.
        """
        progress = self._incremental.progress
        if self._before is not None or progress.begun >= len(progress.waiting):
            return ()
        if self._topics_of is not progress.waiting:
            # The tables that were begun before the first topic is requested are tasks.
            self._topics_of, self._topics_until = (
                progress.waiting,
                max(0, progress.begun - len(progress.tasks)),
            )
        until = self._topics_until
        if until > progress.begun + SLICE or until >= len(progress.waiting):
            return ()
        following = progress.waiting.oids[until : until + SLICE]
        self._topics_until = until + len(following)
        names = self._incremental.tasks.names
        return tuple([self._rendering.topic_named(names[oid]) for oid in following if oid in names])

    def next_at(self) -> float | None:
        """Return when `next` has a question if nothing else happens before."""
        times = [
            self._incremental.next_at() if self._rendering.has_room else None,
            None if self._listing else self._list_at,
        ]
        return min([each for each in times if each is not None], default=None)

    def dispatch(self, ticket: int, answer: Answer, now: float) -> None:
        """Take the answer to the question with this ticket."""
        take, asked = self._asked.pop(ticket)
        take(asked, answer, now)

    def _ask(self, take: Answered, asked: object, question: Question) -> Ask:
        ticket = self._next_ticket
        self._next_ticket += 1
        self._asked[ticket] = (take, asked)
        return Ask(ticket, question)

    def _listed(self, _asked: object, answer: Answer, now: float) -> None:
        self._listing = False
        self._list_at = now + PUBLISHED_S
        if isinstance(answer, Published):
            self._fates.listed(answer.tables, answer.after)
            found = self._tables.listed(answer)
            for oid in found:
                if oid in self._aside:
                    self._tables.forget(oid)
                else:
                    self._to_look_up.append(oid)
            self._enums.labels.listed(answer.labels)
            self._bindings.dropped(answer.dropped, answer.after)

    def _looked(self, asked: object, answer: Answer, now: float) -> None:
        """Take the description of a table that replaced another one, for the record that ends the
        other table's rows.
        """
        assert isinstance(asked, int)
        if isinstance(answer, Looked) and answer.table is not None:
            # Rows of the table that wait for delivery were read by the earlier description.
            self._incremental.redefined(answer.table.oid)
            if asked not in self._aside and self._rendering.is_defined(
                answer.table.relation, answer, self._fates
            ):
                self._tables.looked(asked, answer.table.name)
            else:
                self._tables.forget(asked)
        else:
            self._tables.forget(asked)
