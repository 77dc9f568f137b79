"""A session that has PostgreSQL and the durable log, and no Kafka: as `cdcd.daemon.spooling` carries it out."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from cdcd.adapters.durable.log import LogFiles, LogStoppedError
from cdcd.core.engine.logged import LogOwner, SpoolStart, start_spooling
from cdcd.core.engine.spooling import Spooling
from cdcd.core.errors import CdcdError, TransientError
from cdcd.core.protocol.lsn import Lsn
from tests.sim.postgres import NEVER, STREAM, SYSTEM_IDENTIFIER, Connection
from tests.sim.walsender import Options

if TYPE_CHECKING:
    from tests.sim.instance import Instance
    from tests.sim.session import Parts, Surroundings

OWNER: Final = LogOwner("sim", "simulated", SYSTEM_IDENTIFIER, 1, STREAM)

BYTES_MAX: Final = 20_000
SEGMENT_BYTES: Final = 2_000


class KafkaBackError(Exception):
    """Kafka answers again."""


class CannotSpoolError(Exception):
    """There is nothing to be done but to wait for Kafka."""


def open_log(parts: "Parts", around: "Surroundings") -> LogFiles:
    disk = around.disk
    assert disk is not None
    bytes_max = BYTES_MAX if around.settings.small_log else 1 << 40
    return parts.log(disk.folder, bytes_max, SEGMENT_BYTES, disk.sync)


class SpoolSession:
    """From the advisory lock to the return of Kafka."""

    def __init__(self, instance: "Instance", parts: "Parts", around: "Surroundings") -> None:
        self.instance = instance
        self.parts = parts
        self.around = around
        self.flushed = 0
        self.counted_rows = 0
        self.log: LogFiles | None = None
        self.connection: Connection | None = None
        self._spooling: Spooling | None = None
        self._run: Iterator[None] = self._all()

    def step(self) -> None:
        around = self.around
        if self.log is not None and not around.broker.away and around.rng.random() < 0.3:
            raise KafkaBackError
        next(self._run)
        spooling, connection = self._spooling, self.connection
        if spooling is not None and connection is not None:
            if around.postgres.lock_holder is not self.instance:
                raise TransientError("the advisory lock is lost")
            status = spooling.status(around.now, 1_700_000_000_000_000)
            if status is not None:
                connection.send(status)
                self.flushed = max(self.flushed, spooling.flushed)

    def _all(self) -> Iterator[None]:
        around, rng = self.around, self.around.rng
        postgres = around.postgres
        while not postgres.lock(self.instance):
            if not around.broker.away:
                raise KafkaBackError
            yield
        postgres.disconnect()
        yield
        if not postgres.slot or postgres.two_phase_at != NEVER:
            self.instance.say("does not spool: the slot is not one for it")
            raise CannotSpoolError
        options = Options("off", two_phase=False, work_mem=int(rng.random() * 5))
        connection = self.connection = postgres.start_replication(self.instance, options)
        yield
        log = self.log = open_log(self.parts, around)
        start = start_spooling(log.look(), OWNER, postgres.source().slot_confirmed, self.instance.delivered)
        if not isinstance(start, SpoolStart):
            self.instance.say(f"does not spool: {start}")
            raise CannotSpoolError
        log.remove(start.remove)
        yield
        try:
            log.begin(OWNER, start.begin, 0)
            yield
            spooling = self._spooling = Spooling(start.begin, around.settings.status_interval_s, around.now)
            self.instance.say(f"spools from {Lsn(start.begin)}")
            while True:
                frames = connection.receive(1 + int(rng.random() * around.settings.receive_max))
                if frames:
                    spooling.received(frames)
                    log.append(list(frames), 0)
                yield
                if rng.random() < 0.5:
                    spooling.synced(log.sync())
                yield
        except LogStoppedError as stopped:
            self.instance.say(f"the log is stopped: {stopped.reason}")
            raise CannotSpoolError from stopped

    # What a world asks of any session.

    def kill(self) -> None:
        """SIGKILL: what was written stays, nothing is closed in good order."""
        if self.log is not None:
            self.log.forget()

    def close(self) -> None:
        if self.log is not None:
            self.log.close()

    def abandon(self) -> None:
        self.close()

    def stop(self) -> bool:
        return False

    def leave(self, error: CdcdError | None) -> None:
        pass

    @property
    def is_quiet(self) -> bool:
        return False

    @property
    def is_settled(self) -> bool:
        return False

    def tables_left(self) -> set[int] | None:
        return None

    def describe(self) -> str:
        return "it spools"
