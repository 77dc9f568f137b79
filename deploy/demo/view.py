"""What the demo shows: what arrives in each topic, and what the daemon says of itself."""

import json
import math
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from deploy.demo.daemon import Samples
from deploy.demo.topics import Raw

WINDOW_S: Final = 3.0
LABEL_WIDTH: Final = 16
OPS: Final = ("c", "u", "d", "t", "m")
OP_NAMES: Final = {"c": "created", "u": "updated", "d": "deleted", "t": "truncated", "m": "messages"}


@dataclass(slots=True)
class TopicView:
    """Totals, the arrivals of the last seconds, and the last record of a topic."""

    ops: Counter[str] = field(default_factory=Counter)
    arrivals: deque[tuple[float, int]] = field(default_factory=deque)
    last: str = ""
    commit_lsn: int = 0

    def rate(self, now: float) -> float:
        while self.arrivals and self.arrivals[0][0] < now - WINDOW_S:
            self.arrivals.popleft()
        return sum(count for _, count in self.arrivals) / WINDOW_S


class View:
    """Takes in records and metrics, and shows them as a panel or as a line."""

    def __init__(self, prefix: str) -> None:
        self.phase = "starting"
        self.news = ""
        self.page = ""
        """Address of the daemon's page. Empty: the daemon is not ready."""
        self.mirror = ""
        """State of the mirror in words. Empty: there is no mirror."""
        self.topics: dict[str, TopicView] = {}
        self.records = 0
        self.latencies: list[float] = []
        """Seconds from each commit to its first record's arrival here, once for each topic it has records in."""
        self._recent: deque[tuple[float, float]] = deque()
        self._prefix = f"{prefix}."
        self._metrics: Samples = {}
        self._started = time.monotonic()

    def open(self) -> None:
        """The clock that is shown begins here."""
        self._started = time.monotonic()

    def take(self, records: Iterable[Raw]) -> None:
        now, clock = time.monotonic(), time.time()
        for raw in records:
            self.records += 1
            if raw.value is None:
                continue
            envelope = json.loads(raw.value)
            topic = self.topics.setdefault(raw.topic, TopicView())
            topic.ops[envelope["op"]] += 1
            if topic.arrivals and topic.arrivals[-1][0] == now:
                topic.arrivals[-1] = (now, topic.arrivals[-1][1] + 1)
            else:
                topic.arrivals.append((now, 1))
            topic.last = _summary(envelope)
            source = envelope["source"]
            if source["commit_lsn"] != topic.commit_lsn:
                topic.commit_lsn = source["commit_lsn"]
                latency = clock - source["ts_us"] / 1e6
                self.latencies.append(latency)
                self._recent.append((now, latency))
        while self._recent and self._recent[0][0] < now - WINDOW_S:
            self._recent.popleft()

    def measure(self, metrics: Samples) -> None:
        if metrics:
            self._metrics = metrics

    def value(self, name: str, *labels: str) -> float | None:
        return self._metrics.get(name, {}).get(labels)

    def transactions(self) -> str:
        """The daemon's count of transactions by kind."""
        kinds = sorted(self._metrics.get("cdcd_transactions_total", {}).items())
        return ", ".join(f"{kind.replace('_', ' ')} {count:.0f}" for (kind,), count in kinds)

    def rate(self) -> float:
        now = time.monotonic()
        return sum(topic.rate(now) for topic in self.topics.values())

    def __rich__(self) -> Group:
        return Group(Panel(self._header(), title="cdcd demo", title_align="left"), self._table())

    def line(self) -> str:
        """All of it in one line, for a log."""
        totals: Counter[str] = Counter()
        for topic in self.topics.values():
            totals.update(topic.ops)
        ops = " ".join(f"{OP_NAMES[op]} {totals[op]}" for op in OPS if totals[op])
        facts = " | ".join(f"{name} {value}" for name, value in self._facts())
        return f"{self.phase} | {self.rate():.0f} records/s | {ops or 'no records'} | {facts}"

    def _header(self) -> Text:
        text = Text()
        text.append(f"{self.phase}", style="bold")
        seconds = time.monotonic() - self._started
        text.append(f"  {seconds:.0f} s, {self.records} records so far, {self.rate():.0f} records/s now\n")
        for name, value in self._facts():
            text.append(f"{name:<{LABEL_WIDTH}}", style="dim")
            text.append(f"{value}\n")
        text.append(f"{'the shop':<{LABEL_WIDTH}}", style="dim")
        text.append(self.news, style="italic")
        return text

    def _facts(self) -> Iterator[tuple[str, str]]:
        role = next((label for (label,), on in self._metrics.get("cdcd_role", {}).items() if on), "starting")
        memory = size(self.value("process_resident_memory_bytes"))
        yield "daemon", f"{role}{', streaming' if self.value('cdcd_streaming') else ''}, {memory} of memory"
        behind = f"{size(self.value('cdcd_lag_bytes'))}, {_seconds(self.value('cdcd_lag_seconds'))}"
        yield "behind", f"{behind}; confirmed up to {position(self.value('cdcd_flushed_lsn'))}"
        if self._recent:
            recent = sorted(latency for _, latency in self._recent)
            half, last = (quantile(recent, q) * 1000 for q in (0.5, 0.99))
            yield "commit to here", f"{half:.0f} ms, p99 {last:.0f} ms (last {WINDOW_S:.0f} s)"
        streamed, prepared = self.value("cdcd_streamed_open"), self.value("cdcd_prepared_open")
        held, disk = self.value("cdcd_spool_memory_bytes"), self.value("cdcd_spool_disk_bytes")
        open_now = f"{streamed or 0:.0f} large transactions (streamed), {prepared or 0:.0f} prepared ones"
        yield "not committed", f"{open_now}, held back in {size(held)} of memory and {size(disk)} of disk"
        if self.mirror:
            yield "mirror", self.mirror
        if self.page:
            yield "page", self.page

    def _table(self) -> Table:
        table = Table(expand=True)
        table.add_column("topic", no_wrap=True)
        for name in ("records/s", *(OP_NAMES[op] for op in OPS[:3])):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("last record", no_wrap=True, overflow="ellipsis", ratio=1)
        now = time.monotonic()
        for name, topic in sorted(self.topics.items()):
            counts = [str(topic.ops[op]) for op in OPS[:3]]
            table.add_row(
                name.removeprefix(self._prefix), f"{topic.rate(now):.0f}", *counts, Text(topic.last)
            )
        return table


def quantile(ordered: list[float], q: float) -> float:
    """0 of nothing."""
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))] if ordered else 0.0


def size(number: float | None) -> str:
    """`1.5 MB`; a dash for what is not known."""
    if number is None or math.isnan(number):
        return "–"
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000 or unit == "GB":
            break
        number /= 1000
    return f"{number:.0f} {unit}" if unit == "B" or number >= 100 else f"{number:.1f} {unit}"


def position(number: float | None) -> str:
    return "–" if number is None else f"{int(number) >> 32:X}/{int(number) & 0xFFFFFFFF:X}"


def _seconds(number: float | None) -> str:
    return "–" if number is None else f"{number:.1f} s"


def _summary(envelope: dict[str, Any]) -> str:
    row = envelope.get("after") or envelope.get("before") or {}
    said = ", ".join(f"{name}={_value(value)}" for name, value in row.items() if value is not None)
    return f"{envelope['op']} {said}"


def _value(value: object) -> str:
    text = str(value)
    return text if len(text) <= 24 else f"{text[:23]}…"
