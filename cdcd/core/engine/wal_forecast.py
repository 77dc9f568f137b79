"""Forecasts how long PostgreSQL still keeps the WAL that the slot needs, from the rate at which WAL is written.

`max_slot_wal_keep_size` limits the WAL that a slot may hold back. `pg_replication_slots.safe_wal_size` is the
number of bytes that are left of this limit. If the slot's position does not advance, the slot is lost once that
much WAL was written (slotfuncs.c, pg_get_replication_slots).

The rule: the rate is the WAL of the last ten minutes, divided by the time. A shorter window would mistake a burst
for the usual rate, and a longer one would react too late. The rate counts all WAL that is written, and not how fast
`safe_wal_size` shrinks. So the forecast is right from the first moment of an outage, during which the slot's
position does not advance.

With a small limit, a healthy pipeline has little time left too, but needs no warning. So a warning is given only if
the slot holds back more than half of what it may.
"""

from collections import deque
from typing import Final

WINDOW_S: Final = 600.0
"""Seconds over which the rate is measured."""

MEASURED_S_MIN: Final = 30.0
"""Minimum number of seconds over which WAL must have been measured before a rate is known."""


class WalForecast:
    """Keeps what each look at the slot found (`observe`), and computes the forecast from it.

    Attributes:
        safe_bytes: `safe_wal_size` at the last look; None if there is no limit, or there was no look yet.
        retained_bytes: WAL that the slot held at the last look.
    """

    def __init__(self) -> None:
        self.safe_bytes: int | None = None
        self.retained_bytes = 0
        self._looks: deque[tuple[float, int]] = deque()
        self._warned_s = float("inf")

    def observe(self, now: float, written_lsn: int, retained_bytes: int, safe_bytes: int | None) -> None:
        """Note a look at the slot: at `now` (monotonic seconds), the server had written WAL up to `written_lsn`."""
        looks = self._looks
        if looks and written_lsn < looks[-1][1]:
            # This is another server, or the server has lost the end of its WAL.
            looks.clear()
        looks.append((now, written_lsn))
        # Keep exactly one look from before the window, as the beginning of the measurement.
        while len(looks) > 2 and looks[1][0] <= now - WINDOW_S:
            looks.popleft()
        self.safe_bytes = safe_bytes
        self.retained_bytes = retained_bytes

    @property
    def bytes_per_s(self) -> float | None:
        """Bytes of WAL that the server writes per second; None if not known yet."""
        if not self._looks:
            return None
        (began, first), (now, last) = self._looks[0], self._looks[-1]
        if now - began < MEASURED_S_MIN:
            return None
        return (last - first) / (now - began)

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the slot may be lost if its position does not advance; None if not known or without limit."""
        rate = self.bytes_per_s
        if rate is None or self.safe_bytes is None:
            return None
        if self.safe_bytes <= 0:
            return 0.0
        return self.safe_bytes / rate if rate > 0 else float("inf")

    def warning(self, within_s: float) -> float | None:
        """Return the seconds left if a warning is due now, else None.

        A warning is due when less than `within_s` seconds are left and the slot holds back more than half of what
        it may, and again each time the remaining seconds have halved.
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
