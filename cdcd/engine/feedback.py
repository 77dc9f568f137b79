"""Stage 9: positions -> status updates, at the right moments.

The rule: the server hears from us at every interval, soon after `flushed` has risen, and at once when it asks;
the told flush position never falls, whatever happened to the connection or to the server in between. Time is an
argument, in seconds of any monotonic clock.

The server drops a client after `wal_sender_timeout` without a status update (`walsender.c`, `WalSndCheckTimeOut`),
so `status_interval` must be well below it; `interval_for` sees to that.
"""

from typing import Final

from cdcd.protocol.frames import StatusUpdate
from cdcd.protocol.peek import KEEPALIVE_BYTES

WORTH_TELLING_S: Final = 0.1
"""A risen position waits this long for company, so that small transactions don't cost a system call each."""

TIMEOUT_SHARE: Final = 3
"""Status updates per `wal_sender_timeout`: two may be lost or late before the server gives up on us."""


def interval_for(status_interval_s: float, wal_sender_timeout_s: float) -> float:
    """The configured interval, or a third of the server's timeout where that is shorter (0: no timeout)."""
    if wal_sender_timeout_s <= 0:
        return status_interval_s
    return min(status_interval_s, wal_sender_timeout_s / TIMEOUT_SHARE)


def reply_requested(frames: list[bytes]) -> bool:
    """Whether one of the frames is a keepalive that asks for an answer."""
    for frame in frames:  # noqa: SIM110  a generator costs as much again for each frame
        if len(frame) == KEEPALIVE_BYTES and frame[-1]:
            return True
    return False


class Feedback:
    """Decides when to tell the server what; the caller sends what `due` returns and owes nothing else."""

    def __init__(self, interval_s: float, now: float) -> None:
        self.interval_s = interval_s
        self.told = 0
        self._told_at = now - interval_s
        self._asked = False

    def ask(self) -> None:
        """A keepalive with "reply requested" arrived."""
        self._asked = True

    def due(self, received: int, flushed: int, now: float, server_time_us: int) -> StatusUpdate | None:
        """The status update to send now, or None; `server_time_us` is the client's clock on PostgreSQL's epoch."""
        if not self._asked and now < self.next_at(flushed):
            return None
        self._asked = False
        self._told_at = now
        self.told = max(self.told, flushed)
        return StatusUpdate(
            written=max(received, self.told),
            flushed=self.told,
            applied=self.told,
            client_time=server_time_us,
            reply_requested=False,
        )

    def next_at(self, flushed: int) -> float:
        """When `due` will have something to say if nothing else happens."""
        wait = WORTH_TELLING_S if flushed > self.told else self.interval_s
        return self._told_at + min(wait, self.interval_s)
