"""From a configuration to a session that is ready to run: the steps in the one order that is safe.

`STEPS` is the order; each step is a method that says what it needs. What they make is put together in `wiring.py`.

1. The advisory lock, kept by a heartbeat all the time: from here on no other instance of the pipeline is active on this
   server, and a stream that a former one left behind is ended.
2. Kafka's topics, and a look at the checkpoint. It is held against server and slot before anything is done that
   another instance would notice: one that must refuse to start, because it points at a former primary or another
   cluster, disturbs no healthy instance.
3. `init_transactions`, which shuts out a former instance that is still alive somewhere, then the checkpoint again,
   which only now can not change any more, and the same judgement, which counts.
4. Publication and slot, created where they are missing. Beside a checkpoint, a missing slot is a gap.
5. START_REPLICATION, from the slot's own position: what the checkpoint covers is skipped here, not by asking the
   server to start later, because it would leave out prepared transactions that are not decided yet. An initial
   snapshot is read before that.
"""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from typing import Final

from cdcd.config.loading import Config
from cdcd.daemon.kafka_side import KafkaSide
from cdcd.daemon.pipeline import Pipeline
from cdcd.daemon.postgres_side import PostgresSide
from cdcd.daemon.snapshot_driver import SnapshotDriver
from cdcd.daemon.wiring import Wiring, connect_pipeline, start_replication
from cdcd.engine.engine import ExportedTables, first_flush
from cdcd.engine.queue import Batch
from cdcd.errors import PositionError
from cdcd.facts import CheckpointRead, GapAccepted, Observer, SnapshotNeeded, SnapshotResumed
from cdcd.kafka.fitting import SizeLimits
from cdcd.kafka.sink import Sink
from cdcd.postgres.connection import Connection, connect, parse_dsn
from cdcd.postgres.lock import AdvisoryLock
from cdcd.postgres.replication import Identity, ReplicationStream
from cdcd.postgres.slot import SlotState
from cdcd.postgres.source import read_source
from cdcd.protocol.versions import Options, StreamingMode, start_options
from cdcd.records.routing import collisions
from cdcd.snapshots.beginning import WHEN_NEEDED, Beginning, begin, first_tables, initial
from cdcd.snapshots.progress import EXPORTED, Progress
from cdcd.telemetry.state import Telemetry
from cdcd.transactions.ledger import Ledger
from cdcd.transactions.position import Checkpoint, Source, only_slot_is_lost, resume

PAUSE_S: Final = 0.001
"""A walsender that is busy sends small packets. Waiting a moment for more of them halves what reading costs."""

JUDGE_AGAIN_S: Final = 1.0
"""A commit may become visible in the checkpoint topic this long after PostgreSQL was told of it."""


class Startup:
    """Owns all that a session holds open; `open` once, `close` always.

    Args:
        flushed: the position that PostgreSQL was told by former sessions.
        unstreamed_until: streaming is off until the commit at this LSN is delivered; 0: as configured.
        binary: values come in binary form.
        lapsed: sessions that held the lock for us when the lease ran out.
        accept_gap: go on where slot and checkpoint do not meet.
        sizes: what brokers refused for its size; the same object for each session of the process.
    """

    def __init__(
        self,
        config: Config,
        telemetry: Telemetry,
        observe: Observer,
        kafka_thread: Executor,
        *,
        flushed: int,
        unstreamed_until: int,
        binary: bool,
        lapsed: frozenset[int],
        accept_gap: bool,
        sizes: SizeLimits,
    ) -> None:
        self.config = config
        self.telemetry = telemetry
        self.observe = observe
        self.postgres = PostgresSide(config, telemetry, observe)
        self.kafka = KafkaSide(config, observe, kafka_thread, sizes)
        self.stack = AsyncExitStack()
        self.unstreamed_until = unstreamed_until
        self.binary = binary
        self.dsn = parse_dsn(config.postgres.libpq())
        self._flushed = flushed
        self._lapsed = lapsed
        self._accept_gap = accept_gap
        self._gap: PositionError | None = None
        self._exported_name: str | None = None
        self._published: dict[int, str] = {}
        # What the steps below make, in this order.
        self._lock: AdvisoryLock | None = None
        self._sql: Connection | None = None
        self._stream: ReplicationStream | None = None
        self._options: Options | None = None
        self._wal_sender_timeout_s = 0.0
        self._sink: Sink | None = None
        self._identity: Identity | None = None
        self._slot: SlotState | None = None
        self._found: Checkpoint | None = None
        self._source: Source | None = None
        self._snapshots: SnapshotDriver | None = None
        self._beginning: Beginning | None = None
        self._progress = Progress()
        self._exported: ExportedTables | None = None
        self._checkpoint: Checkpoint | None = None
        self._ledger: Ledger | None = None

    @property
    def lapsed(self) -> frozenset[int]:
        """Sessions that held the lock for us when our lease ran out: another instance may be the active one now."""
        if self._lock is None:
            return self._lapsed
        return frozenset({self._lock.backend_pid}) if self._lock.lapsed else frozenset()

    @property
    def flushed(self) -> int:
        """The position that this session told PostgreSQL at most; the next one's must not be lower."""
        return self._flushed if self._ledger is None else self._ledger.flushed

    def give_up(self) -> None:
        """Make whatever waits for Kafka return with a `TransientError`."""
        self.kafka.giving_up.set()

    async def close(self) -> None:
        """Close all, and wait until the Kafka thread has let go of this session's sink.

        The stream goes first: a PostgreSQL that shuts down waits for it, and must not wait for Kafka.
        """
        self.give_up()
        if self._stream is not None:
            self._stream.close()
        await self.stack.aclose()

    async def open(self) -> Pipeline:
        """Everything up to a running stream, or to an initial snapshot that can be read.

        Raises:
            TransientError: a side does not answer, or is not ready.
            FatalError: configuration, privileges, positions: a person must act.
        """
        for step in STEPS:
            await step(self)
        assert self._ledger is not None
        wiring = self._wiring()
        pipeline = connect_pipeline(wiring, self._ledger)
        if self._exported is None:
            await start_replication(wiring)
        return pipeline

    def _wiring(self) -> Wiring:
        assert self._lock is not None
        assert self._sql is not None
        assert self._stream is not None
        assert self._options is not None
        assert self._sink is not None
        assert self._identity is not None
        assert self._snapshots is not None
        assert self._checkpoint is not None
        return Wiring(
            config=self.config,
            telemetry=self.telemetry,
            observe=self.observe,
            postgres=self.postgres,
            kafka=self.kafka,
            stack=self.stack,
            lock=self._lock,
            sql=self._sql,
            stream=self._stream,
            options=self._options,
            wal_sender_timeout_s=self._wal_sender_timeout_s,
            sink=self._sink,
            database=self._identity.database,
            snapshots=self._snapshots,
            checkpoint=self._checkpoint,
            published=self._published,
            exported=self._exported,
            unstreamed_until=self.unstreamed_until,
            binary=self.binary,
        )

    # The steps.

    async def _take_lock(self) -> None:
        lock = await self.postgres.connect_lock(self.dsn)
        self.stack.callback(lock.close)
        await self.postgres.acquire(lock, self._lapsed)
        self._lock = lock
        keep = asyncio.create_task(lock.keep(), name="keep the lock")
        self.stack.push_async_callback(_ended, keep)

    async def _connect_catalog(self) -> None:
        self._sql = await connect(
            self.dsn,
            application_name=f"{self.config.name} catalog",
            connect_timeout_s=self.config.postgres.connect_timeout_s,
        )
        self.stack.push_async_callback(self._sql.close)
        await self.postgres.refuse_standby(self._sql)

    async def _connect_stream(self) -> None:
        config = self.config
        assert self._sql is not None
        await self.postgres.end_former_stream(self._sql)
        stream = await ReplicationStream.open(
            self.dsn,
            application_name=config.name,
            connect_timeout_s=config.postgres.connect_timeout_s,
            pause_s=PAUSE_S,
        )
        self._stream = stream
        # Asked for now: once the slot is created, any command would take its snapshot away.
        self._wal_sender_timeout_s = await stream.wal_sender_timeout_s()

    async def _choose_options(self) -> None:
        assert self._stream is not None
        self._options = self._options_for(two_phase=self.config.postgres.two_phase)
        if self._options.streaming is not StreamingMode.OFF:
            await self._stream.stream_early()

    def _options_for(self, *, two_phase: bool) -> Options:
        config = self.config.postgres
        assert self._stream is not None
        return start_options(
            self._stream.server_version,
            config.protocol,
            [config.publication],
            streaming="off" if self.unstreamed_until else config.streaming,
            two_phase=two_phase,
            messages=config.messages,
            origin=config.origin,
            binary=self.binary,
        )

    async def _prepare_topics(self) -> None:
        assert self._lock is not None
        assert self._options is not None
        self._sink = await self.kafka.open_sink(self._lock, messages=self._options.messages)
        self.stack.push_async_callback(self.kafka.in_thread, self._sink.close)

    async def _judge(self) -> None:
        """Look at the checkpoint without shutting anybody out, and refuse what the judgement that counts would."""
        await self._look_at_source()
        for left in (2, 1, 0):
            self._found = await self.kafka.peek()
            try:
                await self._compare()
            except PositionError:
                if not left:
                    raise
                await asyncio.sleep(JUDGE_AGAIN_S)
            else:
                return

    async def _fence(self) -> None:
        assert self._sink is not None
        # Only then: a former instance may have delivered what the server wrote until it was shut out.
        self._found = await self.kafka.call(self._sink.open)
        await self._look_at_source()
        await self._compare()

    async def _look_at_source(self) -> None:
        """The slot before the checkpoint, which a running instance moves first."""
        assert self._sql is not None
        assert self._stream is not None
        self._identity = await self._stream.identify()
        try:
            self._slot = await self.postgres.find_slot(self._sql, self._identity)
        except PositionError as error:
            if self.config.snapshot.mode != WHEN_NEEDED:
                raise
            # Of no more use to anybody: it has lost what it was for.
            self.observe(SnapshotNeeded(message=error.message))
            await self.postgres.drop_slot(self._sql)
            self._slot = None

    async def _compare(self) -> None:
        """Whether the slot goes on where the checkpoint ends; `_gap` is what is missing, if that is accepted."""
        config, found = self.config, self._found
        assert self._stream is not None
        assert self._identity is not None
        source = self._source = await read_source(
            self._stream,
            self._identity,
            self._slot,
            found,
            slot_name=config.postgres.slot,
            options=config.postgres.stream_options,
        )
        needed = (
            config.snapshot.mode == WHEN_NEEDED and found is not None and only_slot_is_lost(found, source)
        )
        self._gap = _gap(found, source, accept_gap=self._accept_gap or needed)

    async def _ensure_publication(self) -> None:
        assert self._sql is not None
        gap, found, source = self._gap, self._found, self._source
        assert source is not None
        needed = self.config.snapshot.mode == WHEN_NEEDED
        if needed and gap is not None and found is not None and only_slot_is_lost(found, source):
            self.observe(SnapshotNeeded(message=gap.message))
        await self.postgres.ensure_publication(self._sql)
        self._snapshots = SnapshotDriver(self.config, self.dsn, self.stack)
        self._published = await self._snapshots.published()

    async def _refuse_collisions(self) -> None:
        """Two tables with one topic, before there is a slot that holds WAL."""
        names = self.config.topic_names()
        tables = [(schema, name) for schema, _, name in map(_split, self._published.values())]
        for error in collisions(tables, names):
            raise error

    async def _ensure_slot(self) -> None:
        config = self.config
        assert self._sql is not None
        assert self._stream is not None
        assert self._identity is not None
        assert self._source is not None
        beginning = self._beginning = begin(
            config.snapshot.mode,
            None if self._found is None else self._found.snapshot,
            has_checkpoint=self._found is not None,
            has_gap=self._gap is not None,
        )
        if self._slot is None:
            export = beginning.initial and config.snapshot.method == EXPORTED
            self._slot, self._exported_name = await self.postgres.create_slot(
                self._sql, self._stream, self._identity, export=export
            )
            self._source = replace(self._source, slot_confirmed=self._slot.confirmed_flush_lsn)
        else:
            two_phase = await self.postgres.settle_two_phase(self._stream, self._slot)
            self._options = self._options_for(two_phase=two_phase)
        if self._exported_name is None:
            # A new slot is made with it, and its snapshot would not outlive another command.
            await self.postgres.ensure_failover(self._stream, self._slot)

    async def _import_snapshot(self) -> None:
        if self._exported_name is not None:
            assert self._snapshots is not None
            self._exported = await self._snapshots.import_snapshot(self._exported_name)

    async def _choose_tables(self) -> None:
        """Look again at what is published: tables may have been added while the creation of the slot waited."""
        beginning, exported = self._beginning, self._exported
        assert beginning is not None
        assert self._snapshots is not None
        before, self._published = self._published, await self._snapshots.published()
        self._progress = beginning.progress
        if beginning.initial:
            names = None if exported is None else exported.names()
            first, later = first_tables(before, self._published, names)
            self._progress = initial(
                beginning.progress,
                first,
                self.config.snapshot.exclude or (),
                exported=exported is not None,
                later=later,
            )
        elif beginning.interrupted:
            self.observe(
                SnapshotResumed(
                    tables=self._progress.tables_left,
                    rows=self._progress.event_no,
                    was=beginning.interrupted,
                )
            )

    async def _resume(self) -> None:
        """Write where this session begins, if that is not where the former one ended."""
        config, sink, source = self.config, self._sink, self._source
        assert sink is not None
        assert source is not None
        assert self._slot is not None
        start = resume(self._found, source, accept_gap=self._gap is not None)
        position = start.position
        if self._gap is not None:
            self.observe(GapAccepted(message=self._gap.message, position=str(position)))
        if config.kafka.delivery == "at_least_once":
            start = replace(start, epoch=start.epoch + 1)
        snapshot = None if self._progress == Progress() else self._progress
        start = replace(start, snapshot=snapshot)
        self.observe(
            CheckpointRead(
                topic=config.topics.checkpoint, found=self._found is not None, position=str(position)
            )
        )
        if start != self._found:
            batch = Batch(position, position, snapshot=snapshot)
            await self.kafka.call(lambda: sink.deliver(batch, start))
        self._checkpoint = start
        assert self._slot.confirmed_flush_lsn is not None
        self._ledger = Ledger(first_flush(self._flushed, start, self._slot.confirmed_flush_lsn))


STEPS: Final[tuple[Callable[[Startup], Awaitable[None]], ...]] = (
    Startup._take_lock,
    Startup._connect_catalog,
    Startup._connect_stream,
    Startup._choose_options,
    Startup._prepare_topics,
    Startup._judge,
    Startup._fence,
    Startup._ensure_publication,
    Startup._refuse_collisions,
    Startup._ensure_slot,
    Startup._import_snapshot,
    Startup._choose_tables,
    Startup._resume,
)
"""What is done before a session runs, in this order."""


def _split(name: str) -> tuple[str, str, str]:
    return name.partition(".")


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def _gap(found: Checkpoint | None, source: Source, *, accept_gap: bool) -> PositionError | None:
    """The gap between checkpoint and source if there is one and it is accepted; raised if it is not."""
    try:
        resume(found, source, accept_gap=False)
    except PositionError as gap:
        if not accept_gap:
            raise
        return gap
    return None
