"""Which transactions a PostgreSQL snapshot sees, according to `pg_current_snapshot()`.

The rule: of the committed transactions, a snapshot sees all before `xmin`, none from `xmax` on, and between the two
all that it does not list as in progress. What one snapshot sees, every later snapshot sees too.

The function returns ids of 64 bits, while the stream has ids of 32 bits, which repeat. An id on the stream is at
most 2^31 away from any running transaction, because PostgreSQL stops before the distance becomes larger.
"""

from dataclasses import dataclass
from typing import Self

_ROUND = 1 << 32
_HALF = 1 << 31


@dataclass(frozen=True, slots=True)
class Visibility:
    """A snapshot as `xmin:xmax:in progress`, with ids of 64 bits.

    Ids of subtransactions are not listed, and are never looked up.
    """

    xmin: int
    xmax: int
    in_progress: frozenset[int] = frozenset()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the text of a pg_snapshot, such as `10:20:10,14,15`; ValueError if it is not one."""
        xmin, xmax, listed = text.split(":")
        return cls(int(xmin), int(xmax), frozenset(map(int, listed.split(","))) if listed else frozenset())

    def __str__(self) -> str:
        return f"{self.xmin}:{self.xmax}:{','.join(map(str, sorted(self.in_progress)))}"

    def sees(self, xid: int) -> bool:
        """Return whether the snapshot sees the committed transaction with the 32-bit id `xid`."""
        full = self.xmax - self.xmax % _ROUND + xid
        if full - self.xmax > _HALF:
            full -= _ROUND
        elif self.xmax - full > _HALF:
            full += _ROUND
        if full < self.xmin:
            return True
        return full < self.xmax and full not in self.in_progress
