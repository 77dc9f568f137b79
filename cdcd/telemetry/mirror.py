"""Figures of a running mirror, its metrics as one table, and its health."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from cdcd.config.masking import mask_text
from cdcd.config.sections.process import ListenConfig
from cdcd.telemetry.access import reading
from cdcd.telemetry.definitions import Definition, Sample, families, row, table
from cdcd.telemetry.http import Routes, metrics_and_probes
from cdcd.telemetry.state import Health


@dataclass(slots=True)
class MirroredTable:
    """Figures of one table.

    Attributes:
        changes: number of changes that were folded into the table.
        commit_lsn: LSN up to which the table has all changes; 0: unknown.
        failures: number of batches that the table could not follow.
        reloads: number of times that the table was read again.
        stopped: reason why the table is stopped; "": it is not.
    """

    changes: int = 0
    commit_lsn: int = 0
    failures: int = 0
    reloads: int = 0
    stopped: str = ""


@dataclass(slots=True)
class MirrorTelemetry:
    """Figures of one mirror. Several threads write them; each method is called by one thread at a time.

    Attributes:
        lags: returns for how long each table may lack changes, in seconds by its name.
        batch_at: end of the last round with changes (Unix seconds); None: none yet.
        log_lag_s: age in seconds of the newest record of the log's last batch; None: unknown.
        consistent_lsn: last common LSN; None: none, or batches are not consistent.
        waiting_for: what the mirror waits for; "": nothing.
        unfit: topics whose settings let Kafka remove records.
    """

    tables: dict[str, MirroredTable] = field(default_factory=dict)
    lags: Callable[[], Mapping[str, float]] = dict
    log_batches: int = 0
    log_records: int = 0
    log_unreadable: int = 0
    log_lag_s: float | None = None
    batches: int = 0
    batch_at: float | None = None
    batch_s: float | None = None
    consistent_lsn: int | None = None
    retries: int = 0
    waiting_for: str = ""
    unfit: set[str] = field(default_factory=set)
    _lock: Lock = field(default_factory=Lock)

    def appended(self, records: int, unreadable: int, lag_s: float | None) -> None:
        """Register a batch of the log."""
        with self._lock:
            self.log_batches += 1
            self.log_records += records
            self.log_unreadable += unreadable
            self.log_lag_s = lag_s

    def goes_on(self) -> None:
        """Register that every service that the mirror needs has answered."""
        with self._lock:
            self.waiting_for = ""

    def batch(self, now: float, seconds: float, consistent_lsn: int | None) -> None:
        """Register that the changes of a round are in all tables that are not stopped."""
        with self._lock:
            self.batches += 1
            self.batch_at, self.batch_s = now, seconds
            if consistent_lsn is not None:
                self.consistent_lsn = consistent_lsn

    def table(self, name: str, changes: int, commit_lsn: int) -> None:
        """Register that the changes of a round are in this table."""
        with self._lock:
            of = self._of(name)
            of.changes += changes
            of.commit_lsn = max(of.commit_lsn, commit_lsn)

    def failed(self, name: str, why: str, *, stopped: bool) -> None:
        """Register that a table could not follow."""
        with self._lock:
            of = self._of(name)
            of.failures += 1
            if stopped:
                of.stopped = mask_text(why)

    def resumed(self, name: str) -> None:
        """Register that a table goes on."""
        with self._lock:
            self._of(name).stopped = ""

    def reloaded(self, name: str) -> None:
        """Register that a table was read again."""
        with self._lock:
            self._of(name).reloads += 1

    def retrying(self, why: str) -> None:
        """Register that a service that all tables need is unreachable."""
        with self._lock:
            self.retries += 1
            self.waiting_for = mask_text(why)

    def health(self) -> Health:
        """Return the health: well if no table is stopped and no service is unreachable."""
        with self._lock:
            stopped = {name: of.stopped for name, of in self.tables.items() if of.stopped}
            reasons = [f"{name} is stopped: {why}" for name, why in stopped.items()]
            if self.waiting_for:
                reasons.append(self.waiting_for)
            detail = {"well": not reasons, "batches": self.batches, "tables": len(self.tables)}
            return Health(not reasons, detail | ({"reasons": reasons} if reasons else {}))

    def snapshot(self) -> list[tuple[str, MirroredTable]]:
        """Return a copy of the tables by name; other threads may add tables meanwhile."""
        with self._lock:
            return list(self.tables.items())

    def _of(self, name: str) -> MirroredTable:
        return self.tables.setdefault(name, MirroredTable())


def _each(
    read: Callable[[MirroredTable], float | None],
) -> Callable[[MirrorTelemetry, float], Iterable[Sample]]:
    return lambda mirror, _now: [((name,), read(of)) for name, of in mirror.snapshot()]


def _one(
    read: Callable[[MirrorTelemetry, float], float | None],
) -> Callable[[MirrorTelemetry, float], Iterable[Sample]]:
    return lambda mirror, now: [((), read(mirror, now))]


_TABLE: Final = ("table",)

DEFINITIONS: Final[tuple[Definition[MirrorTelemetry], ...]] = (
    Definition(
        "cdcd_mirror_batches_total",
        "counter",
        "Number of rounds of folds that brought changes into at least one table.",
        _one(lambda mirror, _: mirror.batches),
    ),
    Definition(
        "cdcd_mirror_batch_seconds",
        "gauge",
        "Duration of the last round of folds that brought changes into a table.",
        _one(lambda mirror, _: mirror.batch_s),
    ),
    Definition(
        "cdcd_mirror_batch_age_seconds",
        "gauge",
        "Time since the end of the last round of folds that brought changes into a table.",
        _one(lambda mirror, now: None if mirror.batch_at is None else max(0.0, now - mirror.batch_at)),
    ),
    Definition(
        "cdcd_mirror_log_batches_total",
        "counter",
        "Batches that were appended to the log.",
        _one(lambda mirror, _: mirror.log_batches),
    ),
    Definition(
        "cdcd_mirror_log_records_total",
        "counter",
        "Records that were appended to the log.",
        _one(lambda mirror, _: mirror.log_records),
    ),
    Definition(
        "cdcd_mirror_log_unreadable_total",
        "counter",
        "Records in the log that are no change of a table: the quarantine.",
        _one(lambda mirror, _: mirror.log_unreadable),
    ),
    Definition(
        "cdcd_mirror_log_lag_seconds",
        "gauge",
        "Age of the newest record of the log's last batch when the batch ended.",
        _one(lambda mirror, _: mirror.log_lag_s),
    ),
    Definition(
        "cdcd_mirror_consistent_lsn",
        "gauge",
        "The last LSN that all tables have in common, with consistent batches.",
        _one(lambda mirror, _: mirror.consistent_lsn),
    ),
    Definition(
        "cdcd_mirror_retries_total",
        "counter",
        "Starts of the stream after Kafka or the catalog was away.",
        _one(lambda mirror, _: mirror.retries),
    ),
    Definition(
        "cdcd_mirror_up",
        "gauge",
        "0 while Kafka or the catalog is away.",
        _one(lambda mirror, _: not mirror.waiting_for),
    ),
    Definition(
        "cdcd_mirror_unfit_topics",
        "gauge",
        "Topics whose cleanup.policy lets records go that the mirror needs.",
        _one(lambda mirror, _: len(mirror.unfit)),
    ),
    Definition(
        "cdcd_mirror_table_stopped",
        "gauge",
        "1 for a stopped table.",
        _each(lambda of: bool(of.stopped)),
        _TABLE,
    ),
    Definition(
        "cdcd_mirror_table_lsn",
        "gauge",
        "LSN up to which the table has all changes, as the last fold with changes left it.",
        _each(lambda of: of.commit_lsn or None),
        _TABLE,
    ),
    Definition(
        "cdcd_mirror_table_lag_seconds",
        "gauge",
        "Time since the table was last known to have all changes that the log has, or since the mirror began.",
        lambda mirror, _now: [((name,), lag) for name, lag in sorted(mirror.lags().items())],
        _TABLE,
    ),
    Definition(
        "cdcd_mirror_table_changes_total",
        "counter",
        "Changes that were folded into the table.",
        _each(lambda of: of.changes),
        _TABLE,
    ),
    Definition(
        "cdcd_mirror_table_failures_total",
        "counter",
        "Times that the table could not follow.",
        _each(lambda of: of.failures),
        _TABLE,
    ),
    Definition(
        "cdcd_mirror_table_reloads_total",
        "counter",
        "Times that the table was read again from its database.",
        _each(lambda of: of.reloads),
        _TABLE,
    ),
)


class MirrorCollector(Collector):
    """Collector that reads the figures in the thread of the scrape."""

    def __init__(self, mirror: MirrorTelemetry) -> None:
        self._mirror = mirror

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        yield from families(DEFINITIONS, self._mirror)


def registry_for(mirror: MirrorTelemetry) -> CollectorRegistry:
    """Return the registry for a mirror's /metrics."""
    registry = CollectorRegistry()
    registry.register(MirrorCollector(mirror))
    ProcessCollector(registry=registry)
    return registry


def mirror_routes(mirror: MirrorTelemetry, http: ListenConfig) -> Routes:
    """Return the routes of a mirror: /metrics and /healthz."""
    return metrics_and_probes(
        lambda: registry_for(mirror), {"/healthz": mirror.health}, reading(lambda: http)
    )


_HEAD: Final = """
## The mirror

Made from the table in `cdcd/telemetry/mirror.py`. `cdcd mirror` serves them (`http`), without `--once`.

| metric | kind | labels | meaning |
|---|---|---|---|
"""


def markdown() -> str:
    """Return the mirror's part of docs/metrics.md."""
    return _HEAD + table(map(row, DEFINITIONS))
