"""How long PostgreSQL still keeps the WAL that the slot needs, at the rate at which WAL is written.

`max_slot_wal_keep_size` limits what a slot may hold. `pg_replication_slots.safe_wal_size` is the rest of it in bytes. A
slot that is not confirmed is lost when as much WAL has been written (slotfuncs.c, pg_get_replication_slots).

The rule: the rate is the WAL that was written in the last ten minutes, divided by the time. A shorter window would take
a burst for the rule, and a longer one would take an hour ago for now. The rate counts all WAL, and not how fast
`safe_wal_size` shrinks. So the forecast is right from the first moment of an outage on, in which nothing is confirmed.

A healthy pipeline with a small limit has little time left as well, and needs no warning. So the slot is `is_short` only
if it holds more than half of what it may hold.
"""

from collections import deque
from typing import Final

WINDOW_S: Final = 600.0
"""Seconds over which the rate is measured."""

MEASURED_S_MIN: Final = 30.0
"""Seconds that must have been measured before there is a rate."""


class WalForecast:
    """Give it what each look at the slot found (`observe`), and ask for the rest.

    Attributes:
        safe_bytes: `safe_wal_size` at the last look; None: there is no limit, or nobody has looked.
        retained_bytes: WAL that the slot held at the last look.
    """

    def __init__(self) -> None:
        self.safe_bytes: int | None = None
        self.retained_bytes = 0
        self._looks: deque[tuple[float, int]] = deque()
        self._warned_s = float("inf")

    def observe(self, now: float, written_lsn: int, retained_bytes: int, safe_bytes: int | None) -> None:
        """A look at the slot: at `now` (monotonic seconds), the server had written its WAL up to `written_lsn`."""
        looks = self._looks
        if looks and written_lsn < looks[-1][1]:
            # Another server, or one that lost the end of its WAL.
            looks.clear()
        looks.append((now, written_lsn))
        # The first look that is kept is the last one from before the window.
        while len(looks) > 2 and looks[1][0] <= now - WINDOW_S:
            looks.popleft()
        self.safe_bytes = safe_bytes
        self.retained_bytes = retained_bytes

    @property
    def bytes_per_s(self) -> float | None:
        """WAL that the server writes in a second; None: not known yet."""
        if not self._looks:
            return None
        (began, first), (now, last) = self._looks[0], self._looks[-1]
        if now - began < MEASURED_S_MIN:
            return None
        return (last - first) / (now - began)

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the slot may be lost if nothing is confirmed meanwhile; None: not known, or without limit."""
        rate = self.bytes_per_s
        if rate is None or self.safe_bytes is None:
            return None
        if self.safe_bytes <= 0:
            return 0.0
        return self.safe_bytes / rate if rate > 0 else float("inf")

    def warning(self, within_s: float) -> float | None:
        """The seconds left if that must be told now, else None.

        It is told when less than `within_s` are left and the slot holds more than half of what it may hold, and again
        each time that the rest has halved.
        """
        left_s = self.seconds_left
        if left_s is None or left_s >= within_s or self.safe_bytes is None:
            self._warned_s = float("inf")
            return None
        if self.retained_bytes < self.safe_bytes:
            self._warned_s = float("inf")
            return None
        if left_s > self._warned_s / 2:
            return None
        self._warned_s = left_s
        return left_s
