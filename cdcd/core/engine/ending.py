"""Why a session ends, and when: a failure, the end of PostgreSQL, streaming that is possible again, or a wish.

A session that delivers from the durable log ends where the log does, too.

The rule: a session that fails ends at once, because the next one finds all that it needs in the slot and the
checkpoint. A session that PostgreSQL's shutdown ends goes on delivering for a grace period, because a fast shutdown
waits until everything is confirmed. A session that was asked to stop waits for the batch that is out.
"""

from typing import Final

from cdcd.core.engine.checkpoint import AsideTable
from cdcd.core.errors import CdcdError, TransientError
from cdcd.core.facts import LockLost, Observer, PostgresStopping

UNSTREAMED_S: Final = 60.0
"""Minimum time to run with streaming off. A workload that needed it once will probably need it again."""


class StreamingAgainError(TransientError):
    """The transactions that had to be received without streaming are delivered, so a new session can stream again."""


class LogDeliveredError(TransientError):
    """A logged session is delivered, so a new session can go on behind it: with the next one, or with the stream."""


class TablesRefusedError(TransientError):
    """Kafka refused records of tables after a part of their transaction was sent: the session starts over without them.

    Attributes:
        tables: the tables that are set aside.
    """

    def __init__(self, message: str, tables: tuple[AsideTable, ...]) -> None:
        super().__init__(message, hint="Nothing is to be done for the other tables.")
        self.tables = tables


class SpoolingBeginsError(TransientError):
    """Kafka is away, so the session ends, and the stream goes to the durable log."""


class Ending:
    """Report what may end the session, and ask `error`, `is_stopping` and `is_over`.

    Args:
        unstreamed_until: streaming is off until the commit at this LSN is delivered; 0: streaming is as configured.
        logged_until: the frames come from a logged session, which ends there; 0: they come from the server.
        grace_s: how long the session goes on after PostgreSQL has begun to shut down.
        now: monotonic seconds.
    """

    def __init__(
        self, *, unstreamed_until: int, grace_s: float, observe: Observer, now: float, logged_until: int = 0
    ) -> None:
        self.error: CdcdError | None = None
        """Why the session ends now."""
        self.is_stopping = False
        """Somebody asked the session to end."""
        self.grace_until: float | None = None
        """When the session ends because PostgreSQL shuts down; None: PostgreSQL does not."""
        self._unstreamed_until = unstreamed_until
        self._logged_until = logged_until
        self._stream_again_at = now + UNSTREAMED_S
        self._grace_s = grace_s
        self._observe = observe

    def fail(self, error: CdcdError | None) -> None:
        """The session cannot go on; the first reason counts. None: nothing has happened."""
        self.error = self.error or error

    def lock_lost(self, error: CdcdError, sqlstate: str, *, shutting_down: bool, now: float) -> None:
        """See `Engine.lock_lost`."""
        self._observe(LockLost(sqlstate=sqlstate, reason=error.message))
        if not shutting_down:
            self.fail(error)
            return
        self._observe(PostgresStopping(sqlstate=sqlstate, grace_s=self._grace_s))
        self.grace_until = now + self._grace_s

    def delivered(self, end_lsn: int, now: float) -> None:
        """A Kafka transaction was committed that covers everything before `end_lsn`."""
        if 0 < self._unstreamed_until < end_lsn and now > self._stream_again_at:
            self.error = StreamingAgainError("Streaming of large transactions is possible again.")
        if 0 < self._logged_until <= end_lsn:
            self.error = LogDeliveredError("A part of the durable log is delivered.")

    def is_over(self, now: float, *, undelivered: bool) -> bool:
        """Whether PostgreSQL shuts down and needs nothing more of this session, or the grace period is over."""
        return self.grace_until is not None and (now >= self.grace_until or not undelivered)


def shut_down() -> TransientError:
    """The reason for the end of a session `is_over`."""
    return TransientError(
        "PostgreSQL is shutting down.", hint="Reconnecting until it, or its successor, is back."
    )
