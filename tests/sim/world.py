"""One seed: who moves next, what breaks, and that everything comes to rest as promised."""

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any, Final

from cdcd.core.engine.checkpoint import Checkpoint
from cdcd.core.errors import PositionError, WithheldError
from cdcd.core.facts import Fact
from cdcd.core.facts.start import GapAccepted
from cdcd.core.facts.tables import TableLeft, TableReplaced, TableResumed, TableSetAside
from cdcd.core.protocol.lsn import Lsn
from tests.sim.aside import AsideSeen
from tests.sim.broker import Broker
from tests.sim.changed_settings import ChangedSettings
from tests.sim.complete import Completeness
from tests.sim.database import Transaction
from tests.sim.descriptions import DescriptionsSeen
from tests.sim.disk import Disk
from tests.sim.expected import PromiseBrokenError
from tests.sim.fold import Fold
from tests.sim.healed import HealedSeen
from tests.sim.instance import Instance
from tests.sim.oracle import Oracle
from tests.sim.postgres import NEVER, Postgres
from tests.sim.protected import ProtectedSeen
from tests.sim.requests import PREFIX, RESUME
from tests.sim.session import TICK_S, Parts, Session, Surroundings
from tests.sim.settings import RESTARTS, draw
from tests.sim.spooling import SpoolSession

QUIET_TICKS_MAX: Final = 20_000
"""After the last fault, everything must have arrived and been confirmed within this."""

LOCK_TICKS_MAX: Final = 4_000
"""Likewise, everything that a locked table must not hold up."""

REST_TICKS: Final = 160
"""So long nothing must move: within it the publication is looked at once more."""

RENAMED_REST_TICKS: Final = 260
"""Likewise, and once again: a table with another name is described first, and added then."""

AFTERSHOCK_TICKS: Final = 40
"""So long after a fault another restart is more likely: some bugs need two in a row."""

ORDINARY: Final = Parts()


class World:
    """All models, one random number generator, and the clock.

    Args:
        focus: settings that do not depend on the seed.
    """

    def __init__(
        self,
        seed: int,
        spool_directory: str,
        parts: Parts = ORDINARY,
        log: Callable[[str], None] | None = None,
        focus: Mapping[str, Any] | None = None,
    ) -> None:
        self.rng = Random(seed)
        self.settings = draw(self.rng, focus)
        settings = self.settings
        self.oracle = Oracle(
            exactly_once=settings.exactly_once,
            truncates=settings.truncate_records,
            skipped=settings.skipped,
            left_out=settings.left_out,
            metadata=settings.metadata,
            filters=settings.filters,
            parted=settings.parted,
            routes=settings.routes,
            shared=settings.shared,
            message_bytes_max=settings.message_bytes_max,
            whole_bytes=settings.whole_bytes_max,
            part_records=settings.batch_records_max,
            part_bytes=settings.part_bytes,
        )
        self.postgres = Postgres(settings, self.rng, self.oracle)
        self.database = self.postgres.workload.database
        self.oracle.fold = Fold(
            self.database,
            strict=settings.exactly_once,
            filters=settings.filters,
            routes=settings.routes,
        )
        if settings.heals:
            self.oracle.healed = HealedSeen(self.oracle.fold)
        self.oracle.fold.partitions = self.oracle.partitions
        if settings.sets_aside:
            self.oracle.aside = self.oracle.fold.aside = AsideSeen()
        self.oracle.durable = settings.durable
        if settings.protected:
            self.oracle.protected = ProtectedSeen(self.database)
        if settings.described:
            self.oracle.descriptions = DescriptionsSeen(self.database.columns)
        self.postgres.workload.populate(settings.rows)
        if settings.slot_exists:
            self.postgres.make_slot(two_phase=settings.two_phase == "on")
        self.complete = Completeness(settings, self.postgres.workload)
        self.broker = Broker(settings, self.rng, self.oracle)
        self.around = Surroundings(
            settings,
            self.rng,
            self.postgres,
            self.broker,
            self.oracle,
            spool_directory,
            log,
            two_phase_from=int(self.rng.random() * 600),
            observe=self._observe,
            complete=self.complete,
            changed=ChangedSettings(seed),
            disk=_disk(spool_directory, self.rng) if settings.durable else None,
        )
        self.instances = [Instance("A", parts, self.around), Instance("B", parts, self.around)]
        self._later: list[tuple[int, Callable[[], None]]] = []
        self.broker.dies = self._take_broker_away
        self._shaking_until = 0
        if settings.locked:
            self._in(1, 40, self._lock_tables)
        self.withheld = False
        """True if an instance ended because it could not identify the protected column."""
        self.gaps = 0
        """Number of gaps that were accepted after the slot was lost."""
        self.refused = False
        """It ended with what a person must decide: the slot was moved."""

    def _observe(self, fact: Fact) -> None:
        if self.around.log is not None:
            self.around.log(f"    {fact}")
        if self.oracle.aside is not None:
            if isinstance(fact, TableSetAside):
                self.oracle.aside.set_aside(fact.oid, Lsn.parse(fact.lsn))
                self._kill_in_fault()
            elif isinstance(fact, TableResumed):
                self.oracle.aside.returned(fact.oid, fact.table, Lsn.parse(fact.lsn))
            elif isinstance(fact, TableLeft):
                self.oracle.aside.left[fact.oid] = Lsn.parse(fact.lsn)
            elif isinstance(fact, TableReplaced) and self._is_published(fact.oid):
                self.oracle.aside.published_again(fact.oid, fact.table)
        if isinstance(fact, GapAccepted):
            self.gaps += 1
            self.oracle.accept_gap(self.postgres.confirmed)
        self.complete.observe(fact)
        self.around.changed.observe(fact)
        self.complete.must_be_delivered(fact, self.broker.acknowledged)

    def _is_published(self, oid: int) -> bool:
        definition = self.database.definitions.get(oid)
        return definition is not None and definition.published

    def run(self) -> None:
        """Raises PromiseBrokenError, or whatever the product raises, when a promise is broken."""
        try:
            self._live()
            self._heal()
            self._come_to_rest()
        except WithheldError:
            if not self.settings.protected:
                raise
            self.withheld = True
        except PositionError:
            # It must say so when somebody moved the slot past what it had confirmed, and only then.
            checkpoint = self._checkpoint()
            if (
                self.settings.durable
                or checkpoint is None
                or self.postgres.confirmed <= checkpoint.flushed_lsn
            ):
                raise
            self.refused = True
        finally:
            for instance in self.instances:
                instance.abandon()

    def _live(self) -> None:
        settings, rng, postgres = self.settings, self.rng, self.postgres
        if self.around.log is not None:
            self.around.log(str(settings))
        operations = settings.operations
        while operations:
            if postgres.up and postgres.stopping_since < 0 and rng.random() < settings.p_workload:
                postgres.workload.step()
                operations -= 1
            if settings.faults and rng.random() < settings.p_fault:
                self._break(rng.choice(settings.faults))
            elif self.around.ticks < self._shaking_until and rng.random() < settings.p_aftershock:
                self._break(rng.choice(RESTARTS))
            self._tick()

    def _tick(self) -> None:
        around, rng = self.around, self.rng
        around.ticks += 1
        around.now += TICK_S
        if self._later:
            due = [action for at, action in self._later if at <= around.ticks]
            self._later = [one for one in self._later if one[0] > around.ticks]
            for action in due:
                action()
        if self.postgres.up and self.postgres.step(around.ticks):
            self._in(5, 60, self.postgres.start)
        self.broker.step()
        first, second = self.instances
        for _ in range(2):
            first.step()
        if rng.random() < 0.2 or self.postgres.lock_holder is second:
            second.step()
        if self.settings.exactly_once:
            around.changed.look(self.broker.acknowledged)
            self._compare_notes()

    # Somebody who has locked tables.

    def _lock_tables(self) -> None:
        if not self.postgres.workload.lock_tables(self.settings.locked) and not self.around.healthy:
            self._in(1, 5, self._lock_tables)

    def _read_beside_the_lock(self, lock: Transaction) -> None:
        """All other tables are read, and everything is streamed, as long as the lock is held."""
        for _ in range(LOCK_TICKS_MAX):
            self._tick()
            session = self._active()
            left = None if session is None else session.tables_left()
            if left is not None and left <= lock.exclusive and self._all_is_confirmed():
                break
        else:
            raise PromiseBrokenError("a locked table holds up other tables, or the stream")
        self.postgres.workload.lock = None

    # Faults.

    def _in(self, least: int, most: int, action: Callable[[], None]) -> None:
        self._later.append((self.around.ticks + self.rng.randint(least, most), action))

    def _break(self, fault: str) -> None:
        if self.around.log is not None:
            self.around.log(f"--- {fault}")
        self._shaking_until = self.around.ticks + AFTERSHOCK_TICKS
        BREAKS[fault](self)

    def _kill_in_fault(self) -> None:
        """Kill the instance that has just set a table aside: now, or while the batch without the table goes out."""
        often = self.settings.p_kill_in_fault
        holder = self.postgres.lock_holder
        if often and not self.around.healthy and self.rng.random() < often:
            for instance in self.instances:
                if instance is holder:
                    self._in(0, 6, instance.kill)

    def _disconnect(self) -> None:
        self.postgres.disconnect()

    def _crash_daemon(self) -> None:
        self._somebody().kill()

    def _crash_machine(self) -> None:
        """Both instances end, and what was not synced is gone."""
        for instance in self.instances:
            instance.kill()
        if self.around.disk is not None:
            self.around.disk.crash()

    def _stop_daemon(self) -> None:
        self._somebody().stop()

    def _somebody(self) -> Instance:
        """Mostly the one that is at work."""
        holder = self.postgres.lock_holder
        busy = [one for one in self.instances if one is holder]
        return busy[0] if busy and self.rng.random() < 0.8 else self.rng.choice(self.instances)

    def _crash_postgres(self) -> None:
        if self.postgres.up:
            self.postgres.crash()
            self._in(1, 40, self.postgres.start)

    def _shut_down_postgres(self) -> None:
        if self.postgres.up and self.postgres.stopping_since < 0:
            self.postgres.shut_down(self.around.ticks)

    def _freeze(self) -> None:
        """An instance stands still for longer than the server waits for it, which lets another one take over.

        When it wakes up, fencing stops it (G7), which at_least_once does not have: there it may put an older
        checkpoint over a newer one.
        """
        instance = self._somebody()
        if instance.frozen or not self.settings.exactly_once:
            return
        if self.rng.random() < 0.5:
            self._freeze_now(instance)
        else:
            # Where it hurts most: with a Kafka transaction in its hands.
            instance.in_delivery = lambda: self._freeze_now(instance)

    def _freeze_now(self, instance: Instance) -> None:
        instance.in_delivery = None
        instance.frozen = True
        self._in(1, 40, lambda: self.postgres.drop(instance))
        self._in(20, 300, lambda: self._wake(instance))

    def _wake(self, instance: Instance) -> None:
        instance.frozen = False

    def _take_broker_away(self) -> None:
        self.broker.away = True
        self._in(5, self.settings.away_ticks_max, self._bring_broker_back)

    def _bring_broker_back(self) -> None:
        self.broker.away = False

    def _move_slot(self) -> None:
        """Between two processes; how far, nobody knows. What `resume` then lets pass must be harmless.

        A slot that begins to decode at PREPARE is left alone: the checkpoint is from before, when no PREPARE counted.
        """
        checkpoint = self._checkpoint()
        ahead = [record.end for record in self.postgres.wal.records[-12:]]
        if (
            self.postgres.up
            and self.postgres.slot
            and checkpoint is not None
            and ahead
            and self.settings.two_phase != "later"
        ):
            self.instances[0].kill()
            self.instances[1].kill()
            helpful = checkpoint.position.end_lsn
            target = helpful if self.rng.random() < 0.7 else self.rng.choice(ahead)
            if self.settings.snapshot_mode == "when_needed":
                # Past the checkpoint, the tables are read again, and the changes that the slot lost never come.
                target = min(target, helpful)
            self.postgres.move_slot(target)

    def _lose_slot(self) -> None:
        """Drop the slot, or move it past the checkpoint, while no instance runs, so that changes are lost."""
        checkpoint = self._checkpoint()
        if not self.postgres.up or not self.postgres.slot or checkpoint is None:
            return
        self.instances[0].kill()
        self.instances[1].kill()
        ahead = [
            record.end for record in self.postgres.wal.records if record.end > checkpoint.position.end_lsn
        ]
        if ahead and self.rng.random() < 0.5:
            self.postgres.move_slot(self.rng.choice(ahead))
        else:
            self.postgres.lose_slot()

    def _compare_notes(self) -> None:
        """The schemas topic and the checkpoint always name the same tables that are set aside."""
        oracle = self.oracle
        if oracle.aside is not None and oracle.descriptions is not None:
            checkpoint = self._checkpoint()
            oracle.descriptions.compare(() if checkpoint is None else checkpoint.tables)

    def _checkpoint(self) -> Checkpoint | None:
        read = self.broker.acknowledged
        return None if read is None else Checkpoint.decode(read, "")

    def _persist(self) -> None:
        self.postgres.persist()

    # The end.

    def _heal(self) -> None:
        self.broker.healthy = self.around.healthy = True
        for instance in self.instances:
            if isinstance(instance.session, Session):
                instance.session.asker.healthy = True
        self.settings.ask_ticks_max = 3
        self.settings.p_decode = 1.0
        self.settings.receive_max = 30
        self._bring_broker_back()
        self.broker.tell_partitions()
        for instance in self.instances:
            self._wake(instance)
            instance.in_delivery = None
        while not self.postgres.up or self.postgres.stopping_since >= 0 or self._later:
            for _, action in self._later:
                action()
            self._later.clear()
            self._tick()
        self.postgres.workload.finish()
        if self.settings.messages:
            self.postgres.workload.emit_in_transaction(PREFIX, RESUME)

    def _come_to_rest(self) -> None:
        """Everything is decided: all of it arrives, and the slot holds no WAL back (G6)."""
        postgres, oracle = self.postgres, self.oracle
        if postgres.workload.lock is not None:
            self._read_beside_the_lock(postgres.workload.lock)
        kill = self.rng.random() < 0.3
        quiet = 0
        renamed = {"swap", "rename", "replace", "drop"} & set(self.settings.ddl)
        rest_ticks = RENAMED_REST_TICKS if renamed else REST_TICKS
        for _ in range(QUIET_TICKS_MAX):
            self._tick()
            if kill and postgres.confirmed < postgres.wal.end and self._kafka_is_complete():
                # What Kafka has, PostgreSQL must still hear, though no more WAL is written.
                kill = False
                self._crash_daemon()
            quiet = quiet + 1 if self._is_at_rest() else 0
            if quiet > rest_ticks:
                if oracle.aside is None or oracle.aside.mended:
                    break
                # Now nothing is at fault any more, and somebody asks for the tables.
                oracle.aside.mended = True
                for request in oracle.aside.requests(self.database.definitions):
                    postgres.workload.emit_in_transaction(PREFIX, request)
                quiet = 0
        else:
            self._stalled()
        oracle.finish()
        if self.settings.heartbeat_s and oracle.heartbeats.last < postgres.confirmed:
            raise PromiseBrokenError("heartbeats do not come up to what was confirmed")
        sessions = [one.session for one in self.instances if one.session is not None]
        oracle.count(self.around.counted_rows + sum(each.counted_rows for each in sessions))
        session = self._active()
        if session is None or not session.is_quiet:
            raise PromiseBrokenError("something is left open")
        if oracle.aside is not None and isinstance(session, Session) and session.engine is not None:
            kept = session.engine.fates.aside.keys() - session.asker.published().keys()
            if kept:
                raise PromiseBrokenError(f"G13: tables that were dropped are set aside for ever: {kept}")
        assert oracle.fold is not None
        for table in self.database.definitions.values():
            if self.complete.must_be_equal(table):
                oracle.fold.compare(table, self.database.transactions.snapshot())

    def _active(self) -> Session | SpoolSession | None:
        holder = self.postgres.lock_holder
        return next((one.session for one in self.instances if one is holder), None)

    def _is_at_rest(self) -> bool:
        if not self._all_is_confirmed():
            return False
        session = self._active()
        return session is not None and session.is_settled

    def _all_is_confirmed(self) -> bool:
        return self.postgres.confirmed == self.postgres.wal.end and self._all_is_received()

    def _all_is_received(self) -> bool:
        """The last life may still be receiving again what the one before it had delivered."""
        connection = self.postgres.connection
        return connection is not None and connection.walsender.caught_up and not connection.walsender.out

    def _kafka_is_complete(self) -> bool:
        checkpoint = self._checkpoint()
        return checkpoint is not None and checkpoint.position.end_lsn == self.postgres.wal.end

    def _stalled(self) -> None:
        oracle, postgres, session = self.oracle, self.postgres, self._active()
        raise PromiseBrokenError(
            f"stalled: {oracle.delivered} of {len(oracle.expected)} records, slot at {postgres.confirmed:X} of "
            f"{postgres.wal.end:X}, "
            f"two_phase_at {'never' if postgres.two_phase_at == NEVER else postgres.two_phase_at}; "
            f"{'nobody is active' if session is None else session.describe()}"
        )


def _disk(spool_directory: str, rng: Random) -> Disk:
    return Disk(Path(tempfile.mkdtemp(prefix="log", dir=spool_directory)), rng)


BREAKS: Final[dict[str, Callable[[World], None]]] = {
    "disconnect": World._disconnect,
    "crash_daemon": World._crash_daemon,
    "crash_machine": World._crash_machine,
    "stop_daemon": World._stop_daemon,
    "crash_postgres": World._crash_postgres,
    "shutdown_postgres": World._shut_down_postgres,
    "freeze": World._freeze,
    "broker_away": World._take_broker_away,
    "persist_slot": World._persist,
    "move_slot": World._move_slot,
    "lose_slot": World._lose_slot,
}
