"""From a configuration to a pipeline that is ready to run, in the one order that is safe.

1. The advisory lock, kept by a sign of life every moment: from here on no other instance of the pipeline is active, and
   a stream that a former one left behind is ended.
2. Kafka: topics, then `init_transactions`, which shuts out a former instance that is still alive somewhere, then the
   checkpoint, which only now can not change any more.
3. Checkpoint against server and slot: where to resume, or why not, before anything is made on a server that may be
   the wrong one. Beside a checkpoint, a missing slot is a gap.
4. Publication and slot, created where they are missing.
5. START_REPLICATION, from the slot's own position: what the checkpoint covers is skipped here, not by asking the
   server to start later, because it would leave out prepared transactions that are not decided yet.
"""

import asyncio
import time
from concurrent.futures import Executor
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from cdcd import __version__
from cdcd.config.loading import Config
from cdcd.daemon.intake import Intake
from cdcd.daemon.kafka_side import KafkaSide
from cdcd.daemon.pipeline import Limits, Pipeline
from cdcd.daemon.postgres_side import PostgresSide
from cdcd.daemon.snapshot_source import SnapshotSource
from cdcd.daemon.snapshots import open_snapshots
from cdcd.errors import LimitError, PositionError, SinkError
from cdcd.facts import (
    CheckpointRead,
    GapAccepted,
    Observer,
    SlotWaiting,
    SnapshotNeeded,
    SnapshotResumed,
    StreamStarted,
)
from cdcd.kafka.fitting import SizeLimits
from cdcd.kafka.sink import Sink
from cdcd.postgres import catalog
from cdcd.postgres.connection import Connection, Dsn, connect, parse_dsn
from cdcd.postgres.lock import AdvisoryLock
from cdcd.postgres.replication import Identity, ReplicationStream
from cdcd.postgres.slot import SlotState
from cdcd.postgres.source import read_source
from cdcd.postgres.tables import published_tables
from cdcd.protocol.messages import Relation
from cdcd.protocol.versions import Options, StreamingMode, start_options
from cdcd.records.envelope import EnvelopeSettings
from cdcd.records.formats.debezium_json import DebeziumJsonEncoder
from cdcd.records.formats.snapshot_rows import SnapshotEncoder
from cdcd.records.relations import BUILTIN_TYPES, TypeDescription
from cdcd.snapshots.beginning import ONLY, WHEN_NEEDED, begin, initial, wanted
from cdcd.snapshots.progress import EXPORTED, Progress
from cdcd.telemetry.state import Telemetry
from cdcd.transactions.assembler import Assembler
from cdcd.transactions.batches import Batch, Batches
from cdcd.transactions.feedback import Feedback, interval_for
from cdcd.transactions.ledger import Ledger
from cdcd.transactions.position import Checkpoint, Source, is_lost, resume
from cdcd.transactions.spool import Spool

PAUSE_S: Final = 0.001
"""A walsender that is busy sends small packets. Waiting a moment for more of them halves what reading costs."""

SLOT_WAIT_SHARE: Final = 1.25
"""A walsender whose client died silently holds the slot until `wal_sender_timeout`: wait a little longer."""

SLOT_WAIT_S: Final = 75.0
"""The same where the server has no such timeout: about what TCP keepalives need."""


@dataclass(frozen=True, slots=True)
class _Parts:
    """What a life has open, in the order in which it was opened."""

    dsn: Dsn
    lock: AdvisoryLock
    sql: Connection
    stream: ReplicationStream
    options: Options
    sink: Sink
    database: str
    wal_sender_timeout_s: float


class Opening:
    """Owns all that a life holds open; `open` once, `close` always."""

    def __init__(
        self,
        config: Config,
        telemetry: Telemetry,
        observe: Observer,
        kafka_thread: Executor,
        *,
        flushed: int,
        unstreamed_until: int,
        lapsed: frozenset[int],
        sizes: SizeLimits,
    ) -> None:
        self._config = config
        self._telemetry = telemetry
        self._observe = observe
        self._postgres = PostgresSide(config, telemetry, observe)
        self._kafka = KafkaSide(config, observe, kafka_thread, sizes)
        self._stack = AsyncExitStack()
        self._stream: ReplicationStream | None = None
        self._types: dict[int, TypeDescription] = dict(BUILTIN_TYPES)
        self._ledger = Ledger(flushed)
        self._unstreamed_until = unstreamed_until
        self._lapsed = lapsed
        self._lock: AdvisoryLock | None = None

    @property
    def lapsed(self) -> frozenset[int]:
        """Sessions that held the lock for us when our lease ran out: another instance may be the active one now."""
        if self._lock is None:
            return self._lapsed
        return frozenset({self._lock.backend_pid}) if self._lock.lapsed else frozenset()

    @property
    def flushed(self) -> int:
        """The position that this life told PostgreSQL at most; the next one's must not be lower."""
        return self._ledger.flushed

    def give_up(self) -> None:
        """Make whatever waits for Kafka return with a `TransientError`."""
        self._kafka.giving_up.set()

    async def close(self) -> None:
        """Close all, and wait until the Kafka thread has let go of this life's sink.

        The stream goes first: a PostgreSQL that shuts down waits for it, and must not wait for Kafka.
        """
        self.give_up()
        if self._stream is not None:
            self._stream.close()
        await self._stack.aclose()

    async def open(self, *, accept_gap: bool) -> Pipeline:
        """Everything up to a running stream.

        Raises:
            TransientError: a side does not answer, or is not ready.
            FatalError: configuration, privileges, positions: a person must act.
        """
        config = self._config
        dsn = parse_dsn(config.postgres.libpq())
        lock = await self._postgres.connect_lock(dsn)
        self._stack.callback(lock.close)
        await self._postgres.acquire(lock, self._lapsed)
        self._lock = lock
        keep = asyncio.create_task(lock.keep(), name="keep the lock")
        self._stack.push_async_callback(_ended, keep)
        sql = await connect(
            dsn,
            application_name=f"{config.name} catalog",
            connect_timeout_s=config.postgres.connect_timeout_s,
        )
        self._stack.push_async_callback(sql.close)
        await self._postgres.refuse_standby(sql)
        await self._postgres.end_former_stream(sql)
        stream = await ReplicationStream.open(
            dsn,
            application_name=config.name,
            connect_timeout_s=config.postgres.connect_timeout_s,
            pause_s=PAUSE_S,
        )
        self._stream = stream
        # Asked for now: once the slot is created, any command would take its snapshot away.
        timeout_s = await stream.wal_sender_timeout_s()
        options = start_options(
            stream.server_version,
            config.postgres.protocol,
            [config.postgres.publication],
            streaming="off" if self._unstreamed_until else config.postgres.streaming,
            two_phase=config.postgres.two_phase,
            messages=config.postgres.messages,
            origin=config.postgres.origin,
            binary=config.postgres.binary,
        )
        if options.streaming is not StreamingMode.OFF:
            await stream.stream_early()
        sink = await self._kafka.open_sink(lock, messages=options.messages)
        self._stack.push_async_callback(self._kafka.in_thread, sink.close)
        found = await self._kafka.call(sink.open)
        # Only now: a former instance may have delivered what the server wrote until it was shut out.
        identity = await stream.identify()
        slot = await self._find_slot(sql, identity)
        source = await read_source(
            stream,
            identity,
            slot,
            found,
            slot_name=config.postgres.slot,
            options=config.postgres.stream_options,
        )
        needed = config.snapshot.mode == WHEN_NEEDED and found is not None and is_lost(found, source)
        gap = _gap(found, source, accept_gap=accept_gap or needed)
        if gap is not None and needed:
            self._observe(SnapshotNeeded(message=gap.message))
        await self._postgres.ensure_publication(sql)
        beginning = begin(
            config.snapshot.mode,
            None if found is None else found.snapshot,
            has_checkpoint=found is not None,
            has_gap=gap is not None,
        )
        exported: str | None = None
        if slot is None:
            export = beginning.initial and config.snapshot.method == EXPORTED
            slot, exported = await self._postgres.create_slot(sql, stream, identity, export=export)
            source = replace(source, slot_confirmed=slot.confirmed_flush_lsn)
        if exported is None:
            # A new slot is made with it, and its snapshot would not outlive another command.
            await self._postgres.ensure_failover(stream, slot)
        progress = beginning.progress
        if beginning.initial:
            published = await published_tables(sql, config.postgres.publication)
            tables = wanted(published, config.snapshot.exclude or ())
            progress = initial(progress, tables, exported=exported is not None)
        elif beginning.interrupted:
            self._observe(
                SnapshotResumed(tables=len(progress.tasks), rows=progress.serial, was=beginning.interrupted)
            )
        checkpoint = await self._resume(sink, found, source, gap, progress)
        assert slot.confirmed_flush_lsn is not None
        self._ledger = Ledger(max(self._ledger.flushed, slot.confirmed_flush_lsn))
        parts = _Parts(dsn, lock, sql, stream, options, sink, identity.database, timeout_s)
        pipeline = await self._pipeline(parts, checkpoint, exported)
        if exported is None:
            await self._begin(parts, checkpoint)
        return pipeline

    async def _find_slot(self, sql: Connection, identity: Identity) -> SlotState | None:
        try:
            return await self._postgres.find_slot(sql, identity)
        except PositionError as error:
            if self._config.snapshot.mode != WHEN_NEEDED:
                raise
            # Of no more use to anybody: it has lost what it was for.
            self._observe(SnapshotNeeded(message=error.message))
            await self._postgres.drop_slot(sql)
            return None

    async def _begin(self, parts: "_Parts", checkpoint: Checkpoint) -> None:
        config, stream, options = self._config, parts.stream, parts.options
        await stream.start(
            config.postgres.slot,
            0,
            options.options,
            publication=config.postgres.publication,
            wal_sender_timeout_s=parts.wal_sender_timeout_s,
            slot_wait_s=SLOT_WAIT_SHARE * parts.wal_sender_timeout_s or SLOT_WAIT_S,
            on_slot_active=lambda message: self._observe(
                SlotWaiting(slot=config.postgres.slot, message=message)
            ),
        )
        self._observe(
            StreamStarted(
                slot=config.postgres.slot,
                server_version=stream.server_version,
                protocol=options.protocol,
                streaming=options.streaming.value,
                position=str(checkpoint.position),
            )
        )

    async def _resume(
        self,
        sink: Sink,
        found: Checkpoint | None,
        source: Source,
        gap: PositionError | None,
        progress: Progress,
    ) -> Checkpoint:
        topic = self._config.topics.checkpoint
        start = resume(found, source, accept_gap=gap is not None)
        position = start.position
        if gap is not None:
            self._observe(GapAccepted(message=gap.message, position=str(position)))
        if self._config.kafka.delivery == "at_least_once":
            start = replace(start, epoch=start.epoch + 1)
        snapshot = None if progress == Progress() else progress
        start = replace(start, snapshot=snapshot)
        self._observe(CheckpointRead(topic=topic, found=found is not None, position=str(position)))
        if start != found:
            await self._kafka.call(lambda: sink.deliver(Batch(position, position, snapshot=snapshot), start))
        return start

    async def _pipeline(self, parts: "_Parts", checkpoint: Checkpoint, exported: str | None) -> Pipeline:
        config, position = self._config, checkpoint.position
        interval_s = interval_for(config.postgres.status_interval_s, parts.wal_sender_timeout_s)
        envelope = EnvelopeSettings(
            version=__version__,
            prefix=config.topics.prefix,
            database=parts.database,
            message_topic=config.topics.message,
            schemas_topic=config.topics.schemas or None,
            tombstones=config.topics.tombstones,
            truncate=config.topics.truncate,
        )
        encoder = DebeziumJsonEncoder(envelope)
        rows = SnapshotEncoder(envelope)
        spool = Spool(self._spool_directory(), config.spool.memory_bytes_max, config.spool.disk_bytes_max)
        assembler = Assembler(self._ledger, spool, position, abort_info=parts.options.abort_info)
        self._stack.callback(assembler.close)

        self._telemetry.queue_bytes_max = config.kafka.queue_bytes_max

        async def describe(relation: Relation, foretold: bool) -> None:
            await self._describe(parts.sql, encoder, relation, foretold=foretold)

        async def describe_rows(relation: Relation) -> None:
            await self._describe(parts.sql, rows, relation)

        async def survey() -> None:
            await self._postgres.survey(parts.sql)

        async def start() -> None:
            await self._begin(parts, checkpoint)

        batches = Batches(
            position,
            bytes_max=config.kafka.transaction.bytes_max,
            records_max=config.kafka.transaction.records_max,
            queue_bytes_max=config.kafka.queue_bytes_max,
            idle_s=interval_s,
            snapshot=checkpoint.snapshot,
        )
        snapshots, initial_snapshot = await open_snapshots(
            config,
            source=SnapshotSource(
                config,
                dsn=parts.dsn,
                sql=parts.sql,
                encoder=rows,
                describe=describe_rows,
                stack=self._stack,
            ),
            batches=batches,
            start=checkpoint,
            exported=exported,
            telemetry=self._telemetry,
            observe=self._observe,
        )
        return Pipeline(
            limits=Limits(
                shutdown_grace_s=config.postgres.shutdown_grace_s,
                prepared_warning_age_s=config.postgres.prepared_warning_age_s,
                snapshot_only=config.snapshot.mode == ONLY,
            ),
            stream=parts.stream,
            lock=parts.lock,
            sink=parts.sink,
            kafka_thread=self._kafka.thread,
            start=checkpoint,
            ledger=self._ledger,
            feedback=Feedback(interval_s, time.monotonic()),
            intake=Intake(
                assembler=assembler,
                encoder=encoder,
                batches=batches,
                ledger=self._ledger,
                snapshots=snapshots,
                describe=describe,
                telemetry=self._telemetry,
                observe=self._observe,
            ),
            spool=spool,
            batches=batches,
            begin=start,
            exported=initial_snapshot,
            snapshots=snapshots,
            survey=survey,
            unstreamed_until=self._unstreamed_until,
            telemetry=self._telemetry,
            observe=self._observe,
        )

    def _spool_directory(self) -> str:
        directory = Path(self._config.spool.directory)
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise LimitError(
                f"Cannot create the spool directory {directory}: {error.strerror}.",
                hint="Create it for the daemon's user, or point spool.directory elsewhere.",
            ) from error
        return str(directory)

    async def _describe(
        self, sql: Connection, encoder: DebeziumJsonEncoder, relation: Relation, *, foretold: bool = False
    ) -> None:
        missing = [column.type_oid for column in relation.columns if column.type_oid not in self._types]
        if missing:
            self._types.update(await catalog.types(sql, missing))
        tables = await catalog.describe(sql, [relation.oid])
        table = tables[relation.oid]
        if foretold:
            # What is wrong with its topic is nobody's concern until the transaction is committed.
            with suppress(SinkError):
                if table.has_columns_of(relation):
                    encoder.define(relation, table, self._types)
            return
        encoder.define(relation, table, self._types)
        await self._kafka.await_topics([encoder.topic_of(relation.oid)])


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
