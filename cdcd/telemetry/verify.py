"""Figures of a `cdcd verify --continuous`, and its metrics as one table."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from threading import Lock
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from cdcd.config.sections.process import ListenConfig
from cdcd.telemetry.access import reading
from cdcd.telemetry.definitions import Definition, Sample, families, row, table
from cdcd.telemetry.http import Routes, metrics_and_probes
from cdcd.telemetry.state import Health


@dataclass(slots=True)
class VerifiedTable:
    """Figures of one table.

    Attributes:
        lsn: LSN before which the last comparison without differences saw all commits; 0: none yet.
        compared_at: end of the last comparison (Unix seconds); None: none yet.
        differences: number of differing rows and flawed records in all comparisons.
        differs: True if the last comparison found differences.
        is_partial: True if the last comparison was incomplete.
    """

    lsn: int = 0
    compared_at: float | None = None
    differences: int = 0
    differs: bool = False
    is_partial: bool = False


@dataclass(slots=True)
class VerifyTelemetry:
    """Figures of one process. One thread writes them, others read them."""

    tables: dict[str, VerifiedTable] = field(default_factory=dict)
    failures: int = 0
    _lock: Lock = field(default_factory=Lock)

    def compared(self, name: str, now: float, lsn: int, differences: int, *, is_partial: bool) -> None:
        """Register a comparison of a table, with the number of newly found differences."""
        with self._lock:
            of = self.tables.setdefault(name, VerifiedTable())
            of.compared_at = now
            of.differences += differences
            of.differs = differences > 0
            of.is_partial = is_partial
            if not differences:
                of.lsn = lsn

    def failed(self) -> None:
        """Register that a side was unreachable, or that the pipeline did not deliver in time."""
        with self._lock:
            self.failures += 1

    def health(self) -> Health:
        """Return healthy: differences are for alerts, not for a supervisor."""
        return Health(True, {"well": True, "tables": len(self.tables)})

    def snapshot(self) -> list[tuple[str, VerifiedTable]]:
        """Return a copy of the tables by name; another thread may add tables meanwhile."""
        with self._lock:
            return list(self.tables.items())


def _each(
    read: Callable[[VerifiedTable, float], float | None],
) -> Callable[[VerifyTelemetry, float], Iterable[Sample]]:
    return lambda numbers, now: [((name,), read(of, now)) for name, of in numbers.snapshot()]


_TABLE: Final = ("table",)

DEFINITIONS: Final[tuple[Definition[VerifyTelemetry], ...]] = (
    Definition(
        "cdcd_verified_lsn",
        "gauge",
        "Every commit before this LSN was in the last comparison of the table that found no difference.",
        _each(lambda of, _: of.lsn or None),
        _TABLE,
    ),
    Definition(
        "cdcd_verify_age_seconds",
        "gauge",
        "Time since the table was compared.",
        _each(lambda of, now: None if of.compared_at is None else max(0.0, now - of.compared_at)),
        _TABLE,
    ),
    Definition(
        "cdcd_verify_differences_total",
        "counter",
        "Rows that differed and records that were wrong. A row that still differs at the next comparison counts again.",
        _each(lambda of, _: of.differences),
        _TABLE,
    ),
    Definition(
        "cdcd_verify_differs",
        "gauge",
        "1 for a table of which the last comparison found a difference.",
        _each(lambda of, _: of.differs),
        _TABLE,
    ),
    Definition(
        "cdcd_verify_partial",
        "gauge",
        "1 for a table of which something could not be compared.",
        _each(lambda of, _: of.is_partial),
        _TABLE,
    ),
    Definition(
        "cdcd_verify_failures_total",
        "counter",
        "Comparisons that were given up because a side was away or the pipeline did not deliver in time.",
        lambda numbers, _: [((), numbers.failures)],
    ),
)


class VerifyCollector(Collector):
    """Collector that reads the figures in the thread of the scrape."""

    def __init__(self, numbers: VerifyTelemetry) -> None:
        self._numbers = numbers

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        yield from families(DEFINITIONS, self._numbers)


def registry_for(numbers: VerifyTelemetry) -> CollectorRegistry:
    """Return the registry for /metrics."""
    registry = CollectorRegistry()
    registry.register(VerifyCollector(numbers))
    ProcessCollector(registry=registry)
    return registry


def verify_routes(numbers: VerifyTelemetry, http: ListenConfig) -> Routes:
    """Return the routes: /metrics and /healthz."""
    return metrics_and_probes(
        lambda: registry_for(numbers), {"/healthz": numbers.health}, reading(lambda: http)
    )


_HEAD: Final = """
## Verification

Made from the table in `cdcd/telemetry/verify.py`. `cdcd verify --continuous` serves them (`--port`).

| metric | kind | labels | meaning |
|---|---|---|---|
"""


def markdown() -> str:
    """Return the part of docs/metrics.md about verification."""
    return _HEAD + table(map(row, DEFINITIONS))
