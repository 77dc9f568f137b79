"""One daemon process: sessions one after the other, as `cdcd.daemon.supervisor` has them, and the ways to end it."""

from collections.abc import Callable
from typing import Final

from cdcd.core.engine.checkpoint import Checkpoint
from cdcd.core.engine.ending import LogDeliveredError, StreamingAgainError
from cdcd.core.engine.renewal import RenewalError
from cdcd.core.engine.spooling import may_begin
from cdcd.core.errors import FencedError, SinkError, TransientError, WithoutStreamingError
from cdcd.core.protocol.lsn import Lsn
from tests.sim.postgres import ConnectionLostError
from tests.sim.session import Parts, Session, StoppedError, Surroundings
from tests.sim.spooling import CannotSpoolError, KafkaBackError, SpoolSession

BACKOFF_TICKS: Final = 8
RESTART_TICKS: Final = 30

AWAY_TICKS: Final = 4
"""Ticks that Kafka is away before a process spools."""


class Instance:
    """A process. `step` moves it on; `kill` ends it and `frozen` stops it, both at any moment.

    `in_delivery` is called, if it is set, at some moment while a batch is on its way to Kafka.
    """

    def __init__(self, name: str, parts: Parts, around: Surroundings) -> None:
        self.name = name
        self.parts = parts
        self.around = around
        self.frozen = False
        self.sessions = 0
        self.in_delivery: Callable[[], None] | None = None
        self._start_process()

    def _start_process(self) -> None:
        self.flushed = 0
        self.unstreamed_until = 0
        self.session: Session | SpoolSession | None = None
        self.delivered: Checkpoint | None = None
        """The newest checkpoint that this process knows in Kafka, if a log may begin behind it."""
        self.records = self.around.changed.draw()
        self._cannot_spool = False
        self._away_ticks = 0
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
        if self.session is None:
            self.sessions += 1
            kind = SpoolSession if self._spools() else Session
            self.session = kind(self, self.parts, self.around)
        elif isinstance(self.session, Session) and self._spools():
            self.say("leaves Kafka alone")
            self._end_session()
            return
        try:
            self.session.step()
        except KafkaBackError:
            self.say("Kafka is back")
            self._end_session()
        except CannotSpoolError:
            self._cannot_spool = True
            self._end_session()
        except LogDeliveredError:
            self.say("a logged session is delivered")
            self._end_session()
        except WithoutStreamingError as error:
            self.say(f"streams no more until {Lsn(error.commit_lsn)}")
            self.unstreamed_until = error.commit_lsn
            self._end_session()
        except RenewalError:
            self.say("renews its connection")
            self._end_session()
        except StreamingAgainError:
            self.say("streams again")
            self.unstreamed_until = 0
            self._end_session()
        except (ConnectionLostError, TransientError) as error:
            self.say(f"session ends: {error!r}")
            lost = error if isinstance(error, TransientError) else TransientError("the connection is lost")
            self.session.leave(lost)
            self._end_session()
            self._wait = int(self.around.rng.random() * BACKOFF_TICKS)
        except (FencedError, SinkError, StoppedError) as error:
            self.say(f"process ends: {error!r}")
            self.session.leave(None if isinstance(error, StoppedError) else error)
            self.kill()

    def _spools(self) -> bool:
        """As the supervisor: Kafka has been away for a while, and there is something to go on from."""
        around = self.around
        if not around.broker.away:
            self._cannot_spool = False
            self._away_ticks = 0
            return False
        self._away_ticks += 1
        return around.settings.durable and not self._cannot_spool and self._away_ticks > AWAY_TICKS

    def _note_delivered(self) -> None:
        session = self.session
        if isinstance(session, Session) and session.engine is not None:
            engine = session.engine
            if may_begin(engine.checkpoint, all_is_read=engine.incremental.progress.is_done):
                self.delivered = engine.checkpoint

    def stop(self) -> None:
        """SIGTERM."""
        if self.session is None or not self.session.stop():
            if self.session is not None:
                self.session.leave(None)
            self.kill()

    def kill(self) -> None:
        """All memory is lost; a service manager starts the process again."""
        if self.session is not None:
            self.session.kill()
        self._end_session()
        self._start_process()
        self._wait = int(self.around.rng.random() * RESTART_TICKS)

    def abandon(self) -> None:
        """The simulation is over, perhaps in the middle of something."""
        if self.session is not None:
            self.session.abandon()

    def _end_session(self) -> None:
        if self.session is not None:
            self.around.counted_rows += self.session.counted_rows
            self._note_delivered()
            self.session.close()
            self.flushed = max(self.flushed, self.session.flushed)
            self.session = None
        self.around.postgres.drop(self)

    def say(self, text: str) -> None:
        if self.around.log is not None:
            self.around.log(f"{self.name}: {text}")
