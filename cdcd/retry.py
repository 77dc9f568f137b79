"""How long to wait before the next attempt: doubled each time up to a limit, with jitter, so that clients spread.

Pure: the caller draws the random number and waits.
"""

from typing import Final

JITTER: Final = 0.5
"""The share of a wait that is drawn: a wait is between half of the longest one and all of it."""


class Backoff:
    """The waits of one series of attempts. `next` before each attempt but the first, `reset` after one that succeeded.

    Args:
        initial_s: the longest first wait, in seconds.
        max_s: the longest wait of all, in seconds.
    """

    def __init__(self, initial_s: float, max_s: float) -> None:
        self._initial_s = initial_s
        self._max_s = max_s
        self._longest_s = initial_s

    def next(self, draw: float) -> float:
        """Seconds to wait now, by `draw` in [0, 1). The wait after this one is up to twice as long."""
        longest_s = min(self._longest_s, self._max_s)
        self._longest_s = min(2 * longest_s, self._max_s)
        return longest_s * (1 - JITTER + JITTER * draw)

    def reset(self) -> None:
        """The next wait is the first one of a series again."""
        self._longest_s = self._initial_s
