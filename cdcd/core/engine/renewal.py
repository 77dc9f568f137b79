"""When the replication connection is renewed, because a large message has passed through it.

libpq keeps a buffer as large as the largest message that it received, until the connection is closed. So after a
message of more than `LARGE_BYTES` the session ends, and the next one connects again.

The rule: the connection is renewed only after PostgreSQL was told a position behind the message. If it were renewed
before, the server would send the message again, and the session would never come past it. It is also renewed only
where nothing is lost by a new session: between transactions, while no transaction is streamed or prepared, and with
no batch on its way. While large messages keep coming, the buffer is needed.
"""

from typing import Final

from cdcd.core.errors import TransientError

LARGE_BYTES: Final = 16 << 20
"""Size in bytes from which a message is large."""

QUIET_S: Final = 5.0
"""Seconds without a further large message before the connection is renewed."""


class RenewalError(TransientError):
    """The session ends, so that the next one has a connection without a large buffer."""


class Renewal:
    """Report large messages and the ends of transactions, then ask `is_due`.

    Args:
        large_bytes: see `LARGE_BYTES`; 0: the connection is never renewed.
        quiet_s: see `QUIET_S`.
    """

    def __init__(self, large_bytes: int, quiet_s: float) -> None:
        self._large_bytes = large_bytes
        self._quiet_s = quiet_s
        self._at = 0.0
        self._end_lsn = 0
        self.is_pending = False
        """A large message came over this connection."""

    def arrived(self, size: int, now: float) -> None:
        """A message of this size in bytes was received."""
        if 0 < self._large_bytes < size:
            self.is_pending = True
            self._end_lsn = 0
            self._at = now

    def closed(self, end_lsn: int, undecided: int) -> None:
        """A transaction ends at this LSN, while so many others are streamed or prepared and not decided."""
        if self.is_pending and not self._end_lsn and not undecided:
            self._end_lsn = end_lsn

    def is_due(self, told: int, now: float) -> bool:
        """Whether the session should end. `told`: the position that PostgreSQL was told to be flushed."""
        return self.is_pending and 0 < self._end_lsn <= told and now >= self._at + self._quiet_s

    def next_at(self, told: int) -> float | None:
        """When it is due if nothing else happens before; None: something else must happen."""
        return self._at + self._quiet_s if self.is_pending and 0 < self._end_lsn <= told else None
