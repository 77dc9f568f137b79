"""Throughput of a pipeline: rows by minute for the last hour, rows, lag and latency by quarter of an hour for the last
day, and rates of the last seconds.

The daemon calls `look` with its totals at short intervals. A call costs a comparison, except once in `LOOK_S`
seconds, when the totals by table are copied. No work is done for single rows.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from cdcd.core.records.shaping.shape import NO_RECORD

QUARTER_S: Final = 900
"""Seconds of a quarter of an hour."""

QUARTERS: Final = 96
"""Number of quarters of an hour that are kept, which are a day."""

MINUTES: Final = 60
"""Number of minutes that are kept."""

LOOK_S: Final = 5.0
"""Seconds between two samples that are kept for rates."""

LOOKS: Final = 3
"""Number of samples that are kept. So a rate is the mean of the last 10 to 15 seconds."""


@dataclass(frozen=True, slots=True)
class Totals:
    """Totals that Kafka acknowledged since the process started: transactions with records, rows (changes, and rows of
    snapshots), and bytes of keys and values, before compression.
    """

    transactions: int = 0
    rows: int = 0
    bytes: int = 0

    def since(self, before: "Totals") -> "Totals":
        """Return the increase since `before`. A count that has become lower counts as no increase."""
        return Totals(
            max(0, self.transactions - before.transactions),
            max(0, self.rows - before.rows),
            max(0, self.bytes - before.bytes),
        )


@dataclass(frozen=True, slots=True)
class DelayTimes:
    """Number of delivered changes, and the sum of their times from commit to acknowledgement in seconds."""

    count: int = 0
    sum: float = 0.0

    def mean_since(self, before: "DelayTimes") -> float | None:
        """Return the mean time in seconds of the changes delivered since `before`; None: none was delivered."""
        count = self.count - before.count
        return (self.sum - before.sum) / count if count > 0 else None


NO_DELAYS: Final = DelayTimes()


@dataclass(frozen=True, slots=True)
class Rates:
    """Mean rates of the last `window_s` seconds.

    `rows_by_table` has the tables (`schema.table`) with rows in that time.
    """

    window_s: float
    transactions_per_s: float
    rows_per_s: float
    bytes_per_s: float
    rows_by_table: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Quarter:
    """A quarter of an hour.

    Attributes:
        at: begin of the quarter (Unix seconds).
        rows: number of rows that Kafka acknowledged.
        lag_s: largest lag in seconds; None: not known, because the process did not run or was not the active instance.
        delay_s: mean seconds from a commit to Kafka's acknowledgement; None: no change was delivered.
    """

    at: int
    rows: int = 0
    lag_s: float | None = None
    delay_s: float | None = None


@dataclass(frozen=True, slots=True)
class _Look:
    at: float
    totals: Totals
    events: Mapping[tuple[str, str], int]


class Throughput:
    """Throughput that one thread writes (`look`), and any thread reads."""

    def __init__(self) -> None:
        self._minutes: deque[tuple[int, Totals]] = deque(maxlen=MINUTES)
        self._minute = 0
        self._began = Totals()
        self._looks: deque[_Look] = deque(maxlen=LOOKS)
        self._quarters: deque[Quarter] = deque(maxlen=QUARTERS)
        self._quarter = 0
        self._quarter_rows = 0
        self._quarter_delays = DelayTimes()
        self._lag_s: float | None = None

    def look(
        self,
        now: float,
        unix_now: float,
        totals: Totals,
        events: Mapping[tuple[str, str], int],
        *,
        lag_s: float | None = None,
        delays: DelayTimes = NO_DELAYS,
    ) -> None:
        """Add a sample of the present totals.

        Args:
            now: monotonic seconds.
            unix_now: Unix seconds.
            events: rows by (schema.table, operation).
            lag_s: lag in seconds; None: not known.
            delays: the delays of all changes since the process started.
        """
        quarter = int(unix_now // QUARTER_S)
        if quarter != self._quarter:
            if self._quarter:
                self._quarters.append(self._now(totals, delays))
            self._quarter, self._lag_s = quarter, None
            self._quarter_rows, self._quarter_delays = totals.rows, delays
        if lag_s is not None:
            self._lag_s = max(lag_s, self._lag_s or 0.0)
        minute = int(unix_now // 60)
        if minute != self._minute:
            if self._minute:
                self._minutes.append((self._minute, totals.since(self._began)))
            self._minute, self._began = minute, totals
        if not self._looks or now - self._looks[-1].at >= LOOK_S:
            self._looks.append(_Look(now, totals, dict(events)))

    def _now(self, totals: Totals, delays: DelayTimes) -> Quarter:
        return Quarter(
            self._quarter * QUARTER_S,
            max(0, totals.rows - self._quarter_rows),
            self._lag_s,
            delays.mean_since(self._quarter_delays),
        )

    def day(self, unix_now: float, totals: Totals, delays: DelayTimes) -> list[Quarter]:
        """Return the last `QUARTERS` quarters of an hour, oldest first.

        The last entry is the current quarter so far.
        """
        last = int(unix_now // QUARTER_S)
        found = {each.at: each for each in self._quarters.copy()}
        if self._quarter:
            found[self._quarter * QUARTER_S] = self._now(totals, delays)
        begins = [each * QUARTER_S for each in range(last - QUARTERS + 1, last + 1)]
        return [found.get(at, Quarter(at)) for at in begins]

    def minutes(self, unix_now: float, totals: Totals) -> list[tuple[int, Totals]]:
        """Return the last `MINUTES` minutes, oldest first: the minute's begin (Unix seconds), and its totals.

        The last entry is the current minute so far. A minute in which the process did not run has zeros.
        """
        last = int(unix_now // 60)
        found = dict(self._minutes.copy())
        if self._minute:
            found[self._minute] = totals.since(self._began)
        return [(each * 60, found.get(each, Totals())) for each in range(last - MINUTES + 1, last + 1)]

    def rates(self, now: float, totals: Totals, events: Mapping[tuple[str, str], int]) -> Rates:
        """Return the present rates, since the oldest sample that is kept. All rates are 0 before the first sample."""
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
