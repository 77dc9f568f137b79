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
from cdcd.core.catalog.relations import TableDescription, TypeDescription
from cdcd.core.engine.actions import (
    Answer,
    Ask,
    Begin,
    EnsureTopics,
    Enums,
    FindEnums,
    ListPublished,
    Look,
    Looked,
    Published,
    Question,
)
from cdcd.core.engine.exported import Exported
from cdcd.core.engine.fates import BELONGS, NONE_ASIDE, Fates, Fault, fault_of
from cdcd.core.engine.healing import Healing
from cdcd.core.engine.incremental import Incremental
from cdcd.core.engine.labels import Labels
from cdcd.core.engine.queue import BatchQueue
from cdcd.core.engine.rendering import SnapshotRows
from cdcd.core.engine.tables import PublishedTables
from cdcd.core.engine.topics import Topics
from cdcd.core.errors import CdcdError
from cdcd.core.protocol.messages import Relation
from cdcd.core.snapshot.progress import INCREMENTAL

PUBLISHED_S: Final = 5.0
"""Interval at which the publication is listed, to find tables that were added or have another name, and labels of enums
that were added or renamed."""

TOPICS_AHEAD: Final = 500
"""Number of topics that are created in one request with the topic of a table that is read beside the stream.

A broker takes ten times as long for 2,000 topics that are created one by one as for four requests of 500.
"""

ENDS_AT_ONCE: Final = 500
"""Number of tables whose earlier rows are ended in one batch before an initial snapshot. The truncate records for
them take about 300 kB."""


class Questions:
    """Asks the questions of a session: `next` returns one, and the caller returns the answer by `answered`.

    Args:
        exported: reads the initial snapshot; None if the session has none.
        healing: heals topics before the snapshot is read; None if the session has no snapshot.
        relabelled: called with oid, description and types of a table with an enum whose labels changed.
        fates: the tables that are set aside; None: no table is.
        fault: takes faults of tables; None if a fault is raised as an error.
    """

    def __init__(
        self,
        incremental: Incremental,
        exported: Exported | None,
        tables: PublishedTables,
        labels: Labels,
        *,
        rendering: SnapshotRows,
        queue: BatchQueue,
        topics: Topics,
        relabelled: Callable[[int, TableDescription, Mapping[int, TypeDescription]], None],
        now: float,
        fates: Fates | None = None,
        fault: Fault | None = None,
        healing: Healing | None = None,
    ) -> None:
        self._healing = healing
        self._fates = fates
        self._aside: Mapping[int, object] = NONE_ASIDE if fates is None else fates.aside
        self._fault = fault
        self._incremental = incremental
        self._exported = exported
        self._tables = tables
        self._labels = labels
        self._take_labels = relabelled
        self._rendering = rendering
        self._queue = queue
        self._topics = topics
        self._asked: dict[int, tuple[Callable[[object, Answer, float], None], object]] = {}
        """The method that takes the answer to each question, and what the question was about, by ticket."""
        self._next_ticket = 1
        self._to_look_up: deque[int] = deque()
        """Oids of tables that replaced other tables, or whose topics have rows from before a gap."""
        self._listing = False
        self._list_at = now if tables.outdated() else now + PUBLISHED_S
        self._has_exported_topics = False
        self._topics_of: Oids | None = None
        self._topics_until = 0
        """For how many of the waiting tables (`_topics_of`) the topics were requested."""

    @property
    def failure(self) -> CdcdError | None:
        """The error because of which the session cannot go on; None if there is none."""
        exported, healing = self._exported, self._healing
        failure = None if healing is None else healing.failure
        return failure or self._incremental.failure or (None if exported is None else exported.failure)

    def next_before_stream(self, now: float) -> Ask | Begin | None:
        """Return the next question for the initial snapshot, or `Begin` when it is complete; None if there is nothing
        to ask now.
        """
        exported, tasks = self._exported, self._incremental.tasks
        if exported is None:
            return None
        tasks.report(now)
        if not self._has_exported_topics:
            self._has_exported_topics = True
            outdated = self._outdated(exported)
            for topic in (*exported.topics(), *map(self._rendering.topic_of, outdated)):
                self._rendering.topic_is_ready(topic)
        if not self._queue.room or self._topics.awaited:
            return None
        healing = self._healing
        if healing is not None:
            question = healing.next_question(now)
            if question is not None:
                return self._ask(healing.answered, *question)
            if not healing.is_done:
                return None
            exported.skip(healing.healed)
            self._healing = None
        outdated = self._outdated(exported)[:ENDS_AT_ONCE]
        if outdated:
            self._end_former_rows(outdated)
            return None
        found = exported.next_question(now)
        if found is not None:
            return self._ask(exported.answered, *found)
        if not exported.is_done:
            return None
        exported.finish(now)
        self._exported = None
        if tasks.progress.method != INCREMENTAL:
            tasks.replace(replace(tasks.progress, method=INCREMENTAL))
        return Begin()

    def _outdated(self, exported: Exported) -> list[int]:
        """Return the tables that are described at the slot's snapshot and whose topics have rows from before a gap."""
        return [oid for oid in self._tables.outdated() if exported.has(oid)]

    def _end_former_rows(self, oids: list[int]) -> None:
        """End the earlier rows of these tables. The truncate records and the new progress are in the same batch."""
        self._tables.end_outdated(oids)
        self._rendering.end_former_rows(oids, self._incremental.tasks.take_numbers(len(oids)))

    def list_soon(self, now: float) -> None:
        """List the published tables as soon as possible, which finds tables that came back."""
        self._list_at = min(self._list_at, now)

    def leave(self, oid: int, reason: str) -> None:
        """Stop reading the table, because it is set aside."""
        self._tables.forget(oid)
        self._incremental.leave(oid, reason)
        if self._healing is not None:
            self._healing.leave(oid)
        if self._exported is not None:
            self._exported.leave(oid, reason)

    def next(self, now: float) -> Ask | None:
        """Return the next question beside the stream; None if there is nothing to ask now."""
        if not self._listing and now >= self._list_at:
            self._listing = True
            return self._ask(self._listed, None, ListPublished(self._tables.known_oids()))
        if self._to_look_up:
            oid = self._to_look_up.popleft()
            return self._ask(self._looked, oid, Look(oid, ""))
        if self._labels.wants_tables():
            return self._ask(self._enums_found, None, FindEnums())
        oid = self._labels.next_table()
        if oid:
            return self._ask(self._relabelled, oid, Look(oid, ""))
        if not self._queue.room:
            return None
        self._incremental.tasks.report(now)
        found = self._incremental.next_question(now)
        return None if found is None else self._ask(self._incremental.answered, *found)

    def next_topics(self) -> EnsureTopics | None:
        """Return the topics that must exist now, and topics of tables that are read later. None: no topic is missing.

        The topics of later tables are created while earlier tables are read.
        """
        wanted = self._topics.wanted()
        ahead = self._next_ahead()
        if not ahead:
            return wanted
        return EnsureTopics((), ahead=ahead) if wanted is None else replace(wanted, ahead=ahead)

    def _next_ahead(self) -> tuple[str, ...]:
        progress = self._incremental.progress
        if self._exported is not None or progress.begun >= len(progress.waiting):
            return ()
        if self._topics_of is not progress.waiting:
            # The tables that were begun before the first topic is requested are tasks.
            self._topics_of, self._topics_until = (
                progress.waiting,
                max(0, progress.begun - len(progress.tasks)),
            )
        until = self._topics_until
        if until > progress.begun + TOPICS_AHEAD or until >= len(progress.waiting):
            return ()
        following = progress.waiting.oids[until : until + TOPICS_AHEAD]
        self._topics_until = until + len(following)
        names = self._incremental.tasks.names
        return tuple([self._rendering.topic_named(names[oid]) for oid in following if oid in names])

    def next_at(self) -> float | None:
        """Return when `next` has a question if nothing else happens before."""
        times = [
            self._incremental.next_at() if self._queue.room else None,
            None if self._listing else self._list_at,
        ]
        return min([each for each in times if each is not None], default=None)

    def answered(self, ticket: int, answer: Answer, now: float) -> None:
        """Take the answer to the question with this ticket."""
        take, asked = self._asked.pop(ticket)
        take(asked, answer, now)

    def _ask(self, take: Callable[[object, Answer, float], None], asked: object, question: Question) -> Ask:
        ticket = self._next_ticket
        self._next_ticket += 1
        self._asked[ticket] = (take, asked)
        return Ask(ticket, question)

    def _listed(self, _asked: object, answer: Answer, now: float) -> None:
        self._listing = False
        self._list_at = now + PUBLISHED_S
        if isinstance(answer, Published):
            if self._fates is not None:
                self._fates.listed(answer.tables, answer.after)
            found = self._tables.listed(answer)
            for oid in found:
                if oid in self._aside:
                    self._tables.forget(oid)
                else:
                    self._to_look_up.append(oid)
            self._labels.listed(answer.labels)

    def _enums_found(self, _asked: object, answer: Answer, now: float) -> None:
        if isinstance(answer, Enums):
            self._labels.found(answer.oids)
        else:
            self._labels.failed()

    def _relabelled(self, asked: object, answer: Answer, now: float) -> None:
        """Take the description of a table with enums whose labels may have changed."""
        assert isinstance(asked, int)
        if not isinstance(answer, Looked):
            self._labels.failed()
            return
        table = answer.table
        if table is None or self._tables.is_new(table.oid, table.name):
            # The stream has not reached this name of the table yet, so the table is described with its first event.
            self._labels.gone()
            return
        if table.oid in self._aside:
            self._labels.gone()
            return
        if self._rendering.is_altered(table.relation):
            self._incremental.redefined(table.oid)
        if not self._define(table.relation, answer):
            self._labels.gone()
            return
        self._take_labels(table.oid, answer.description, answer.types)
        self._labels.described(asked)

    def _define(self, relation: Relation, answer: Looked) -> bool:
        """Define a table for its rows; returns False if the table is set aside, because no records can be made of its
        rows.
        """
        try:
            self._rendering.define(relation, answer.description, answer.types)
        except BELONGS as error:
            if self._fault is None:
                raise
            self._fault(relation.oid, fault_of(error), error)
            return False
        return True

    def _looked(self, asked: object, answer: Answer, now: float) -> None:
        """Take the description of a table that replaced another one, for the record that ends the
        other table's rows.
        """
        assert isinstance(asked, int)
        if isinstance(answer, Looked) and answer.table is not None:
            # Rows of the table that wait for delivery were read by the earlier description.
            self._incremental.redefined(answer.table.oid)
            if asked not in self._aside and self._define(answer.table.relation, answer):
                self._tables.looked(asked, answer.table.name)
            else:
                self._tables.forget(asked)
        else:
            self._tables.forget(asked)
