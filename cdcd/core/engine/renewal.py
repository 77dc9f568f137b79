"""When the replication connection is opened anew, because a large message has passed through it.

libpq keeps a buffer as large as the largest message that it received, until the connection is closed. So some time
after a message of more than `LARGE_BYTES` the session ends, and the next session connects again.

The rule: the connection is renewed only after PostgreSQL was told a position behind the message. Otherwise the
server would send the message again, and the session would never come past it. The connection is also renewed only
when a new session loses no work: between transactions, while no transaction is streamed or prepared, and while no
batch is being delivered. As long as large messages keep coming, the buffer is needed, so the connection is kept.
"""

from typing import Final

from cdcd.core.errors import TransientError

LARGE_BYTES: Final = 16 << 20
"""Size in bytes above which a message is large."""

QUIET_S: Final = 5.0
"""Seconds without a further large message before the connection is renewed."""


class RenewalError(TransientError):
    """Ends the session so that the next one has a connection without a large buffer."""


class Renewal:
    """Keeps account of large messages and of the ends of transactions; `is_due` then says whether to reconnect.

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
        """True if a large message came over this connection."""

    def arrived(self, size: int, now: float) -> None:
        """Note that a message of this size in bytes was received."""
        if 0 < self._large_bytes < size:
            self.is_pending = True
            self._end_lsn = 0
            self._at = now

    def closed(self, end_lsn: int, undecided: int) -> None:
        """Note that a transaction ends at this LSN, while `undecided` others are streamed or prepared."""
        if self.is_pending and not self._end_lsn and not undecided:
            self._end_lsn = end_lsn

    def is_due(self, told: int, now: float) -> bool:
        """Return whether the session should end. `told` is the position that PostgreSQL was told as flushed."""
        return self.is_pending and 0 < self._end_lsn <= told and now >= self._at + self._quiet_s

    def next_at(self, told: int) -> float | None:
        """Return when the session should end if nothing else happens before; None if something else must happen."""
        return self._at + self._quiet_s if self.is_pending and 0 < self._end_lsn <= told else None
