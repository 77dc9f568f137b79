"""How many refusals of what strangers send are reported.

The rule: everybody who may connect to the database can send any number of logical messages, and must not be able to
fill the log with the reports of their refusal.
"""

from typing import Final

REFUSALS_MAX: Final = 60
"""Number of refusals that may be reported in a burst; after these, one per second is reported."""


class Sparing:
    """Admits reports of refusals: `REFUSALS_MAX` at once, and one more for each second that passes."""

    def __init__(self) -> None:
        self._reported = 0
        self._reported_s = 0
        """Time of the last admission, in Unix seconds. `_reported` falls by one each second after it."""
        self._left_out = 0

    def admit(self, unix_s: int) -> int | None:
        """Return how many refusals were not reported before this one; None if this one is not reported either."""
        self._reported = max(0, self._reported - max(0, unix_s - self._reported_s))
        self._reported_s = unix_s
        if self._reported >= REFUSALS_MAX:
            self._left_out += 1
            return None
        self._reported += 1
        left_out, self._left_out = self._left_out, 0
        return left_out
