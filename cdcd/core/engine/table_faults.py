"""Sets tables aside and lets them come back, in all parts of the engine.

The rule: `Fates` says which tables are set aside and when each of them comes back. Here is what else follows. A table
with a fault is left out of the stream from that event on, and its rows are not read any more. A table comes back
between two transactions: its topics are checked again, its former rows end, and it is described before its next change.
"""

from collections.abc import Callable, Collection, Mapping

from cdcd.core.catalog.sharing import whole_topic
from cdcd.core.engine.beside_stream import BesideStream
from cdcd.core.engine.checkpoint import AsideTable
from cdcd.core.engine.current_transaction import CurrentTransaction
from cdcd.core.engine.fates import (
    BROKER,
    REASON_MAX,
    REGISTRY,
    REQUEST,
    SET_ASIDE,
    AsideNotes,
    Fates,
    fault_of,
    fault_of_topic,
)
from cdcd.core.engine.ingest import Ingest
from cdcd.core.engine.questions import Questions
from cdcd.core.engine.topic_tables import TopicTables
from cdcd.core.engine.topics import Topics
from cdcd.core.errors import CdcdError, ConfigError, TransientError
from cdcd.core.facts import cut_short
from cdcd.core.facts.tables import TableDeadLetters
from cdcd.core.records.encoder import Record
from cdcd.core.records.schema_registrations import SchemaUse
from cdcd.core.snapshot.signals import REREAD_TABLES, RESUME_TABLES, RESUMED, STOP_TABLES


class TableFaults:
    """Takes the faults of tables. The caller calls `attach` when the session's other parts are there.

    Args:
        notes: makes the records that say which tables are set aside; None if there is no topic for them.
    """

    def __init__(
        self,
        fates: Fates,
        owners: TopicTables,
        current: CurrentTransaction,
        beside: BesideStream,
        topics: Topics,
        notes: AsideNotes | None,
    ) -> None:
        self._fates = fates
        self._owners = owners
        self._current = current
        self._queue = current.queue
        self._rendering = beside.rendering
        self._tables = beside.tables
        self._tasks = beside.incremental.tasks
        self._topics = topics
        self._notes = notes
        self._ingest: Ingest | None = None
        self._questions: Questions | None = None
        self._streams = False

    def attach(self, ingest: Ingest, questions: Questions) -> None:
        """Take the parts that stop their work for a table with a fault, and stop it for the tables that are set aside
        already.
        """
        self._ingest = ingest
        self._questions = questions
        for oid in self._fates.aside:
            questions.leave(oid, SET_ASIDE)

    def stream_begun(self) -> None:
        """Note that the stream begins. From now on, tables that are set aside may come back."""
        self._streams = True

    # Faults.

    def fault(self, oid: int, fault: str, error: CdcdError, *, lsn: int | None = None) -> None:
        """Set a table with a fault aside. Its events from `lsn` on have no records; None: from the next event on.

        Raises:
            CdcdError: the configuration sets no table aside, so `error` ends the session.
        """
        if not self._fates.sets_aside:
            raise error
        self._set_aside(oid, self._owners.name_of(oid), fault, error, lsn=lsn)

    def undefined(self, oid: int, name: str, error: CdcdError) -> None:
        """Set a table aside because no records can be made of its rows. Raises as `fault` does."""
        if not self._fates.sets_aside:
            raise error
        self._set_aside(oid, name, fault_of(error), error)

    def topics_refused(self, refused: Mapping[str, CdcdError]) -> None:
        """Set the tables aside that have these topics. Raises as `Engine.topics_refused` does."""
        self._topics.forget(refused)
        owners: set[int] = set()
        for topic, error in refused.items():
            if self._current.encoder.shapes.topic_refused(topic, error.message):
                continue
            oids = self._owners.with_topic(topic)
            if not oids:
                raise error
            for oid in oids:
                self.fault(oid, fault_of_topic(error), error)
            owners.update(oids)
        self._queue.topics_refused(refused, [each for each in self._fates.table() if each.oid in owners])

    def schemas_refused(self, refused: Mapping[SchemaUse, CdcdError]) -> None:
        """Set the tables aside that have these schemas, or send their records to the dead letters. Raises as
        `Engine.schemas_refused` does.
        """
        self._topics.forget_schemas(refused)
        for use, error in refused.items():
            oids = self._owners.with_schema(use)
            if not self._current.encoder.shapes.schema_refused(use, error.message) and not oids:
                raise error
            for oid in oids:
                if not isinstance(error, TransientError) and self._send_to_dead_letters(oid, error):
                    continue
                self.fault(oid, REGISTRY, error)

    def _send_to_dead_letters(self, oid: int, error: CdcdError) -> bool:
        """Send records of the table to the dead letters, because the registry refuses their schema. False: the
        configuration does not say so.
        """
        encoders = (self._current.encoder, self._rendering.encoder)
        if not all(each.send_to_dead_letters(oid, error.message) for each in encoders):
            return False
        self._current.observe(
            TableDeadLetters(
                table=self._owners.name_of(oid),
                oid=oid,
                reason=cut_short(error.message, REASON_MAX),
                hint=error.hint,
            )
        )
        return True

    def records_refused(
        self, refused: Mapping[str, CdcdError], lsn: int
    ) -> tuple[set[str], list[AsideTable]]:
        """Set the tables aside whose records Kafka refused in these topics. Raises as `Engine.refused` does.

        Args:
            lsn: the records commit behind it.

        Returns:
            All topics that may have records of these tables, and the tables.
        """
        # A table that was renamed may have records in several topics, and these topics may have records of others.
        waiting = dict(refused)
        topics: set[str] = set()
        owners: set[int] = set()
        while waiting:
            topic, error = waiting.popitem()
            topics.add(topic)
            oids = self._owners.owners_of(topic, lsn)
            if not oids:
                raise error
            for oid in oids:
                found = self._owners.topics_of(oid, self._owners.name_of(oid), lsn)
                waiting.update({each: error for each in found if each not in topics})
                self.fault(oid, BROKER, error, lsn=lsn)
                owners.add(oid)
        return topics, [each for each in self._fates.table() if each.oid in owners]

    def _set_aside(
        self, oid: int, name: str, fault: str, error: CdcdError, *, lsn: int | None = None
    ) -> None:
        is_attached = self._ingest is not None
        if lsn is None:
            lsn = self._current.place_lsn if is_attached else self._queue.position.end_lsn
        topic = whole_topic(self._rendering.topic_named(name)) if name else ""
        set_aside = self._fates.set_aside(
            oid, name, topic, fault=fault, reason=error.message, hint=error.hint, lsn=lsn
        )
        if not set_aside:
            return
        self._queue.touch()
        if self._ingest is None or self._questions is None:
            return
        relation = self._ingest.leave(oid)
        if relation is not None:
            self._fates.describe(relation)
        self._questions.leave(oid, error.message)

    # Requests.

    @property
    def requests(self) -> dict[str, Callable[[Collection[str]], dict[str, str]]]:
        """What carries out each request about tables, which returns the reason for each table that is refused."""
        return {STOP_TABLES: self._stop, RESUME_TABLES: self._resume, REREAD_TABLES: self._reread}

    def _stop(self, names: Collection[str]) -> dict[str, str]:
        """Set these tables aside on request, between two transactions. Returns the reason for each table that cannot
        be set aside.
        """
        by_name = self._tables.by_name()
        for name in names:
            if name in by_name:
                self._set_aside(
                    by_name[name], name, REQUEST, ConfigError("The table was stopped on request.")
                )
        return self._listed_again(
            {name: f"{name} is no published table" for name in names if name not in by_name}
        )

    def _listed_again(self, refused: dict[str, str]) -> dict[str, str]:
        """Return `refused`. If tables are refused, the published tables are listed soon, for `Requests.listed`."""
        if refused and self._questions is not None:
            self._questions.list_soon(0.0)
        return refused

    def _resume(self, names: Collection[str]) -> dict[str, str]:
        """Let these tables come back. Returns the reason for each table that cannot come back."""
        found = self._fates.names(names)
        self._fates.ask(tuple(found.values()))
        refused = {}
        for name in names:
            if name not in found:
                present = self._fates.renamed(name)
                refused[name] = f"{name} is not set aside" + (
                    f", it was renamed to {present}" if present else ""
                )
        return self._listed_again(refused)

    def _reread(self, names: Collection[str]) -> dict[str, str]:
        """End the former rows of these tables and read them again, unless they are set aside. Returns as `_stop`
        does.
        """
        aside = self._fates.names(names)
        present = [name for name in names if name not in aside]
        refused = self._stop(present)
        self._resume([name for name in present if name not in refused])
        return refused

    # The way back.

    def come_back(self, now: float) -> None:
        """Bring tables back between two transactions, and remove dropped tables from the tables that are set aside."""
        ingest, questions, fates = self._ingest, self._questions, self._fates
        if not self._streams or self._queue.position.events_done:
            # A session that goes on inside of a transaction finishes this transaction first.
            return
        assert ingest is not None, "the stream begins after `attach`"
        assert questions is not None
        position = self._queue.position.end_lsn
        for oid in fates.left(position):
            self._tables.vacate(oid)
            # Changes of a transaction that was open when the table left the publication may follow.
            ingest.come_back(oid, fates.let_go(oid, position))
            self._rendering.encoder.forget(oid)
            self._queue.touch()
        if not fates.is_due(now):
            return
        coming = sum([task.request == RESUMED for task in self._tasks.progress.tasks])
        for oid in fates.due(now, coming):
            name = fates.aside[oid].name
            # The rows of an outbox table are no state: those that were inserted before are not published again.
            read = not self._topics.of_events(name) and self._tables.bring_back(oid, name)
            relation = fates.bring_back(oid, read=read, lsn=self._queue.position.end_lsn)
            self._topics.forget(self._owners.topics_of(oid, name, self._queue.position.end_lsn))
            ingest.come_back(oid, relation)
            self._rendering.encoder.forget(oid)
            questions.list_soon(now)
            self._queue.touch()

    # Records of the schemas topic.

    def records(
        self, before: tuple[AsideTable, ...], after: tuple[AsideTable, ...], lsn: int
    ) -> list[Record]:
        """Return the records for tables that were set aside or came back between two checkpoints (`delivery.Notes`)."""
        assert self._notes is not None, "there is a topic for the records"
        return self._notes.records(before, after, self._present_name, lsn)

    def _present_name(self, oid: int) -> str:
        fate = self._fates.aside.get(oid)
        return self._owners.name_of(oid) if fate is None or not fate.name else fate.name
