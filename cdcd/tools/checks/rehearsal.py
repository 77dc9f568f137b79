"""Rehearsal of the start of `cdcd run`: what the start would refuse and read. Nothing is changed.

`engine/startup.py` contains the steps and all refusals. Here each request that would change something is answered
by reading: the lock is not acquired, no producer is fenced, and the slot that would be created is assumed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any, Final

from cdcd.adapters.credentials.columns import bindings_of
from cdcd.adapters.durable.log import look
from cdcd.adapters.kafka import client
from cdcd.adapters.kafka.admin import Admin
from cdcd.adapters.kafka.checkpoint import peek_at_start
from cdcd.adapters.kafka.descriptions import SchemasTopic
from cdcd.adapters.kafka.errors import unavailable
from cdcd.adapters.kafka.shared_id import NOTHING_FOUND, IdSearch, find_sharers, refusal
from cdcd.adapters.postgres.connection import Connection, connect, parse_dsn
from cdcd.adapters.postgres.inspection import ServerFacts
from cdcd.adapters.postgres.money import find_money_digits
from cdcd.adapters.postgres.pipeline_state import read_source
from cdcd.adapters.postgres.publication_history import read_roots
from cdcd.adapters.postgres.replication import Identity, ReplicationStream
from cdcd.adapters.postgres.slot import read_slot, seen
from cdcd.adapters.postgres.tables import published_tables
from cdcd.config.loading import Config
from cdcd.core.engine.checkpoint import Checkpoint
from cdcd.core.engine.checkpoint_record import Ignored
from cdcd.core.engine.logged import DurableLog
from cdcd.core.engine.resuming import Source
from cdcd.core.engine.session_start import ExportedTables
from cdcd.core.engine.startup import Start
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
from cdcd.core.errors import CdcdError, TransientError
from cdcd.core.facts import Fact
from cdcd.core.facts.start import RecordSettingChanged
from cdcd.core.snapshot.beginning import NEVER, wanted
from cdcd.core.snapshot.progress import EXPORTED
from cdcd.daemon.settings import checkpoint_topic, id_use, start_settings
from cdcd.tools.checks.publication import StartReading

CHECKPOINT_S: Final = 10.0
"""Seconds that the broker may take for the checkpoint."""


ID_SEARCH_S: Final = 30.0
"""Maximum seconds for reading the checkpoint topics of other pipelines."""


@dataclass(frozen=True, slots=True)
class RehearsalOutcome:
    """Result of a rehearsed start.

    Attributes:
        refusal: error with which it would end; None: it would stream.
        position: position at which it would resume; "" if it would not start.
        has_checkpoint: True if Kafka has a checkpoint of the pipeline.
        reading: tables that it would read.
        changed: settings of records that differ from those in the checkpoint.
        ignored: ignored records of the checkpoint topic; None: none.
        id_search: the other pipelines whose checkpoint topics name the transactional id.
        made_topics: topics that rows of outbox tables have made, by the checkpoint.
    """

    refusal: CdcdError | None
    position: str
    has_checkpoint: bool
    reading: StartReading
    changed: tuple[RecordSettingChanged, ...] = ()
    ignored: Ignored | None = None
    id_search: IdSearch = NOTHING_FOUND
    made_topics: tuple[str, ...] = ()


async def rehearse(config: Config, facts: ServerFacts) -> RehearsalOutcome:
    """Rehearse the start. `facts`: facts that `cdcd check` has already read from PostgreSQL."""
    async with AsyncExitStack() as stack:
        return await _Rehearsal(config, facts, stack).run()


class _Rehearsal:
    def __init__(self, config: Config, facts: ServerFacts, stack: AsyncExitStack) -> None:
        self._config = config
        self._facts = facts
        self._stack = stack
        self._dsn = parse_dsn(*config.postgres.access())
        self._found: Checkpoint | None = None
        # Results of the requests, in this order.
        self._sql: Connection | None = None
        self._stream: ReplicationStream | None = None
        self._identity: Identity | None = None
        self._seen: SlotSeen | None = None
        self._has_fenced = False
        self._has_peeked = False
        self._changed: list[RecordSettingChanged] = []
        self._ignored: Ignored | None = None
        self._used_id = ""
        self._id_search = NOTHING_FOUND

    def _hear_ignored(self, ignored: Ignored) -> None:
        self._ignored = ignored

    def _hear(self, fact: Fact) -> None:
        if isinstance(fact, RecordSettingChanged):
            self._changed.append(fact)

    async def run(self) -> RehearsalOutcome:
        requests = Start(start_settings(self._config), self._hear).run()
        answer: object = None
        try:
            while True:
                request = requests.send(answer)
                answer = await _ANSWERED[type(request)](self, request)
        except StopIteration as end:
            progress = end.value.checkpoint.snapshot
            names = end.value.published
            tables: frozenset[str] = frozenset()
            outdated: frozenset[str] = frozenset()
            if progress is not None:
                outdated = frozenset(names[oid] for oid in progress.outdated.oids if oid in names)
                left = progress.waiting.oids[progress.begun :]
                tables = frozenset(names[oid] for oid in left if oid in names)
                tables |= {names.get(task.oid, task.name) for task in progress.tasks}
            # An active instance has a snapshot to read at, if its start created the slot.
            beside = end.value.exported is None and not self._facts.active
            return RehearsalOutcome(
                None,
                str(end.value.checkpoint.position),
                self._found is not None,
                StartReading(tables, beside, outdated, self._config.writes_truncates),
                tuple(self._changed),
                self._ignored,
                self._id_search,
                () if self._found is None else self._found.topics,
            )
        except CdcdError as error:
            reading = self._assumed() if await self._knows_checkpoint() else StartReading()
            return RehearsalOutcome(error, "", self._found is not None, reading, ignored=self._ignored)

    async def _knows_checkpoint(self) -> bool:
        """Return True if the checkpoint was read. If the start is refused earlier, the checkpoint is read now.

        Without it, it is unknown whether the next start reads rows, and an error about rows may be wrong.
        """
        if not self._has_peeked:
            with suppress(CdcdError):
                await self._peek_checkpoint(PeekCheckpoint())
        return self._has_peeked

    def _assumed(self) -> StartReading:
        """Return what a first start would read after its refusal is solved."""
        config = self._config.snapshot
        if config.mode == NEVER or self._found is not None:
            return StartReading()
        names = {table.oid: table.qualified for table in self._facts.tables}
        beside = self._facts.slot is not None or config.method != EXPORTED
        tables = frozenset(wanted(names, config.exclude or ()).values())
        return StartReading(tables, beside, ends_rows=self._config.writes_truncates)

    # Requests, in their order.

    async def _nothing(self, _request: Request[Any]) -> None:
        """Skip a request that would change something, or would wait for a change."""

    async def _connect_catalog(self, _request: ConnectCatalog) -> bool:
        postgres = self._config.postgres
        self._sql = await connect(
            self._dsn,
            application_name=f"{self._config.name} check",
            connect_timeout_s=postgres.connect_timeout_s,
        )
        self._stack.push_async_callback(self._sql.close)
        return self._facts.session.in_recovery

    async def _read_money_digits(self, _request: ReadMoneyDigits) -> int:
        postgres = self._config.postgres
        return await find_money_digits(
            self._dsn,
            self._config.money.digits,
            application_name=f"{self._config.name} check",
            connect_timeout_s=postgres.connect_timeout_s,
        )

    async def _connect_stream(self, _request: ConnectStream) -> int:
        self._stream = await ReplicationStream.open(
            self._dsn,
            application_name=f"{self._config.name} check",
            connect_timeout_s=self._config.postgres.connect_timeout_s,
        )
        self._stack.callback(self._stream.close)
        return self._stream.server_version

    async def _look_at_slot(self, _request: LookAtSlot) -> SlotSeen | None:
        assert self._sql is not None
        assert self._stream is not None
        self._identity = await self._stream.identify()
        # No other writer was fenced: an active instance may have moved the slot past the checkpoint that was read.
        if not self._has_fenced:
            state = await read_slot(self._sql, self._config.postgres.slot)
            self._seen = None if state is None else seen(state, self._identity.database)
        return self._seen

    async def _peek_checkpoint(self, request: PeekCheckpoint) -> Checkpoint | None:
        topic = checkpoint_topic(self._config, CHECKPOINT_S)
        try:
            self._found = await asyncio.to_thread(
                peek_at_start,
                topic,
                Event(),
                exists=False,
                newest=request.newest,
                told=request.told,
                on_ignored=self._hear_ignored,
            )
        except TransientError as error:
            raise unavailable(error) from error
        self._has_peeked = True
        self._used_id = topic.records.transactional_id
        if self._found is None:
            try:
                await asyncio.to_thread(self._refuse_other_pipelines)
            except TransientError as error:
                raise unavailable(error) from error
        return self._found

    def _refuse_other_pipelines(self) -> None:
        config = self._config
        connection, _ = client.configured(config.kafka)
        topic = config.topics.schemas
        if topic and topic in Admin(connection, CHECKPOINT_S).names():
            SchemasTopic(topic, connection, config.name, CHECKPOINT_S).refuse_others()

    async def _read_source(self, request: ReadSource) -> Source:
        assert self._stream is not None
        assert self._identity is not None
        postgres = self._config.postgres
        return await read_source(
            self._stream,
            self._identity,
            request.slot_confirmed,
            request.found,
            slot_name=postgres.slot,
            options=self._config.stream_options,
        )

    async def _look_at_log(self, _request: LookAtLog) -> DurableLog | None:
        folder = self._config.spool.durable_directory
        return None if folder is None else await asyncio.to_thread(look, Path(folder))

    async def _fence(self, _request: Fence) -> Checkpoint | None:
        """Look who else uses the transactional id: also if this pipeline has used it, and would not look itself."""
        self._has_fenced = True
        use = id_use(self._config)
        assert self._identity is not None
        if use.transactional_id:
            connection, _ = client.configured(self._config.kafka)
            found = await asyncio.to_thread(
                find_sharers,
                connection,
                self._config.topics.checkpoint,
                use,
                self._identity.system_identifier,
                ID_SEARCH_S,
            )
            refused = refusal(found.sharers, use.transactional_id)
            if refused is not None and self._used_id != use.transactional_id:
                raise refused
            self._id_search = found
        return self._found

    async def _check_creation(self, _request: CheckCreation) -> Mapping[int, str]:
        """Return nothing, because all that refuses a creation has findings of its own."""
        return {}

    async def _published(self, _request: Request[Mapping[int, str]]) -> Mapping[int, str]:
        """Return the published tables, or those of the publication that would be created."""
        assert self._sql is not None
        if self._facts.publication is not None:
            sent = await published_tables(self._sql, self._facts.publication.name)
            has = self._config.tables.selection.test()
            return {oid: name for oid, name in sent.items() if has(name)}
        return {table.oid: table.qualified for table in self._facts.tables}

    async def _read_roots(self, _request: ReadRoots) -> bool | None:
        assert self._sql is not None
        if self._facts.publication is None:
            return True if self._facts.partitioned else None
        return await read_roots(self._sql, self._facts.publication.name)

    async def _create_slot(self, request: CreateSlot) -> SlotMade:
        assert self._identity is not None
        postgres = self._config.postgres
        slot = SlotSeen(self._identity.flushed, postgres.two_phase, postgres.failover)
        return SlotMade(slot, "assumed" if request.export else None)

    async def _import_snapshot(self, _request: ImportSnapshot) -> ExportedTables:
        return ExportedTables({}, {}, {})

    async def _bind_columns(self, request: BindColumns) -> str:
        """Read the bindings of the checkpoint. The findings about columns report rules that cannot be applied."""
        return bindings_of(self._config.columns, request.checkpoint).text(0)


_ANSWERED: Final[dict[type[Request[Any]], Callable[[_Rehearsal, Any], Awaitable[object]]]] = {
    TakeLock: _Rehearsal._nothing,
    ConnectCatalog: _Rehearsal._connect_catalog,
    ReadMoneyDigits: _Rehearsal._read_money_digits,
    EndFormerStream: _Rehearsal._nothing,
    ConnectStream: _Rehearsal._connect_stream,
    StreamEarly: _Rehearsal._nothing,
    CheckCreation: _Rehearsal._check_creation,
    PrepareSink: _Rehearsal._nothing,
    LookAtSlot: _Rehearsal._look_at_slot,
    PeekCheckpoint: _Rehearsal._peek_checkpoint,
    ReadSource: _Rehearsal._read_source,
    LookAtLog: _Rehearsal._look_at_log,
    RemoveLogged: _Rehearsal._nothing,
    Fence: _Rehearsal._fence,
    EnsurePublication: _Rehearsal._published,
    ReadRoots: _Rehearsal._read_roots,
    DropSlot: _Rehearsal._nothing,
    CreateSlot: _Rehearsal._create_slot,
    EndTwoPhase: _Rehearsal._nothing,
    SetFailover: _Rehearsal._nothing,
    ImportSnapshot: _Rehearsal._import_snapshot,
    ListTables: _Rehearsal._published,
    BindColumns: _Rehearsal._bind_columns,
    WriteCheckpoint: _Rehearsal._nothing,
}
"""Methods by request; a test compares the requests with those in `daemon/start_requests.py`."""
