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

`Engine` decides what is urgent, and when the session ends. Its parts (`session_parts.py`) decide the rest: `Ingest`
(what each step of the stream means), `BetweenTransactions` (what has its place between two transactions), `Delivery`
(which checkpoint is true), `Questions` (what is asked about tables), `AnswerDispatch` (when an answer counts),
`TableFaults` (what stops with a table that is set aside), `Feedback` (when a status update is sent), `Timetable` (when
heartbeats and watermarks are made) and `Ending` (why the session ends).
The order of `next_action` is the order of urgency: status updates, heartbeats, batches, frames, tables.

A large value is converted in `next_action` only, and only after `has_large` has become true. The shell then calls
`next_action` in a thread, sends status updates meanwhile, and calls no other method of the engine before it returns.
"""

from collections.abc import Collection, Mapping

from cdcd.core.catalog.relations import TableDescription, TypeDescription
from cdcd.core.engine.actions import Action, Answer, End, Status, Turn, Wait
from cdcd.core.engine.answers import AnswerDispatch
from cdcd.core.engine.batch import Batch
from cdcd.core.engine.checkpoint import Checkpoint
from cdcd.core.engine.ending import TablesRefusedError, shut_down
from cdcd.core.engine.feedback import Feedback, PreparedAge, reply_requested
from cdcd.core.engine.renewal import RenewalError
from cdcd.core.engine.session_parts import SessionParts
from cdcd.core.engine.session_start import SessionStart
from cdcd.core.errors import CdcdError
from cdcd.core.facts import Observer
from cdcd.core.protocol.frames import write_frame
from cdcd.core.protocol.messages import POSTGRES_EPOCH_US, Relation
from cdcd.core.records.encoder import Encoder
from cdcd.core.records.schema_registrations import SchemaUse
from cdcd.core.snapshot.progress import Progress
from cdcd.core.snapshot.reading import Visibility
from cdcd.core.transactions.assembler import Assembler


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
        self._settings = start.settings
        self.assembler = assembler
        self.ledger = assembler.order.ledger
        self.encoder = encoder
        self.rows = rows
        self._streams = False
        self._told_last = False
        self._is_behind = start.logged_until > 0
        self._prepared_age = PreparedAge(start.settings.prepared_warning_age_s, observe)
        self._feedback = Feedback(start.settings.status_interval_s, now)
        parts = self._parts = SessionParts(start, assembler, encoder, rows, observe, now)
        self.fates = parts.fates
        self.queue = parts.queue
        self.incremental = parts.beside.incremental
        self._topics = parts.topics
        self._rendering = parts.beside.rendering
        self._faults = parts.faults
        self._delivery = parts.delivery
        self._timed = parts.timed
        self._between = parts.between
        self._renewal = parts.renewal
        self._ingest = parts.ingest
        self._questions = parts.questions
        self._ending = parts.ending
        self._answers = AnswerDispatch(
            self._questions, parts.requests, self._between, self._ending, self.incremental
        )

    # What the shell asks.

    @property
    def checkpoint(self) -> Checkpoint:
        """The newest checkpoint that the broker holds."""
        return self._delivery.checkpoint

    @property
    def has_large(self) -> bool:
        """Whether `next_action` may convert a large value, and is called in a thread for that."""
        return self._answers.has_large or self._ingest.has_large

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
        return self._ingest.relations.name_of(oid)

    @property
    def cuts(self) -> int:
        """How many transactions were cut because they were larger than a Kafka transaction may be."""
        return self._parts.current.cuts

    @property
    def requests_refused(self) -> int:
        """How many requests for snapshots were refused, also those that the log leaves out."""
        return self._parts.requests.refused

    @property
    def contexts_refused(self) -> int:
        """How many contexts of transactions were refused, also those that the log leaves out."""
        contexts = self._parts.contexts
        return 0 if contexts is None else contexts.refused

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
        self._faults.stream_begun()
        self._answers.stream_begun()
        self._timed.start(now)

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
        self.queue.topics_ready(topics)
        self._ingest.relations.topics_ready()
        self.incremental.look_ups.topics_ready(now)
        self._answers.place(now)

    def schemas_ready(self, schemas: Collection[SchemaUse], now: float) -> None:
        """These schemas are registered, and their ids are in the encoders' `SchemaIds`."""
        self._topics.registered(schemas)
        self._ingest.relations.topics_ready()
        self.incremental.look_ups.topics_ready(now)
        self._answers.place(now)

    def topics_refused(self, refused: Mapping[str, CdcdError], now: float) -> None:
        """Records cannot go to these topics, each for a reason. The tables that have them are set aside, and events
        that made such a topic are not published (`shaping/event_topics.py`).

        Raises:
            CdcdError: a table is not to be set aside, or no table has the topic.
        """
        self._faults.topics_refused(refused)
        self._answers.place(now)

    def schemas_refused(self, refused: Mapping[SchemaUse, CdcdError], now: float) -> None:
        """The registry refuses these schemas. The tables that have them are set aside, and events that have them are
        not published (`shaping/outbox.py`).

        Raises:
            CdcdError: a table is not to be set aside, or no table has the schema.
        """
        self._faults.schemas_refused(refused)
        self._answers.place(now)

    def answered(self, ticket: int, answer: Answer, now: float) -> None:
        """The answer to a question about tables."""
        self._answers.pass_on(ticket, answer, now)

    def delivered(self, batch: Batch, now: float) -> None:
        """The broker holds the batch, and the checkpoint if the batch closes its Kafka transaction."""
        self._delivery.settle(batch)
        self._timed.sent(batch)
        self._ingest.note_delivery()
        if batch.closes:
            read = self.incremental.tasks.report_delivered(self.checkpoint.snapshot, now)
            self._parts.beside.forget_read(read)
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
        topics, tables = self._faults.records_refused(refused, batch.base.end_lsn)
        # END of a transaction counts records that are not delivered now.
        if is_lost or self.encoder.metadata is not None:
            raise TablesRefusedError(f"Kafka refused records in {', '.join(sorted(refused))}.", tuple(tables))
        self.queue.strip(batch, topics, tables)
        self._delivery.refused(batch)

    def heartbeat_query_ended(self, now: float) -> None:
        """The query of `RunHeartbeatQuery` was run, was left out, or has failed: the stream goes on all the same."""
        self._timed.query_ended()

    def lock_lost(self, error: CdcdError, sqlstate: str, *, shutting_down: bool, now: float) -> None:
        """The connection that holds the advisory lock is gone.

        Args:
            shutting_down: PostgreSQL ended the connection because it stops, while the lock was ours. A fast shutdown
                waits until we have confirmed everything. So the session goes on delivering, at most for the grace
                period, and then ends. What an undecided PREPARE holds up cannot be confirmed.
        """
        self._ending.lock_lost(error, sqlstate, shutting_down=shutting_down, now=now)
        self._timed.end()

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
        self._timed.put(now, unix_us)
        action: Action | None = (
            self._timed.query(now) or self._delivery.next_batch(now) or self._ingest.relations.next(now)
        )
        if action is not None:
            return action
        if self._answers.place_large(now, is_reading=self.is_reading) or self._ingest.advance(now, unix_us):
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

    def _next_question(self, now: float) -> Action | None:
        return self._questions.next(now) if self._streams else self._questions.next_before_stream(now)

    def _next_at(self, now: float) -> float | None:
        times = [self._delivery.next_at(now)]
        if self._streams:
            times.append(self._feedback.next_at(self.ledger.flushed))
            times.append(self._questions.next_at())
            times.append(self._timed.next_at())
            if self._may_renew():
                times.append(self._renewal.next_at(self._feedback.told))
        times += [self._ending.grace_until, self._ingest.relations.ask_at, self.fates.waits_until(now)]
        return min([each for each in times if each is not None], default=None)

    def _all_is_read(self) -> bool:
        progress = self.incremental.progress
        return self._streams and progress.is_done and (self.checkpoint.snapshot or Progress()) == progress

    def tick(self, now: float, unix_us: int) -> None:
        """Report prepared transactions that have become old. Call it about once a second."""
        self._prepared_age.check(self.assembler.oldest_prepared(), self.ledger.flushed, unix_us)
