"""How much went through: by minute for the last hour, and as rates of the last seconds.

The daemon calls `look` with its totals every moment. A look costs a comparison, except once in `LOOK_S` seconds, when
the totals by table are copied. Nothing is done for each row.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from cdcd.shaping.in_front import NO_RECORD

MINUTES: Final = 60
"""Minutes that are kept."""

LOOK_S: Final = 5.0
"""Seconds between two looks that are kept for rates."""

LOOKS: Final = 3
"""Looks that are kept. So a rate is the mean of the last 10 to 15 seconds."""


@dataclass(frozen=True, slots=True)
class Totals:
    """What Kafka acknowledged since the process started: transactions with records, rows (changes, and rows of
    snapshots), and bytes of keys and values, before compression.
    """

    transactions: int = 0
    rows: int = 0
    bytes: int = 0

    def since(self, before: "Totals") -> "Totals":
        """What came after `before`. A count that is lower than it was counts as nothing."""
        return Totals(
            max(0, self.transactions - before.transactions),
            max(0, self.rows - before.rows),
            max(0, self.bytes - before.bytes),
        )


@dataclass(frozen=True, slots=True)
class Rates:
    """Means of the last `window_s` seconds. `rows_by_table` has the tables (`schema.table`) with rows in that time."""

    window_s: float
    transactions_per_s: float
    rows_per_s: float
    bytes_per_s: float
    rows_by_table: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class _Look:
    at: float
    totals: Totals
    events: Mapping[tuple[str, str], int]


class Throughput:
    """Written by one thread (`look`), and read by any."""

    def __init__(self) -> None:
        self._minutes: deque[tuple[int, Totals]] = deque(maxlen=MINUTES)
        self._minute = 0
        self._began = Totals()
        self._looks: deque[_Look] = deque(maxlen=LOOKS)

    def look(
        self, now: float, unix_now: float, totals: Totals, events: Mapping[tuple[str, str], int]
    ) -> None:
        """Take the totals of now.

        Args:
            now: monotonic seconds.
            unix_now: Unix seconds.
            events: rows by (schema.table, operation).
        """
        minute = int(unix_now // 60)
        if minute != self._minute:
            if self._minute:
                self._minutes.append((self._minute, totals.since(self._began)))
            self._minute, self._began = minute, totals
        if not self._looks or now - self._looks[-1].at >= LOOK_S:
            self._looks.append(_Look(now, totals, dict(events)))

    def minutes(self, unix_now: float, totals: Totals) -> list[tuple[int, Totals]]:
        """The last hour, oldest first: `MINUTES` times the minute's begin (Unix seconds), and what came in it.

        The last one is the minute that is under way. A minute in which the process did not run has zeros.
        """
        last = int(unix_now // 60)
        found = dict(self._minutes.copy())
        if self._minute:
            found[self._minute] = totals.since(self._began)
        return [(each * 60, found.get(each, Totals())) for each in range(last - MINUTES + 1, last + 1)]

    def rates(self, now: float, totals: Totals, events: Mapping[tuple[str, str], int]) -> Rates:
        """The rates of now, from the oldest look that is kept. All are 0 before there was a look."""
        looks = self._looks.copy()
        seconds = now - looks[0].at if looks else 0.0
        if seconds <= 0.0:
            return Rates(0.0, 0.0, 0.0, 0.0, {})
        recent = totals.since(looks[0].totals)
        before, tables = looks[0].events, dict[str, int]()
        for key, count in events.items():
            more = count - before.get(key, 0)
            if more > 0 and key[1] not in NO_RECORD:
                tables[key[0]] = tables.get(key[0], 0) + more
        return Rates(
            window_s=seconds,
            transactions_per_s=recent.transactions / seconds,
            rows_per_s=recent.rows / seconds,
            bytes_per_s=recent.bytes / seconds,
            rows_by_table={table: count / seconds for table, count in tables.items()},
        )
