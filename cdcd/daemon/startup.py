"""From a configuration to a session that is ready to run: carries out the requests of `engine/startup.py`.

Nothing here decides: `engine/startup.py` has the order of the steps and every refusal. What the requests make is put
together in `wiring.py`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from contextlib import AsyncExitStack, suppress
from typing import Any, Final

from cdcd.checks.columns import look_at_columns
from cdcd.checks.filters import look_at_filters
from cdcd.checks.outbox import look_at_outbox
from cdcd.checks.routes import look_at_routes
from cdcd.checks.settings import start_settings
from cdcd.config.loading import Config
from cdcd.credentials.columns import protections
from cdcd.daemon.durable_log import log_error, open_log
from cdcd.daemon.kafka_side import KafkaSide
from cdcd.daemon.pipeline import Pipeline
from cdcd.daemon.postgres_side import PostgresSide
from cdcd.daemon.snapshot_driver import SnapshotDriver
from cdcd.daemon.tables import tell_tables
from cdcd.daemon.wiring import Wiring, connect_pipeline, start_replication
from cdcd.durable.log import LogFiles
from cdcd.engine.exported import ExportedTables
from cdcd.engine.leavings import Leaving
from cdcd.engine.startup import Ready, Start
from cdcd.engine.startup_requests import (
    ConnectCatalog,
    ConnectStream,
    CreateSlot,
    DropSlot,
    EndFormerStream,
    EndTwoPhase,
    EnsurePublication,
    Fence,
    ImportSnapshot,
    ListTables,
    LookAtLog,
    LookAtSlot,
    Pause,
    PeekCheckpoint,
    PrepareSink,
    ReadSource,
    RemoveLogged,
    Request,
    SetFailover,
    SlotMade,
    SlotSeen,
    StreamEarly,
    TakeLock,
    WriteCheckpoint,
)
from cdcd.errors import CdcdError
from cdcd.facts import (
    ColumnRuleUnmatched,
    FilterUnmatched,
    Observer,
    OutboxUnpublished,
    RoutesUnmatched,
    SlotDropped,
)
from cdcd.facts_operation import DurableSpoolDelivered
from cdcd.formats.schema_registrations import SchemaIds
from cdcd.kafka.fitting import SizeLimits
from cdcd.kafka.sink import Sink
from cdcd.postgres.connection import Connection, connect, parse_dsn
from cdcd.postgres.lock import AdvisoryLock
from cdcd.postgres.replication import Identity, ReplicationStream
from cdcd.postgres.source import read_source
from cdcd.registry.registrar import Registrar
from cdcd.rows.chosen_keys import ChosenKeys
from cdcd.telemetry.state import Telemetry
from cdcd.transactions.ledger import Ledger
from cdcd.transactions.logged import DurableLog
from cdcd.transactions.position import Checkpoint, Source

LEAVE_S: Final = 10.0
"""Seconds that it may take to drop a slot that a failed start made."""

PAUSE_S: Final = 0.001
"""Seconds to wait for more packets after each read. A busy walsender sends small packets, and reading several at a time
halves the cost."""


class Startup:
    """Owns everything that a session holds open. Call `open` once, and `close` in any case.

    Args:
        flushed: the position that PostgreSQL was told by former sessions.
        unstreamed_until: streaming is off until the commit at this LSN is delivered; 0: as configured.
        binary: values come in binary form.
        lapsed: server processes that held the lock for this process when the lease ran out.
        accept_gap: start although slot and checkpoint do not meet.
        sizes: the sizes that brokers refused; the same object for each session of the process.
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
        self.dsn = parse_dsn(*config.postgres.access())
        self._start = Start(
            start_settings(config),
            observe,
            flushed=flushed,
            unstreamed_until=unstreamed_until,
            binary=binary,
            accept_gap=accept_gap,
        )
        self._flushed = flushed
        self._unstreamed_until = unstreamed_until
        self._binary = binary
        self._lapsed = lapsed
        self._pipeline: Pipeline | None = None
        # What the requests make, in this order.
        self._lock: AdvisoryLock | None = None
        self._sql: Connection | None = None
        self._stream: ReplicationStream | None = None
        self._wal_sender_timeout_s = 0.0
        self._sink: Sink | None = None
        self._identity: Identity | None = None
        self._snapshots: SnapshotDriver | None = None
        self._ledger: Ledger | None = None
        self._log: LogFiles | None = None
        self._schema_ids = SchemaIds()
        self._registrar: Registrar | None = None

    @property
    def lapsed(self) -> frozenset[int]:
        """Server processes that held the lock for this process when the lease ran out.

        Another instance may be the active one now.
        """
        if self._lock is None:
            return self._lapsed
        return frozenset({self._lock.backend_pid}) if self._lock.lapsed else frozenset()

    @property
    def flushed(self) -> int:
        """The highest position that PostgreSQL was told so far. The next session must not tell a lower one."""
        return self._flushed if self._ledger is None else self._ledger.flushed

    def give_up(self) -> None:
        """Make every call that waits for Kafka return with a `TransientError`."""
        self.kafka.giving_up.set()

    async def close(self) -> None:
        """Close everything, and wait until the Kafka thread has finished with this session's sink.

        The stream is closed first, because a PostgreSQL that shuts down waits for it, and must not wait for Kafka.
        """
        self.give_up()
        if self._stream is not None:
            self._stream.close()
        await self.stack.aclose()

    async def leave(self, error: BaseException | None) -> str:
        """The session ends by `error` (None: it was stopped). Drop a slot that it made, if nothing goes on from it.

        Call it once, before `close`.

        Returns:
            Why a slot that this session made stays; empty if there is none.
        """
        has_shipped = self._pipeline is not None and self._pipeline.has_shipped
        unknown = self._sink is not None and self._sink.outcome_unknown
        leaving = self._start.leaves(error, has_shipped=has_shipped, outcome_unknown=unknown)
        if leaving is Leaving.NOTHING:
            return ""
        if leaving is Leaving.KEEP:
            # Whoever stops a pipeline that streams knows that its slot stays.
            streams = self._pipeline is not None and not self._pipeline.is_reading
            return "" if error is None and streams else leaving.value
        self.give_up()
        if self._stream is not None:
            self._stream.close()
        try:
            async with asyncio.timeout(LEAVE_S):
                await self._take_back(leaving)
        except TimeoutError:
            return f"it could not be dropped: no answer in {LEAVE_S:g} s"
        except CdcdError as failure:
            return f"it could not be dropped: {failure.message}"
        self.observe(SlotDropped(slot=self.config.postgres.slot))
        return ""

    async def _take_back(self, leaving: Leaving) -> None:
        """The checkpoint goes first: a slot without a checkpoint is taken over, a checkpoint without a slot is not."""
        assert self._lock is not None
        assert self._sql is not None
        await self._lock.verify(LEAVE_S)
        if leaving is Leaving.FORGET:
            await self.kafka.forget()
        await self.postgres.end_former_stream(self._sql)
        await self._lock.verify(LEAVE_S)
        await self.postgres.drop_slot(self._sql)

    async def open(self) -> Pipeline:
        """Do everything up to a running stream, or up to an initial snapshot that can be read.

        Raises:
            TransientError: a side does not answer, or is not ready.
            FatalError: configuration, privileges, positions: a person must act.
        """
        ready = await self._carry_out()
        if self.config.needs_registry:
            # Now that no other instance can add an id.
            await self._know_schemas()
        assert self._sql is not None
        assert self._snapshots is not None
        await tell_tables(self.config, self._sql, self._snapshots, ready.published, self.observe)
        await self._look_at_columns(ready)
        await self._look_at_filters(ready)
        await self._look_at_routes(ready)
        await self._look_at_outbox(ready)
        self._ledger = Ledger(ready.flushed)
        self.telemetry.durable_from = None if ready.logged is None else ready.checkpoint.position.end_lsn
        wiring = self._wiring(ready)
        pipeline = self._pipeline = connect_pipeline(wiring, self._ledger)
        if ready.exported is None and ready.logged is None:
            await start_replication(wiring)
        return pipeline

    async def _know_schemas(self) -> None:
        """Take the ids of schemas that former runs used, if the registry has them still."""
        ids = SchemaIds((self.config.registry.url or "").rstrip("/"))
        self._schema_ids = ids
        self._registrar = Registrar(self.config, ids, self.telemetry.reach, self.observe)
        await self.kafka.read_schema_ids(ids)
        await self._registrar.verify()

    async def _carry_out(self) -> Ready:
        requests = self._start.run()
        answer: object = None
        while True:
            try:
                request = requests.send(answer)
            except StopIteration as end:
                ready: Ready = end.value
                return ready
            answer = await CARRIED_OUT[type(request)](self, request)

    async def _look_at_columns(self, ready: Ready) -> None:
        """Refuse rules of `columns` that cannot be followed, and tell which ones protect nothing."""
        rules = protections(self.config.columns)
        if not rules.rules:
            return
        assert self._sql is not None
        found = await look_at_columns(
            self._sql, ready.published.keys(), rules, ChosenKeys(self.config.key.rules)
        )
        if found.refused:
            raise found.refused[0]
        for rule in found.unmatched:
            self.observe(ColumnRuleUnmatched(rule=str(rule)))

    async def _look_at_filters(self, ready: Ready) -> None:
        """Refuse filters that do not fit their tables, and tell which ones filter nothing."""
        filters = self.config.filters.settings
        if not filters:
            return
        assert self._sql is not None
        rules = protections(self.config.columns)
        found = await look_at_filters(self._sql, ready.published.keys(), filters, rules)
        if found.refused:
            raise found.refused[0]
        for table in found.unmatched:
            self.observe(FilterUnmatched(table=table))

    async def _look_at_routes(self, ready: Ready) -> None:
        """Refuse rules of routes that do not fit their tables, and tell which ones route nothing."""
        routes = self.config.routes.settings
        if not routes:
            return
        assert self._sql is not None
        rules = protections(self.config.columns)
        found = await look_at_routes(self._sql, ready.published.keys(), routes, rules)
        if found.refused:
            raise found.refused[0]
        for table in found.unmatched:
            self.observe(RoutesUnmatched(table=table))

    async def _look_at_outbox(self, ready: Ready) -> None:
        """Refuse an outbox that cannot work, and tell which of its tables are not published."""
        outbox = self.config.outbox.settings
        if not outbox.is_on:
            return
        assert self._sql is not None
        rules, hears = protections(self.config.columns), ready.options.messages
        found = await look_at_outbox(self._sql, ready.published, outbox, rules, hears_messages=hears)
        if found.refused:
            raise found.refused[0]
        for table in found.unpublished:
            self.observe(OutboxUnpublished(table=table))

    def _wiring(self, ready: Ready) -> Wiring:
        assert self._lock is not None
        assert self._sql is not None
        assert self._stream is not None
        assert self._sink is not None
        assert self._identity is not None
        assert self._snapshots is not None
        return Wiring(
            config=self.config,
            telemetry=self.telemetry,
            observe=self.observe,
            postgres=self.postgres,
            kafka=self.kafka,
            stack=self.stack,
            dsn=self.dsn,
            lock=self._lock,
            sql=self._sql,
            stream=self._stream,
            wal_sender_timeout_s=self._wal_sender_timeout_s,
            sink=self._sink,
            database=self._identity.database,
            snapshots=self._snapshots,
            ready=ready,
            unstreamed_until=self._unstreamed_until,
            binary=self._binary,
            schema_ids=self._schema_ids,
            registrar=self._registrar,
            log=self._log,
        )

    # What the requests ask for, in the order in which they come.

    async def _take_lock(self, _request: TakeLock) -> None:
        lock = await self.postgres.connect_lock(self.dsn)
        self.stack.callback(lock.close)
        await self.postgres.acquire(lock, self._lapsed)
        self._lock = lock
        keep = asyncio.create_task(lock.keep(), name="keep the lock")
        self.stack.push_async_callback(_ended, keep)

    async def _connect_catalog(self, _request: ConnectCatalog) -> bool:
        self._sql = await connect(
            self.dsn,
            application_name=f"{self.config.name} catalog",
            connect_timeout_s=self.config.postgres.connect_timeout_s,
        )
        self.stack.push_async_callback(self._sql.close)
        return await self.postgres.is_standby(self._sql)

    async def _end_former_stream(self, _request: EndFormerStream) -> None:
        assert self._sql is not None
        await self.postgres.end_former_stream(self._sql)

    async def _connect_stream(self, _request: ConnectStream) -> int:
        stream = await ReplicationStream.open(
            self.dsn,
            application_name=self.config.name,
            connect_timeout_s=self.config.postgres.connect_timeout_s,
            pause_s=PAUSE_S,
        )
        self._stream = stream
        # Asked for now: after the slot was created, any command would end the snapshot that it exports.
        self._wal_sender_timeout_s = await stream.wal_sender_timeout_s()
        return stream.server_version

    async def _stream_early(self, _request: StreamEarly) -> None:
        assert self._stream is not None
        await self._stream.stream_early()

    async def _prepare_sink(self, request: PrepareSink) -> None:
        assert self._lock is not None
        self._sink = await self.kafka.open_sink(self._lock, messages=request.messages)
        self.stack.push_async_callback(self.kafka.in_thread, self._sink.close)

    async def _look_at_slot(self, _request: LookAtSlot) -> SlotSeen | None:
        assert self._sql is not None
        assert self._stream is not None
        self._identity = await self._stream.identify()
        return await self.postgres.look_at_slot(self._sql, self._identity)

    async def _peek_checkpoint(self, _request: PeekCheckpoint) -> Checkpoint | None:
        return await self.kafka.peek()

    async def _read_source(self, request: ReadSource) -> Source:
        assert self._stream is not None
        assert self._identity is not None
        postgres = self.config.postgres
        return await read_source(
            self._stream,
            self._identity,
            request.slot_confirmed,
            request.found,
            slot_name=postgres.slot,
            options=self.config.stream_options,
        )

    async def _look_at_log(self, _request: LookAtLog) -> DurableLog | None:
        if self._log is None:
            self._log = open_log(self.config)
            if self._log is None:
                return None
            self.stack.callback(self._log.close)
        self.telemetry.durable_bytes = self._log.size
        return await asyncio.to_thread(self._log.look)

    async def _remove_logged(self, request: RemoveLogged) -> None:
        log = self._log
        assert log is not None
        try:
            await asyncio.to_thread(log.remove, request.numbers)
        except OSError as error:
            raise log_error(self.config, error) from error
        self.telemetry.durable_bytes = log.size
        if not log.size:
            self.observe(DurableSpoolDelivered(directory=str(self.config.spool.durable_directory)))

    async def _pause(self, request: Pause) -> None:
        await asyncio.sleep(request.seconds)

    async def _fence(self, _request: Fence) -> Checkpoint | None:
        assert self._sink is not None
        return await self.kafka.call(self._sink.open)

    async def _ensure_publication(self, _request: EnsurePublication) -> dict[int, str]:
        assert self._sql is not None
        await self.postgres.ensure_publication(self._sql)
        self._snapshots = SnapshotDriver(self.config, self.dsn, self.stack)
        return await self._snapshots.published()

    async def _drop_slot(self, _request: DropSlot) -> None:
        assert self._sql is not None
        await self.postgres.drop_slot(self._sql)

    async def _create_slot(self, request: CreateSlot) -> SlotMade:
        assert self._sql is not None
        assert self._stream is not None
        assert self._identity is not None
        return await self.postgres.create_slot(self._sql, self._stream, self._identity, export=request.export)

    async def _end_two_phase(self, _request: EndTwoPhase) -> None:
        assert self._stream is not None
        await self.postgres.end_two_phase(self._stream)

    async def _set_failover(self, _request: SetFailover) -> None:
        assert self._stream is not None
        await self.postgres.set_failover(self._stream)

    async def _import_snapshot(self, request: ImportSnapshot) -> ExportedTables:
        assert self._snapshots is not None
        return await self._snapshots.import_snapshot(request.name)

    async def _list_tables(self, _request: ListTables) -> dict[int, str]:
        assert self._snapshots is not None
        return await self._snapshots.published()

    async def _write_checkpoint(self, request: WriteCheckpoint) -> None:
        sink = self._sink
        assert sink is not None
        await self.kafka.call(lambda: sink.deliver(request.batch, request.checkpoint))


CARRIED_OUT: Final[dict[type[Request[Any]], Callable[[Startup, Any], Awaitable[object]]]] = {
    TakeLock: Startup._take_lock,
    ConnectCatalog: Startup._connect_catalog,
    EndFormerStream: Startup._end_former_stream,
    ConnectStream: Startup._connect_stream,
    StreamEarly: Startup._stream_early,
    PrepareSink: Startup._prepare_sink,
    LookAtSlot: Startup._look_at_slot,
    PeekCheckpoint: Startup._peek_checkpoint,
    ReadSource: Startup._read_source,
    LookAtLog: Startup._look_at_log,
    RemoveLogged: Startup._remove_logged,
    Pause: Startup._pause,
    Fence: Startup._fence,
    EnsurePublication: Startup._ensure_publication,
    DropSlot: Startup._drop_slot,
    CreateSlot: Startup._create_slot,
    EndTwoPhase: Startup._end_two_phase,
    SetFailover: Startup._set_failover,
    ImportSnapshot: Startup._import_snapshot,
    ListTables: Startup._list_tables,
    WriteCheckpoint: Startup._write_checkpoint,
}
"""Who carries out which request."""


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
