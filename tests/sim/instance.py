"""One daemon process: lives of the pipeline one after the other, joined as `cdcd.daemon` joins them.

`opening.py` is `_open`, `intake.py` and `pipeline.py` the rest, `supervisor.py` the loop around it. Reading and
shipping are generators, so that each can stand still where the real ones await, while feedback and the others go on.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from cdcd.errors import FencedError, TransientError
from cdcd.protocol.frames import write_frame
from cdcd.protocol.lsn import Lsn
from cdcd.protocol.messages import Relation
from cdcd.records.envelope import EnvelopeSettings
from cdcd.records.formats.debezium_json import DebeziumJsonEncoder
from cdcd.records.relations import BUILTIN_TYPES, TableDescription
from cdcd.transactions.assembler import Assembler
from cdcd.transactions.batches import Batch, Batches
from cdcd.transactions.drafts import events
from cdcd.transactions.feedback import Feedback
from cdcd.transactions.ledger import Ledger
from cdcd.transactions.open_transactions import UndecidableMessageError
from cdcd.transactions.position import Checkpoint, Position, resume
from cdcd.transactions.spool import Spool
from cdcd.transactions.steps import (
    Changes,
    Closed,
    Described,
    Foretold,
    Heard,
    Opened,
    Originated,
    RolledBack,
    Standalone,
    Step,
    Undecided,
)
from tests.sim.broker import Broker
from tests.sim.catalog import MOOD, MOOD_TYPE
from tests.sim.expected import TOPIC_PREFIX, PromiseBrokenError
from tests.sim.oracle import Oracle
from tests.sim.postgres import NEVER, Connection, ConnectionLostError, Postgres
from tests.sim.settings import RECORD_BYTES, Settings
from tests.sim.sink import Sink
from tests.sim.walsender import Options

KEEPALIVE_BYTES: Final = 18
GRACE_TICKS: Final = 300
"""How long a life goes on after it heard of a fast shutdown."""

TYPES: Final = {**BUILTIN_TYPES, MOOD: MOOD_TYPE}

BACKOFF_TICKS: Final = 8
RESTART_TICKS: Final = 30


class StoppedError(Exception):
    """A process ended, as it was asked to or because its configuration is of yesterday."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The classes under test; a planted bug replaces one of them."""

    assembler: type[Assembler] = Assembler
    ledger: type[Ledger] = Ledger
    batches: type[Batches] = Batches
    feedback: type[Feedback] = Feedback
    position: type[Position] = Position
    sink: type[Sink] = Sink


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
    now: float = 0.0
    ticks: int = 0


class Instance:
    """A process. `step` moves it on; `kill` ends it and `frozen` stops it, both at any moment.

    `in_delivery` is called, if it is set, at some moment while a batch is on its way to Kafka.
    """

    def __init__(self, name: str, parts: Parts, around: Surroundings) -> None:
        self.name = name
        self.parts = parts
        self.around = around
        self.frozen = False
        self.lives = 0
        self.in_delivery: Callable[[], None] | None = None
        self._start_process()

    def _start_process(self) -> None:
        self.flushed = 0
        self.unstreamed_until = 0
        self.life: Life | None = None
        self._wait = 0
        self.two_phase = self.around.settings.two_phase == "on" or (
            self.around.settings.two_phase == "later" and self.around.ticks >= self.around.two_phase_from
        )

    def step(self) -> None:
        if self.frozen:
            return
        if self._wait:
            self._wait -= 1
            return
        if self.life is None:
            self.lives += 1
            self.life = Life(self, self.parts, self.around)
        try:
            self.life.step()
        except UndecidableMessageError as error:
            self._say(f"streams no more until {Lsn(error.commit_lsn)}")
            self.unstreamed_until = error.commit_lsn
            self._end_life()
        except (ConnectionLostError, TransientError) as error:
            self._say(f"life ends: {error!r}")
            self._end_life()
            self._wait = int(self.around.rng.random() * BACKOFF_TICKS)
        except (FencedError, StoppedError) as error:
            self._say(f"process ends: {error!r}")
            self.kill()

    def stop(self) -> None:
        """SIGTERM."""
        if self.life is not None and self.life.connection is not None:
            self.life.draining = True
        else:
            self.kill()

    def kill(self) -> None:
        """All memory is lost; a service manager starts the process again."""
        self._end_life()
        self._start_process()
        self._wait = int(self.around.rng.random() * RESTART_TICKS)

    def abandon(self) -> None:
        """The simulation is over, perhaps in the middle of something."""
        if self.life is not None:
            self.life.spool.close()

    def _end_life(self) -> None:
        if self.life is not None:
            self.life.close()
            self.flushed = max(self.flushed, self.life.ledger.flushed)
            self.life = None
        self.around.postgres.drop(self)

    def _say(self, text: str) -> None:
        if self.around.log is not None:
            self.around.log(f"{self.name}: {text}")


class Life:
    """From the advisory lock to the end of the connection."""

    def __init__(self, instance: Instance, parts: Parts, around: Surroundings) -> None:
        settings = around.settings
        self.instance = instance
        self.parts = parts
        self.around = around
        self.settings = settings
        self.rng = around.rng
        self.ledger = parts.ledger(instance.flushed)
        self.sink = parts.sink(
            around.broker, around.rng, self._prove_ownership, exactly_once=settings.exactly_once
        )
        self.spool = Spool(around.spool_directory, settings.spool_memory_max)
        self.connection: Connection | None = None
        self.assembler: Assembler | None = None
        self.encoder = DebeziumJsonEncoder(EnvelopeSettings("0", TOPIC_PREFIX, "db", truncate=settings.truncate_records))
        self.draining = False
        self._delivering = False
        self._grace = -1
        self._opening: Iterator[None] | None = self._open()
        self._reading = self._read()
        self._shipping = self._ship()

    @property
    def now_us(self) -> int:
        return int(self.around.now * 1_000_000)

    def close(self) -> None:
        if self.assembler is not None:
            self.assembler.close()
        assert not self.spool.memory_bytes, "the spool is empty"
        assert not self.spool.disk_bytes, "the spool is empty"

    @property
    def is_quiet(self) -> bool:
        """Nothing is kept, and nothing is owed."""
        assembler = self.assembler
        kept = assembler is not None and (assembler.streamed_open or assembler.prepared_open)
        return not (kept or self.ledger.open_entries or len(self.spool))

    def step(self) -> None:
        """One task moves on."""
        if self._opening is not None:
            try:
                next(self._opening)
            except StopIteration:
                self._opening = None
            return
        if self.draining:
            self._drain()
            return
        draw = self.rng.random()
        if draw < 0.5:
            next(self._reading)
        elif draw < 0.85:
            next(self._shipping)
        else:
            self.tell()
            self._watch_lock()

    def _drain(self) -> None:
        """SIGTERM: finish what is on its way to Kafka, and say so."""
        if self._delivering:
            next(self._shipping)
        else:
            self.feedback.ask()
            self.tell()
            raise StoppedError

    # opening.py

    def _prove_ownership(self) -> None:
        postgres = self.around.postgres
        if not postgres.up or postgres.lock_holder is not self.instance:
            raise TransientError("the advisory lock is lost")

    def _open(self) -> Iterator[None]:
        postgres, settings, instance = self.around.postgres, self.settings, self.instance
        while not postgres.lock(instance):
            yield
        found = yield from self.sink.open()
        # Only now: before others were fenced, they could still move checkpoint and slot.
        source = postgres.source()
        if postgres.two_phase_at != NEVER and not instance.two_phase:
            raise StoppedError("the slot decodes at PREPARE, the configuration says otherwise")
        start = resume(found, source, accept_gap=False)
        position = start.position
        position = self.parts.position(position.commit_lsn, position.end_lsn, position.events_done)
        start = replace(start, position=position)
        if start != found:
            yield from self.sink.deliver(Batch(position, position), start)
        self.checkpoint = start
        self.ledger = self.parts.ledger(max(self.ledger.flushed, source.slot_confirmed or 0))
        options = Options(
            streaming="off" if instance.unstreamed_until else self.rng.choice(settings.streaming),
            two_phase=instance.two_phase,
            work_mem=int(self.rng.random() * (settings.work_mem_max + 1)),
        )
        self.assembler = self.parts.assembler(
            self.ledger, self.spool, position, abort_info=options.abort_info
        )
        self.feedback = self.parts.feedback(settings.status_interval_s, self.around.now)
        self.batches = self.parts.batches(
            position,
            bytes_max=settings.batch_bytes_max,
            records_max=settings.batch_records_max,
            queue_bytes_max=settings.queue_bytes_max,
            idle_s=settings.idle_s,
        )
        yield
        self.connection = postgres.start_replication(instance, options)
        instance._say(f"streams from {Lsn(source.slot_confirmed or 0)}, {position}, {options}")

    # intake.py, and reading in pipeline.py.

    def _read(self) -> Iterator[None]:
        assert self.connection is not None
        assert self.assembler is not None
        while True:
            while not self.batches.room:
                yield
            frames = self.connection.receive(1 + int(self.rng.random() * self.settings.receive_max))
            if frames:
                if any(len(frame) == KEEPALIVE_BYTES and frame[-1] for frame in frames):
                    self.feedback.ask()
                    self.tell()
                yield from self._take(self.assembler, frames)
            yield

    def _take(self, assembler: Assembler, frames: list[bytes]) -> Iterator[None]:
        for step in assembler.receive(frames):
            kind = type(step)
            if kind is Changes:
                self._changes(step)
                if self.rng.random() < 0.3:
                    yield
                while not self.batches.room:
                    yield
            else:
                HANDLERS[kind](self, step)

    def _changes(self, step: Step) -> None:
        assert isinstance(step, Changes)
        tail = self.batches.tail
        known = len(tail)
        self.encoder.encode_all(step.kept, step.in_stream, self.now_us, tail)
        self.batches.add((len(tail) - known) * RECORD_BYTES, events(step.kept))
        self.encoder.signals.clear()

    def _undecided(self, step: Step) -> None:
        assert isinstance(step, Undecided)
        step.kept = self.encoder.draft_all(step.kept, step.relations)

    def _foretold(self, step: Step) -> None:
        assert isinstance(step, Foretold)
        if not self.encoder.knows(step.message.oid):
            table = self._describe(step.message.oid)
            if table.has_columns_of(step.message):
                self.encoder.define(step.message, table, TYPES)

    def _describe(self, oid: int) -> TableDescription:
        table = self.around.postgres.workload.database.definitions.get(oid)
        return TableDescription() if table is None else table.description()

    def _opened(self, step: Step) -> None:
        assert isinstance(step, Opened)
        self.encoder.begin(step.xid, step.commit_lsn, step.commit_time, step.last_commit_lsn)
        if step.skip:
            self.encoder.skip(step.skip)
        self.batches.begin(step.commit_lsn, step.skip)

    def _originated(self, step: Step) -> None:
        assert isinstance(step, Originated)
        self.encoder.set_origin(step.name, step.lsn)

    def _closed(self, step: Step) -> None:
        assert isinstance(step, Closed)
        self.batches.close(step.commit_lsn, step.end_lsn, step.commit_time, step.tickets)

    def _rolled_back(self, step: Step) -> None:
        assert isinstance(step, RolledBack)
        self.batches.roll_back(step.end_lsn, step.tickets)

    def _described(self, step: Step) -> None:
        assert isinstance(step, Described)
        if isinstance(step.message, Relation):
            self.encoder.define(step.message, self._describe(step.message.oid), TYPES)

    def _standalone(self, step: Step) -> None:
        assert isinstance(step, Standalone)
        batches = self.batches
        batches.begin(step.lsn, 0)
        tail = batches.tail
        self.encoder.encode_message(step.frame, step.in_stream, step.last_commit_lsn, self.now_us, tail)
        self.encoder.signals.clear()
        batches.add(len(tail) * RECORD_BYTES, 1)
        batches.close(step.lsn, step.lsn + 1, None, (step.ticket,))

    def _heard(self, step: Step) -> None:
        assert isinstance(step, Heard)
        if step.idle:
            self.batches.advance(self.ledger, step.wal_end, asked=step.reply_requested)

    # pipeline.py: shipping, feedback, and the advisory lock.

    def _ship(self) -> Iterator[None]:
        batches = self.batches
        while True:
            due = batches.due_at(self.around.now)
            if due is None or due > self.around.now:
                yield
                continue
            batch = batches.take(self.around.now)
            self.ledger.send(batch.position.end_lsn)
            checkpoint = self.checkpoint.moved(batch.position, self.ledger.held_at(batch.tickets))
            self._delivering = True
            for _ in self.sink.deliver(batch, checkpoint):
                if self.instance.in_delivery is not None and self.rng.random() < 0.3:
                    self.instance.in_delivery()
                yield
            for ticket in batch.tickets:
                self.ledger.ack(ticket)
            batches.delivered(batch)
            self._delivering = False
            self.checkpoint = checkpoint
            if 0 < self.instance.unstreamed_until < batch.position.end_lsn:
                self.instance.unstreamed_until = 0
                raise TransientError("streaming is possible again")

    def tell(self) -> None:
        assert self.connection is not None
        ledger = self.ledger
        update = self.feedback.due(ledger.received, ledger.flushed, self.around.now, 0)
        if update is not None:
            self._within_bound(update.flushed)
            self.connection.send(write_frame(update))

    def _within_bound(self, flushed: int) -> None:
        """A start must be able to tell a slot that somebody moved from one that we moved.

        Without transactions, one that lost the lock may still put an older checkpoint over a newer one.
        """
        read = self.around.broker.checkpoint
        if (
            self.settings.exactly_once
            and read is not None
            and flushed > (bound := Checkpoint.decode(read, "").flushed_lsn)
        ):
            raise PromiseBrokenError(f"told {Lsn(flushed)}, the checkpoint says at most {Lsn(bound)}")

    def _watch_lock(self) -> None:
        postgres = self.around.postgres
        if postgres.stopping_since >= 0:
            # The lock's connection ended with 57P01.
            if self._grace < 0:
                self._grace = self.around.ticks
            if not self.ledger.open_entries or self.around.ticks - self._grace > GRACE_TICKS:
                self.feedback.ask()
                self.tell()
                raise TransientError("PostgreSQL is shutting down")
        elif postgres.lock_holder is not self.instance:
            raise TransientError("the advisory lock is lost")


HANDLERS: Final[dict[type[Step], Callable[[Life, Step], None]]] = {
    Opened: Life._opened,
    Originated: Life._originated,
    Described: Life._described,
    Closed: Life._closed,
    RolledBack: Life._rolled_back,
    Standalone: Life._standalone,
    Heard: Life._heard,
    Undecided: Life._undecided,
    Foretold: Life._foretold,
}
