"""How long to wait before something is tried again.

Delays double up to a limit, so that what stays broken is not hammered. Each is between half of the delay and the whole
of it, by a number that the caller draws, so that many who lost the same server do not come back at the same moment.
"""

from dataclasses import dataclass


class Backoff:
    """The delays of one thing that is tried again and again.

    Args:
        initial_s: the first delay, in seconds, before it is spread.
        max_s: the longest one.
    """

    def __init__(self, initial_s: float, max_s: float) -> None:
        assert 0 < initial_s <= max_s
        self._initial_s = initial_s
        self._max_s = max_s
        self._delay_s = initial_s

    def next(self, draw: float) -> float:
        """Seconds to wait now, at least half of the current delay; the one after that is twice as long.

        Args:
            draw: from 0 to 1, as `random.random()` gives it.
        """
        delay_s = self._delay_s
        self._delay_s = min(2 * delay_s, self._max_s)
        return delay_s * (1 + draw) / 2

    def reset(self) -> None:
        """It worked: begin with the first delay again."""
        self._delay_s = self._initial_s


@dataclass(frozen=True, slots=True)
class Delays:
    """The first and the longest delay of a `Backoff`, in seconds."""

    initial_s: float
    max_s: float

    def backoff(self) -> Backoff:
        """A new `Backoff`, which begins with the first delay."""
        return Backoff(self.initial_s, self.max_s)
