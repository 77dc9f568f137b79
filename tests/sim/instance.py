"""One daemon process: sessions one after the other, as `cdcd.daemon.supervisor` has them, and the ways to end it."""

from collections.abc import Callable
from typing import Final

from cdcd.engine.ending import StreamingAgainError
from cdcd.errors import FencedError, SinkError, TransientError, WithoutStreamingError
from cdcd.protocol.lsn import Lsn
from tests.sim.postgres import ConnectionLostError
from tests.sim.session import Parts, Session, StoppedError, Surroundings

BACKOFF_TICKS: Final = 8
RESTART_TICKS: Final = 30


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
        self.session: Session | None = None
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
            self.session = Session(self, self.parts, self.around)
        try:
            self.session.step()
        except WithoutStreamingError as error:
            self.say(f"streams no more until {Lsn(error.commit_lsn)}")
            self.unstreamed_until = error.commit_lsn
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

    def stop(self) -> None:
        """SIGTERM."""
        if self.session is None or not self.session.stop():
            if self.session is not None:
                self.session.leave(None)
            self.kill()

    def kill(self) -> None:
        """All memory is lost; a service manager starts the process again."""
        self._end_session()
        self._start_process()
        self._wait = int(self.around.rng.random() * RESTART_TICKS)

    def abandon(self) -> None:
        """The simulation is over, perhaps in the middle of something."""
        if self.session is not None:
            self.session.spool.close()

    def _end_session(self) -> None:
        if self.session is not None:
            self.around.counted_rows += self.session.counted_rows
            self.session.close()
            self.flushed = max(self.flushed, self.session.flushed)
            self.session = None
        self.around.postgres.drop(self)

    def say(self, text: str) -> None:
        if self.around.log is not None:
            self.around.log(f"{self.name}: {text}")
