"""Answers that are kept for a moment, so that whoever asks often costs the stream little."""

import time
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

KINDS_MAX: Final = 16
"""Kinds of answers that are kept. If there are more, all of them are forgotten."""

Kind = TypeVar("Kind", bound=Hashable)
Answer = TypeVar("Answer")


class Kept(Generic[Kind, Answer]):
    """Call it with a kind and with what makes the answer. An answer is made anew when it is old.

    Args:
        share_max: the largest share of a core that making answers of one kind may take. An answer is kept for as long
            as that needs: one that takes 50 ms is kept for 5 s at a share of 0.01.
        fresh_s: seconds for which it is kept anyway.
    """

    def __init__(self, share_max: float, fresh_s: float = 0.0) -> None:
        self._share_max = share_max
        self._fresh_s = fresh_s
        self._made: dict[Kind, tuple[float, Answer]] = {}

    def __call__(self, kind: Kind, make: Callable[[], Answer]) -> Answer:
        now = time.monotonic()
        found = self._made.get(kind)
        if found is not None and now < found[0]:
            return found[1]
        began = time.thread_time()
        answer = make()
        if len(self._made) >= KINDS_MAX:
            self._made.clear()
        keep_s = max(self._fresh_s, (time.thread_time() - began) / self._share_max)
        self._made[kind] = (now + keep_s, answer)
        return answer
