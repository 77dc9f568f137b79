"""All decisions of a session, from the first frame to the last: frames and answers in, actions out.

```
 frames ─▶ Assembler ─steps─▶ encoder ─records─▶ BatchQueue ─▶ Ship
    ▲          └─ entries ─▶ Ledger ◀──── tickets when the broker has acknowledged ── delivered
    └─ back-pressure: `wants_frames`          Feedback ◀─ flushed ─┘ ─▶ Status
                                Exported, Incremental ─▶ Ask ─▶ answered ─▶ BatchQueue
```

The rule: nothing here waits, reads a clock or does I/O. The daemon and the simulator run this same object, because a
decision that only a killed process could test would be in the wrong place.

A session is one stream of one connection, from START_REPLICATION to the loss of a connection. Whatever ends a session
costs only time, because the next one finds all that it needs in the slot and the checkpoint. An initial snapshot comes
first; the stream begins when its rows are on their way.

`Engine` decides what is urgent, and when the session ends. Its parts decide the rest: `Ingest` (what each step of the
stream means), `BetweenTransactions` (what has its place between two transactions), `Delivery` (which checkpoint is
true), `Questions` (what is asked about tables), `Feedback` (when a status update is sent), `TimedRecords` (when
heartbeats and watermarks are made, and what they name) and `Ending` (why the session ends).
The order of `next_action` is the order of urgency: status updates, heartbeats, batches, frames, tables.

A large value is converted in `next_action` only, and only after `has_large` has become true. The shell then calls
`next_action` in a thread, sends status updates meanwhile, and calls no other method of the engine before it returns.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final

from cdcd.core.catalog.patterns import matcher
from cdcd.core.catalog.relations import TableDescription, TypeDescription
from cdcd.core.catalog.sharing import whole_topic
from cdcd.core.engine.actions import Action, Answer, Differences, End, Published, Status, Turn, Wait
from cdcd.core.engine.batch import Batch
from cdcd.core.engine.between_transactions import BetweenTransactions
from cdcd.core.engine.change_records import ChangeRecords
from cdcd.core.engine.checkpoint import AsideTable, Checkpoint
from cdcd.core.engine.context import Contexts
from cdcd.core.engine.current_transaction import CurrentTransaction
from cdcd.core.engine.delivery import Delivery
from cdcd.core.engine.described import DescribedRelations
from cdcd.core.engine.ending import Ending, TablesRefusedError, shut_down
from cdcd.core.engine.exported import Exported
from cdcd.core.engine.fates import (
    BELONGS,
    BROKER,
    REASON_MAX,
    REGISTRY,
    REQUEST,
    SET_ASIDE,
    Fates,
    fault_of,
    fault_of_topic,
)
from cdcd.core.engine.feedback import Feedback, reply_requested
from cdcd.core.engine.healing import Healing
from cdcd.core.engine.incremental import Incremental
from cdcd.core.engine.ingest import STEP_BYTES, Ingest
from cdcd.core.engine.labels import EnumQuestions, Labels
from cdcd.core.engine.left_out import LeftOutTables
from cdcd.core.engine.message_records import MessageRecords
from cdcd.core.engine.prepared_age import PreparedAge
from cdcd.core.engine.questions import BeforeStream, Questions
from cdcd.core.engine.queue import BatchQueue
from cdcd.core.engine.refused_rows import RecordLimits
from cdcd.core.engine.rendering import SnapshotRows
from cdcd.core.engine.renewal import Renewal, RenewalError
from cdcd.core.engine.requests import Requests
from cdcd.core.engine.session_start import ExportedTables, SessionStart
from cdcd.core.engine.snapshot_tasks import SnapshotTasks
from cdcd.core.engine.tables import PublishedTables
from cdcd.core.engine.timed_records import Heartbeat, TimedRecords, Watermarks
from cdcd.core.engine.topics import Topics
from cdcd.core.errors import CdcdError, ConfigError, TransientError
from cdcd.core.facts import Observer, cut_short
from cdcd.core.facts.tables import TableDeadLetters
from cdcd.core.protocol.frames import write_frame
from cdcd.core.protocol.messages import POSTGRES_EPOCH_US, Relation
from cdcd.core.records.encoder import Encoder, Record
from cdcd.core.records.schema_registrations import SchemaUse
from cdcd.core.snapshot.progress import Progress
from cdcd.core.snapshot.reading import Rows, Visibility
from cdcd.core.snapshot.signals import REREAD_TABLES, RESUME_TABLES, RESUMED, STOP_TABLES
from cdcd.core.transactions.assembler import Assembler
from cdcd.core.transactions.position import Counts, Position


def _has_larger(answer: Answer, bytes_max: int) -> bool:
    """Return whether the answer has a row of more than `bytes_max` bytes."""
    if isinstance(answer, Rows):
        return answer.size > bytes_max and max(map(len, answer.lines)) > bytes_max
    if isinstance(answer, Differences):
        return any(len(line) > bytes_max for line in (*answer.updates, *answer.inserts))
    return False


COMING_S: Final = 0.2
"""Seconds until it is looked again whether further tables may come back, if as many as may come at a time do so."""


class Engine:
    """One session. Ask `next_action`, carry out what it says, and report by the other verbs.

    Args:
        assembler: a new assembler at the position of the checkpoint. It drafts with `encoder`.
        rows: encodes rows of snapshots. It has descriptions of its own, because the stream may be behind.
        now: monotonic seconds, as for every verb.
    """

    def __init__(
        self,
        start: SessionStart,
        assembler: Assembler,
        encoder: Encoder,
        rows: Encoder,
        observe: Observer,
        now: float,
    ) -> None:
        self._is_built = False
        """All parts are there."""
        self.assembler = assembler
        self.ledger = assembler.order.ledger
        self.encoder = encoder
        self.rows = rows
        settings = self._settings = start.settings
        checkpoint, published, bindings = start.checkpoint, start.published, start.encoding.bindings
        self._ending = Ending(
            unstreamed_until=start.unstreamed_until,
            logged_until=start.logged_until,
            grace_s=settings.shutdown_grace_s,
            observe=observe,
            now=now,
        )
        self._is_behind = start.logged_until > 0
        # The durable log has no connection.
        self._renewal = Renewal(0 if self._is_behind else settings.large_bytes, settings.quiet_s)
        self._observe = observe
        self._names = published
        self.fates = Fates(
            checkpoint.tables,
            published,
            observe=observe,
            has_requests=settings.has_requests,
            fault=self._fault if settings.sets_aside else None,
        )
        self._prepared_age = PreparedAge(settings.prepared_warning_age_s, observe)
        self.queue = BatchQueue(
            checkpoint.position,
            settings.batches,
            idle_s=settings.status_interval_s,
            progress=self._progress,
            before_cut=self._before_cut,
            counts=self._counts,
            aside=self.fates.table,
        )
        self._feedback = Feedback(settings.status_interval_s, now)
        self._topics = Topics(start.outbox, marked=settings.heartbeat.watermark_s > 0)
        limits = RecordLimits(settings.record_bytes_max, settings.fails_over_bytes)
        self._rendering = SnapshotRows(
            rows, self.queue, self._topics, start.encoding.chosen_keys, limits, start.gap
        )
        tasks = SnapshotTasks(
            checkpoint.snapshot or Progress(), names=published, observe=observe, changed=self.queue.touch
        )
        self.incremental = Incremental(
            tasks,
            self._rendering,
            settings.snapshot,
            self.fates,
            observe=observe,
            owns=self._owns,
            ends_rows=settings.truncate,
        )
        tables = self._tables = PublishedTables(
            self.incremental,
            published,
            reads=settings.snapshot.reads,
            reads_added=settings.snapshot.added_tables,
            ends_rows=settings.truncate,
            excluded=matcher(start.excluded, "snapshot.exclude"),
            observe=observe,
        )
        relations = DescribedRelations(
            encoder=encoder,
            incremental=self.incremental,
            tables=tables,
            topics=self._topics,
            observe=observe,
            fates=self.fates,
            start=checkpoint.position.end_lsn,
        )
        labels = Labels(tasks)
        requests = self._requests = Requests(
            self.incremental,
            settings.snapshot,
            name=settings.name,
            observe=observe,
            tokens=settings.request_tokens,
            tables={
                STOP_TABLES: self._stop_tables,
                RESUME_TABLES: self._resume_tables,
                REREAD_TABLES: self._reread_tables,
            },
        )
        context = settings.context
        self._contexts = None if context is None else Contexts(context, observe)
        self._notes = start.aside_notes
        self._delivery = Delivery(
            self.queue,
            self.ledger,
            checkpoint,
            bindings,
            None if self._notes is None else self._aside_records,
            lambda: encoder.shapes.made_topics,
        )
        bindings.touched = self.queue.touch
        if bindings.text(checkpoint.position.end_lsn) != checkpoint.bindings:
            # A table that was looked at before the session began is protected after the next start, too.
            self.queue.touch()
        self._timed: list[TimedRecords] = []
        self._heartbeat: Heartbeat | None = None
        if settings.heartbeat.interval_s:
            self._heartbeat = Heartbeat(
                settings.heartbeat,
                encoder=encoder,
                queue=self.queue,
                topics=self._topics,
                held=self._held,
            )
            self._timed.append(self._heartbeat)
        self._checked: frozenset[str] = frozenset()
        """Topics that the start has checked, if they are there."""
        if settings.heartbeat.watermark_s:
            self._checked = frozenset(map(self._rendering.topic_named, published.values()))
            self._timed.append(
                Watermarks(
                    settings.heartbeat.watermark_s,
                    queue=self.queue,
                    held=self._held,
                    topics=self._marked_topics,
                )
            )
        self._current = CurrentTransaction(
            encoder, self.queue, self._topics, observe, schemas_topic=start.encoding.schemas_topic
        )
        self._between = BetweenTransactions(
            self.queue, self._rendering, self.incremental, tables, labels, self._timed, self._come_back
        )
        self._ingest = Ingest(
            assembler,
            self._current,
            ChangeRecords(self._current, relations, self.incremental, tables, self.fates, limits),
            MessageRecords(self._current, requests, self._contexts, settings.message_prefixes, observe),
            self._between,
            LeftOutTables(None if start.tables.is_all else start.tables.test(), self.fates),
            self._renewal,
        )
        self._questions = Questions(
            self.incremental,
            None if start.exported is None else self._before_stream(start.exported),
            tables,
            EnumQuestions(labels, self.incremental, tables, self._rendering, relations, self.fates),
            rendering=self._rendering,
            fates=self.fates,
            now=now,
        )
        self._is_built = True
        for oid in self.fates.aside:
            self._questions.leave(oid, SET_ASIDE)
        self._streams = False
        self._told_last = False
        self._has_large_rows = False
        """True if rows of tables with a large one may wait to be encoded."""
        self._kept_answers: list[tuple[int, Answer]] = []
        """Answers with rows that `next_action` takes, because some of the rows may be large."""

    def _owns(self, oid: int, name: str) -> bool:
        """Whether the table has the name where the stream is."""
        return not self._tables.is_new(oid, name)

    def _before_stream(self, found: ExportedTables) -> BeforeStream:
        """Return what reads the initial snapshot, with the tables at the slot's snapshot defined."""
        settings, tasks = self._settings, self.incremental.tasks
        for oid, table in found.tables.items():
            described = replace(found.descriptions[oid], numbers=table.numbers)
            try:
                self._rendering.define(table.relation, described, found.types)
            except BELONGS as error:
                if not settings.sets_aside:
                    raise
                self._set_aside(oid, table.name, fault_of(error), error)
        exported = Exported(
            tasks, self._rendering, found, settings.snapshot, self.fates, ends_rows=settings.truncate
        )
        healing = Healing(
            tasks,
            self._rendering,
            found.tables,
            self.fates,
            chunk_bytes=settings.snapshot.chunk_bytes,
            observe=self._observe,
        )
        return BeforeStream(exported, healing, self._tables, tasks, self._rendering)

    # What the shell asks.

    @property
    def checkpoint(self) -> Checkpoint:
        """The newest checkpoint that the broker holds."""
        return self._delivery.checkpoint

    @property
    def has_large(self) -> bool:
        """Whether `next_action` may convert a large value, and is called in a thread for that."""
        return self._has_large_rows or self._ingest.has_large

    @property
    def status_interval_s(self) -> float:
        """Seconds between status updates to PostgreSQL."""
        return self._feedback.interval_s

    @property
    def delivered_progress(self) -> Progress:
        """The newest progress of snapshots that the broker holds."""
        found = self.checkpoint.snapshot
        return self.incremental.progress if found is None else found

    @property
    def has_shipped(self) -> bool:
        """Whether rows or changes were handed over, delivered or not."""
        return self._delivery.has_shipped

    @property
    def wants_frames(self) -> bool:
        """Whether the shell should go on reading the stream. If not, PostgreSQL waits."""
        return self._streams and self._ingest.is_idle and not self._ending.is_stopping and self.queue.room

    @property
    def caught_up(self) -> bool | None:
        """Whether the broker holds everything that the server had written by its last keepalive; None: not known."""
        # What the log's keepalives say is of the time when they were written.
        return False if self._is_behind else self._ingest.caught_up

    @property
    def server_wal_end(self) -> int:
        """The end of the server's WAL, so far as keepalives and commits have told it."""
        return self._ingest.server_wal_end

    def relation_name(self, oid: int) -> str:
        """`schema.table` of a relation as the stream described it last; empty: it did not."""
        found = self.encoder.tables.description(oid)
        return "" if found is None else f"{found.relation.schema}.{found.relation.name}"

    @property
    def cuts(self) -> int:
        """How many transactions were cut because they were larger than a Kafka transaction may be."""
        return self._current.cuts

    @property
    def requests_refused(self) -> int:
        """How many requests for snapshots were refused, also those that the log leaves out."""
        return self._requests.refused

    @property
    def contexts_refused(self) -> int:
        """How many contexts of transactions were refused, also those that the log leaves out."""
        return 0 if self._contexts is None else self._contexts.refused

    @property
    def delivered_rows(self) -> int:
        """How many changes and rows of snapshots the broker holds of this session."""
        return self._delivery.rows

    @property
    def delivered_transactions(self) -> int:
        """How many transactions with records the broker holds of this session."""
        return self._delivery.transactions

    @property
    def is_reading(self) -> bool:
        """Whether the stream has not begun, because the initial snapshot is being read."""
        return not self._streams

    # What the shell reports.

    def stream_begun(self, now: float) -> None:
        """START_REPLICATION was accepted."""
        self._streams = True
        self._has_large_rows = len(self._kept_answers) > 0
        for each in self._timed:
            each.start(now)

    def frames_received(self, frames: list[bytes], now: float) -> None:
        """Frames came, in their order. Ask `next_action` until `wants_frames` is true again.

        A frame that is larger than the shell takes at a time is the last one, so that only that one can be large.
        """
        if frames:
            self._renewal.arrived(len(frames[-1]), now)
        if reply_requested(frames):
            # The status update is sent before the frames are worked off, because that may take long.
            self._feedback.ask()
        self._ingest.accept(frames)

    def described(
        self,
        relation: Relation,
        description: TableDescription,
        types: Mapping[int, TypeDescription],
        now: float,
        seen: Visibility | None = None,
    ) -> None:
        """The answer to `Describe`: what the catalog says of a relation.

        Args:
            seen: None if the catalog has all columns of the Relation message. Else a snapshot that was taken before
                the catalog was read. If that snapshot does not see the transaction, the catalog is asked again, because
                a commit may be streamed a moment before snapshots see it (procarray.c, ProcArrayEndTransaction). If the
                snapshot sees it, the relation was altered or dropped since.

        Raises:
            FatalError: no record can be made of its rows.
        """
        self._ingest.described(relation, description, types, now, seen)

    def topics_ready(self, topics: Collection[str], now: float) -> None:
        """Records may go to these topics from now on."""
        self._topics.ready(topics)
        self._ingest.relations.topics_ready()
        self.incremental.look_ups.topics_ready(now)
        self._between_soon(now)

    def schemas_ready(self, schemas: Collection[SchemaUse], now: float) -> None:
        """These schemas are registered, and their ids are in the encoders' `SchemaIds`."""
        self._topics.registered(schemas)
        self._ingest.relations.topics_ready()
        self.incremental.look_ups.topics_ready(now)
        self._between_soon(now)

    def topics_refused(self, refused: Mapping[str, CdcdError], now: float) -> None:
        """Records cannot go to these topics, each for a reason. The tables that have them are set aside, and events
        that made such a topic are not published (`shaping/event_topics.py`).

        Raises:
            CdcdError: a table is not to be set aside, or no table has the topic.
        """
        self._topics.forget(refused)
        for topic, error in refused.items():
            if self.encoder.shapes.topic_refused(topic, error.message):
                continue
            oid = self._oid_of(topic)
            oids = self._event_tables(topic) if oid is None else [oid]
            if not oids:
                raise error
            for each in oids:
                self._fault(each, fault_of_topic(error), error)
        self._between_soon(now)

    def schemas_refused(self, refused: Mapping[SchemaUse, CdcdError], now: float) -> None:
        """The registry refuses these schemas. The tables that have them are set aside, and events that have them are
        not published (`shaping/outbox.py`).

        Raises:
            CdcdError: a table is not to be set aside, or no table has the schema.
        """
        self._topics.forget_schemas(refused)
        for use, error in refused.items():
            oids = [*self._ingest.relations.oids_with(use), *self._rendering.oids_with(use)]
            if not self.encoder.shapes.schema_refused(use, error.message) and not oids:
                raise error
            for oid in oids:
                if not isinstance(error, TransientError) and self._send_to_dead_letters(oid, error):
                    continue
                self._fault(oid, REGISTRY, error)
        self._between_soon(now)

    def _send_to_dead_letters(self, oid: int, error: CdcdError) -> bool:
        """Send records of the table to the dead letters, because the registry refuses their schema. False: the
        configuration does not say so.
        """
        encoders = (self.encoder, self._rendering.encoder)
        if not all(each.send_to_dead_letters(oid, error.message) for each in encoders):
            return False
        self._observe(
            TableDeadLetters(
                table=self._name_of(oid),
                oid=oid,
                reason=cut_short(error.message, REASON_MAX),
                hint=error.hint,
            )
        )
        return True

    def answered(self, ticket: int, answer: Answer, now: float) -> None:
        """The answer to a question about tables."""
        if self._has_large_rows or _has_larger(answer, STEP_BYTES):
            self._has_large_rows = True
            self._kept_answers.append((ticket, answer))
        else:
            self._take_answer(ticket, answer, now)

    def _take_answer(self, ticket: int, answer: Answer, now: float) -> None:
        self._questions.dispatch(ticket, answer, now)
        if isinstance(answer, Published) and self._requests.is_pending:
            # A table that was created or renamed just before the request is known by now.
            self._requests.listed()
        self._ending.fail(self._questions.failure)
        self._between.reached(now)

    def _between_soon(self, now: float) -> None:
        """Place rows between two transactions; `next_action` places them if some of them may be large."""
        if not self._has_large_rows:
            self._between.reached(now)

    def _place_large_rows(self, now: float) -> bool:
        """Take an answer that was kept, or else place rows between two transactions.

        Returns:
            True if an answer was taken.
        """
        if self._kept_answers:
            ticket, answer = self._kept_answers.pop(0)
            self._take_answer(ticket, answer, now)
            return True
        if self._has_large_rows:
            self._between.reached(now)
            # The last rows of a table wait for the others until the stream begins.
            self._has_large_rows = self.is_reading or self.incremental.waiting.bytes > 0
        return False

    def delivered(self, batch: Batch, now: float) -> None:
        """The broker holds the batch, and the checkpoint if the batch closes its Kafka transaction."""
        self._delivery.settle(batch)
        for each in self._timed:
            each.sent(batch)
        self._ingest.note_delivery()
        if batch.closes:
            self.incremental.tasks.report_delivered(self.checkpoint.snapshot, now)
            self._ending.note_position(batch.position.end_lsn, now)
            if self.fates.is_reading:
                self.fates.note_rows([task.oid for task in self.incremental.progress.tasks])

    def refused(
        self, batch: Batch, refused: Mapping[str, CdcdError], now: float, *, is_lost: bool = False
    ) -> None:
        """Kafka refused records of the batch in these topics, each for a reason. Nothing of the batch is delivered.

        The tables that have the topics are set aside, and the batch goes out once more without their records.

        Args:
            is_lost: former parts of the batch's transaction are lost, so the session must start over.

        Raises:
            CdcdError: a table is not to be set aside, or no table has the topic.
            TablesRefusedError: the session must start over, with these tables set aside.
        """
        lsn = batch.base.end_lsn
        # A table that was renamed may have records in several topics, and these topics may have records of others.
        waiting = dict(refused)
        topics: set[str] = set()
        owners: set[int] = set()
        while waiting:
            topic, error = waiting.popitem()
            topics.add(topic)
            oids = self._owners_of(topic, lsn)
            if not oids:
                raise error
            for oid in oids:
                found = self._topics_of(oid, self._name_of(oid), lsn)
                waiting.update({each: error for each in found if each not in topics})
                self._fault(oid, BROKER, error, lsn=lsn)
                owners.add(oid)
        tables = [each for each in self.fates.table() if each.oid in owners]
        # END of a transaction counts records that are not delivered now.
        if is_lost or self.encoder.metadata is not None:
            raise TablesRefusedError(f"Kafka refused records in {', '.join(sorted(refused))}.", tuple(tables))
        self.queue.strip(batch, topics, tables)
        self._delivery.refused(batch)

    def heartbeat_query_ended(self, now: float) -> None:
        """The query of `RunHeartbeatQuery` was run, was left out, or has failed: the stream goes on all the same."""
        if self._heartbeat is not None:
            self._heartbeat.query_ended()

    # Tables that are set aside.

    def _oid_of(self, topic: str) -> int | None:
        """The table that has its records in this topic; None: no table has.

        A table that is set aside may have had the topic's name before another table.
        """
        oid = self._ingest.relations.oid_of(topic)
        if oid is not None and oid not in self.fates.aside:
            return oid
        read = self._rendering.oid_of(topic)
        return oid if read is None else read

    def _owners_of(self, topic: str, lsn: int) -> list[int]:
        """The tables that may have records in this topic which commit behind `lsn`, or rows of a snapshot."""
        known = self._ingest.relations.owners_of(topic, lsn) or self._event_tables(topic)
        owners = [oid for oid in known if self.fates.may_have_records(oid, lsn)]
        read = self._rendering.oid_of(topic)
        if read is not None and read not in owners and (not owners or self._has_taken(read, topic)):
            owners.append(read)
        return owners or known

    def _event_tables(self, topic: str) -> list[int]:
        """The outbox tables whose events may go to the topic; [] if events of logical messages may go there too."""
        if not self._topics.has_only_events(topic):
            return []
        return [oid for oid, name in self._tables.oids().items() if self._topics.has_events(name, topic)]

    def _has_taken(self, oid: int, topic: str) -> bool:
        """Whether a table with rows of a snapshot has the name of the topic where the stream is."""
        name = self._tables.oids().get(oid, "")
        return topic in self._rendering.topics_of(oid) and self._rendering.name_of(oid) == name

    def _name_of(self, oid: int) -> str:
        names = (self._ingest.relations.refused_name, self.relation_name, self._rendering.name_of)
        return next((name for find in names if (name := find(oid))), self._names.get(oid, ""))

    def _fault(self, oid: int, fault: str, error: CdcdError, *, lsn: int | None = None) -> None:
        """Set a table with a fault aside, from `lsn` on, or from the next event on if `lsn` is None.

        Raises:
            CdcdError: the configuration sets no table aside, so `error` ends the session.
        """
        if not self._settings.sets_aside:
            raise error
        self._set_aside(oid, self._name_of(oid), fault, error, lsn=lsn)

    def _set_aside(
        self, oid: int, name: str, fault: str, error: CdcdError, *, lsn: int | None = None
    ) -> None:
        if lsn is None:
            lsn = self._current.place_lsn if self._is_built else self.queue.position.end_lsn
        topic = whole_topic(self._rendering.topic_named(name)) if name else ""
        set_aside = self.fates.set_aside(
            oid, name, topic, fault=fault, reason=error.message, hint=error.hint, lsn=lsn
        )
        if not set_aside:
            return
        self.queue.touch()
        if self._is_built:
            self._leave(oid, error.message)

    def _leave(self, oid: int, reason: str) -> None:
        """No part of the engine works for the table any more."""
        relation = self._ingest.leave(oid)
        if relation is not None:
            self.fates.describe(relation)
        self._questions.leave(oid, reason)

    def _stop_tables(self, names: Collection[str]) -> dict[str, str]:
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
        if refused:
            self._questions.list_soon(0.0)
        return refused

    def _resume_tables(self, names: Collection[str]) -> dict[str, str]:
        """Let these tables come back. Returns the reason for each table that cannot come back."""
        found = self.fates.names(names)
        self.fates.ask(tuple(found.values()))
        refused = {}
        for name in names:
            if name not in found:
                present = self.fates.renamed(name)
                refused[name] = f"{name} is not set aside" + (
                    f", it was renamed to {present}" if present else ""
                )
        return self._listed_again(refused)

    def _reread_tables(self, names: Collection[str]) -> dict[str, str]:
        """End the former rows of these tables and read them again, unless they are set aside. Returns as
        `_stop_tables` does.
        """
        aside = self.fates.names(names)
        present = [name for name in names if name not in aside]
        refused = self._stop_tables(present)
        self._resume_tables([name for name in present if name not in refused])
        return refused

    def _aside_records(
        self, before: tuple[AsideTable, ...], after: tuple[AsideTable, ...], lsn: int
    ) -> list[Record]:
        assert self._notes is not None, "there is a topic for the records"
        return self._notes.records(before, after, self._present_name, lsn)

    def _present_name(self, oid: int) -> str:
        fate = self.fates.aside.get(oid)
        return self._name_of(oid) if fate is None or not fate.name else fate.name

    def _come_back(self, now: float) -> None:
        """Bring tables back between two transactions, and remove dropped tables from the tables that are set aside."""
        if not self._streams or self.queue.position.events_done:
            # A session that goes on inside of a transaction finishes this transaction first.
            return
        position = self.queue.position.end_lsn
        for oid in self.fates.left(position):
            self._tables.vacate(oid)
            # Changes of a transaction that was open when the table left the publication may follow.
            self._ingest.come_back(oid, self.fates.let_go(oid, position))
            self.rows.forget(oid)
            self.queue.touch()
        if not self.fates.is_due(now):
            return
        coming = sum([task.request == RESUMED for task in self.incremental.progress.tasks])
        for oid in self.fates.due(now, coming):
            name = self.fates.aside[oid].name
            # The rows of an outbox table are no state: those that were inserted before are not published again.
            read = not self._topics.of_events(name) and self._tables.bring_back(oid, name)
            relation = self.fates.bring_back(oid, read=read, lsn=self.queue.position.end_lsn)
            self._topics.forget(self._topics_of(oid, name, self.queue.position.end_lsn))
            self._ingest.come_back(oid, relation)
            self.rows.forget(oid)
            self._questions.list_soon(now)
            self.queue.touch()

    def _topics_of(self, oid: int, name: str, lsn: int) -> list[str]:
        """The topics that may have records of the table which commit behind `lsn`, or rows of a snapshot."""
        relations = self._ingest.relations
        read = [topic for topic in self._rendering.topics_of(oid) if relations.oid_of(topic) in {None, oid}]
        events = self._topics.of_events(name)
        return list(dict.fromkeys([*relations.topics_of(oid, lsn), *read, *events])) or [
            self._rendering.topic_named(name)
        ]

    def lock_lost(self, error: CdcdError, sqlstate: str, *, shutting_down: bool, now: float) -> None:
        """The connection that holds the advisory lock is gone.

        Args:
            shutting_down: PostgreSQL ended the connection because it stops, while the lock was ours. A fast shutdown
                waits until we have confirmed everything. So the session goes on delivering, at most for the grace
                period, and then ends. What an undecided PREPARE holds up cannot be confirmed.
        """
        self._ending.lock_lost(error, sqlstate, shutting_down=shutting_down, now=now)
        for each in self._timed:
            each.end()

    def warn_of_prepared(self, age_s: float) -> None:
        """Warn of prepared transactions from this age on, in seconds."""
        self._prepared_age.warning_age_s = age_s

    def stop(self) -> None:
        """End in good order: wait until the batch that is out is delivered, and report that to PostgreSQL."""
        self._ending.is_stopping = True

    # What is to be done.

    def next_action(self, now: float, unix_us: int) -> Action:
        """What to do now.

        Args:
            unix_us: the wall clock, in microseconds since 1970.

        Raises:
            FatalError, TransientError: the session cannot go on because of what the frames or rows say.
        """
        self._rendering.unix_us = unix_us
        self.incremental.tasks.unix_s = unix_us // 1_000_000
        if self.fates.aside:
            self.fates.plan(now)
            due_at = self.fates.next_at()
            if due_at is not None and due_at <= now:
                self._between.reached(now)
        ending = self._ending
        if ending.error is not None:
            return End(ending.error)
        status = self._status(now, unix_us)
        if status is not None:
            return status
        if ending.is_stopping:
            return self._finish(now)
        if ending.is_over(now, undelivered=self._undelivered()):
            return self._end_with(shut_down())
        if self._may_renew() and self._renewal.is_due(self._feedback.told, now):
            return self._end_with(RenewalError("A large message has passed through the connection."))
        for each in self._timed:
            each.put(now, unix_us)
        action: Action | None = None if self._heartbeat is None else self._heartbeat.query(now)
        action = action or self._delivery.next_batch(now) or self._ingest.relations.next(now)
        if action is not None:
            return action
        if self._place_large_rows(now) or self._ingest.advance(now, unix_us):
            return Turn()
        action = (
            self._ingest.relations.next(now)
            or self._next_question(now)
            or self._topics.wanted(self._questions.topics_ahead())
            or self._topics.wanted_schemas()
        )
        if action is not None:
            return action
        if self._settings.snapshot.ends and self._all_is_read():
            ending.is_stopping = True
            return Turn()
        return Wait(self._next_at(now))

    def _status(self, now: float, unix_us: int) -> Status | None:
        if not self._streams:
            return None
        ledger = self.ledger
        update = self._feedback.due(ledger.received, ledger.flushed, now, unix_us - POSTGRES_EPOCH_US)
        return None if update is None else Status(write_frame(update))

    def _may_renew(self) -> bool:
        """Whether the session gives up nothing if it ends so that its connection is renewed."""
        return (
            self._renewal.is_pending
            and self.queue.between
            and not self._delivery.is_out
            and not self.assembler.streamed_open
        )

    def _finish(self, now: float) -> Action:
        if self._delivery.is_out:
            return Wait(self._feedback.next_at(self.ledger.flushed) if self._streams else None)
        return self._end_with(None)

    def _end_with(self, error: CdcdError | None) -> Action:
        """End the session, after one more status update that says what is delivered."""
        if self._streams and not self._told_last:
            self._told_last = True
            self._feedback.ask()
            return Turn()
        return End(error)

    def _undelivered(self) -> bool:
        return self.ledger.open_entries > self.assembler.prepared_open

    def _held(self) -> Position:
        return self._delivery.checkpoint.position

    def _marked_topics(self) -> tuple[str, ...]:
        """The topics of all tables of which it is known that they take records without a key."""
        aside = self.fates.aside
        named = {
            self._rendering.topic_named(name) for oid, name in self._tables.oids().items() if oid not in aside
        }
        known = [topic for topic in named if topic in self._checked or self._topics.has(topic)]
        return tuple(sorted(set(map(whole_topic, known))))

    def _next_question(self, now: float) -> Action | None:
        return self._questions.next(now) if self._streams else self._questions.next_before_stream(now)

    def _next_at(self, now: float) -> float | None:
        times = [self._delivery.next_at(now)]
        if self._streams:
            times.append(self._feedback.next_at(self.ledger.flushed))
            times.append(self._questions.next_at())
            times += [each.next_at() for each in self._timed]
            if self._may_renew():
                times.append(self._renewal.next_at(self._feedback.told))
        times += [self._ending.grace_until, self._ingest.relations.ask_at, self._fates_at(now)]
        return min([each for each in times if each is not None], default=None)

    def _fates_at(self, now: float) -> float | None:
        """When a table comes back by itself, if it is not due already and waits for others."""
        due_at = self.fates.next_at() if self.fates.aside else None
        return due_at if due_at is None or due_at > now else now + COMING_S

    def _all_is_read(self) -> bool:
        progress = self.incremental.progress
        return self._streams and progress.is_done and (self.checkpoint.snapshot or Progress()) == progress

    def tick(self, now: float, unix_us: int) -> None:
        """Report prepared transactions that have become old. Call it about once a second."""
        self._prepared_age.check(self.assembler.oldest_prepared(), self.ledger.flushed, unix_us)

    def _before_cut(self) -> None:
        self._current.apply_effects()

    def _counts(self) -> Counts:
        metadata = self.encoder.metadata
        return () if metadata is None else metadata.counts()

    def _progress(self) -> Progress | None:
        return self.incremental.watched.write_down()
