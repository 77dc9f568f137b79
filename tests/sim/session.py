"""One session of the daemon: carries out what `engine/startup.py` wants done, then what the engine wants done.

Nothing here decides anything. Everything that takes time is a generator, which stands still where the real shell
awaits.
"""

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from random import Random
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, TypeVar
from unittest.mock import patch

from cdcd.adapters.durable.log import LogFiles
from cdcd.core.catalog.bindings import Bindings
from cdcd.core.catalog.patterns import TableSelection
from cdcd.core.catalog.protection import Protections
from cdcd.core.catalog.routing import TopicNames
from cdcd.core.catalog.sharing import share_of, whole_topic
from cdcd.core.engine import beside_stream, session_parts, timed_records
from cdcd.core.engine import engine as engines
from cdcd.core.engine import startup_requests as startup
from cdcd.core.engine.actions import (
    Action,
    Ask,
    BeginStream,
    Describe,
    End,
    EnsureTopics,
    RunHeartbeatQuery,
    Ship,
    Status,
    Turn,
    Wait,
)
from cdcd.core.engine.batch import Batch
from cdcd.core.engine.checkpoint import Checkpoint
from cdcd.core.engine.engine import Engine
from cdcd.core.engine.leavings import Leaving
from cdcd.core.engine.logged import DurableLog, LoggedSession
from cdcd.core.engine.resuming import Source
from cdcd.core.engine.session_start import ExportedTables, SessionStart
from cdcd.core.engine.settings import BatchSettings, EngineSettings, HeartbeatSettings, SnapshotSettings
from cdcd.core.engine.startup import Start
from cdcd.core.engine.startup_rules import (
    ORDINARY_RULES,
    FormerSessions,
    Ready,
    ReplicationSettings,
    StartRules,
    StartSettings,
)
from cdcd.core.errors import CdcdError, PositionError, SinkError, TransientError
from cdcd.core.facts import Fact, Observer
from cdcd.core.protocol.frames import read_status
from cdcd.core.protocol.lsn import Lsn
from cdcd.core.protocol.shortened import MessageLimits
from cdcd.core.records.available import record_stream
from cdcd.core.records.encoder import Encoder, EncoderSettings
from cdcd.core.records.late_records import LateRecords
from cdcd.core.records.shaping.filtering import filtered
from cdcd.core.records.shaping.outbox import shaped
from cdcd.core.records.shaping.partitioning import partitioned
from cdcd.core.records.shaping.routed import routed
from cdcd.core.records.shaping.settings import Outbox, TableFilter, TableRoutes
from cdcd.core.snapshot.progress import Progress
from cdcd.core.transactions.assembler import Assembler
from cdcd.core.transactions.ledger import Ledger
from cdcd.core.transactions.position import Position
from cdcd.core.transactions.spool import Spool
from tests.sim.aside import RefusesRows
from tests.sim.asking import Asker
from tests.sim.broker import Broker, BrokerError
from tests.sim.catalog import SCHEMA, Definition
from tests.sim.changed_settings import ChangedSettings
from tests.sim.client import TYPES
from tests.sim.complete import Completeness
from tests.sim.descriptions import TOPIC as DESCRIPTIONS_TOPIC
from tests.sim.disk import Disk
from tests.sim.expected import OWN_PREFIXES, TOPIC_PREFIX, PromiseBrokenError
from tests.sim.filtered import FILTERS
from tests.sim.heartbeats import TOPIC as HEARTBEAT_TOPIC
from tests.sim.metadata import TOPIC as METADATA_TOPIC
from tests.sim.oracle import Oracle
from tests.sim.parted import RULES as PARTITION_RULES
from tests.sim.postgres import NEVER, Connection, ConnectionLostError, Postgres
from tests.sim.protected import DIGESTS, RULES
from tests.sim.published import OUTBOX
from tests.sim.routed import ROUTES, TOPICS
from tests.sim.settings import Settings
from tests.sim.shared import SHARED
from tests.sim.shared import TOPIC as SHARED_TOPIC
from tests.sim.sink import Sink, counted
from tests.sim.spooling import open_log
from tests.sim.walsender import Options

if TYPE_CHECKING:
    from tests.sim.instance import Instance

UNIX_US: Final = 1_700_000_000_000_000
"""The wall clock when the simulation begins."""

TICK_S: Final = 0.05

SLOW_REFUSALS_S: Final = 200.0
"""Until then, batches are refused late. Otherwise tables would fail and come back for ever."""


ACTIONS_AT_ONCE: Final = 6

T = TypeVar("T")

Answered = Generator[None, None, T]
"""Something that takes time, and then gives an answer."""


Filters = tuple[TableFilter, ...]
Routes = tuple[TableRoutes, ...]


class StoppedError(Exception):
    """The session ended as it was asked to."""


OF_TABLES: Final = (f"{TOPIC_PREFIX}.{SCHEMA}.", f"{share_of(SHARED_TOPIC, SCHEMA)}.")
"""How the topics of tables begin, and the shares of the topic that all tables have."""

MAKERS: Final = (engines, session_parts, beside_stream, timed_records)
"""The modules in which the engine and its parts are made."""


def makers_of(name: str) -> list[ModuleType]:
    """Return the modules that make objects of the class with this name."""
    found = [module for module in MAKERS if hasattr(module, name)]
    assert found, f"no part of the engine is a {name}"
    return found


@dataclass(frozen=True, slots=True)
class Parts:
    """The classes under test; a planted bug replaces one of them."""

    engine: Mapping[str, Any] = field(default_factory=dict)
    """Classes that the engine makes objects of, by their names."""
    assembler: Callable[..., Assembler] = Assembler
    ledger: Callable[..., Ledger] = Ledger
    position: type[Position] = Position
    sink: type[Sink] = Sink
    asker: type[Asker] = Asker
    start: StartRules = ORDINARY_RULES
    shaped: Callable[[Encoder, Outbox, EncoderSettings, Observer], Encoder] = shaped
    encoder: Callable[[EncoderSettings], Encoder] = record_stream
    filtered: Callable[[Encoder, Filters, EncoderSettings, Observer], Encoder] = filtered
    filtered_rows: Callable[[Encoder, Filters, EncoderSettings, Observer], Encoder] = filtered
    partitioned: Callable[[Encoder, EncoderSettings], Encoder] = partitioned
    partitioned_rows: Callable[[Encoder, EncoderSettings], Encoder] = partitioned
    routed: Callable[[Encoder, Routes, EncoderSettings, Observer], Encoder] = routed
    routed_rows: Callable[[Encoder, Routes, EncoderSettings, Observer], Encoder] = routed
    log: type[LogFiles] = LogFiles
    limits: Callable[[Mapping[bytes, int], int | None], MessageLimits] = MessageLimits
    bindings: Callable[[], Bindings] = Bindings

    def in_engine(self) -> AbstractContextManager[Any]:
        """Let the engine be made of `engine`. No class can be replaced where the engine is compiled."""
        replaced = ExitStack()
        for name, part in self.engine.items():
            for module in makers_of(name):
                replaced.enter_context(patch.object(module, name, part))
        return replaced


@dataclass(slots=True)
class Surroundings:
    """What an instance can reach, and the clock."""

    settings: Settings
    rng: Random
    postgres: Postgres
    broker: Broker
    oracle: Oracle
    spool_directory: str
    log: Callable[[str], None] | None
    two_phase_from: int
    observe: Callable[[Fact], None]
    complete: Completeness
    changed: ChangedSettings
    disk: Disk | None = None
    """Under the durable log; None: there is none."""
    counted_rows: int = 0
    """What sessions that are over counted as delivered."""
    now: float = 0.0
    ticks: int = 0
    healthy: bool = False


class Session:
    """From the advisory lock to the end of the connection."""

    def __init__(self, instance: "Instance", parts: Parts, around: Surroundings) -> None:
        settings = around.settings
        self.instance = instance
        self.parts = parts
        self.around = around
        self.settings = settings
        self.rng = around.rng
        self._has_parts = False
        """Parts of a Kafka transaction are out that is not complete."""
        self.ledger = parts.ledger(instance.flushed)
        self._has_key = settings.version % 2 == 1
        """The pipeline has a key for its checkpoints."""
        self.sink = parts.sink(
            around.broker,
            around.rng,
            self._may_fence,
            exactly_once=settings.exactly_once,
            has_key=self._has_key,
        )
        self.spool = Spool(around.spool_directory, settings.spool_memory_max)
        self.asker = parts.asker(settings, around.rng, around.postgres)
        self.asker.healthy = around.healthy
        self.connection: Connection | LoggedConnection | None = None
        self.log: LogFiles | None = None
        self.engine: Engine | None = None
        self.options: Options | None = None
        self.topics: set[str] = set()
        self._tasks: list[Iterator[None]] = []
        self._shipping: Iterator[None] | None = None
        self._ships_a_heartbeat = False
        """What is on its way is a heartbeat alone."""
        self._lock_lost = False
        self._traces: list[str] = []
        """What others notice of this start."""
        self._goes_by_the_newest = False
        """The start compared the slot with a checkpoint whose transaction may be open, so it could not refuse."""
        self._start: Start | None = None
        self._found: Checkpoint | None = None
        self._published: dict[int, str] = {}
        self._roots = None if around.healthy else around.changed.draw_roots()
        self._exported: dict[int, str] = {}
        self.bindings = parts.bindings()
        self._looked_at: list[Definition] = []
        """Tables whose columns this start has bound."""
        self._opening: Iterator[None] | None = self._open()

    @property
    def flushed(self) -> int:
        return self.ledger.flushed

    def close(self) -> None:
        self.asker.close()
        if self.engine is not None:
            self.engine.assembler.close()
        if self.log is not None:
            self.log.close()
        assert not self.spool.memory_bytes, "the spool is empty"
        assert not self.spool.disk_bytes, "the spool is empty"

    def kill(self) -> None:
        """SIGKILL."""

    def abandon(self) -> None:
        self.spool.close()
        self.asker.close()
        if self.log is not None:
            self.log.close()

    @property
    def is_quiet(self) -> bool:
        """Nothing is kept, and nothing is owed."""
        if self.engine is None:
            return False
        assembler = self.engine.assembler
        kept = assembler.streamed_open or assembler.prepared_open
        return not (kept or self.ledger.open_entries or len(self.spool))

    @property
    def is_settled(self) -> bool:
        """Every table is read, and the checkpoint says so."""
        if self.engine is None or (self._shipping is not None and not self._ships_a_heartbeat):
            return False
        progress = self.engine.incremental.progress
        return (progress.is_done or progress.paused) and (
            (self.engine.checkpoint.snapshot or Progress()) == progress
        )

    def tables_left(self) -> set[int] | None:
        """Oids of the tables that are not read to their end; None: the initial snapshot is being read."""
        if self.engine is None or self.connection is None:
            return None
        progress = self.engine.incremental.progress
        return {task.oid for task in progress.tasks}.union(progress.waiting.oids[progress.begun :])

    def describe(self) -> str:
        """What it is about, for somebody who wonders why it does not end."""
        if self.engine is None:
            return "it does not come to its start"
        progress = self.engine.incremental.progress
        return f"{len(self._tasks)} under way, {progress.tasks}, paused {progress.paused}"

    def stop(self) -> bool:
        """SIGTERM; False: there is nothing to bring to an end."""
        if self.engine is None:
            return False
        self.engine.stop()
        return True

    def step(self) -> None:
        """One task moves on."""
        if self._opening is not None:
            if next(self._opening, self) is self:
                self._opening = None
            return
        draw = self.rng.random()
        if draw < 0.3:
            self._receive()
        elif draw < 0.65:
            self._act()
        elif draw < 0.85:
            self._ship()
        else:
            self._watch_lock()
        if self._tasks:
            self._move_on()
        if self.engine is not None:
            self._must_show_what_waits()

    @property
    def counted_rows(self) -> int:
        """How many rows the engine says that it delivered."""
        return 0 if self.engine is None else self.engine.delivered_rows

    # How it ends.

    def leave(self, error: CdcdError | None) -> None:
        """As `Startup.leave`: take back the slot that this session made, if nothing goes on from it."""
        if self._start is None:
            return
        has_shipped = self.engine is not None and self.engine.has_shipped
        leaving = self._start.leaves(
            error, has_shipped=has_shipped, outcome_unknown=self.sink.outcome_unknown
        )
        if leaving in {Leaving.NOTHING, Leaving.KEEP}:
            return
        postgres, broker = self.around.postgres, self.around.broker
        try:
            self._prove_ownership()
            if leaving is Leaving.FORGET:
                broker.forget()
                if self.rng.random() < 0.3:
                    self.instance.say("it is killed before it drops the slot")
                    return
            postgres.disconnect()
            postgres.drop_slot(self)
        except (TransientError, ConnectionLostError) as failure:
            self.instance.say(f"the slot stays: {failure!r}")
        else:
            self.instance.say("it took back its slot")

    def _may_fence(self) -> None:
        """What a new producer needs: the lock, and rights."""
        self._prove_ownership()
        self._refuse("a new producer")

    def _refuse(self, what: str) -> None:
        """Something that a person must mend, at first: later on, somebody has mended it."""
        settings = self.settings
        if settings.p_refuse and not self.around.healthy and self.rng.random() < settings.p_refuse:
            raise SinkError(f"refused: {what}")

    # What the start wants done.

    def _prove_ownership(self) -> None:
        postgres = self.around.postgres
        if not postgres.up or postgres.lock_holder is not self.instance:
            raise TransientError("the advisory lock is lost")

    def _check_conditions(self, begun: Checkpoint) -> None:
        """Nothing that a stranger may have written into the topic is run as SQL."""
        tasks = () if begun.snapshot is None else begun.snapshot.tasks
        conditions = {task.where for task in tasks if task.where}
        if conditions and not self._has_key:
            raise PromiseBrokenError(f"conditions that nobody has proved would run: {conditions}")
        if "forged()" in conditions:
            raise PromiseBrokenError("the condition of a stranger would run")

    def _open(self) -> Iterator[None]:
        settings = self.settings
        streaming: Any = self.rng.choice(settings.streaming)
        start = Start(
            StartSettings(
                ReplicationSettings(
                    slot="simulated",
                    publication="simulated",
                    streaming=streaming,
                    two_phase=self.instance.two_phase,
                ),
                checkpoint_topic="checkpoint",
                topics=TopicNames(
                    TOPIC_PREFIX,
                    {},
                    "messages",
                    None,
                    "checkpoint",
                    None,
                    routes=TOPICS if settings.routes else (),
                    shared=SHARED if settings.shared else (),
                ),
                snapshot=SnapshotSettings(
                    mode=settings.snapshot_mode, method=settings.snapshot_method, heals=settings.heals
                ),
                messages=settings.messages,
                counts_epochs=not settings.exactly_once,
                name="sim",
                truncate=settings.truncate_records,
                records=self.instance.records,
                protects=settings.protected,
            ),
            self.around.observe,
            FormerSessions(flushed=self.ledger.flushed, unstreamed_until=self.instance.unstreamed_until),
            rules=self.parts.start,
        )
        self._start = start
        requests = start.run()
        answer: Any = None
        while True:
            try:
                request = requests.send(answer)
            except StopIteration as end:
                ready = end.value
                break
            except PositionError as error:
                self._must_have_left_no_trace(error)
                if "partitioned tables" in error.message:
                    # An operator restores the publication, as the hint says.
                    raise TransientError(error.message) from error
                raise
            answer = yield from REQUESTS[type(request)](self, request)
        self._check_conditions(ready.checkpoint)
        yield
        self._build(ready)
        if ready.logged is not None:
            self._begin_logged(ready.logged)
        elif ready.exported is None:
            self._begin()
        self.instance.say(
            f"goes on from {Lsn(ready.slot_confirmed)}, {ready.checkpoint.position}, {self.options}"
        )

    def _must_show_what_waits(self) -> None:
        """A step that waits for its topic or schema belongs to a commit that Kafka lacks: the lag is not 0."""
        assert self.engine is not None
        held, known = self.engine._ingest._held, self.engine.server_wal_end
        # What the durable log holds is told to the server before Kafka has it.
        is_logged = isinstance(self.connection, LoggedConnection)
        delivered = self.engine.checkpoint.position.end_lsn if is_logged else self.ledger.flushed
        if held is not None and known <= delivered:
            raise PromiseBrokenError(
                f"{type(held).__name__} waits, and the server is only known to have come to {Lsn(known)}, "
                f"which is delivered"
            )

    def _must_have_left_no_trace(self, error: PositionError) -> None:
        """G7: whoever must refuse to start disturbs nobody. The slot is moved only while no instance runs.

        A transaction that is open before the fence is decided by the fence. So nobody can judge it before.
        """
        if self._traces and not self._goes_by_the_newest:
            raise PromiseBrokenError(f"refused after {', '.join(self._traces)}: {error}") from error

    def _take_lock(self, _request: startup.TakeLock) -> Answered[None]:
        while not self.around.postgres.lock(self.instance):
            yield

    def _connect_catalog(self, _request: startup.ConnectCatalog) -> Answered[bool]:
        self.around.postgres.must_be_up()
        yield from ()
        return False

    def _read_money_digits(self, _request: startup.ReadMoneyDigits) -> Answered[int]:
        yield from ()
        return 2

    def _end_former_stream(self, _request: startup.EndFormerStream) -> Answered[None]:
        self.around.postgres.disconnect()
        yield from ()

    def _connect_stream(self, _request: startup.ConnectStream) -> Answered[int]:
        self.around.postgres.must_be_up()
        yield from ()
        return self.settings.version * 10000

    def _nothing(self, _request: startup.Request[None]) -> Answered[None]:
        yield from ()

    def _check_creation(self, _request: startup.CheckCreation) -> Answered[dict[int, str]]:
        yield from ()
        return {}

    def _look_at_slot(self, _request: startup.LookAtSlot) -> Answered[startup.SlotSeen | None]:
        postgres = self.around.postgres
        source = postgres.source()
        seen = startup.SlotSeen(source.slot_confirmed, two_phase=postgres.two_phase_at != NEVER)
        yield
        return None if source.slot_confirmed is None else seen

    def _peek(self, request: startup.PeekCheckpoint) -> Answered[Checkpoint | None]:
        broker = self.around.broker
        try:
            yield from broker.read_checkpoint()
        except BrokerError as error:
            raise TransientError("the broker does not answer") from error
        self._goes_by_the_newest |= request.newest
        read = broker.newest if request.newest else broker.checkpoint
        return counted(read, self.parts.sink.judging, has_key=self._has_key)

    def _read_source(self, request: startup.ReadSource) -> Answered[Source]:
        source = self.around.postgres.source()
        yield from ()
        return replace(source, slot_confirmed=request.slot_confirmed)

    def _look_at_log(self, _request: startup.LookAtLog) -> Answered[DurableLog | None]:
        yield from ()
        if not self.settings.durable:
            return None
        if self.log is None:
            self.log = open_log(self.parts, self.around)
        return self.log.look()

    def _remove_logged(self, request: startup.RemoveLogged) -> Answered[None]:
        yield
        assert self.log is not None
        self.log.remove(request.numbers)

    def _fence(self, request: startup.Fence) -> Answered[Checkpoint | None]:
        self._traces.append("it fenced")
        self._found = yield from self.sink.open(request.told)
        return self._found

    def _ensure_publication(self, _request: startup.EnsurePublication) -> Answered[dict[int, str]]:
        yield
        self._published = self.asker.published()
        return dict(self._published)

    def _read_roots(self, _request: startup.ReadRoots) -> Answered[bool | None]:
        yield from ()
        return self._roots

    def _list_tables(self, _request: startup.ListTables) -> Answered[dict[int, str]]:
        listed = self.asker.published()
        # Also tables that only the list at the slot's snapshot has: they belong to the first tables.
        self._published = {**self._published, **listed, **self._exported}
        yield
        return listed

    def _drop_slot(self, _request: startup.DropSlot) -> Answered[None]:
        """Drop a slot that cannot be used any more. The stream of an earlier session may have been read from it."""
        self._traces.append("it dropped the slot")
        postgres = self.around.postgres
        postgres.must_be_up()
        if postgres.lock_holder is not self.instance:
            raise PromiseBrokenError("G7: an instance without the lock drops the slot")
        postgres.slot = False
        yield

    def _create_slot(self, request: startup.CreateSlot) -> Answered[startup.SlotMade]:
        self._traces.append("it created a slot")
        postgres, two_phase = self.around.postgres, self.instance.two_phase
        postgres.request_slot(self.instance)
        while not postgres.slot_is_made(self.instance, two_phase=two_phase):
            yield
        postgres.maker = self
        slot = startup.SlotSeen(postgres.source().slot_confirmed, two_phase)
        yield
        if not request.export:
            postgres.release(self.instance)
        return startup.SlotMade(slot, "exported" if request.export else None)

    def _end_two_phase(self, _request: startup.EndTwoPhase) -> Answered[None]:
        self.around.postgres.two_phase_at = NEVER
        yield

    def _import_snapshot(self, _request: startup.ImportSnapshot) -> Answered[ExportedTables]:
        yield from self.asker.delay()
        self._refuse("the tables")
        client = self.asker.client
        tables = {table.oid: table for table in self.around.postgres.exported_tables()}
        locked = {oid: "locked by somebody" for oid in tables if client.is_locked([oid])}
        yield from self.asker.delay()
        descriptions = client.describe(list(tables))
        free = {oid: table for oid, table in tables.items() if oid not in locked}
        exported = ExportedTables(free, descriptions, TYPES, locked)
        self._exported = exported.names()
        return exported

    def _bind_columns(self, request: startup.BindColumns) -> Answered[str]:
        """Do what `StartRequests._bind_columns` does."""
        self.bindings.load(request.checkpoint.bindings, DIGESTS)
        rules = Protections(RULES, bindings=self.bindings)
        exported = request.exported
        if exported is not None:
            for oid, table in exported.tables.items():
                rules.in_force(table.relation, replace(exported.descriptions[oid], numbers=table.numbers))
        yield from self.asker.delay()
        definitions = self.asker.client.database.definitions
        self._looked_at = [definitions[oid] for oid in request.published if oid in definitions]
        found = self.asker.client.describe([table.oid for table in self._looked_at])
        for one in self._looked_at:
            numbers = tuple([column.attnum for column in one.columns])
            rules.in_force(one.relation(), replace(found[one.oid], numbers=numbers))
        return self.bindings.text(request.checkpoint.position.end_lsn)

    def _write_checkpoint(self, request: startup.WriteCheckpoint) -> Answered[None]:
        reads = self._found is None or (self._start is not None and self._start.positions.gap is not None)
        if reads and self.settings.snapshot_mode != "never":
            self.around.complete.initial = dict(self._published)
        yield
        self._refuse("the checkpoint")
        yield from self.sink.deliver(request.batch, request.checkpoint)
        if self.around.oracle.protected is not None:
            self.around.oracle.protected.bound(self._looked_at)

    def _build(self, ready: Ready) -> None:
        settings, parts = self.settings, self.parts
        self.ledger = parts.ledger(ready.flushed)
        two_phase = dict(ready.options.options).get("two_phase") == "true"
        self.options = Options(
            streaming=ready.options.streaming.value,
            two_phase=two_phase,
            work_mem=int(self.rng.random() * (settings.work_mem_max + 1)),
        )
        envelope = EncoderSettings(
            "0",
            TOPIC_PREFIX,
            "db",
            truncate=settings.truncate_records,
            skipped=settings.skipped,
            transaction_topic=METADATA_TOPIC if settings.metadata else None,
            heartbeat_topic=HEARTBEAT_TOPIC if settings.heartbeat_s else None,
            schemas_topic=DESCRIPTIONS_TOPIC if settings.described else None,
            partition_rules=PARTITION_RULES if settings.parted else (),
            routes=TOPICS if settings.routes else (),
            shared=SHARED if settings.shared else (),
            column_rules=RULES if settings.protected else (),
            bindings=self.bindings if settings.protected else Bindings(),
        )
        outbox = OUTBOX if settings.publishes else Outbox()
        observe = self.around.observe
        encoder = self.parts.shaped(self.parts.encoder(envelope), outbox, envelope, observe)
        filters = FILTERS if settings.filters else ()
        routes = ROUTES if settings.routes else ()
        encoder = self.parts.partitioned(encoder, envelope)
        encoder = self.parts.routed(encoder, routes, envelope, observe)
        encoder = self.parts.filtered(encoder, filters, envelope, observe)
        if settings.row_faults:
            encoder.shapes.put(RefusesRows(self._is_mended))
        rows = self.parts.partitioned_rows(record_stream(envelope), envelope)
        rows = self.parts.routed_rows(rows, routes, envelope, observe)
        rows = self.parts.filtered_rows(rows, filters, envelope, observe)
        at = ready.checkpoint.position
        if self.around.oracle.aside is not None:
            self.around.oracle.aside.begun(ready.checkpoint.tables, at)
        position = parts.position(at.commit_lsn, at.end_lsn, at.events_done, at.counts)
        assembler = parts.assembler(
            self.ledger, self.spool, position, encoder.draft_all, abort_info=ready.options.abort_info
        )
        start = SessionStart(
            EngineSettings(
                name=self.settings.pipeline,
                batches=BatchSettings(
                    bytes_max=settings.batch_bytes_max,
                    records_max=settings.batch_records_max,
                    queue_bytes_max=settings.queue_bytes_max,
                    whole_bytes_max=settings.whole_bytes_max if settings.exactly_once else None,
                ),
                status_interval_s=settings.status_interval_s,
                snapshot=SnapshotSettings(
                    mode=settings.snapshot_mode,
                    chunk_bytes=settings.chunk_bytes,
                    parallelism=settings.parallelism,
                    added_tables=settings.added_tables,
                    signals=settings.signals,
                    tables_ahead=settings.tables_ahead,
                ),
                heartbeat=HeartbeatSettings(
                    interval_s=settings.heartbeat_s,
                    has_query=settings.heartbeat_s > 0,
                    watermark_s=settings.watermark_s,
                ),
                sets_aside=settings.sets_aside,
                truncate=settings.truncate_records,
                large_bytes=settings.large_bytes,
                quiet_s=settings.status_interval_s,
            ),
            replace(ready.checkpoint, position=position),
            envelope,
            ready.published,
            exported=ready.exported,
            unstreamed_until=self.instance.unstreamed_until,
            logged_until=0 if ready.logged is None else ready.logged.end,
            outbox=outbox,
            tables=TableSelection(exclude=tuple([f"{SCHEMA}.{name}" for name in settings.left_out])),
        )
        with parts.in_engine():
            self.engine = Engine(start, assembler, encoder, rows, observe, self.around.now)

    def _begin(self) -> None:
        """START_REPLICATION, which ends the exported snapshot."""
        assert self.options is not None
        assert self.engine is not None
        postgres = self.around.postgres
        postgres.release(self.instance)
        self.connection = postgres.start_replication(self.instance, self.options)
        self.engine.stream_begun(self.around.now)

    def _begin_logged(self, session: LoggedSession) -> None:
        assert self.engine is not None
        assert self.log is not None
        self.connection = LoggedConnection(self.log.frames(session))
        self.engine.stream_begun(self.around.now)

    # What the engine wants done.

    def _receive(self) -> None:
        assert self.engine is not None
        if self.connection is None:
            return
        if not self.connection.alive:
            self.connection.receive(1)
        if self.engine.wants_frames:
            frames = self.connection.receive(1 + int(self.rng.random() * self.settings.receive_max))
            if frames:
                if self.settings.message_bytes_max:
                    frames = self._shortened(frames)
                self.engine.frames_received(frames, self.around.now)

    def _shortened(self, frames: list[bytes]) -> list[bytes]:
        """The frames as the connection takes them out of libpq, for which each is large here."""
        own = {prefix.encode(): 1 << 20 for prefix in OWN_PREFIXES}
        limits = self.parts.limits(own, self.settings.message_bytes_max)
        return [limits.shorten(memoryview(frame)) or frame for frame in frames]

    def _act(self) -> None:
        assert self.engine is not None
        for _ in range(1 + int(self.rng.random() * ACTIONS_AT_ONCE)):
            action = self.engine.next_action(self.around.now, self._unix_us)
            if isinstance(action, Wait):
                return
            ACTIONS[type(action)](self, action)

    @property
    def _unix_us(self) -> int:
        return UNIX_US + int(self.around.now * 1_000_000)

    def _send(self, action: Status) -> None:
        assert self.connection is not None
        assert self.engine is not None
        flushed = read_status(action.data).flushed
        bound = self._bound()
        # A start must be able to tell a slot that somebody moved from one that we moved. Without transactions, one that
        # lost the lock may still put an older checkpoint over a newer one.
        if isinstance(self.connection, LoggedConnection):
            return
        if self.settings.exactly_once and bound is not None and flushed > bound:
            raise PromiseBrokenError(f"told {Lsn(flushed)}, the checkpoint says at most {Lsn(bound)}")
        self.connection.send(action.data)

    def _bound(self) -> int | None:
        read = self.around.broker.acknowledged
        return None if read is None else Checkpoint.decode(read, "").flushed_lsn

    def _start_shipping(self, action: Ship) -> None:
        assert self._shipping is None, "one batch at a time"
        self._within_bound(action)
        self._has_topics(action.batch)
        self._ships_a_heartbeat = action.batch.heartbeat_bytes > 0 and len(action.batch.records) == 1
        self._shipping = self._deliver(action)

    def _within_bound(self, action: Ship) -> None:
        """G12: the checkpoint record stays small, whatever is asked for."""
        size = len(action.checkpoint.encode())
        if size > self.settings.checkpoint_bytes_max:
            raise AssertionError(f"G12: a checkpoint of {size} bytes")

    def _has_topics(self, batch: Batch) -> None:
        """Records go to a table's topic only when the topic is there."""
        topics = {item.topic if isinstance(item, LateRecords) else item[0] for item in batch.items}
        missing = sorted({each for each in topics if each.startswith(OF_TABLES)} - self.topics)
        if missing:
            raise PromiseBrokenError(f"records are sent before there are topics for them: {missing}")

    def _deliver(self, action: Ship) -> Iterator[None]:
        assert self.engine is not None
        refused = self._refused_topic(action)
        if refused:
            if self.settings.refused_ticks_max:
                for _ in range(self.rng.randrange(self.settings.refused_ticks_max)):
                    yield
            self.engine.refused(action.batch, {refused: SinkError("it is refused")}, self.around.now)
            if self.around.oracle.aside is not None:
                self.around.oracle.aside.found(self.engine.fates.table())
            return
        self._has_parts = not action.batch.closes
        for _ in self.sink.deliver(action.batch, action.checkpoint):
            if self.instance.in_delivery is not None and self.rng.random() < 0.3:
                self.instance.in_delivery()
            yield
        self.engine.delivered(action.batch, self.around.now)
        if self.settings.p_refuse and self.rng.random() < 0.1:
            self._refuse("what comes next")

    def _is_mended(self) -> bool:
        """Whether tables have no faults any more."""
        seen = self.around.oracle.aside
        return seen is None or seen.mended

    def _refused_topic(self, action: Ship) -> str:
        """A topic of a table whose records in the batch the broker refuses now; "": it takes all."""
        settings = self.settings
        if not settings.p_batch_fault or self._is_mended() or self._has_parts:
            return ""
        if settings.refused_ticks_max and self.around.now > SLOW_REFUSALS_S:
            return ""
        topics = {record[0] for record in action.batch.records}
        own = sorted([topic for topic in topics if topic.startswith(OF_TABLES)])
        return self.rng.choice(own) if own and self.rng.random() < settings.p_batch_fault else ""

    def _ship(self) -> None:
        if self._shipping is not None and next(self._shipping, self) is self:
            self._shipping = None

    def _describe(self, action: Describe) -> None:
        self._tasks.append(self._described(action))

    def _described(self, action: Describe) -> Iterator[None]:
        assert self.engine is not None
        yield from self.asker.delay()
        oid = action.relation.oid
        client, seen = self.asker.client, None
        if self.settings.protected:
            seen = client.visibility()
            yield from self.asker.delay()
        description = client.describe([oid])[oid]
        if seen is None and not description.has_columns_of(action.relation):
            yield from self.asker.delay()
            seen = client.visibility()
            yield from self.asker.delay()
            description = client.describe([oid])[oid]
        yield from self.asker.delay()
        self.engine.described(action.relation, description, TYPES, self.around.now, seen)

    def _ensure_topics(self, action: EnsureTopics) -> None:
        self._tasks.append(self._topics_made(action))

    def _topics_made(self, action: EnsureTopics) -> Iterator[None]:
        assert self.engine is not None
        yield from self.asker.delay()
        if self.settings.topic_ticks_max:
            for _ in range(self.rng.randrange(self.settings.topic_ticks_max)):
                yield
        self._refuse("topics")
        refused: dict[str, CdcdError] = {}
        if self.settings.p_topic_fault and not self._is_mended():
            refused = {
                topic: SinkError("it is refused")
                for topic in action.topics
                if topic.startswith(OF_TABLES) and self.rng.random() < self.settings.p_topic_fault
            }
        if self.sink.checks_markers:
            refuses = self.around.broker.refuses_markers
            refused |= {
                topic: SinkError("it refuses markers")
                for topic in action.topics
                if refuses(whole_topic(topic))
            }
        if refused:
            self.engine.topics_refused(refused, self.around.now)
        ready = [topic for topic in action.topics if topic not in refused]
        self.topics.update(ready)
        self.engine.topics_ready(ready, self.around.now)

    def _ask(self, action: Ask) -> None:
        self._tasks.append(self._answered(action))

    def _answered(self, action: Ask) -> Iterator[None]:
        assert self.engine is not None
        answer = yield from self.asker.ask(action.question)
        self.engine.answered(action.ticket, answer, self.around.now)

    def _run_query(self, action: RunHeartbeatQuery) -> None:
        if self._lock_lost:
            raise PromiseBrokenError("G7: the heartbeat query is run by an instance that has lost the lock")
        self._tasks.append(self._query_run())

    def _query_run(self) -> Iterator[None]:
        assert self.engine is not None
        yield from self.asker.delay()
        if self.around.postgres.lock_holder is self.instance:
            self.around.oracle.heartbeats.queries += 1
        self.engine.heartbeat_query_ended(self.around.now)

    def _start_stream(self, action: BeginStream) -> None:
        self._begin()

    def _end(self, action: End) -> None:
        if action.error is not None:
            raise action.error
        raise StoppedError

    def _turn(self, action: Turn) -> None:
        pass

    def _move_on(self) -> None:
        """Some of what is under way moves on, in any order."""
        for task in self.rng.sample(self._tasks, 1 + int(self.rng.random() * len(self._tasks))):
            if next(task, self) is self:
                self._tasks.remove(task)

    def _watch_lock(self) -> None:
        assert self.engine is not None
        postgres = self.around.postgres
        if self._lock_lost:
            return
        error = TransientError("the advisory lock is lost")
        if postgres.stopping_since >= 0:
            # The lock's connection ended with 57P01.
            self._lock_lost = True
            self.engine.lock_lost(error, "57P01", shutting_down=True, now=self.around.now)
        elif postgres.lock_holder is not self.instance:
            self._lock_lost = True
            self.engine.lock_lost(error, "57P01", shutting_down=False, now=self.around.now)


class LoggedConnection:
    """Frames of the durable log, in the place of a connection."""

    alive = True

    def __init__(self, frames: Iterator[list[bytes]]) -> None:
        self._frames = frames
        self._here: list[bytes] = []

    def receive(self, most: int) -> list[bytes]:
        if not self._here:
            self._here = next(self._frames, [])
        frames, self._here = self._here[:most], self._here[most:]
        return frames

    def send(self, status: bytes) -> None:
        pass


REQUESTS: Final[dict[type[startup.Request[Any]], Callable[[Session, Any], Answered[Any]]]] = {
    startup.TakeLock: Session._take_lock,
    startup.ConnectCatalog: Session._connect_catalog,
    startup.ReadMoneyDigits: Session._read_money_digits,
    startup.EndFormerStream: Session._end_former_stream,
    startup.ConnectStream: Session._connect_stream,
    startup.StreamEarly: Session._nothing,
    startup.CheckCreation: Session._check_creation,
    startup.PrepareSink: Session._nothing,
    startup.LookAtSlot: Session._look_at_slot,
    startup.PeekCheckpoint: Session._peek,
    startup.ReadSource: Session._read_source,
    startup.LookAtLog: Session._look_at_log,
    startup.RemoveLogged: Session._remove_logged,
    startup.Fence: Session._fence,
    startup.EnsurePublication: Session._ensure_publication,
    startup.ReadRoots: Session._read_roots,
    startup.DropSlot: Session._drop_slot,
    startup.CreateSlot: Session._create_slot,
    startup.EndTwoPhase: Session._end_two_phase,
    startup.ImportSnapshot: Session._import_snapshot,
    startup.ListTables: Session._list_tables,
    startup.BindColumns: Session._bind_columns,
    startup.WriteCheckpoint: Session._write_checkpoint,
}

ACTIONS: Final[dict[type[Action], Callable[[Session, Any], None]]] = {
    Ship: Session._start_shipping,
    Status: Session._send,
    Describe: Session._describe,
    EnsureTopics: Session._ensure_topics,
    RunHeartbeatQuery: Session._run_query,
    BeginStream: Session._start_stream,
    Ask: Session._ask,
    Turn: Session._turn,
    End: Session._end,
}
