"""Assembly of a session: the engine with its parts, and the pipeline that runs the engine.

The session is recorded if the configuration sets it. A recording that cannot begin is reported by an event, and is not
an error.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from cdcd.adapters.credentials.columns import SpoolCipher
from cdcd.adapters.durable.log import LogFiles
from cdcd.adapters.kafka.descriptions import FormerDescriptions
from cdcd.adapters.kafka.sink import Sink
from cdcd.adapters.postgres.catalog import CatalogLookUp
from cdcd.adapters.postgres.connection import Connection, Dsn
from cdcd.adapters.postgres.kept_lock import KeptLock
from cdcd.adapters.postgres.replication import ReplicationStream
from cdcd.adapters.registry.client import Registrar
from cdcd.config.loading import Config
from cdcd.core.catalog.attribute_numbers import is_certain
from cdcd.core.catalog.bindings import Bindings
from cdcd.core.catalog.relations import TableDescription, TypeDescription
from cdcd.core.engine.building import build_engine
from cdcd.core.engine.engine import Engine
from cdcd.core.engine.logged import LoggedSession
from cdcd.core.engine.session_start import SessionStart
from cdcd.core.engine.startup_rules import Ready
from cdcd.core.facts import Observer
from cdcd.core.facts.operation import DurableSpoolDelivering, RecordingStarted, RecordingStopped
from cdcd.core.facts.start import SlotWaiting, StreamStarted
from cdcd.core.facts.tables import TypeDropped
from cdcd.core.protocol.lsn import Lsn
from cdcd.core.protocol.messages import Relation
from cdcd.core.protocol.versions import Options
from cdcd.core.records.schema_registrations import SchemaIds
from cdcd.core.snapshot.reading import Visibility
from cdcd.core.table_names import table_text
from cdcd.core.transactions.ledger import Ledger
from cdcd.core.transactions.spool import Spool
from cdcd.daemon.durable_log import LoggedStream
from cdcd.daemon.kafka_side import KafkaSide
from cdcd.daemon.large_messages import LargeMessages
from cdcd.daemon.pipeline import Pipeline
from cdcd.daemon.postgres_side import HeartbeatAction, PostgresSide
from cdcd.daemon.process import spool_error, spool_problem
from cdcd.daemon.session_calls import CatalogCalls, OpenSession, TopicCalls
from cdcd.daemon.settings import encoder_settings, engine_settings, message_limits
from cdcd.daemon.snapshot_driver import SnapshotDriver
from cdcd.daemon.tables import NewTables
from cdcd.telemetry.state import Telemetry

if TYPE_CHECKING:
    from cdcd.adapters.recording.tap import Tap

HINT: Final = (
    "The pipeline goes on without a recording. Free disk space, or correct record.directory. Then restart cdcd, or "
    "wait for its next session."
)


class RecordedWiring(Protocol):
    """The part of the wiring that a recording needs."""

    @property
    def config(self) -> Config: ...
    @property
    def telemetry(self) -> Telemetry: ...
    @property
    def observe(self) -> Observer: ...
    @property
    def ready(self) -> Ready: ...


def record_session(around: RecordedWiring, engine: Engine, start: SessionStart, now: float) -> "Tap | None":
    """Return the recorder of the engine's calls, for which the caller owes `close`; None: nothing is recorded.

    Args:
        now: time (monotonic seconds) with which the engine was constructed. The engine decides by this time, so a
            replay needs it.
    """
    config, telemetry, observe = around.config, around.telemetry, around.observe
    record = config.record
    if record.directory is None:
        return None
    from cdcd.adapters.recording.tap import Tap  # noqa: PLC0415  only a daemon that records needs it
    from cdcd.adapters.recording.writer import RecordingLimits, RecordingWriter  # noqa: PLC0415  likewise

    directory = str(record.directory)
    limits = RecordingLimits(record.bytes_max, record.age_s_max, record.segment_bytes)
    before = telemetry.recorded_bytes

    def wrote(size: int) -> None:
        telemetry.recorded_bytes = before + size

    def failed(reason: str) -> None:
        telemetry.recording_stopped = True
        observe(RecordingStopped(directory=directory, reason=reason, hint=HINT))

    try:
        writer = RecordingWriter(Path(directory), limits)
    except BlockingIOError:
        failed("another process records into the folder")
        return None
    except OSError as error:
        failed(f"the folder cannot be written: {error.strerror}")
        return None
    telemetry.recording_stopped = False
    later = asyncio.get_running_loop().call_later
    tap = Tap(engine, start, around.ready.flushed, writer, later=later, wrote=wrote, failed=failed)
    tap.begin(now, time.time_ns() // 1000)
    observe(RecordingStarted(directory=directory))
    return tap


SLOT_WAIT_SHARE: Final = 1.25
"""Maximum wait for a slot in use, as a share of `wal_sender_timeout`. A walsender whose client died silently holds
the slot for that timeout, so cdcd waits a little longer."""

SLOT_WAIT_S: Final = 75.0
"""Maximum seconds to wait for a slot in use if the server has no `wal_sender_timeout`. TCP keepalives need about as
long."""


@dataclass(frozen=True, slots=True)
class Wiring:
    """Everything that a start has created, as the parts of a session."""

    config: Config
    telemetry: Telemetry
    observe: Observer
    postgres: PostgresSide
    kafka: KafkaSide
    stack: AsyncExitStack
    dsn: Dsn
    lock: KeptLock
    sql: Connection
    stream: ReplicationStream
    wal_sender_timeout_s: float
    sink: Sink
    database: str
    snapshots: SnapshotDriver
    ready: Ready
    unstreamed_until: int
    binary: bool
    schema_ids: SchemaIds
    registrar: Registrar | None
    bindings: Bindings
    log: LogFiles | None = None


def connect_pipeline(wiring: Wiring, ledger: Ledger) -> Pipeline:
    """Assemble the session, which is then ready to run.

    Raises:
        LimitError: the spool directory cannot be written.
    """
    config, ready = wiring.config, wiring.ready
    start = SessionStart(
        settings=engine_settings(
            config,
            wiring.wal_sender_timeout_s,
            delivers_messages=ready.delivers_messages,
            server_version=wiring.stream.server_version,
        ),
        checkpoint=ready.checkpoint,
        encoding=encoder_settings(
            config, wiring.database, wiring.schema_ids, wiring.bindings, money_digits=ready.money_digits
        ),
        published=ready.published,
        exported=ready.exported,
        excluded=config.on_demand(),
        unstreamed_until=wiring.unstreamed_until,
        logged_until=0 if ready.logged is None else ready.logged.end,
        binary=wiring.binary,
        abort_info=ready.options.abort_info,
        spool_bytes=config.spool.memory_bytes_max,
        outbox=config.outbox.settings,
        filters=config.filters.settings,
        routes=config.routes.settings,
        tables=config.tables.selection,
    )
    # The descriptions of thousands of tables take megabytes, and the engine drops them when the snapshot is read.
    wiring = replace(wiring, ready=replace(ready, exported=None))
    directory = _spool_directory(config)
    spool = Spool(
        directory,
        start.spool_bytes,
        config.spool.disk_bytes_max,
        SpoolCipher() if start.encoding.column_rules else None,
    )
    now = time.monotonic()
    engine = build_engine(start, spool, ledger, wiring.observe, now)
    wiring.stack.callback(engine.assembler.close)
    large = LargeMessages(
        Path(directory),
        config.name,
        message_limits(config, delivers_messages=ready.delivers_messages),
        engine.relation_name,
        wiring.observe,
    )
    large.tell_former()
    wiring.stack.callback(large.clear)
    wiring.stream.shorten, wiring.stream.on_coming = large.shorten, large.coming
    wiring.telemetry.queue_bytes_max = config.kafka.queue_bytes_max
    tap = record_session(wiring, engine, start, now)
    if tap is not None:
        wiring.stack.callback(tap.close)
    if ready.exported is None or ready.logged is not None:
        (tap or engine).stream_begun(time.monotonic())
    return Pipeline(
        engine,
        OpenSession(
            stream=wiring.stream if ready.logged is None else _logged(wiring, ready.logged),
            lock=wiring.lock,
            sink=wiring.sink,
            snapshots=wiring.snapshots,
            spool=spool,
        ),
        CatalogCalls(
            begin=lambda: start_replication(wiring),
            look_up=_LookUp(
                wiring.sql,
                wiring.kafka.former_descriptions,
                wiring.observe,
                protects=bool(start.encoding.column_rules),
            ),
            survey=lambda: _survey(wiring),
            heartbeat=_heartbeat_action(wiring),
            large=large,
        ),
        TopicCalls(
            kafka=wiring.kafka,
            new_tables=NewTables(wiring.snapshots.published, config.topic_names().qualified, ready.published),
            registrar=wiring.registrar,
        ),
        wiring.telemetry,
        wiring.observe,
        tap,
    )


async def _survey(wiring: Wiring) -> None:
    """See `CatalogCalls.survey`."""
    await wiring.postgres.survey(wiring.sql)
    progress = wiring.ready.checkpoint.snapshot
    await wiring.postgres.partitions.look(wiring.sql, "" if progress is None else progress.partitions)


def _heartbeat_action(wiring: Wiring) -> HeartbeatAction | None:
    query = wiring.config.heartbeat.action_query
    if query is None:
        return None
    action = HeartbeatAction(
        wiring.config,
        query,
        dsn=wiring.dsn,
        lock=wiring.lock,
        telemetry=wiring.telemetry,
        observe=wiring.observe,
    )
    wiring.stack.callback(action.close)
    return action


async def start_replication(wiring: Wiring) -> None:
    """Send START_REPLICATION, from the slot's own position. Raises what `ReplicationStream.start` raises."""
    config, stream, options = wiring.config, wiring.stream, wiring.ready.options
    await start_stream(config, stream, options, wiring.wal_sender_timeout_s, wiring.observe)
    wiring.observe(
        StreamStarted(
            slot=config.postgres.slot,
            server_version=stream.server_version,
            protocol=options.protocol,
            streaming=options.streaming.value,
            position=str(wiring.ready.checkpoint.position),
        )
    )


async def start_stream(
    config: Config,
    stream: ReplicationStream,
    options: Options,
    wal_sender_timeout_s: float,
    observe: Observer,
) -> None:
    """Send START_REPLICATION with these options, from the slot's own position."""
    slot = config.postgres.slot
    await stream.start(
        slot,
        0,
        options.options,
        publication=config.postgres.publication,
        wal_sender_timeout_s=wal_sender_timeout_s,
        slot_wait_s=SLOT_WAIT_SHARE * wal_sender_timeout_s or SLOT_WAIT_S,
        on_slot_active=lambda message: observe(SlotWaiting(slot=slot, message=message)),
    )


def _logged(wiring: Wiring, session: LoggedSession) -> LoggedStream:
    """Return the durable log in place of the stream."""
    log = wiring.log
    assert log is not None
    wiring.observe(
        DurableSpoolDelivering(
            directory=str(wiring.config.spool.durable_directory),
            position=str(wiring.ready.checkpoint.position),
            until=str(Lsn(session.end)),
            bytes=log.size,
        )
    )
    return LoggedStream(log.frames(session))


class _LookUp:
    """Look-ups of data that a Relation message lacks, in the catalog and, if necessary, in former descriptions.

    Args:
        former: reads the table descriptions of former runs; called once.
        protects: True if rules protect columns.
    """

    def __init__(
        self,
        sql: Connection,
        former: Callable[[], Awaitable[FormerDescriptions]],
        observe: Observer,
        *,
        protects: bool,
    ) -> None:
        self._look_up = CatalogLookUp(sql, protects=protects)
        self._read_former = former
        self._former: FormerDescriptions | None = None
        self._observe = observe
        self._told: set[tuple[int, str]] = set()

    def received(self, frames: Sequence[bytes]) -> None:
        self._look_up.received(frames)

    async def __call__(
        self, relation: Relation, *, tentative: bool = False
    ) -> tuple[TableDescription, dict[int, TypeDescription], Visibility | None]:
        found, types, seen = await self._look_up(relation, tentative=tentative)
        for column in relation.columns:
            if column.type_oid not in types and (relation.oid, column.name) not in self._told:
                self._told.add((relation.oid, column.name))
                table = table_text(relation.schema, relation.name)
                self._observe(TypeDropped(table=table, column=column.name, type_oid=column.type_oid))
        if not is_certain(relation.columns, found.columns):
            if self._former is None:
                self._former = await self._read_former()
            found = replace(found, former=self._former.columns(relation.oid))
        return found, types, seen


def _spool_directory(config: Config) -> str:
    directory = Path(config.spool.directory)
    problem = spool_problem(directory)
    if problem is not None:
        raise problem
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise spool_error(directory, error.strerror or "unknown error") from error
    return str(directory)
