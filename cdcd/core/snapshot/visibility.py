"""Which transactions a snapshot of PostgreSQL's sees, by what `pg_current_snapshot()` says of it.

The rule: of transactions that committed, it sees those before `xmin`, none from `xmax` on, and of those between all
that are not listed as in progress. What one snapshot sees, every later one sees too.

The function gives ids of 64 bits, the stream those of 32 that come round again. An id on the stream is of a
transaction that is at most 2^31 away from any that is running, because PostgreSQL stops before it is further.
"""

from dataclasses import dataclass
from typing import Self

_ROUND = 1 << 32
_HALF = 1 << 31


@dataclass(frozen=True, slots=True)
class Visibility:
    """`xmin:xmax:in progress`, ids of 64 bits. Subtransactions are not listed, and not asked for."""

    xmin: int
    xmax: int
    in_progress: frozenset[int] = frozenset()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the text of a pg_snapshot, as in `10:20:10,14,15`; ValueError when it is not one."""
        xmin, xmax, listed = text.split(":")
        return cls(int(xmin), int(xmax), frozenset(map(int, listed.split(","))) if listed else frozenset())

    def __str__(self) -> str:
        return f"{self.xmin}:{self.xmax}:{','.join(map(str, sorted(self.in_progress)))}"

    def sees(self, xid: int) -> bool:
        """Whether it sees the committed transaction that the stream calls `xid`."""
        full = self.xmax - self.xmax % _ROUND + xid
        if full - self.xmax > _HALF:
            full -= _ROUND
        elif self.xmax - full > _HALF:
            full += _ROUND
        if full < self.xmin:
            return True
        return full < self.xmax and full not in self.in_progress
