"""The metrics, as one table: name, kind, meaning and the function that reads the value from the telemetry.

The values are read when Prometheus scrapes; the pipeline does not depend on Prometheus. docs/metrics.md is made
from the table.
"""

import platform
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.metrics_core import (
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from cdcd import __version__
from cdcd.build import is_compiled
from cdcd.core.facts import Side
from cdcd.core.snapshot.table_task import TableTask
from cdcd.telemetry.definitions import Definition, Sample, families, row, table
from cdcd.telemetry.state import ROLES, Histogram, Telemetry


def _one(read: Callable[[Telemetry], float | None]) -> Callable[[Telemetry, float], Iterable[Sample]]:
    return lambda telemetry, _now: [((), read(telemetry))]


def _by_label(read: Callable[[Telemetry], dict[str, int]]) -> Callable[[Telemetry, float], Iterable[Sample]]:
    return lambda telemetry, _now: [((label,), value) for label, value in read(telemetry).copy().items()]


def _aside(telemetry: Telemetry, _now: float) -> Iterable[Sample]:
    return [((fault,), count) for fault, count in Counter(each.fault for each in telemetry.aside).items()]


def _events(telemetry: Telemetry, _now: float) -> Iterable[Sample]:
    return list(telemetry.events.copy().items())


def _unwritable(telemetry: Telemetry, _now: float) -> Iterable[Sample]:
    return list(telemetry.unwritable.copy().items())


def _snapshot_tables(telemetry: Telemetry, _now: float) -> Iterable[Sample]:
    return [((), None if telemetry.snapshot is None else telemetry.snapshot.tables_left)]


def _snapshot_rows(telemetry: Telemetry, _now: float) -> Iterable[Sample]:
    return [((), None if telemetry.snapshot is None else telemetry.snapshot.event_no)]


def _snapshot_table(
    read: Callable[[TableTask], float],
) -> Callable[[Telemetry, float], Iterable[Sample]]:
    def samples(telemetry: Telemetry, _now: float) -> Iterable[Sample]:
        progress = telemetry.snapshot
        return (
            [] if progress is None else [((task.name,), read(task)) for task in progress.tasks if task.parts]
        )

    return samples


def _up(side: Side) -> Callable[[Telemetry, float], Iterable[Sample]]:
    return lambda telemetry, _now: [((), telemetry.reach.up.get(side))]


def _roles(telemetry: Telemetry, _now: float) -> Iterable[Sample]:
    return [((role,), role == telemetry.role) for role in ROLES]


def _build(_telemetry: Telemetry, _now: float) -> Iterable[Sample]:
    return [((__version__, platform.python_version(), str(is_compiled()).lower()), 1)]


DEFINITIONS: Final[tuple[Definition[Telemetry], ...]] = (
    Definition(
        "cdcd_build_info",
        "gauge",
        "Always 1, with the version as labels.",
        _build,
        ("version", "python", "compiled"),
    ),
    Definition(
        "cdcd_pipeline_info",
        "gauge",
        "Always 1, with the pipeline's name as a label, to join with other metrics.",
        lambda t, _now: [((t.name, t.slot), 1)],
        ("pipeline", "slot"),
    ),
    Definition("cdcd_role", "gauge", "1 for the role that this instance has.", _roles, ("role",)),
    Definition(
        "cdcd_streaming",
        "gauge",
        "1 while PostgreSQL sends changes to this instance.",
        _one(lambda t: t.streaming),
    ),
    Definition(
        "cdcd_kafka_up",
        "gauge",
        "1 if Kafka answered when it was asked last, which is once a second.",
        _up("kafka"),
    ),
    Definition(
        "cdcd_kafka_hanging_partitions",
        "gauge",
        "Partitions in which readers with read_committed do not see committed records (the event transaction.hanging).",
        _one(lambda t: len(t.hanging)),
    ),
    Definition(
        "cdcd_registry_up",
        "gauge",
        "1 if the schema registry answered when it was asked last, which a new schema makes cdcd do.",
        _up("registry"),
    ),
    Definition(
        "cdcd_postgres_up",
        "gauge",
        "1 if PostgreSQL answered when it was asked last.",
        _up("postgres"),
    ),
    Definition(
        "cdcd_caught_up",
        "gauge",
        "1 when the broker holds all that the server has.",
        _one(lambda t: t.caught_up),
    ),
    Definition(
        "cdcd_received_lsn",
        "gauge",
        "WAL position up to which changes were received.",
        _one(lambda t: t.received_lsn),
    ),
    Definition(
        "cdcd_sent_lsn",
        "gauge",
        "WAL position up to which records were sent to Kafka.",
        _one(lambda t: t.sent_lsn),
    ),
    Definition(
        "cdcd_acked_lsn",
        "gauge",
        "WAL position of the last commit that Kafka acknowledged.",
        _one(lambda t: t.acked_lsn),
    ),
    Definition(
        "cdcd_flushed_lsn",
        "gauge",
        "WAL position that is confirmed to PostgreSQL: Kafka holds everything before it.",
        _one(lambda t: t.flushed_lsn),
    ),
    Definition(
        "cdcd_server_wal_end_lsn",
        "gauge",
        "End of the server's WAL, as last heard.",
        _one(lambda t: t.server_wal_end or None),
    ),
    Definition(
        "cdcd_lag_bytes", "gauge", "WAL that the server has and Kafka does not.", _one(Telemetry.lag_bytes)
    ),
    Definition(
        "cdcd_lag_seconds",
        "gauge",
        "Age of the last delivered commit while there is more to deliver; 0 when caught up.",
        lambda t, now: [((), t.lag_s(now))],
    ),
    Definition(
        "cdcd_retained_wal_bytes",
        "gauge",
        "WAL that the slot holds back on the server.",
        _one(lambda t: t.retained_wal_bytes),
    ),
    Definition(
        "cdcd_wal_safe_bytes",
        "gauge",
        "WAL that can still be written before PostgreSQL may give up the slot; only with max_slot_wal_keep_size.",
        _one(lambda t: t.wal.safe_bytes),
    ),
    Definition(
        "cdcd_wal_seconds_left",
        "gauge",
        "Time until PostgreSQL may give up the slot, at the WAL rate of the last ten minutes and without deliveries; "
        "+Inf while no WAL is written.",
        _one(lambda t: t.wal.seconds_left),
    ),
    Definition(
        "cdcd_snapshot_tables",
        "gauge",
        "Tables of which Kafka does not hold all rows: those that are being read, or are still to be read.",
        _snapshot_tables,
    ),
    Definition(
        "cdcd_snapshot_rows_total",
        "counter",
        "Rows of snapshots that Kafka acknowledged since the pipeline began.",
        _snapshot_rows,
    ),
    Definition(
        "cdcd_snapshot_share",
        "gauge",
        "Share of a table that is read and delivered, from 0 to 1, while the table is being read.",
        _snapshot_table(lambda task: task.share),
        ("table",),
    ),
    Definition(
        "cdcd_snapshot_table_rows",
        "gauge",
        "Rows of a table that were read and delivered so far, while the table is being read.",
        _snapshot_table(lambda task: task.rows),
        ("table",),
    ),
    Definition(
        "cdcd_snapshot_table_read_bytes",
        "gauge",
        "Bytes on disk that are read and delivered, of a table that is being read.",
        _snapshot_table(lambda task: int(task.size * task.share)),
        ("table",),
    ),
    Definition(
        "cdcd_snapshot_table_bytes",
        "gauge",
        "Size on disk of a table that is being read.",
        _snapshot_table(lambda task: task.size),
        ("table",),
    ),
    Definition(
        "cdcd_tables_set_aside",
        "gauge",
        "Tables that a fault of their own has set aside, by kind of fault. Their changes have no records.",
        _aside,
        ("fault",),
    ),
    Definition("cdcd_events_total", "counter", "Events by table and operation.", _events, ("table", "op")),
    Definition(
        "cdcd_unwritable_values_total",
        "counter",
        "Values for which the format has no form, by table and column. Null stands for them.",
        _unwritable,
        ("table", "column"),
    ),
    Definition(
        "cdcd_heartbeats_total",
        "counter",
        "Heartbeats that Kafka acknowledged.",
        _one(lambda t: t.heartbeats),
    ),
    Definition(
        "cdcd_watermarks_total",
        "counter",
        "Watermarks that Kafka acknowledged in partitions of the topics of tables.",
        _one(lambda t: t.watermarks),
    ),
    Definition(
        "cdcd_heartbeat_queries_total",
        "counter",
        "Runs of `heartbeat.action_query` by result: done or failed.",
        _by_label(lambda t: t.heartbeat_queries),
        ("result",),
    ),
    Definition(
        "cdcd_transactions_total",
        "counter",
        "Source transactions by kind: plain, streamed and prepared were delivered; rolled_back and aborted "
        "were dropped; subtransaction_aborted are dropped parts of streamed ones; message are logical messages "
        "outside of transactions.",
        _by_label(lambda t: t.transactions),
        ("kind",),
    ),
    Definition(
        "cdcd_streamed_open",
        "gauge",
        "Streamed transactions whose end has not come yet.",
        _one(lambda t: t.streamed_open),
    ),
    Definition(
        "cdcd_prepared_open",
        "gauge",
        "Prepared transactions that are not decided yet.",
        _one(lambda t: t.prepared_open),
    ),
    Definition(
        "cdcd_prepared_oldest_age_seconds",
        "gauge",
        "Age of the oldest prepared transaction that is not decided; it holds the slot back.",
        lambda t, now: [((), t.prepared_oldest_age_s(now))],
    ),
    Definition(
        "cdcd_spool_memory_bytes",
        "gauge",
        "Changes of undecided transactions in memory.",
        _one(lambda t: t.spool_memory_bytes),
    ),
    Definition(
        "cdcd_spool_disk_bytes",
        "gauge",
        "Changes of undecided transactions on disk.",
        _one(lambda t: t.spool_disk_bytes),
    ),
    Definition(
        "cdcd_durable_spool_bytes",
        "gauge",
        "Bytes of the durable log (spool.durable): changes that PostgreSQL may have forgotten and Kafka does not have.",
        _one(lambda t: t.durable_bytes),
    ),
    Definition(
        "cdcd_recorded_bytes_total",
        "counter",
        "Bytes that were written into the recording (record.directory).",
        _one(lambda t: t.recorded_bytes),
    ),
    Definition(
        "cdcd_recording_stopped",
        "gauge",
        "1 if record.directory is set and nothing is recorded, for example because the disk is full. Else 0.",
        _one(lambda t: int(t.recording_stopped)),
    ),
    Definition(
        "cdcd_queue_bytes",
        "gauge",
        "Size of the records that wait for the broker, in bytes.",
        _one(lambda t: t.queue_bytes),
    ),
    Definition(
        "cdcd_queue_limit_bytes",
        "gauge",
        "Size of that queue at which cdcd stops reading PostgreSQL's stream.",
        _one(lambda t: t.queue_bytes_max),
    ),
    Definition(
        "cdcd_transactions_cut_total",
        "counter",
        "Source transactions with more records than kafka.transaction.whole_bytes_max: readers see them in parts.",
        _one(lambda t: t.transactions_cut),
    ),
    Definition(
        "cdcd_requests_refused_total",
        "counter",
        "Requests for snapshots by logical message that were refused: malformed, without a known token, or too many.",
        _one(lambda t: t.requests_refused),
    ),
    Definition(
        "cdcd_contexts_refused_total",
        "counter",
        "Contexts of transactions (logical message cdcd.context) that were refused: malformed, too large, or without a "
        "known token.",
        _one(lambda t: t.contexts_refused),
    ),
    Definition(
        "cdcd_healed_rows_total",
        "counter",
        "Rows whose records healed topics after a gap, by kind: deletes, updates, inserts.",
        _by_label(lambda t: t.healed_rows),
        ("kind",),
    ),
    Definition(
        "cdcd_ignored_records_total",
        "counter",
        "Records of the checkpoint topic that are ignored, because somebody else wrote them.",
        _by_label(lambda t: t.ignored_records),
        ("topic",),
    ),
    Definition(
        "cdcd_kafka_transactions_total",
        "counter",
        "Batches that Kafka acknowledged; Kafka transactions with exactly-once delivery.",
        _one(lambda t: t.kafka_transactions),
    ),
    Definition(
        "cdcd_kafka_bytes_total",
        "counter",
        "Bytes of keys and values that Kafka acknowledged, before compression.",
        _one(lambda t: t.kafka_bytes),
    ),
    Definition(
        "cdcd_kafka_token_failures_total",
        "counter",
        "Times that there was no new token for Kafka (kafka.oauth).",
        _one(lambda t: t.kafka_token_failures),
    ),
    Definition(
        "cdcd_otlp_failures_total",
        "counter",
        "Requests to the collector of OpenTelemetry (otlp.endpoint) that failed, by signal: traces, metrics, logs.",
        _by_label(lambda t: dict(t.otlp_failures)),
        ("signal",),
    ),
    Definition(
        "cdcd_reconnects_total",
        "counter",
        "Number of reconnects, by side.",
        _by_label(lambda t: t.reconnects),
        ("side",),
    ),
)

COMMIT_NAME: Final = "cdcd_kafka_commit_seconds"
COMMIT_HELP: Final = "Time from handing a batch to Kafka to its acknowledgement."


DELAY_NAME: Final = "cdcd_commit_to_acknowledged_seconds"
DELAY_HELP: Final = (
    "Time from the commit of a transaction (PostgreSQL's clock) to Kafka's acknowledgement (our clock)."
)


class TelemetryCollector(Collector):
    """Collector that reads the telemetry in the thread of the scrape."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        yield from families(DEFINITIONS, self._telemetry)
        yield _family(COMMIT_NAME, COMMIT_HELP, self._telemetry.commits)
        yield _family(DELAY_NAME, DELAY_HELP, self._telemetry.delays)


def _family(name: str, meaning: str, histogram: Histogram) -> Metric:
    """Return the histogram in Prometheus' form."""
    counts = histogram.counts.copy()
    buckets, total = [], 0
    for bound, count in zip((*map(str, histogram.bounds), "+Inf"), counts, strict=True):
        total += count
        buckets.append((bound, float(total)))
    family = HistogramMetricFamily(name, meaning)
    family.add_metric((), buckets, histogram.sum)
    return family


def registry_for(telemetry: Telemetry) -> CollectorRegistry:
    """Return the registry for /metrics: the table, and the process's CPU time, memory and open files."""
    registry = CollectorRegistry()
    registry.register(TelemetryCollector(telemetry))
    ProcessCollector(registry=registry)
    return registry


_HEAD: Final = """\
# Metrics

Made from the table in `cdcd/telemetry/metrics.py`; a test keeps it so. Served at `/metrics`, with the process's own
`process_cpu_seconds_total`, `process_resident_memory_bytes`, `process_open_fds` and so on. Positions (`_lsn`) are byte
positions in the WAL as numbers.

| metric | kind | labels | meaning |
|---|---|---|---|"""


def markdown() -> str:
    """Return the daemon's part of docs/metrics.md: every metric with its kind, labels and meaning."""
    histograms = [(COMMIT_NAME, "histogram", (), COMMIT_HELP), (DELAY_NAME, "histogram", (), DELAY_HELP)]
    return _HEAD + "\n" + table([*map(row, DEFINITIONS), *histograms])
