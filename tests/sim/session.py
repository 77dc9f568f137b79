"""One session of the daemon: the order of the start, then whatever the engine wants done, with the world's delays.

Nothing here decides anything. The start asks the same functions as `daemon/startup.py`, in the same order; the rest is
the engine's. Everything that takes time is a generator, which stands still where the real shell awaits.
"""

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING, Any, Final

from cdcd.engine import engine as engines
from cdcd.engine.actions import (
    Action,
    Ask,
    Begin,
    Describe,
    End,
    EnsureTopics,
    Ship,
    Status,
    Turn,
    Wait,
)
from cdcd.engine.engine import Engine, EngineSettings, ExportedTables, first_flush
from cdcd.engine.queue import Batch
from cdcd.errors import PositionError, TransientError
from cdcd.facts import Fact
from cdcd.protocol.frames import read_status
from cdcd.protocol.lsn import Lsn
from cdcd.records.envelope import EnvelopeSettings
from cdcd.records.formats.debezium_json import DebeziumJsonEncoder
from cdcd.records.formats.snapshot_rows import SnapshotEncoder
from cdcd.snapshots.beginning import begin, first_tables, initial
from cdcd.snapshots.progress import Progress
from cdcd.transactions.position import Checkpoint, Position, resume
from cdcd.transactions.spool import Spool
from tests.sim.asking import Asker
from tests.sim.broker import Broker, BrokerError
from tests.sim.client import TYPES
from tests.sim.complete import Completeness
from tests.sim.expected import TOPIC_PREFIX, PromiseBrokenError
from tests.sim.oracle import Oracle
from tests.sim.postgres import Connection, Postgres
from tests.sim.settings import Settings
from tests.sim.sink import Sink
from tests.sim.walsender import Options

if TYPE_CHECKING:
    from tests.sim.instance import Instance

UNIX_US: Final = 1_700_000_000_000_000
"""The wall clock when the simulation begins."""

ACTIONS_AT_ONCE: Final = 6

JUDGE_AGAIN_TICKS: Final = 20


Tables = Mapping[int, str]
FirstTables = Callable[[Tables, Tables, Tables | None], tuple[Tables, Tables]]


class StoppedError(Exception):
    """The session ended as it was asked to."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The classes under test; a planted bug replaces one of them."""

    engine: engines.Parts = field(default_factory=engines.Parts)
    position: type[Position] = Position
    sink: type[Sink] = Sink
    asker: type[Asker] = Asker
    first_tables: FirstTables = first_tables


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
        self.ledger = parts.engine.ledger(instance.flushed)
        self.sink = parts.sink(
            around.broker, around.rng, self._prove_ownership, exactly_once=settings.exactly_once
        )
        self.spool = Spool(around.spool_directory, settings.spool_memory_max)
        self.asker = parts.asker(settings, around.rng, around.postgres)
        self.asker.healthy = around.healthy
        self.connection: Connection | None = None
        self.engine: Engine | None = None
        self.options: Options | None = None
        self.topics: set[str] = set()
        self._tasks: list[Iterator[None]] = []
        self._shipping: Iterator[None] | None = None
        self._lock_lost = False
        self._opening: Iterator[None] | None = self._open()

    @property
    def flushed(self) -> int:
        return self.ledger.flushed

    def close(self) -> None:
        if self.engine is not None:
            self.engine.assembler.close()
        assert not self.spool.memory_bytes, "the spool is empty"
        assert not self.spool.disk_bytes, "the spool is empty"

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
        if self.engine is None or self._shipping is not None:
            return False
        progress = self.engine.incremental.progress
        return (progress.is_done or progress.paused) and (
            (self.engine.checkpoint.snapshot or Progress()) == progress
        )

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

    # The start, in the order of daemon/startup.py.

    def _prove_ownership(self) -> None:
        postgres = self.around.postgres
        if not postgres.up or postgres.lock_holder is not self.instance:
            raise TransientError("the advisory lock is lost")

    def _open(self) -> Iterator[None]:
        postgres, settings, instance = self.around.postgres, self.settings, self.instance
        while not postgres.lock(instance):
            yield
        # Nobody is fenced before it is known that we could go on.
        yield from self._judge()
        found = yield from self.sink.open()
        source = postgres.source()
        resume(found, source, accept_gap=False)
        yield
        published = self.asker.client.published()
        beginning = begin(
            settings.snapshot_mode,
            None if found is None else found.snapshot,
            has_checkpoint=found is not None,
            has_gap=False,
        )
        exported: ExportedTables | None = None
        if source.slot_confirmed is None:
            export = beginning.initial and settings.snapshot_method == "exported"
            yield from self._create_slot()
            source = postgres.source()
            yield
            if export:
                exported = yield from self._export()
            else:
                postgres.release(instance)
        yield
        before, published = published, self.asker.client.published()
        yield
        progress = beginning.progress
        if beginning.initial:
            names = None if exported is None else exported.names()
            first, later = self.parts.first_tables(before, published, names)
            progress = initial(progress, first, (), exported=exported is not None, later=later)
            # Also in the publication, but in no list before the slot was there: it belongs to the first tables.
            self.around.complete.initial = {**before, **published, **(names or {})}
        start = resume(found, source, accept_gap=False)
        if not settings.exactly_once:
            start = replace(start, epoch=start.epoch + 1)
        snapshot = None if progress == Progress() else progress
        position = start.position
        position = self.parts.position(position.commit_lsn, position.end_lsn, position.events_done)
        start = replace(start, position=position, snapshot=snapshot)
        if start != found:
            yield from self.sink.deliver(Batch(position, position, snapshot=snapshot), start)
        yield
        self._build(start, source.slot_confirmed or 0, published, exported)
        if exported is None:
            self._begin()
        instance.say(f"goes on from {Lsn(source.slot_confirmed or 0)}, {position}, {self.options}")

    def _judge(self) -> Iterator[None]:
        for left in (2, 1, 0):
            source = self.around.postgres.source()
            yield
            peeked = yield from self._peek()
            try:
                resume(peeked, source, accept_gap=False)
            except PositionError:
                if not left:
                    raise
                for _ in range(JUDGE_AGAIN_TICKS):
                    yield
            else:
                return

    def _peek(self) -> Generator[None, None, Checkpoint | None]:
        broker = self.around.broker
        try:
            yield from broker.read_checkpoint()
        except BrokerError as error:
            raise TransientError("the broker does not answer") from error
        read = broker.checkpoint
        return None if read is None else Checkpoint.decode(read, "the checkpoint topic")

    def _create_slot(self) -> Iterator[None]:
        postgres = self.around.postgres
        postgres.request_slot(self.instance)
        while not postgres.slot_is_made(self.instance, two_phase=self.instance.two_phase):
            yield

    def _export(self) -> Generator[None, None, ExportedTables]:
        yield from self.asker.delay()
        tables = self.around.postgres.exported_tables()
        yield from self.asker.delay()
        oids = [table.oid for table in tables]
        descriptions = self.asker.client.describe(oids)
        return ExportedTables({table.oid: table for table in tables}, descriptions, TYPES)

    def _build(
        self, start: Checkpoint, confirmed: int, published: dict[int, str], exported: ExportedTables | None
    ) -> None:
        settings, parts = self.settings, self.parts
        self.ledger = parts.engine.ledger(first_flush(self.ledger.flushed, start, confirmed))
        self.options = Options(
            streaming="off" if self.instance.unstreamed_until else self.rng.choice(settings.streaming),
            two_phase=self.instance.two_phase,
            work_mem=int(self.rng.random() * (settings.work_mem_max + 1)),
        )
        envelope = EnvelopeSettings("0", TOPIC_PREFIX, "db", truncate=settings.truncate_records)
        encoder = DebeziumJsonEncoder(envelope)
        assembler = parts.engine.assembler(
            self.ledger, self.spool, start.position, encoder.draft_all, abort_info=self.options.abort_info
        )
        self.engine = Engine(
            EngineSettings(
                name=self.settings.pipeline,
                bytes_max=settings.batch_bytes_max,
                records_max=settings.batch_records_max,
                queue_bytes_max=settings.queue_bytes_max,
                whole_bytes_max=settings.whole_bytes_max if settings.exactly_once else 0,
                status_interval_s=settings.status_interval_s,
                chunk_bytes=settings.chunk_bytes,
                parallelism=settings.parallelism,
                snapshot_mode=settings.snapshot_mode,
                added_tables=settings.added_tables,
                signals=settings.signals,
                truncate=settings.truncate_records,
            ),
            start,
            assembler=assembler,
            ledger=self.ledger,
            encoder=encoder,
            rows=SnapshotEncoder(envelope),
            published=published,
            observe=self.around.observe,
            now=self.around.now,
            exported=exported,
            unstreamed_until=self.instance.unstreamed_until,
            parts=parts.engine,
        )

    def _begin(self) -> None:
        """START_REPLICATION, which ends the exported snapshot."""
        assert self.options is not None
        assert self.engine is not None
        postgres = self.around.postgres
        postgres.release(self.instance)
        self.connection = postgres.start_replication(self.instance, self.options)
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
                self.engine.frames_received(frames, self.around.now)

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
        if self.settings.exactly_once and bound is not None and flushed > bound:
            raise PromiseBrokenError(f"told {Lsn(flushed)}, the checkpoint says at most {Lsn(bound)}")
        self.connection.send(action.data)

    def _bound(self) -> int | None:
        read = self.around.broker.checkpoint
        return None if read is None else Checkpoint.decode(read, "").flushed_lsn

    def _start_shipping(self, action: Ship) -> None:
        assert self._shipping is None, "one batch at a time"
        self._within_bound(action)
        self._shipping = self._deliver(action)

    def _within_bound(self, action: Ship) -> None:
        """G12: the checkpoint record stays small, whatever is asked for."""
        size = len(action.checkpoint.encode())
        if size > self.settings.checkpoint_bytes_max:
            raise AssertionError(f"G12: a checkpoint of {size} bytes")

    def _deliver(self, action: Ship) -> Iterator[None]:
        assert self.engine is not None
        for _ in self.sink.deliver(action.batch, action.checkpoint):
            if self.instance.in_delivery is not None and self.rng.random() < 0.3:
                self.instance.in_delivery()
            yield
        self.engine.delivered(action.batch, self.around.now)

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
        description = client.describe([oid])[oid]
        if not description.has_columns_of(action.relation):
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
        self.topics.update(action.topics)
        self.engine.topics_ready(action.topics, self.around.now)

    def _ask(self, action: Ask) -> None:
        self._tasks.append(self._answered(action))

    def _answered(self, action: Ask) -> Iterator[None]:
        assert self.engine is not None
        answer = yield from self.asker.ask(action.question)
        self.engine.answered(action.ticket, answer, self.around.now)

    def _start_stream(self, action: Begin) -> None:
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


ACTIONS: Final[dict[type[Action], Callable[[Session, Any], None]]] = {
    Ship: Session._start_shipping,
    Status: Session._send,
    Describe: Session._describe,
    EnsureTopics: Session._ensure_topics,
    Begin: Session._start_stream,
    Ask: Session._ask,
    Turn: Session._turn,
    End: Session._end,
}
