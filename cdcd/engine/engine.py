"""All decisions of a session, from the first frame to the last: frames and answers in, actions out.

```
 frames ─▶ Assembler ─steps─▶ encoder ─records─▶ BatchQueue ─▶ Ship
    ▲          └─ entries ─▶ Ledger ◀──── tickets when the broker has acknowledged ── delivered
    └─ back-pressure: `wants_frames`          Feedback ◀─ flushed ─┘ ─▶ Status
                                Exported, Incremental ─▶ Ask ─▶ answered ─▶ BatchQueue
```

The rule: nothing here waits, looks at a clock or talks to anybody. The daemon and the simulator run this same object;
a decision that only a killed process could test would be in the wrong place.

A session is one stream of one connection, from START_REPLICATION to the loss of a connection; whatever ends it costs
only time, since the next session finds all it needs in the slot and the checkpoint. An initial snapshot comes first,
and the stream begins when its rows are on their way.

The order of `next_action` is the order of urgency: PostgreSQL hears from us whatever else is going on, Kafka gets what
is ready, then frames are worked off, then tables are read.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from cdcd.engine.actions import (
    Action,
    Answer,
    Ask,
    Begin,
    Describe,
    End,
    EnsureTopics,
    ListPublished,
    Look,
    Looked,
    Published,
    Question,
    Ship,
    Status,
    Turn,
    Wait,
)
from cdcd.engine.exported import Exported
from cdcd.engine.feedback import Feedback, reply_requested
from cdcd.engine.incremental import Incremental
from cdcd.engine.queue import Batch, BatchQueue
from cdcd.engine.requests import Requests
from cdcd.engine.tables import PublishedTables
from cdcd.errors import CdcdError, TransientError
from cdcd.facts import (
    LockLost,
    Observer,
    PostgresStopping,
    PreparedOld,
    PrepareMissing,
    RelationChanged,
    TransactionLarge,
)
from cdcd.protocol import peek
from cdcd.protocol.frames import XLOG_HEADER, write_frame
from cdcd.protocol.lsn import Lsn
from cdcd.protocol.messages import POSTGRES_EPOCH_US, LogicalMessage, Relation
from cdcd.protocol.reader import read_message
from cdcd.records.envelope import HEADER_NEW_KEY, HEADER_OLD_KEY, HEADER_UNCHANGED, Record
from cdcd.records.formats.debezium_json import DebeziumJsonEncoder
from cdcd.records.formats.snapshot_rows import Encoded, SnapshotEncoder, SnapshotPosition
from cdcd.records.relations import TableDescription, TypeDescription
from cdcd.snapshots.markers import INCREMENTAL, ROW, Marked, marker_of_single
from cdcd.snapshots.progress import Progress
from cdcd.snapshots.reading import Rows, SourceTable
from cdcd.snapshots.signals import RESERVED
from cdcd.transactions.assembler import Assembler
from cdcd.transactions.drafts import SpoolItem, events
from cdcd.transactions.ledger import Ledger
from cdcd.transactions.position import Checkpoint
from cdcd.transactions.steps import (
    Changes,
    Closed,
    CommitWithoutPrepare,
    Described,
    KeepaliveReceived,
    NonTransactionalMessage,
    Opened,
    OriginChanged,
    RelationPreview,
    RolledBack,
    Step,
    TransactionalMessage,
)
from cdcd.transactions.steps import (
    Turn as AssemblerTurn,
)

TURN_EVENTS: Final = 256
"""After so many events or steps other tasks get their turn: some milliseconds, uncompiled."""

UNSTREAMED_S: Final = 60.0
"""Minimum time to run with streaming off. A workload that needed it once will probably need it again."""

PUBLISHED_S: Final = 5.0
"""How often the publication is looked at for tables that were added, or have another name."""


class StreamingAgainError(TransientError):
    """What had to be received without streaming is delivered."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What of the configuration the decisions depend on.

    Attributes:
        whole_bytes_max: a source transaction is seen as a whole up to so many bytes of records.
        status_interval_s: PostgreSQL hears from us as often.
        shutdown_grace_s: how long a PostgreSQL that shuts down is let wait for what is being delivered.
        snapshot_mode, added_tables, excluded, signals: as in the configuration, under `snapshot`.
        truncate: TRUNCATE gives a record.
        snapshot_only: the session ends when there is nothing left to read.
    """

    name: str
    bytes_max: int
    records_max: int
    queue_bytes_max: int
    whole_bytes_max: int
    status_interval_s: float
    shutdown_grace_s: float = 5.0
    prepared_warning_age_s: float = 3600.0
    chunk_bytes: int = 1 << 20
    parallelism: int = 4
    snapshot_mode: str = "initial"
    added_tables: bool = False
    signals: str = "without_where"
    truncate: bool = True
    snapshot_only: bool = False


@dataclass(frozen=True, slots=True)
class ExportedTables:
    """The published tables at the slot's snapshot, by oid; their descriptions, and the types of their columns."""

    tables: Mapping[int, SourceTable]
    descriptions: Mapping[int, TableDescription]
    types: Mapping[int, TypeDescription]


@dataclass(frozen=True, slots=True)
class Parts:
    """The classes that the engine is made of; a planted bug replaces one of them."""

    assembler: Callable[..., Assembler] = Assembler
    ledger: Callable[..., Ledger] = Ledger
    queue: Callable[..., BatchQueue] = BatchQueue
    feedback: Callable[..., Feedback] = Feedback
    incremental: Callable[..., Incremental] = Incremental
    exported: Callable[..., Exported] = Exported
    tables: Callable[..., PublishedTables] = PublishedTables
    requests: Callable[..., Requests] = Requests


ORDINARY: Final = Parts()


class Engine:
    """One session. Ask `next_action`, carry out what it says, and report by the other verbs.

    Args:
        start: the checkpoint to resume from, as it is in Kafka, with the progress of this session.
        assembler: new, at the position of the checkpoint, with `ledger`; it drafts with `encoder`.
        rows: encodes rows of snapshots; its descriptions are apart from those of the stream.
        published: the published tables as `schema.table` by oid, looked up for this session.
        exported: the published tables at the slot's snapshot, if the slot was made just now with one.
        excluded: whether a table (`schema.table`) is read on demand only.
        unstreamed_until: streaming is off until the commit at this LSN is delivered; 0: it is as configured.
        now: monotonic seconds, as for every verb.
    """

    def __init__(
        self,
        settings: EngineSettings,
        start: Checkpoint,
        *,
        assembler: Assembler,
        ledger: Ledger,
        encoder: DebeziumJsonEncoder,
        rows: SnapshotEncoder,
        published: Mapping[int, str],
        observe: Observer,
        now: float,
        exported: ExportedTables | None = None,
        excluded: Callable[[str], bool] = lambda _name: False,
        unstreamed_until: int = 0,
        parts: Parts = ORDINARY,
    ) -> None:
        self.assembler = assembler
        self.ledger = ledger
        self.encoder = encoder
        self.rows = rows
        self.checkpoint = start
        self.caught_up: bool | None = None
        """Whether everything that the server was known to have written is with the broker; None: nothing new."""
        self.server_wal_end = 0
        self._settings = settings
        self._observe = observe
        self._unstreamed_until = unstreamed_until
        self._stream_again_at = now + UNSTREAMED_S
        self._unix_us = 0
        self.queue = parts.queue(
            start.position,
            bytes_max=settings.bytes_max,
            records_max=settings.records_max,
            queue_bytes_max=settings.queue_bytes_max,
            idle_s=settings.status_interval_s,
            whole_bytes_max=settings.whole_bytes_max,
            progress=self._progress,
            before_cut=self._apply_deferred,
        )
        self._feedback = parts.feedback(settings.status_interval_s, now)
        self._topics: set[str] = set()
        self._wanted_topics: list[str] = []
        self._asked_topics: set[str] = set()
        self._new_topics: dict[int, str] = {}
        """Of relations that were described and had no event yet, by oid."""
        self._new_names: dict[int, str] = {}
        """Likewise: names that they did not have before."""
        self.incremental = parts.incremental(
            start.snapshot or Progress(),
            self,
            chunk_bytes=settings.chunk_bytes,
            parallelism=settings.parallelism,
            names=published,
            observe=observe,
            changed=self.queue.touch,
        )
        self._tables = parts.tables(
            self.incremental,
            published,
            reads=settings.snapshot_mode != "never",
            reads_added=settings.added_tables,
            excluded=excluded,
            observe=observe,
        )
        self._requests = parts.requests(
            self.incremental, name=settings.name, allowed=settings.signals, observe=observe
        )
        self._exported: Exported | None = None
        if exported is not None:
            for oid, table in exported.tables.items():
                self.define(table.relation, exported.descriptions[oid], exported.types)
            self._exported = parts.exported(
                self.incremental,
                self,
                exported.tables,
                chunk_bytes=settings.chunk_bytes,
                parallelism=settings.parallelism,
            )
        self._streams = False
        self._begun = False
        self._shipped = start
        self._deferred: list[Callable[[], None]] = []
        self.cuts = 0
        """Transactions that were larger than a Kafka transaction may be."""
        self._steps: Iterator[Step] | None = None
        self._held: Step | None = None
        self._describing: Describe | None = None
        self._relations: dict[int, Relation] = {}
        self._transaction: Opened | None = None
        self._xid = 0
        self._out: Batch | None = None
        self._out_since = 0.0
        self._records: list[Record] = []
        self._todo: deque[Action] = deque()
        self._asked: dict[int, tuple[Callable[[object, Answer, float], None], object]] = {}
        """By ticket: who gets the answer, and what it is for."""
        self._next_ticket = 1
        self._look_at: deque[int] = deque()
        self._listing = False
        self._list_at = now + PUBLISHED_S
        self._ends_former_rows = settings.truncate and settings.snapshot_mode != "never"
        self._stopping = False
        self._stopped = False
        self._error: CdcdError | None = None
        self._grace_until: float | None = None
        self._warned: set[str] = set()
        self._exported_topics_asked = False

    # What the shell reports.

    @property
    def wants_frames(self) -> bool:
        """Whether the stream should be read on. If not, PostgreSQL waits."""
        return self._streams and self._steps is None and not self._stopping and self.queue.room

    @property
    def is_reading(self) -> bool:
        """Whether the initial snapshot is being read, for whose end the stream waits."""
        return not self._begun

    def stream_begun(self, now: float) -> None:
        """START_REPLICATION was accepted."""
        self._streams = self._begun = True

    def frames_received(self, frames: list[bytes], now: float) -> None:
        """Frames came, in their order. Ask `next_action` until `wants_frames` is true again."""
        assert self._steps is None, "the former frames are not worked off"
        if reply_requested(frames):
            # Answered before the frames around it are worked off, however long that takes.
            self._feedback.ask()
        self._steps = self.assembler.receive(frames)

    def described(
        self,
        relation: Relation,
        description: TableDescription,
        types: Mapping[int, TypeDescription],
        now: float,
    ) -> None:
        """What the catalog says of a relation.

        Raises:
            FatalError: no record can be made of its rows.
        """
        describing = self._describing
        assert describing is not None
        assert describing.relation is relation
        self._describing = None
        if describing.tentative:
            if description.has_columns_of(relation):
                self.encoder.define(relation, description, types)
            return
        self.encoder.define(relation, description, types)
        self._define(relation)

    def topics_ready(self, topics: Collection[str], now: float) -> None:
        """Records may go to these topics."""
        self._topics.update(topics)
        self._asked_topics.difference_update(topics)
        self._new_topics = {
            oid: topic for oid, topic in self._new_topics.items() if topic not in self._topics
        }
        self.incremental.topics_ready(now)
        self._between(now)

    def answered(self, ticket: int, answer: Answer, now: float) -> None:
        """The answer to a question about tables."""
        take, asked = self._asked.pop(ticket)
        take(asked, answer, now)
        exported = self._exported
        self._error = self._error or self.incremental.failure or (exported.failure if exported else None)
        self._between(now)

    def _listed(self, _asked: object, answer: Answer, now: float) -> None:
        self._listing = False
        self._list_at = now + PUBLISHED_S
        if isinstance(answer, Published):
            self._look_at.extend(self._tables.listed(answer))

    def _looked(self, asked: object, answer: Answer, now: float) -> None:
        """A table that took another one's place is described, for the record that ends the rows of that one."""
        assert isinstance(asked, int)
        if isinstance(answer, Looked) and answer.table is not None:
            self.define(answer.table.relation, answer.description, answer.types)
            self._tables.looked(asked, answer.table.name)
        else:
            self._tables.forget(asked)

    def delivered(self, batch: Batch, now: float) -> None:
        """The broker holds the batch, and the checkpoint if the batch closes its Kafka transaction."""
        assert batch is self._out
        self._out = None
        self.queue.delivered(batch)
        if not batch.closes:
            return
        for ticket in batch.tickets:
            self.ledger.ack(ticket)
        self.checkpoint = self._checkpoint_of(batch, acked=True)
        if 0 < self._unstreamed_until < batch.position.end_lsn and now > self._stream_again_at:
            self._error = StreamingAgainError("Streaming of large transactions is possible again.")

    def lock_lost(self, error: CdcdError, sqlstate: str, *, shutting_down: bool, now: float) -> None:
        """The connection that holds the advisory lock is gone.

        Args:
            shutting_down: PostgreSQL ended it because it stops, while the lock was ours. A fast shutdown waits until we
                have confirmed everything: what can be delivered within the grace is, and then we let go. What an
                undecided PREPARE holds up can not be.
        """
        self._observe(LockLost(sqlstate=sqlstate, reason=error.message))
        if not shutting_down:
            self._error = self._error or error
            return
        grace_s = self._settings.shutdown_grace_s
        self._observe(PostgresStopping(sqlstate=sqlstate, grace_s=grace_s))
        self._grace_until = now + grace_s

    def stop(self) -> None:
        """End in good order: the batch that is out is delivered, and PostgreSQL told of it."""
        self._stopping = True

    # What is to be done.

    def next_action(self, now: float, unix_us: int) -> Action:
        """What to do now. `unix_us`: the wall clock, in microseconds since 1970.

        Raises:
            FatalError, TransientError: the session can not go on, for what the frames or rows say.
        """
        self._unix_us = unix_us
        if self._error is not None:
            return End(self._error)
        status = self._status(now, unix_us)
        if status is not None:
            return status
        if self._stopping:
            return self._finish(now)
        if self._grace_until is not None and (now >= self._grace_until or not self._undelivered()):
            return self._let_go()
        if self._todo:
            return self._todo.popleft()
        batch = self._next_batch(now)
        if batch is not None:
            return batch
        if self._steps is not None and self._describing is None and self._advance(now):
            return Turn()
        question = self._next_question(now)
        if question is not None:
            return question
        if self._todo:
            return self._todo.popleft()
        if self._wanted_topics:
            topics, self._wanted_topics = tuple(self._wanted_topics), []
            self._asked_topics.update(topics)
            return EnsureTopics(topics)
        if self._settings.snapshot_only and self._all_is_read():
            self._stopping = True
            return Turn()
        return Wait(self._next_at(now))

    def _status(self, now: float, unix_us: int) -> Status | None:
        if not self._streams:
            return None
        ledger = self.ledger
        update = self._feedback.due(ledger.received, ledger.flushed, now, unix_us - POSTGRES_EPOCH_US)
        return None if update is None else Status(write_frame(update))

    def _finish(self, now: float) -> Action:
        if self._out is not None:
            return Wait(self._feedback.next_at(self.ledger.flushed) if self._streams else None)
        if self._streams and not self._stopped:
            self._stopped = True
            self._feedback.ask()
            return Turn()
        return End()

    def _let_go(self) -> Action:
        if self._streams and not self._stopped:
            self._stopped = True
            self._feedback.ask()
            return Turn()
        return End(
            TransientError(
                "PostgreSQL is shutting down.", hint="Reconnecting until it, or its successor, is back."
            )
        )

    def _undelivered(self) -> bool:
        return self.ledger.open_entries > self.assembler.prepared_open

    def _next_batch(self, now: float) -> Ship | None:
        if self._out is not None:
            return None
        due = self.queue.due_at(now)
        if due is None or due > now:
            return None
        batch = self._out = self.queue.take(now)
        self._out_since = now
        if batch.closes:
            self.ledger.send(batch.position.end_lsn)
        return Ship(batch, self._checkpoint_of(batch, acked=False) if batch.closes else self.checkpoint)

    def _checkpoint_of(self, batch: Batch, *, acked: bool) -> Checkpoint:
        """As it was shipped; once the tickets are acknowledged they no longer say what is held."""
        if acked:
            return self._shipped
        held = self.ledger.held_at(batch.tickets)
        self._shipped = replace(self.checkpoint.moved(batch.position, held), snapshot=batch.snapshot)
        return self._shipped

    def _next_question(self, now: float) -> Ask | None:
        if self._exported is not None and not self._begun:
            return self._next_of_the_export(now)
        if not self._streams:
            return None
        if not self._listing and now >= self._list_at:
            self._listing = True
            return self._ask(self._listed, None, ListPublished(self._tables.known_oids()))
        if self._look_at:
            oid = self._look_at.popleft()
            return self._ask(self._looked, oid, Look(oid, ""))
        if not self.queue.room:
            return None
        self.incremental.report(now)
        found = self.incremental.next_question(now)
        return None if found is None else self._ask(self.incremental.answered, *found)

    def _ask(self, take: Callable[[object, Answer, float], None], asked: object, question: Question) -> Ask:
        ticket = self._next_ticket
        self._next_ticket += 1
        self._asked[ticket] = (take, asked)
        return Ask(ticket, question)

    def _next_of_the_export(self, now: float) -> Ask | None:
        exported = self._exported
        assert exported is not None
        self.incremental.report(now)
        if not self._exported_topics_asked:
            self._exported_topics_asked = True
            for topic in exported.topics():
                self.topic_is_ready(topic)
        if not self.queue.room or self._wanted_topics or self._asked_topics:
            return None
        found = exported.next_question(now)
        if found is not None:
            return self._ask(exported.answered, *found)
        if exported.is_done:
            exported.finish(now)
            self._exported = None
            if self.incremental.progress.method != "incremental":
                self.incremental.replace(replace(self.incremental.progress, method="incremental"))
            self._todo.append(Begin())
        return None

    def _next_at(self, now: float) -> float | None:
        times = [self.queue.due_at(now) if self._out is None else None]
        if self._streams:
            times.append(self._feedback.next_at(self.ledger.flushed))
            if self._begun:
                times.append(self.incremental.next_at() if self.queue.room else None)
                times.append(None if self._listing else self._list_at)
        times.append(self._grace_until)
        return min([each for each in times if each is not None], default=None)

    def _all_is_read(self) -> bool:
        progress = self.incremental.progress
        return self._begun and progress.is_done and (self.checkpoint.snapshot or Progress()) == progress

    # Frames.

    def _advance(self, now: float) -> bool:
        """Work off steps for a turn; False: nothing can be done before something is answered or delivered."""
        steps = self._steps
        assert steps is not None
        left = TURN_EVENTS
        while left > 0:
            step = self._held
            if step is None:
                if not self.queue.room:
                    return False
                step = next(steps, None)
                if step is None:
                    self._steps = None
                    return True
            else:
                self._held = None
            left -= self._take(step, now)
            if self._held is not None or self._describing is not None:
                return False
        return True

    def _take(self, step: Step, now: float) -> int:
        """Do what the step says; returns what it counts of a turn."""
        kind = type(step)
        if kind is Changes:
            assert isinstance(step, Changes)
            return self._encode(step)
        _HANDLERS[kind](self, step, now)
        return TURN_EVENTS if kind is AssemblerTurn else 1

    def _encode(self, step: Changes) -> int:
        """Returns the number of events, or holds the step until its topics are there."""
        if self._missing_topics(step):
            self._held = step
            return 0
        items = step.items
        count = events(items) if step.in_stream else len(items)
        records = self._records
        if self.incremental.watches or self._new_names:
            size = self._encode_each(step)
        else:
            size = self.encoder.encode_all(items, step.in_stream, self._unix_us, records)
        if self.queue.add(records, size, count):
            self._cut()
        return count

    def _encode_each(self, step: Changes) -> int:
        """As `encode_all`, while tables are read or names are new: what each record says of a row is noted."""
        size = 0
        records = self._records
        for item in step.items:
            if self._new_names:
                size += self._take_names(item, step.in_stream)
            known = len(records)
            size += self.encoder.encode_all([item], step.in_stream, self._unix_us, records)
            if isinstance(item, bytes):
                self._note(item, step.in_stream, known)
            else:
                for topic, key, value, _ in records[known:]:
                    if value is not None:
                        self.incremental.note(self._xid, topic, key, None, moved=False)
        return size

    def _take_names(self, item: SpoolItem, in_stream: bool) -> int:
        """The first events of tables under their names; returns the bytes of records that end the rows of others."""
        size = 0
        for oid in _oids_of(item, in_stream):
            name = self._new_names.pop(oid, None)
            if name is not None and self._tables.described(oid, name):
                self._deferred.append(partial(self._tables.replace, oid))
                if self._ends_former_rows:
                    size += self.encoder.encode_end_of_rows(oid, None, self._unix_us, self._records)
        return size

    def _note(self, frame: bytes, in_stream: bool, known: int) -> None:
        tag = peek.tag_of(frame)
        if tag == peek.TRUNCATE:
            self.incremental.truncated(self._xid, peek.relation_oids(frame, in_stream))
            return
        for topic, key, value, headers in self._records[known:]:
            if value is None or not self.incremental.is_watched(topic):
                continue
            values = None
            names = {name for name, _ in headers or ()}
            if HEADER_UNCHANGED in names and HEADER_NEW_KEY not in names and tag != peek.DELETE:
                (oid,) = peek.relation_oids(frame, in_stream)
                values = peek.key_values(frame, in_stream, list(self.encoder.key_indexes(oid)))
            self.incremental.note(self._xid, topic, key, values, moved=HEADER_OLD_KEY in names)

    def _missing_topics(self, step: Changes) -> bool:
        """Whether records of these events go to topics that are not there yet; they are asked for."""
        if not self._new_topics:
            return False
        missing = False
        for item in step.items:
            for oid in _oids_of(item, step.in_stream):
                topic = self._new_topics.get(oid)
                if topic is not None and not self.topic_is_ready(topic):
                    missing = True
        return missing

    def _opened(self, step: Opened) -> None:
        self._transaction = step
        self._xid = step.xid
        self.encoder.begin(step.xid, step.commit_lsn, step.commit_time, step.last_commit_lsn)
        if step.skip:
            self.encoder.skip(step.skip)
        self.queue.begin(step.commit_lsn, step.skip)

    def _closed(self, step: Closed, now: float) -> None:
        self._apply_deferred()
        if self.queue.size:
            self.caught_up = False
        self.queue.close(step.commit_lsn, step.end_lsn, step.commit_time, step.tickets)
        self._between(now)

    def _rolled_back(self, step: RolledBack, now: float) -> None:
        self.queue.roll_back(step.end_lsn, step.tickets)
        self._between(now)

    def _origin_changed(self, step: OriginChanged) -> None:
        self.encoder.set_origin(step.name, step.lsn)

    def _previewed(self, step: RelationPreview) -> None:
        """Know a relation before the commit of the transaction in which it is new to us, so that rows can be drafted.

        One that we know stays as it is: rows of other transactions may still come as it was. One that is not yet in the
        catalog as the message says was created or altered in that transaction, and is described at its commit.
        """
        if not self.encoder.knows(step.message.oid):
            self._ask_for(step.message, tentative=True)

    def _described_in_stream(self, step: Described) -> None:
        # Also where it says what it said before: a column that was dropped and added again looks the same here.
        if isinstance(step.message, Relation):
            self._ask_for(step.message, tentative=False)

    def _ask_for(self, relation: Relation, *, tentative: bool) -> None:
        self._describing = Describe(relation, tentative)
        self._todo.append(self._describing)

    def _define(self, relation: Relation) -> None:
        oid = relation.oid
        known = self._relations.get(oid)
        self._relations[oid] = relation
        topic = self.encoder.topic_of(oid)
        if topic not in self._topics:
            self._new_topics[oid] = topic
        else:
            self._new_topics.pop(oid, None)
        self.incremental.defined(oid, topic)
        if known is not None and known != relation:
            self.incremental.redefined(oid)
            self._observe(RelationChanged(schema=relation.schema, table=relation.name))
        name = f"{relation.schema}.{relation.name}"
        if self._tables.is_new(oid, name):
            self._new_names[oid] = name
        else:
            self._new_names.pop(oid, None)

    def _transactional(self, step: TransactionalMessage) -> None:
        message = read_message(step.frame, XLOG_HEADER, in_stream=step.in_stream)
        assert isinstance(message, LogicalMessage)
        size = 0
        if message.prefix in RESERVED:
            # It is an event like any other, of which nobody but us has a record.
            self.encoder.skip(1)
            self._deferred.append(lambda: self._requests.take(message))
        else:
            size = self.encoder.encode(step.frame, step.in_stream, self._unix_us, self._records)
        if self.queue.add(self._records, size, 1):
            self._cut()

    def _alone(self, step: NonTransactionalMessage, now: float) -> None:
        message = read_message(step.frame, XLOG_HEADER, in_stream=step.in_stream)
        assert isinstance(message, LogicalMessage)
        self.queue.begin(step.lsn, 0)
        size = 0
        if message.prefix in RESERVED:
            self._requests.take(message)
        else:
            size = self.encoder.encode_message(
                step.frame, step.in_stream, step.last_commit_lsn, self._unix_us, self._records
            )
        self.queue.add(self._records, size, 1)
        self.queue.close(step.lsn, step.lsn + 1, None, (step.ticket,))
        self._between(now)

    def _commit_without_prepare(self, step: CommitWithoutPrepare) -> None:
        self._observe(PrepareMissing(gid=step.gid, xid=step.xid, commit_lsn=str(Lsn(step.commit_lsn))))

    def _heard(self, step: KeepaliveReceived, now: float) -> None:
        self.server_wal_end = max(self.server_wal_end, step.wal_end)
        if step.idle:
            self.caught_up = not self.queue.size
            self.queue.advance(self.ledger, step.wal_end, asked=step.reply_requested)
            self._between(now)

    def _cut(self) -> None:
        if self._transaction is not None:
            self.cuts += 1
            self._observe(
                TransactionLarge(xid=self._transaction.xid, commit_lsn=self._transaction.commit_lsn)
            )
            self._transaction = None

    def _apply_deferred(self) -> None:
        """What a transaction asks of us counts when its events do, so that a restart in between hears it again."""
        if self._deferred:
            deferred, self._deferred = self._deferred, []
            for apply in deferred:
                apply()

    def _between(self, now: float) -> None:
        """Rows, and ends of former tables, have their place between two transactions of the stream."""
        if not self.queue.between:
            return
        position = self.queue.position.end_lsn
        for oid in self._tables.due(position, lambda oid: self.topic_is_ready(self.rows.topic_of(oid))):
            self._end_former_rows(oid)
        self.incremental.between(position, now)

    def _end_former_rows(self, oid: int) -> None:
        """Between two transactions: the rows of the table that had this one's name before end here."""
        self._tables.replace(oid)
        if self._ends_former_rows:
            commit_lsn = self.queue.position.end_lsn - 1
            size = self.rows.encode_end_of_rows(oid, commit_lsn, self._unix_us, self._records)
            self.queue.insert(self._records, size)

    def tick(self, now: float, unix_us: int) -> None:
        """Once a second: what nothing but time brings about."""
        oldest = self.assembler.oldest_prepared()
        if oldest is None or oldest[0] in self._warned:
            return
        age_s = (unix_us - oldest[1] - POSTGRES_EPOCH_US) / 1e6
        if age_s >= self._settings.prepared_warning_age_s:
            self._warned.add(oldest[0])
            self._observe(
                PreparedOld(gid=oldest[0], age_s=round(age_s), held_at=str(Lsn(self.ledger.flushed)))
            )

    # What the reading of tables needs of the rest (`incremental.Rendering`).

    def define(
        self, relation: Relation, description: TableDescription, types: Mapping[int, TypeDescription]
    ) -> str:
        """Know the table as it is now; returns its topic. SinkError: it can have none."""
        self.rows.define(relation, description, types)
        return self.rows.claim(relation.oid)

    def key_columns(self, oid: int) -> tuple[str, ...]:
        """The names of the columns that make the record's key; () for a table without one."""
        return self.rows.key_column_names(oid)

    def topic_of(self, oid: int) -> str:
        """The topic of a table that was defined for reading."""
        return self.rows.topic_of(oid)

    def topic_is_ready(self, topic: str) -> bool:
        """Whether records may go to the topic; if not, it is asked for."""
        if topic in self._topics:
            return True
        if topic not in self._asked_topics and topic not in self._wanted_topics:
            self._wanted_topics.append(topic)
        return False

    def put(
        self,
        oid: int,
        rows: Rows,
        *,
        event_no: int,
        dropped: set[bytes],
        progress: Callable[[Encoded], None],
        marked: Marked[Any] | None = None,
    ) -> None:
        """Put rows into the queue between two transactions (`incremental.Rendering.put`)."""
        end_lsn = self.queue.position.end_lsn
        first = last = others = INCREMENTAL
        if marked is not None:
            single = len(rows.lines) == 1
            first = marker_of_single(marked) if single else marked.first
            last = marker_of_single(marked) if single else marked.last
            others = ROW
        position = SnapshotPosition(
            lsn=rows.after or end_lsn,
            commit_lsn=end_lsn - 1,
            first=first,
            last=last,
            others=others,
            event_no=event_no,
        )
        encoded = self.rows.encode_rows(oid, rows.lines, position, self._unix_us, self._records, dropped)
        progress(encoded)
        self.queue.insert(self._records, encoded.bytes)

    def _progress(self) -> Progress | None:
        return self.incremental.to_write_down()


def _oids_of(item: SpoolItem, in_stream: bool) -> Sequence[int]:
    """The relations of an event, or of the rows of a draft."""
    return peek.relation_oids(item, in_stream) if isinstance(item, bytes) else (item[1],)


_Handler = Callable[[Engine, Any, float], None]

_HANDLERS: Final[dict[type[Step], _Handler]] = {
    Opened: lambda engine, step, _now: engine._opened(step),
    Closed: lambda engine, step, now: engine._closed(step, now),
    Described: lambda engine, step, _now: engine._described_in_stream(step),
    RelationPreview: lambda engine, step, _now: engine._previewed(step),
    OriginChanged: lambda engine, step, _now: engine._origin_changed(step),
    RolledBack: lambda engine, step, now: engine._rolled_back(step, now),
    TransactionalMessage: lambda engine, step, _now: engine._transactional(step),
    NonTransactionalMessage: lambda engine, step, now: engine._alone(step, now),
    KeepaliveReceived: lambda engine, step, now: engine._heard(step, now),
    CommitWithoutPrepare: lambda engine, step, _now: engine._commit_without_prepare(step),
    AssemblerTurn: lambda _engine, _step, _now: None,
}
"""What each step of the assembler does, but for `Changes`."""
