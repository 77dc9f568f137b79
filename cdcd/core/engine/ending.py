"""When a session ends and why: a failure, the shutdown of PostgreSQL, streaming that is possible again, or a request to
stop.

A session that delivers from the durable log also ends where the log ends.

The rule: a session that fails ends at once, because the next session finds everything that it needs in the slot and
the checkpoint. When PostgreSQL shuts down, the session goes on delivering for a grace period, because a fast
shutdown waits until everything is confirmed. A session that is asked to stop waits for the batch that is being
delivered.
"""

from typing import Final

from cdcd.core.engine.checkpoint import AsideTable
from cdcd.core.errors import CdcdError, TransientError
from cdcd.core.facts import Observer
from cdcd.core.facts.process import PostgresStopping
from cdcd.core.facts.start import LockLost

UNSTREAMED_S: Final = 60.0
"""Minimum time to run with streaming off. A workload that needed it once will probably need it again."""


class StreamingAgainError(TransientError):
    """Ends the session: the transactions that needed streaming to be off are delivered, so a new session can stream
    again.
    """


class LogDeliveredError(TransientError):
    """Ends the session: a logged session is delivered, so a new session can continue with the next one, or with the
    stream.
    """


class TablesRefusedError(TransientError):
    """Kafka refused records of tables after a part of their transaction was sent, so the session is started again
    without these tables.

    Attributes:
        tables: the tables to set aside.
    """

    def __init__(self, message: str, tables: tuple[AsideTable, ...]) -> None:
        super().__init__(message, hint="The other tables need no action.")
        self.tables = tables


class SpoolingBeginsError(TransientError):
    """Ends the session because Kafka is away, so that a spooling session can begin."""


class Ending:
    """Decides when a session ends: the caller reports what may end it, and reads `error`, `is_stopping` and `is_over`.

    Args:
        unstreamed_until: streaming is off until the commit at this LSN is delivered; 0 if streaming is as
            configured.
        logged_until: end of the logged session that the frames come from; 0 if they come from the server.
        grace_s: seconds for which the session goes on after PostgreSQL has begun to shut down.
        now: monotonic seconds.
    """

    def __init__(
        self, *, unstreamed_until: int, grace_s: float, observe: Observer, now: float, logged_until: int = 0
    ) -> None:
        self.error: CdcdError | None = None
        """The error that ends the session now, if any."""
        self.is_stopping = False
        """True if the session was asked to stop."""
        self.grace_until: float | None = None
        """When the session ends because PostgreSQL shuts down; None if it does not shut down."""
        self._unstreamed_until = unstreamed_until
        self._logged_until = logged_until
        self._stream_again_at = now + UNSTREAMED_S
        self._grace_s = grace_s
        self._observe = observe

    def fail(self, error: CdcdError | None) -> None:
        """End the session with this error; the first one counts, and None is ignored."""
        self.error = self.error or error

    def lock_lost(self, error: CdcdError, sqlstate: str, *, shutting_down: bool, now: float) -> None:
        """See `Engine.lock_lost`."""
        self._observe(LockLost(sqlstate=sqlstate, reason=error.message))
        if not shutting_down:
            self.fail(error)
            return
        self._observe(PostgresStopping(sqlstate=sqlstate, grace_s=self._grace_s))
        self.grace_until = now + self._grace_s

    def note_position(self, end_lsn: int, now: float) -> None:
        """Note that a Kafka transaction was committed which has everything before `end_lsn`."""
        if 0 < self._unstreamed_until < end_lsn and now > self._stream_again_at:
            self.error = StreamingAgainError("Streaming of large transactions is possible again.")
        if 0 < self._logged_until <= end_lsn:
            self.error = LogDeliveredError("A part of the durable log is delivered.")

    def is_over(self, now: float, *, undelivered: bool) -> bool:
        """Return whether PostgreSQL shuts down and needs nothing more of this session, or the grace period is over."""
        return self.grace_until is not None and (now >= self.grace_until or not undelivered)


def shut_down() -> TransientError:
    """Return the error that ends a session of which `is_over` is true."""
    return TransientError(
        "PostgreSQL is shutting down.", hint="Reconnecting until it, or its successor, is back."
    )
