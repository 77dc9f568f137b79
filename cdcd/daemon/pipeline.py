"""The whole program: one stream from its first frame to its last, with everything that runs beside it.

```
 receive ─frames─▶ Assembler ─steps─▶ encoder ─records─▶ Batches ─▶ Sink (a thread) ─▶ broker
    ▲                  └─ entries ─▶ Ledger ◀──── tickets when the broker has acknowledged ────┘
    └─ back-pressure: no reading while Batches is full       Feedback ◀─ flushed ─┘ ─▶ PostgreSQL
```

A pipeline lives as long as its connections. It ends by an exception: `TransientError` (the supervisor starts a new one,
which resumes from the checkpoint) or `FatalError`; or by returning, when it was asked to stop. Nothing is carried
from one life to the next but the flushed position, which must not fall.

Six tasks share its state, in one event loop, so that nothing here needs a lock: reading, shipping (whose blocking
calls run in the Kafka thread), feedback, the watch over the advisory lock, a slow survey of the slot, and the reading
of tables for snapshots. An initial snapshot comes first, and the stream begins when its rows are on their way.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from cdcd.daemon import memory
from cdcd.daemon.intake import Intake
from cdcd.daemon.snapshot_export import ExportedSnapshot
from cdcd.daemon.snapshot_run import SnapshotRun
from cdcd.errors import TransientError, cause
from cdcd.facts import LockLost, Observer, PostgresStopping, PreparedOld, SpoolSpilled
from cdcd.kafka.sink import Sink
from cdcd.postgres.lock import AdvisoryLock
from cdcd.postgres.replication import ReplicationStream
from cdcd.protocol.frames import write_frame
from cdcd.protocol.lsn import Lsn
from cdcd.protocol.messages import POSTGRES_EPOCH_US
from cdcd.snapshots.progress import Progress
from cdcd.telemetry.state import Telemetry
from cdcd.transactions.batches import Batches
from cdcd.transactions.feedback import Feedback, reply_requested
from cdcd.transactions.ledger import Ledger
from cdcd.transactions.position import Checkpoint
from cdcd.transactions.spool import Spool

READ_BYTES: Final = 262_144
"""Frames taken from libpq at a time; encoding them takes a few milliseconds, between which other tasks run."""

SURVEY_S: Final = 15.0
"""How often the slot, the publication and the prepared transactions are looked at."""

COUNT_S: Final = 1.0

UNSTREAMED_S: Final = 60.0
"""A life without streaming lasts so long at least: where one transaction needed it, the next may soon."""

K = TypeVar("K")

Survey = Callable[[], Awaitable[None]]
Begin = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Limits:
    """What of the configuration a pipeline needs in numbers."""

    shutdown_grace_s: float
    prepared_warning_age_s: float
    snapshot_only: bool = False
    """The life ends when there is nothing left to read."""


class StreamingAgainError(TransientError):
    """What had to be received without streaming is delivered."""


class Pipeline:
    """One life of the stream. `run` it once.

    Args:
        start: the checkpoint to resume from; its position is what `intake` and `batches` were built with.
        unstreamed_until: this life goes without streaming, and ends some time after the commit at this LSN; 0: never.
        begin: starts replication on `stream`.
        exported: the initial snapshot, to be read before that.
        snapshots: reads tables beside the stream.
        survey: reads the slot's state into the telemetry and raises when slot or publication are gone.
    """

    def __init__(
        self,
        *,
        limits: Limits,
        stream: ReplicationStream,
        lock: AdvisoryLock,
        sink: Sink,
        kafka_thread: Executor,
        start: Checkpoint,
        ledger: Ledger,
        feedback: Feedback,
        intake: Intake,
        spool: Spool,
        batches: Batches,
        begin: Begin,
        exported: ExportedSnapshot | None,
        snapshots: SnapshotRun,
        survey: Survey,
        unstreamed_until: int,
        telemetry: Telemetry,
        observe: Observer,
    ) -> None:
        self._limits = limits
        self._stream = stream
        self._lock = lock
        self._sink = sink
        self._kafka_thread = kafka_thread
        self._checkpoint = start
        self._ledger = ledger
        self._feedback = feedback
        self._intake = intake
        self._assembler = intake.assembler
        self._spool = spool
        self._batches = batches
        self._begin = begin
        self._exported = exported
        self._snapshots = snapshots
        self._survey = survey
        self._unstreamed_until = unstreamed_until
        self._stream_again_at = time.monotonic() + UNSTREAMED_S
        self._telemetry = telemetry
        telemetry.reading = exported is not None
        self._observe = observe
        self._events_before = telemetry.events
        self._transactions_before = telemetry.transactions
        self._streams = False
        self._draining = False
        self._filled = snapshots.state.filled
        self._emptied = snapshots.state.emptied
        self._tell_now = asyncio.Event()

    async def run(self, stop: asyncio.Event) -> None:
        """Stream until `stop` is set, then finish what is open in Kafka and say so to PostgreSQL.

        With `snapshot_only`, also until every table is read; then it sets `stop` itself.

        Raises:
            TransientError: start over.
            FatalError: a person must act.
        """
        try:
            await self._run(stop)
        except BaseExceptionGroup as failures:
            raise cause(failures) from None

    async def _run(self, stop: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as group:
            beside = [
                group.create_task(self._watch_lock(), name="lock"),
                group.create_task(self._look_around(), name="survey"),
            ]
            ship = group.create_task(self._ship(), name="ship")
            reading = [group.create_task(self._start(beside, group), name="read")]
            if self._limits.snapshot_only:
                reading.append(group.create_task(self._await_snapshots(stop), name="only"))
            await stop.wait()
            for task in reading:
                task.cancel()
            await asyncio.wait(reading)
            for task in beside:
                if task.get_name() == "snapshots":
                    task.cancel()
            self._draining = True
            self._filled.set()
            await ship
            for task in beside:
                task.cancel()
        self._count()
        if self._streams:
            await self._send_status(asked=True)
            await self._stream.finish(timeout_s=1.0)

    async def _start(self, beside: list[asyncio.Task[None]], group: asyncio.TaskGroup) -> None:
        """The initial snapshot, if there is one; then the stream, and what needs it."""
        if self._exported is not None:
            await self._exported.run()
            await self._begin()
            self._telemetry.reading = False
        self._streams = True
        beside.append(group.create_task(self._tell(), name="feedback"))
        beside.append(group.create_task(self._snapshots.run(), name="snapshots"))
        await self._read()

    async def _await_snapshots(self, stop: asyncio.Event) -> None:
        state = self._snapshots.state
        while not (state.progress.is_done and (self._checkpoint.snapshot or Progress()) == state.progress):
            self._emptied.clear()
            await _wait(self._emptied, COUNT_S)
        stop.set()

    async def _read(self) -> None:
        while True:
            await self._snapshots.state.wait_for_room()
            frames = await self._stream.receive(READ_BYTES)
            if reply_requested(frames):
                # Answered before the frames around it are worked off, however long that takes.
                self._feedback.ask()
                self._tell_now.set()
            await self._intake.take(frames)
            self._update_telemetry()

    # Shipping: records to the broker, tickets to the ledger.

    async def _ship(self) -> None:
        batches = self._batches
        while not self._draining:
            now = time.monotonic()
            due = batches.due_at(now)
            if due is None or due > now:
                self._filled.clear()
                await _wait(self._filled, None if due is None else due - now)
                continue
            batch = batches.take(now)
            self._ledger.send(batch.position.end_lsn)
            self._update_telemetry()
            moved = self._checkpoint.moved(batch.position, self._ledger.held_at(batch.tickets))
            checkpoint = replace(moved, snapshot=batch.snapshot)
            await asyncio.get_running_loop().run_in_executor(
                self._kafka_thread, self._sink.deliver, batch, checkpoint
            )
            self._telemetry.observe_commit(time.monotonic() - now)
            for ticket in batch.tickets:
                self._ledger.ack(ticket)
            batches.delivered(batch)
            self._checkpoint = checkpoint
            if batch.commit_time is not None:
                self._telemetry.last_commit_time = (batch.commit_time + POSTGRES_EPOCH_US) / 1e6
            self._emptied.set()
            self._tell_now.set()
            self._update_telemetry()
            if 0 < self._unstreamed_until < batch.position.end_lsn and now > self._stream_again_at:
                raise StreamingAgainError("Streaming of large transactions is possible again.")

    # Feedback: positions to PostgreSQL.

    async def _tell(self) -> None:
        while True:
            self._tell_now.clear()
            await self._send_status()
            wait_s = self._feedback.next_at(self._ledger.flushed) - time.monotonic()
            await _wait(self._tell_now, max(0.0, wait_s))

    async def _send_status(self, *, asked: bool = False) -> None:
        if asked:
            self._feedback.ask()
        ledger = self._ledger
        server_time_us = time.time_ns() // 1000 - POSTGRES_EPOCH_US
        update = self._feedback.due(ledger.received, ledger.flushed, time.monotonic(), server_time_us)
        if update is not None:
            await self._stream.send(write_frame(update))

    # What may end a life from outside.

    async def _watch_lock(self) -> None:
        lost = await self._lock.wait_lost()
        self._observe(LockLost(sqlstate=lost.sqlstate, reason=lost.message))
        if lost.admin_shutdown and not self._lock.lapsed:
            # A fast shutdown waits for us to confirm everything. Do what can be done in a moment, then let go. What
            # an undecided PREPARE holds up can not be.
            self._observe(PostgresStopping(sqlstate=lost.sqlstate, grace_s=self._limits.shutdown_grace_s))
            deadline = time.monotonic() + self._limits.shutdown_grace_s
            while self._undelivered() and time.monotonic() < deadline:
                self._emptied.clear()
                await _wait(self._emptied, deadline - time.monotonic())
            if self._streams:
                await self._send_status(asked=True)
            raise TransientError(
                "PostgreSQL is shutting down.", hint="Reconnecting until it, or its successor, is back."
            )
        raise TransientError(
            f"The connection with the advisory lock is lost: {lost.message}", hint="Reconnecting."
        )

    def _undelivered(self) -> bool:
        return self._ledger.open_entries > self._assembler.prepared_open

    async def _look_around(self) -> None:
        warned: set[str] = set()
        survey_at = 0.0
        while True:
            if time.monotonic() >= survey_at:
                await self._survey()
                memory.collect()
                survey_at = time.monotonic() + SURVEY_S
            oldest = self._assembler.oldest_prepared()
            if oldest is not None and oldest[0] not in warned:
                age_s = time.time() - (oldest[1] + POSTGRES_EPOCH_US) / 1e6
                if age_s >= self._limits.prepared_warning_age_s:
                    warned.add(oldest[0])
                    self._observe(
                        PreparedOld(gid=oldest[0], age_s=round(age_s), held_at=str(Lsn(self._ledger.flushed)))
                    )
            self._count()
            await asyncio.sleep(COUNT_S)

    def _count(self) -> None:
        """Running totals of all lives; the encoder and the assembler count those of this one."""
        telemetry = self._telemetry
        telemetry.events = _sum(
            _sum(self._events_before, self._intake.encoder.counts), self._snapshots.counts
        )
        telemetry.transactions = _sum(self._transactions_before, self._assembler.counts)
        if self._spool.disk_bytes and not telemetry.spool_disk_bytes:
            self._observe(
                SpoolSpilled(memory_bytes=self._spool.memory_bytes, disk_bytes=self._spool.disk_bytes)
            )
        telemetry.spool_memory_bytes = self._spool.memory_bytes
        telemetry.spool_disk_bytes = self._spool.disk_bytes

    def _update_telemetry(self) -> None:
        telemetry, ledger, assembler = self._telemetry, self._ledger, self._assembler
        telemetry.received_lsn = ledger.received
        telemetry.sent_lsn = ledger.sent
        telemetry.acked_lsn = ledger.acked
        telemetry.flushed_lsn = ledger.flushed
        telemetry.server_wal_end = max(telemetry.server_wal_end, ledger.received)
        telemetry.queue_bytes = self._batches.size
        telemetry.streamed_open = assembler.streamed_open
        telemetry.prepared_open = assembler.prepared_open
        oldest = assembler.oldest_prepared()
        telemetry.prepared_oldest_time = None if oldest is None else (oldest[1] + POSTGRES_EPOCH_US) / 1e6


def _sum(before: dict[K, int], now: dict[K, int]) -> dict[K, int]:
    return {key: before.get(key, 0) + now.get(key, 0) for key in {**before, **now}}


async def _wait(event: asyncio.Event, timeout_s: float | None) -> None:
    """Until the event is set, or so many seconds."""
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        pass
