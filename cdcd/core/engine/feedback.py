"""Stage 9: decides when status updates are sent, and which positions they report.

The rule: a status update is sent at every interval, soon after `flushed` has risen, and at once when the server
asks for it. The reported flush position never falls, whatever happened to the connection or to the server in
between. All times are in seconds of one monotonic clock.

The server drops a client after `wal_sender_timeout` without a status update (`walsender.c`, `WalSndCheckTimeOut`),
so the interval must be well below that timeout, which `interval_for` ensures.
"""

from typing import Final

from cdcd.core.facts import Observer
from cdcd.core.facts.transactions import PreparedOld
from cdcd.core.protocol.frames import StatusUpdate
from cdcd.core.protocol.lsn import Lsn
from cdcd.core.protocol.messages import POSTGRES_EPOCH_US
from cdcd.core.protocol.peek import asks_for_reply

WORTH_TELLING_S: Final = 0.1
"""Wait (s) before a risen position is reported, so that small transactions share a status update."""

TIMEOUT_SHARE: Final = 3
"""Status updates per `wal_sender_timeout`. Two of them may be late before the server ends the connection."""


def interval_for(status_interval_s: float, wal_sender_timeout_s: float) -> float:
    """The configured interval, or a third of the server's timeout if that is shorter. A timeout of 0 means none."""
    if wal_sender_timeout_s <= 0:
        return status_interval_s
    return min(status_interval_s, wal_sender_timeout_s / TIMEOUT_SHARE)


def reply_requested(frames: list[bytes]) -> bool:
    """Return whether one of the frames is a keepalive that asks for an answer."""
    for frame in frames:  # noqa: SIM110  a generator costs as much again for each frame
        if asks_for_reply(frame):
            return True
    return False


class Feedback:
    """Decides which status update is sent when.

    The caller sends what `due` returns, and nothing else has to be sent.
    """

    def __init__(self, interval_s: float, now: float) -> None:
        self.interval_s = interval_s
        self.told = 0
        self._told_at = now - interval_s
        self._asked = False

    def ask(self) -> None:
        """Note that the server asked for a status update by a keepalive with "reply requested"."""
        self._asked = True

    def due(self, received: int, flushed: int, now: float, server_time_us: int) -> StatusUpdate | None:
        """Return the status update to send now; None if none is due.

        Args:
            server_time_us: the client's clock, in microseconds since PostgreSQL's epoch (2000-01-01).
        """
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
        """Return the time at which `due` returns a status update if nothing else happens before."""
        wait = WORTH_TELLING_S if flushed > self.told else self.interval_s
        return self._told_at + min(wait, self.interval_s)


class PreparedAge:
    """Warns once per prepared transaction that is older than `warning_age_s`: each one holds the WAL back since its
    PREPARE, until it is committed or rolled back.
    """

    def __init__(self, warning_age_s: float, observe: Observer) -> None:
        self.warning_age_s = warning_age_s
        self._observe = observe
        self._warned: set[str] = set()

    def check(self, oldest: tuple[str, int] | None, flushed: int, unix_us: int) -> None:
        """Warn of the oldest prepared transaction if it is too old; `Assembler.oldest_prepared` returns it.

        Args:
            flushed: the flushed position, beyond which PostgreSQL keeps the WAL because of this transaction.
            unix_us: the wall clock, in microseconds since 1970.
        """
        if oldest is None or oldest[0] in self._warned:
            return
        age_s = (unix_us - oldest[1] - POSTGRES_EPOCH_US) / 1e6
        if age_s >= self.warning_age_s:
            self._warned.add(oldest[0])
            self._observe(PreparedOld(gid=oldest[0], age_s=round(age_s), held_at=str(Lsn(flushed))))
