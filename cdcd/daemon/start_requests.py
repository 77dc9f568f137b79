"""Carries out the requests of a start (`engine/startup.py`), and keeps the resulting objects.

This module decides nothing: `engine/startup.py` contains the order of the steps and all refusals.
"""

import asyncio
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from typing import Any, Final

from cdcd.adapters.credentials.columns import bindings_of, protections
from cdcd.adapters.durable.log import LogFiles
from cdcd.adapters.kafka.sink import Sink
from cdcd.adapters.postgres.connection import Connection, connect, parse_dsn
from cdcd.adapters.postgres.kept_lock import KeptLock
from cdcd.adapters.postgres.money import find_money_digits
from cdcd.adapters.postgres.pipeline_state import read_source
from cdcd.adapters.postgres.publication import has_publication
from cdcd.adapters.postgres.publication_history import read_roots
from cdcd.adapters.postgres.readers import try_readers
from cdcd.adapters.postgres.replication import Identity, ReplicationStream
from cdcd.adapters.postgres.server_names import NEVER_CONVERTED
from cdcd.config.loading import Config
from cdcd.core.catalog.bindings import Bindings
from cdcd.core.engine.checkpoint import Checkpoint
from cdcd.core.engine.logged import DurableLog
from cdcd.core.engine.resuming import Source
from cdcd.core.engine.session_start import ExportedTables
from cdcd.core.engine.startup_requests import (
    BindColumns,
    CheckCreation,
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
    PeekCheckpoint,
    PrepareSink,
    ReadMoneyDigits,
    ReadRoots,
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
from cdcd.core.engine.startup_rules import FormerSessions, Ready
from cdcd.core.errors import ConfigError, FatalError
from cdcd.core.facts import Observer
from cdcd.core.facts.operation import DurableSpoolDelivered
from cdcd.core.facts.start import OwnersUntrusted
from cdcd.daemon.durable_log import log_error, open_log
from cdcd.daemon.kafka_side import KafkaSide
from cdcd.daemon.postgres_side import PostgresSide
from cdcd.daemon.readers import readers_of
from cdcd.daemon.rules.readers import refuse_untrusted, told
from cdcd.daemon.rules.start import look_at_column_rules, look_at_rules
from cdcd.daemon.snapshot_driver import MakeComparer, SnapshotDriver
from cdcd.telemetry.state import Telemetry

PAUSE_S: Final = 0.001
"""Seconds to wait for more packets after each read. A busy walsender sends small packets, and reading several at a
time halves the cost."""


class StartRequests:
    """Objects that a start has created so far. Call `carry_out` with the requests of one start.

    Args:
        former: what former sessions of the process found out.
        make_comparer: makes what compares topics with tables; None: no topic can be compared.

    Attributes:
        stack: closes the objects at the end of the session, except the stream, which is closed before.
        lock, sql, stream, sink, identity, snapshots, log: results of the requests, in this order; None: not created
            yet.
        wal_sender_timeout_s: setting of the server, in seconds.
    """

    def __init__(
        self,
        config: Config,
        telemetry: Telemetry,
        observe: Observer,
        *,
        postgres: PostgresSide,
        kafka: KafkaSide,
        former: FormerSessions,
        make_comparer: MakeComparer | None = None,
    ) -> None:
        self._make_comparer = make_comparer
        self._config = config
        self._telemetry = telemetry
        self._observe = observe
        self._postgres = postgres
        self._kafka = kafka
        self.stack = AsyncExitStack()
        self._dsn = parse_dsn(*config.postgres.access())
        self._former = former
        self.lock: KeptLock | None = None
        self.sql: Connection | None = None
        self.stream: ReplicationStream | None = None
        self.wal_sender_timeout_s = 0.0
        self.sink: Sink | None = None
        self.identity: Identity | None = None
        self.snapshots: SnapshotDriver | None = None
        self.log: LogFiles | None = None
        self.bindings = Bindings()
        """Columns to which the rules of `columns` are bound."""

    async def carry_out(self, requests: Generator[Request[Any], Any, Ready]) -> Ready:
        """Carry out the requests in order, and return the state with which the session begins.

        Raises the errors of the start.
        """
        answer: object = None
        while True:
            try:
                request = requests.send(answer)
            except StopIteration as end:
                ready: Ready = end.value
                return ready
            answer = await CARRIED_OUT[type(request)](self, request)

    # The methods are in the order of the requests.

    async def _take_lock(self, _request: TakeLock) -> None:
        lock = await self._postgres.connect_lock(self._dsn)
        self.stack.callback(lock.close)
        await self._postgres.acquire(lock, self._former.lapsed)
        self.lock = lock
        keep = asyncio.create_task(lock.keep(), name="keep the lock")
        self.stack.push_async_callback(_ended, keep)

    async def _connect_catalog(self, _request: ConnectCatalog) -> bool:
        self.sql = await connect(
            self._dsn,
            application_name=f"{self._config.name} catalog",
            connect_timeout_s=self._config.postgres.connect_timeout_s,
        )
        self.stack.push_async_callback(self.sql.close)
        standby = await self._postgres.is_standby(self.sql)
        if not standby:
            await try_readers(
                readers_of(self._config),
                application_name=f"{self._config.name} snapshot",
                connect_timeout_s=self._config.postgres.connect_timeout_s,
            )
        return standby

    async def _read_money_digits(self, _request: ReadMoneyDigits) -> int:
        return await find_money_digits(
            self._dsn,
            self._config.money.digits,
            application_name=f"{self._config.name} catalog",
            connect_timeout_s=self._config.postgres.connect_timeout_s,
        )

    async def _end_former_stream(self, _request: EndFormerStream) -> None:
        assert self.sql is not None
        await self._postgres.end_former_stream(self.sql)

    async def _connect_stream(self, _request: ConnectStream) -> int:
        stream = await ReplicationStream.open(
            self._dsn,
            application_name=self._config.name,
            connect_timeout_s=self._config.postgres.connect_timeout_s,
            pause_s=PAUSE_S,
            warned=self._postgres.warned,
        )
        self.stream = stream
        if not self._former.converts or stream.server_encoding in NEVER_CONVERTED:
            self.stack.callback((await self._postgres.take_raw(stream, self._dsn)).close)
        # The setting is read now, because after the creation of the slot any command would end its exported snapshot.
        self.wal_sender_timeout_s = await stream.wal_sender_timeout_s()
        return stream.server_version

    async def _stream_early(self, _request: StreamEarly) -> None:
        assert self.stream is not None
        await self.stream.stream_early()

    async def _check_creation(self, request: CheckCreation) -> dict[int, str]:
        assert self.sql is not None
        assert self.stream is not None
        self.identity = await self.stream.identify()
        has_slot = await self._postgres.look_at_slot(self.sql, self.identity) is not None
        if not has_slot:
            await self._postgres.refuse_slot(self.sql)
        elif await has_publication(self.sql, self._config.postgres.publication):
            return {}
        published = await self._postgres.rehearse_publication(self.sql)
        try:
            await self._refuse_rules(request, published, None)
        except FatalError:
            # The slot or the publication of a pipeline that ran before may be lost, and an owner may have renamed
            # columns or made tables since.
            former = await self._kafka.peek_before_sink()
            if former is None:
                raise
            await self._refuse_rules(request, published, former)
        return published

    async def _refuse_rules(
        self, request: CheckCreation, published: Mapping[int, str], former: Checkpoint | None
    ) -> None:
        """Raise the refusal of the rules by the tables. `former`: None for the first start of a pipeline."""
        assert self.sql is not None
        await refuse_untrusted(self._config, self.sql, published, is_first=former is None)
        bindings = bindings_of(self._config.columns, former)
        found = await look_at_column_rules(self._config, self.sql, published, bindings)
        found.refuse()
        found = await look_at_rules(
            self._config, self.sql, published, bindings, hears_messages=request.messages
        )
        found.refuse()

    async def _prepare_sink(self, request: PrepareSink) -> None:
        assert self.lock is not None
        self.sink = await self._kafka.open_sink(self.lock, messages=request.messages)
        self.stack.push_async_callback(self._kafka.calls.in_thread, self.sink.close)

    async def _look_at_slot(self, _request: LookAtSlot) -> SlotSeen | None:
        assert self.sql is not None
        assert self.stream is not None
        self.identity = await self.stream.identify()
        return await self._postgres.look_at_slot(self.sql, self.identity)

    async def _peek_checkpoint(self, request: PeekCheckpoint) -> Checkpoint | None:
        return await self._kafka.peek(newest=request.newest, told=request.told)

    async def _read_source(self, request: ReadSource) -> Source:
        assert self.stream is not None
        assert self.identity is not None
        postgres = self._config.postgres
        return await read_source(
            self.stream,
            self.identity,
            request.slot_confirmed,
            request.found,
            slot_name=postgres.slot,
            options=self._config.stream_options,
        )

    async def _look_at_log(self, _request: LookAtLog) -> DurableLog | None:
        if self.log is None:
            self.log = open_log(self._config)
            if self.log is None:
                return None
            self.stack.callback(self.log.close)
        self._telemetry.durable_bytes = self.log.size
        return await asyncio.to_thread(self.log.look)

    async def _remove_logged(self, request: RemoveLogged) -> None:
        log = self.log
        assert log is not None
        try:
            await asyncio.to_thread(log.remove, request.numbers)
        except OSError as error:
            raise log_error(self._config, error) from error
        self._telemetry.durable_bytes = log.size
        if not log.size:
            self._observe(DurableSpoolDelivered(directory=str(self._config.spool.durable_directory)))

    async def _fence(self, request: Fence) -> Checkpoint | None:
        sink = self.sink
        assert sink is not None
        assert self.identity is not None
        await self._kafka.refuse_shared_id(self.identity.system_identifier)
        return await self._kafka.calls.call(lambda: sink.open(request.told))

    async def _ensure_publication(self, request: EnsurePublication) -> dict[int, str]:
        assert self.sql is not None
        await self._postgres.ensure_publication(self.sql, request.via_root)
        self.snapshots = SnapshotDriver(
            self._config,
            self._dsn,
            self.stack,
            self._observe,
            self._postgres.partitions,
            make_comparer=self._make_comparer,
        )
        published = await self.snapshots.published()
        findings = await refuse_untrusted(self._config, self.sql, published, is_first=False)
        if findings:
            lines, hint = told(findings)
            self._observe(OwnersUntrusted(found="; ".join(lines), hint=hint))
        return published

    async def _read_roots(self, _request: ReadRoots) -> bool | None:
        assert self.sql is not None
        return await read_roots(self.sql, self._config.postgres.publication)

    async def _drop_slot(self, _request: DropSlot) -> None:
        assert self.sql is not None
        await self._postgres.drop_slot(self.sql)

    async def _create_slot(self, request: CreateSlot) -> SlotMade:
        assert self.sql is not None
        assert self.stream is not None
        assert self.identity is not None
        return await self._postgres.create_slot(self.sql, self.stream, self.identity, export=request.export)

    async def _end_two_phase(self, _request: EndTwoPhase) -> None:
        assert self.stream is not None
        await self._postgres.end_two_phase(self.stream)

    async def _set_failover(self, _request: SetFailover) -> None:
        assert self.stream is not None
        await self._postgres.set_failover(self.stream)

    async def _import_snapshot(self, request: ImportSnapshot) -> ExportedTables:
        assert self.snapshots is not None
        return await self.snapshots.import_snapshot(request.name)

    async def _list_tables(self, _request: ListTables) -> dict[int, str]:
        assert self.snapshots is not None
        return await self.snapshots.published()

    async def _bind_columns(self, request: BindColumns) -> str:
        """Raise ConfigError if a rule cannot be applied. Report rules that match no column (`ColumnRuleUnmatched`)."""
        assert self.sql is not None
        bindings = self.bindings = bindings_of(self._config.columns, request.checkpoint)
        rules = protections(self._config.columns, bindings)
        exported = request.exported
        # Otherwise the table is set aside when it is described for its first change or row.
        stops = self._config.tables.on_error == "stop"
        if exported is not None:
            for oid, table in exported.tables.items():
                try:
                    rules.in_force(table.relation, replace(exported.descriptions[oid], numbers=table.numbers))
                except ConfigError:
                    if stops:
                        raise
        found = await look_at_column_rules(self._config, self.sql, request.published, bindings)
        found.apply(self._observe)
        return bindings.text(request.checkpoint.position.end_lsn)

    async def _write_checkpoint(self, request: WriteCheckpoint) -> None:
        sink = self.sink
        assert sink is not None
        await self._kafka.calls.call(lambda: sink.deliver(request.batch, request.checkpoint))


CARRIED_OUT: Final[dict[type[Request[Any]], Callable[[StartRequests, Any], Awaitable[object]]]] = {
    TakeLock: StartRequests._take_lock,
    ConnectCatalog: StartRequests._connect_catalog,
    ReadMoneyDigits: StartRequests._read_money_digits,
    EndFormerStream: StartRequests._end_former_stream,
    ConnectStream: StartRequests._connect_stream,
    StreamEarly: StartRequests._stream_early,
    CheckCreation: StartRequests._check_creation,
    PrepareSink: StartRequests._prepare_sink,
    LookAtSlot: StartRequests._look_at_slot,
    PeekCheckpoint: StartRequests._peek_checkpoint,
    ReadSource: StartRequests._read_source,
    LookAtLog: StartRequests._look_at_log,
    RemoveLogged: StartRequests._remove_logged,
    Fence: StartRequests._fence,
    EnsurePublication: StartRequests._ensure_publication,
    ReadRoots: StartRequests._read_roots,
    DropSlot: StartRequests._drop_slot,
    CreateSlot: StartRequests._create_slot,
    EndTwoPhase: StartRequests._end_two_phase,
    SetFailover: StartRequests._set_failover,
    ImportSnapshot: StartRequests._import_snapshot,
    ListTables: StartRequests._list_tables,
    BindColumns: StartRequests._bind_columns,
    WriteCheckpoint: StartRequests._write_checkpoint,
}
"""Methods by request."""


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
