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
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final

from cdcd.engine.actions import (
    Action,
    Answer,
    Ask,
    Begin,
    End,
    Enums,
    FindEnums,
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
from cdcd.engine.ingest import Ingest
from cdcd.engine.labels import Labels
from cdcd.engine.queue import Batch, BatchQueue
from cdcd.engine.rendering import SnapshotRows
from cdcd.engine.requests import Requests
from cdcd.engine.tables import PublishedTables
from cdcd.engine.topics import Topics
from cdcd.errors import CdcdError, TransientError
from cdcd.facts import (
    LockLost,
    Observer,
    PostgresStopping,
    PreparedOld,
)
from cdcd.protocol.frames import write_frame
from cdcd.protocol.lsn import Lsn
from cdcd.protocol.messages import POSTGRES_EPOCH_US, Relation
from cdcd.records.formats.debezium_json import DebeziumJsonEncoder
from cdcd.records.formats.snapshot_rows import SnapshotEncoder
from cdcd.records.relations import TableDescription, TypeDescription
from cdcd.snapshots.progress import Progress
from cdcd.snapshots.reading import SourceTable
from cdcd.snapshots.visibility import Visibility
from cdcd.transactions.assembler import Assembler
from cdcd.transactions.ledger import Ledger
from cdcd.transactions.position import Checkpoint

TURN_EVENTS: Final = 256
"""After so many events or steps other tasks get their turn: some milliseconds, uncompiled."""

UNSTREAMED_S: Final = 60.0
"""Minimum time to run with streaming off. A workload that needed it once will probably need it again."""

DESCRIBE_S: Final = 0.01
"""How long until the catalog is asked again that does not show yet what is streamed already."""

PUBLISHED_S: Final = 5.0
"""How often the publication is looked at for tables that were added, or have another name, and enums for labels that
were renamed or added."""


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


def first_flush(told: int, start: Checkpoint, slot_confirmed: int) -> int:
    """The position to begin with that PostgreSQL may forget.

    Args:
        told: what former sessions of this process told it. Another instance may have been active since, and may hold
            a PREPARE before that position, which is undecided: the checkpoint says how far anybody may go.
    """
    return max(slot_confirmed, min(told, start.flushed_lsn))


def _nothing(_table: str) -> bool:
    return False


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
        excluded: Callable[[str], bool] = _nothing,
        unstreamed_until: int = 0,
        parts: Parts = ORDINARY,
    ) -> None:
        self.assembler = assembler
        self.ledger = ledger
        self.encoder = encoder
        self.rows = rows
        self.checkpoint = start
        self._settings = settings
        self._observe = observe
        self._unstreamed_until = unstreamed_until
        self._stream_again_at = now + UNSTREAMED_S
        self.queue = parts.queue(
            start.position,
            bytes_max=settings.bytes_max,
            records_max=settings.records_max,
            queue_bytes_max=settings.queue_bytes_max,
            idle_s=settings.status_interval_s,
            whole_bytes_max=settings.whole_bytes_max,
            progress=self._progress,
            before_cut=self._before_cut,
        )
        self._feedback = parts.feedback(settings.status_interval_s, now)
        self._topics = Topics()
        self._rendering = SnapshotRows(rows, self.queue, self._topics)
        self.incremental = parts.incremental(
            start.snapshot or Progress(),
            self._rendering,
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
        self._labels = Labels(self.incremental)
        requests = parts.requests(
            self.incremental, name=settings.name, allowed=settings.signals, observe=observe
        )
        self._exported: Exported | None = None
        if exported is not None:
            for oid, table in exported.tables.items():
                self._rendering.define(table.relation, exported.descriptions[oid], exported.types)
            self._exported = parts.exported(
                self.incremental,
                self._rendering,
                exported.tables,
                chunk_bytes=settings.chunk_bytes,
                parallelism=settings.parallelism,
            )
        self._ingest = Ingest(
            assembler=assembler,
            encoder=encoder,
            rows=self._rendering,
            queue=self.queue,
            ledger=ledger,
            incremental=self.incremental,
            tables=self._tables,
            labels=self._labels,
            requests=requests,
            topics=self._topics,
            observe=observe,
            ends_former_rows=settings.truncate and settings.snapshot_mode != "never",
        )
        self._streams = False
        self._out: Batch | None = None
        self._shipped = start
        self._todo: deque[Action] = deque()
        self._asked: dict[int, tuple[Callable[[object, Answer, float], None], object]] = {}
        """By ticket: who gets the answer, and what it is for."""
        self._next_ticket = 1
        self._look_at: deque[int] = deque()
        self._listing = False
        self._list_at = now + PUBLISHED_S
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
        return self._streams and self._ingest.is_idle and not self._stopping and self.queue.room

    @property
    def caught_up(self) -> bool | None:
        """Whether everything that the server was known to have written is with the broker; None: nothing new."""
        return self._ingest.caught_up

    @property
    def server_wal_end(self) -> int:
        """The end of the server's WAL by its last keepalive."""
        return self._ingest.server_wal_end

    @property
    def cuts(self) -> int:
        """Transactions that were larger than a Kafka transaction may be."""
        return self._ingest.cuts

    @property
    def is_reading(self) -> bool:
        """Whether the initial snapshot is being read, for whose end the stream waits."""
        return not self._streams

    def stream_begun(self, now: float) -> None:
        """START_REPLICATION was accepted."""
        self._streams = True

    def frames_received(self, frames: list[bytes], now: float) -> None:
        """Frames came, in their order. Ask `next_action` until `wants_frames` is true again."""
        if reply_requested(frames):
            # Answered before the frames around it are worked off, however long that takes.
            self._feedback.ask()
        self._ingest.receive(frames)

    def described(
        self,
        relation: Relation,
        description: TableDescription,
        types: Mapping[int, TypeDescription],
        now: float,
        seen: Visibility | None = None,
    ) -> None:
        """What the catalog says of a relation.

        Args:
            seen: a snapshot taken before the catalog was read, where that lacks what the relation's message has. A
                commit may be streamed a moment before snapshots see it (procarray.c, ProcArrayEndTransaction): then the
                catalog is asked again. What is seen and lacking was altered or dropped since.

        Raises:
            FatalError: no record can be made of its rows.
        """
        self._ingest.described(relation, description, types, now, seen)

    def topics_ready(self, topics: Collection[str], now: float) -> None:
        """Records may go to these topics."""
        self._topics.ready(topics)
        self._ingest.topics_ready()
        self.incremental.topics_ready(now)
        self._ingest.between(now)

    def answered(self, ticket: int, answer: Answer, now: float) -> None:
        """The answer to a question about tables."""
        take, asked = self._asked.pop(ticket)
        take(asked, answer, now)
        exported = self._exported
        self._error = self._error or self.incremental.failure or (exported.failure if exported else None)
        self._ingest.between(now)

    def _listed(self, _asked: object, answer: Answer, now: float) -> None:
        self._listing = False
        self._list_at = now + PUBLISHED_S
        if isinstance(answer, Published):
            self._look_at.extend(self._tables.listed(answer))
            self._labels.listed(answer.labels)

    def _enums_found(self, _asked: object, answer: Answer, now: float) -> None:
        if isinstance(answer, Enums):
            self._labels.found(answer.oids)
        else:
            self._labels.failed()

    def _relabelled(self, asked: object, answer: Answer, now: float) -> None:
        """A table with columns of enums is described, whose labels may have changed."""
        assert isinstance(asked, int)
        if not isinstance(answer, Looked):
            self._labels.failed()
        elif answer.table is None:
            self._labels.gone()
        else:
            relation = answer.table.relation
            if self._rendering.is_altered(relation):
                self.incremental.redefined(relation.oid)
            self._rendering.define(relation, answer.description, answer.types)
            self._ingest.relabelled(relation.oid, answer.description, answer.types)
            self._labels.described(asked)

    def _looked(self, asked: object, answer: Answer, now: float) -> None:
        """A table that took another one's place is described, for the record that ends the rows of that one."""
        assert isinstance(asked, int)
        if isinstance(answer, Looked) and answer.table is not None:
            # Rows of it that wait for their place were read by the description that this one replaces.
            self.incremental.redefined(answer.table.oid)
            self._rendering.define(answer.table.relation, answer.description, answer.types)
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
        self.checkpoint = self._shipped
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
        self._rendering.unix_us = unix_us
        if self._error is not None:
            return End(self._error)
        status = self._status(now, unix_us)
        if status is not None:
            return status
        if self._stopping:
            return self._finish(now)
        if self._grace_until is not None and (now >= self._grace_until or not self._undelivered()):
            return self._end_with(
                TransientError(
                    "PostgreSQL is shutting down.", hint="Reconnecting until it, or its successor, is back."
                )
            )
        if self._todo:
            return self._todo.popleft()
        batch = self._next_batch(now)
        if batch is not None:
            return batch
        describe = self._ingest.next_describe(now)
        if describe is not None:
            return describe
        if self._ingest.advance(now, unix_us):
            return Turn()
        action = self._ingest.next_describe(now) or self._next_question(now) or self._topics.wanted()
        if action is not None:
            return action
        if self._todo:
            return self._todo.popleft()
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
        return self._end_with(None)

    def _end_with(self, error: CdcdError | None) -> Action:
        """End the session, after PostgreSQL was told once more what is delivered."""
        if self._streams and not self._stopped:
            self._stopped = True
            self._feedback.ask()
            return Turn()
        return End(error)

    def _undelivered(self) -> bool:
        return self.ledger.open_entries > self.assembler.prepared_open

    def _next_batch(self, now: float) -> Ship | None:
        if self._out is not None:
            return None
        due = self.queue.due_at(now)
        if due is None or due > now:
            return None
        batch = self._out = self.queue.take(now)
        if not batch.closes:
            return Ship(batch, self.checkpoint)
        self.ledger.send(batch.position.end_lsn)
        # Kept until it is delivered: once the tickets are acknowledged they no longer say what is held.
        held = self.ledger.held_at(batch.tickets)
        self._shipped = replace(self.checkpoint.moved(batch.position, held), snapshot=batch.snapshot)
        return Ship(batch, self._shipped)

    def _next_question(self, now: float) -> Ask | None:
        if self._exported is not None:
            return self._next_of_the_export(now)
        if not self._streams:
            return None
        if not self._listing and now >= self._list_at:
            self._listing = True
            return self._ask(self._listed, None, ListPublished(self._tables.known_oids()))
        if self._look_at:
            oid = self._look_at.popleft()
            return self._ask(self._looked, oid, Look(oid, ""))
        if self._labels.wants_tables():
            return self._ask(self._enums_found, None, FindEnums())
        oid = self._labels.next_table()
        if oid:
            return self._ask(self._relabelled, oid, Look(oid, ""))
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
                self._topics.is_ready(topic)
        if not self.queue.room or self._topics.awaited:
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
            times.append(self.incremental.next_at() if self.queue.room else None)
            times.append(None if self._listing else self._list_at)
        times += [self._grace_until, self._ingest.describe_at]
        return min([each for each in times if each is not None], default=None)

    def _all_is_read(self) -> bool:
        progress = self.incremental.progress
        return self._streams and progress.is_done and (self.checkpoint.snapshot or Progress()) == progress

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

    def _before_cut(self) -> None:
        self._ingest.apply_deferred()

    def _progress(self) -> Progress | None:
        return self.incremental.to_write_down()
