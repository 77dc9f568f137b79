"""The figures of a running pipeline, the health that follows from them, and a line of the log with deliveries and lag
once a minute.

The pipeline sets plain attributes, which costs almost nothing; `cdcd.telemetry.metrics` reads them for Prometheus
and `cdcd.telemetry.http` for probes, both in other threads. Nothing is computed before it is requested, and readers
need no lock: each attribute is set in one step, and mappings are copied before they are iterated.

Filling a `Histogram` costs almost nothing, because it has only one count per bucket and a sum.

The rule: there is no line for a minute without deliveries and without anything left to deliver. So an idle daemon
is silent, but a hanging daemon is not, because its lag stays and is reported every minute.
"""

import time
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from cdcd.core.engine.context import Traced
from cdcd.core.engine.reachability import Reachability, Undelivered
from cdcd.core.engine.wal_forecast import WalForecast
from cdcd.core.facts import Fact, Observer, Side
from cdcd.core.facts.operation import CheckpointRecordsIgnored, StreamProgressed
from cdcd.core.facts.tables import TableHealed
from cdcd.core.snapshot.progress import Progress
from cdcd.telemetry.logs import LastProblems
from cdcd.telemetry.throughput import DelayTimes, Throughput, Totals


class Histogram:
    """Counts of values by bucket.

    Attributes:
        bounds: upper bounds of all buckets except the last one, which has none.
        counts: number of values in each bucket.
        sum: sum of all values.
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def observe_ages(self, times: list[int], now: int) -> None:
        """Count the ages of `times` at `now` in seconds; all times are in microseconds. This call sorts the list.

        A time after `now`, from another clock, has age 0. The call costs sorting an almost sorted list, and one
        search for each bucket.
        """
        times.sort()
        # Ages fall as times rise, so the times in the first bucket are the last ones.
        end = len(times)
        for index, bound in enumerate(self.bounds):
            begin = bisect_left(times, now - round(bound * 1e6), 0, end)
            self.counts[index] += end - begin
            end = begin
        self.counts[-1] += end
        past = times[: bisect_right(times, now)]
        self.sum += (now * len(past) - sum(past)) / 1e6


Role = Literal["starting", "standby", "active"]
ROLES: Final[tuple[Role, ...]] = ("starting", "standby", "active")

NAMES: Final[dict[Side, str]] = {
    "postgres": "PostgreSQL",
    "kafka": "Kafka",
    "registry": "the schema registry",
}
"""Names of the sides, for people."""

TRANSACTION_KINDS: Final = ("plain", "streamed", "prepared", "rolled_back", "aborted", "message")
"""Kinds of transactions. plain, streamed, prepared: committed and delivered; rolled_back: prepared and rolled back;
aborted: streamed and rolled back, whole or in part; message: logical decoding messages outside of transactions."""

COMMIT_BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

DELAY_BUCKETS_S: Final = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0,
)  # fmt: skip
"""Bucket bounds from the delay of a quiet pipeline to the length of a long outage."""


SpanSink = Callable[[Sequence[Traced], int, int], None]
"""Takes delivered transactions with a trace, and when they were handed to Kafka and acknowledged, in nanoseconds since
1970."""


@dataclass(frozen=True, slots=True)
class ActiveElsewhere:
    """The active instance, as a standby sees it in PostgreSQL.

    Attributes:
        name: application_name of the session that holds the lock.
        client: client address of the session; "": the session uses a socket on the server.
        pid: server process of the session; None: the session has no process.
        seen_at: when the standby saw the session (Unix seconds).
    """

    name: str
    client: str
    pid: int | None
    seen_at: float


@dataclass(frozen=True, slots=True)
class AsideStatus:
    """A table that is set aside.

    Attributes:
        table: `schema.table`, or its oid if the name is not known.
        fault: kind of the fault, as one word.
        since_lsn: commit LSN from which its changes have no records.
        reason: what happened; "" if this was reported by an earlier process.
        hint: what to do about it.
        tries: number of attempts to come back that failed.
    """

    table: str
    fault: str
    since_lsn: int
    reason: str = ""
    hint: str = ""
    tries: int = 0


class Telemetry:
    """Figures of the pipeline; 0 or None as long as a value is unknown.

    Positions are plain ints. Times ending in `_time` are Unix seconds; `loop_heartbeat` is `time.monotonic()`, set
    by a task of the event loop about once a second. `events` counts by (schema.table, op) and may be the encoder's
    own mapping. `name` and `slot` identify the pipeline.
    """

    __slots__ = (
        "_behind_since",
        "_caught_up",
        "acked_lsn",
        "active_elsewhere",
        "aside",
        "commits",
        "contexts_refused",
        "delays",
        "delivered_rows",
        "delivered_traces",
        "delivered_transactions",
        "durable_bytes",
        "durable_from",
        "events",
        "flushed_lsn",
        "hanging",
        "healed_rows",
        "heartbeat_bytes",
        "heartbeat_queries",
        "heartbeats",
        "ignored_records",
        "kafka_bytes",
        "kafka_token_failures",
        "kafka_transactions",
        "last_commit_time",
        "loop_heartbeat",
        "name",
        "otlp_failures",
        "prepared_oldest_time",
        "prepared_open",
        "problems",
        "queue_bytes",
        "queue_bytes_max",
        "queue_records",
        "reach",
        "reading",
        "received_lsn",
        "reconnects",
        "recorded_bytes",
        "recording_stopped",
        "requests_refused",
        "retained_wal_bytes",
        "role",
        "sent_lsn",
        "server_wal_end",
        "slot",
        "snapshot",
        "spool_disk_bytes",
        "spool_memory_bytes",
        "started_time",
        "streamed_open",
        "streaming",
        "throughput",
        "transactions",
        "transactions_cut",
        "unwritable",
        "wal",
        "watermarks",
        "writing",
    )

    def __init__(self, name: str = "", slot: str = "") -> None:
        self.name = name
        self.slot = slot
        self.role: Role = "starting"
        self.active_elsewhere: ActiveElsewhere | None = None
        """The active instance as a standby sees it. Valid only while `role` is standby."""
        self.streaming = False
        self.loop_heartbeat = time.monotonic()
        self.started_time = time.time()
        self.throughput = Throughput()
        self.problems = LastProblems()
        """The last warnings and errors. It must be among the observers (`observing`)."""

        self.received_lsn = self.sent_lsn = self.acked_lsn = self.flushed_lsn = self.server_wal_end = 0
        self.last_commit_time: float | None = None
        self._caught_up = False
        self._behind_since = 0.0
        self.retained_wal_bytes: int | None = None
        self.wal = WalForecast()

        self.snapshot: Progress | None = None
        self.reading = False
        """True while the initial snapshot is read and changes wait for its end."""

        self.aside: tuple[AsideStatus, ...] = ()
        """The tables that are set aside."""
        self.events: dict[tuple[str, str], int] = {}
        self.transactions = dict.fromkeys(TRANSACTION_KINDS, 0)
        self.transactions_cut = 0
        self.requests_refused = self.contexts_refused = 0
        self.healed_rows: Counter[str] = Counter()
        self.ignored_records: dict[str, int] = {}
        """Number of ignored records by the pipeline's own topic. A record is ignored if another writer wrote it."""
        self.unwritable: dict[tuple[str, str], int] = {}
        self.heartbeats = self.heartbeat_bytes = self.watermarks = 0
        self.heartbeat_queries = {"done": 0, "failed": 0}
        self.delivered_rows = 0
        self.delivered_transactions = 0
        """Delivered transactions and rows: with records that Kafka acknowledged. `events` and `transactions` count
        processed ones, and count them again after a failed session."""
        self.streamed_open = self.prepared_open = 0
        self.prepared_oldest_time: float | None = None
        self.spool_memory_bytes = self.spool_disk_bytes = 0
        self.durable_bytes = 0
        """Bytes of the durable log."""
        self.durable_from: int | None = None
        """Position up to which Kafka holds everything, and after which the durable log does; None: the log is empty."""
        self.recorded_bytes = 0
        self.recording_stopped = False
        """True if a recording is configured, but nothing is recorded."""
        self.queue_bytes = self.queue_bytes_max = self.queue_records = 0
        self.reach = Reachability(self._waiting)
        """Reachability of each side. Both an outage and its end are events."""

        self.writing: Collection[Collection[str]] = ()
        """Topics of the open Kafka transaction, as far as its records are produced, in several sets."""
        self.hanging: Mapping[tuple[str, int], int] = {}
        """Partitions with a hanging transaction (`kafka/outage.py`), and the offset at which readers stop in each."""
        self.otlp_failures: Mapping[str, int] = {}
        """Number of failed requests to the collector of OpenTelemetry, by signal."""
        self.delivered_traces: SpanSink | None = None
        """Function that makes the spans of delivered transactions; None: no spans are made."""
        self.kafka_transactions = self.kafka_bytes = self.kafka_token_failures = 0
        self.commits = Histogram(COMMIT_BUCKETS_S)
        self.delays = Histogram(DELAY_BUCKETS_S)
        self.reconnects: dict[str, int] = {"postgres": 0, "kafka": 0}

    def stand_by(self) -> None:
        """Clear the figures of the active instance, because another instance has become active. Totals stay."""
        self.received_lsn = self.sent_lsn = self.acked_lsn = self.flushed_lsn = self.server_wal_end = 0
        self.last_commit_time = self.prepared_oldest_time = self.retained_wal_bytes = None
        self.wal = WalForecast()
        self._caught_up, self._behind_since = False, 0.0
        self.durable_bytes, self.durable_from = 0, None
        self.streamed_open = self.prepared_open = 0
        self.aside = ()
        self.spool_memory_bytes = self.spool_disk_bytes = self.queue_bytes = self.queue_records = 0

    def _waiting(self) -> Undelivered:
        return Undelivered(self.queue_records, self.queue_bytes, self.flushed_lsn, self.retained_wal_bytes)

    def look(self, now: float, unix_now: float) -> None:
        """Update the history of the last hour and the last day, which the page shows. Call this about once a second.

        Args:
            now: monotonic seconds.
            unix_now: Unix seconds.
        """
        lag_s = self.lag_s(unix_now) if self.role == "active" else None
        self.throughput.look(now, unix_now, self.totals(), self.events, lag_s=lag_s, delays=self.all_delays())

    def all_delays(self) -> DelayTimes:
        """Return the delays since the process started."""
        return DelayTimes(sum(self.delays.counts), self.delays.sum)

    def totals(self) -> Totals:
        """Return the totals that Kafka acknowledged since the process started. Heartbeats do not count."""
        work_bytes = self.kafka_bytes - self.heartbeat_bytes
        return Totals(self.delivered_transactions, self.delivered_rows, work_bytes)

    @property
    def caught_up(self) -> bool:
        """True if everything that the server is known to have written is in Kafka.

        Set it to True only if the server said so (a keepalive, the survey), because a queue that is empty between
        two reads of a backlog would hide the lag.
        """
        return self._caught_up

    @caught_up.setter
    def caught_up(self, value: bool) -> None:
        if self._caught_up and not value:
            self._behind_since = time.time()
        self._caught_up = value

    def counting(self, observe: Observer) -> Observer:
        """Return an observer that counts ignored records and healed rows, and then calls `observe`."""

        def both(fact: Fact) -> None:
            if isinstance(fact, TableHealed):
                found = {"deletes": fact.deletes, "updates": fact.updates, "inserts": fact.inserts}
                self.healed_rows.update(found)
            elif isinstance(fact, CheckpointRecordsIgnored):
                self.ignored_records[fact.topic] = self.ignored_records.get(fact.topic, 0) + fact.count
            observe(fact)

        return both

    def observe_commit(self, seconds: float) -> None:
        """Count a batch that the broker acknowledged, with the `seconds` since it was sent."""
        self.kafka_transactions += 1
        self.commits.observe(seconds)

    def lag_bytes(self) -> int | None:
        """Return the bytes of WAL that the server has and Kafka does not; None before the server's position is known.

        0 when caught up: WAL that the server has written since its last keepalive may contain no changes.
        """
        if not self.server_wal_end:
            return None
        delivered = self.flushed_lsn if self.durable_from is None else self.durable_from
        return 0 if self._caught_up else max(0, self.server_wal_end - delivered)

    def lag_s(self, now: float) -> float | None:
        """Return the age in seconds of the last delivered commit while more is to be delivered; None without a commit.

        After a quiet night the last commit is old when the first change arrives, so the age counts from the moment
        at which the pipeline fell behind, if that is later.
        """
        if self._caught_up or self.lag_bytes() == 0:
            return 0.0
        since = max(self.last_commit_time or 0.0, self._behind_since)
        return max(0.0, now - since) if since else None

    def prepared_oldest_age_s(self, now: float) -> float:
        return max(0.0, now - self.prepared_oldest_time) if self.prepared_oldest_time is not None else 0.0


@dataclass(frozen=True, slots=True)
class Health:
    """Result of a probe: health, and the reasons as JSON."""

    well: bool
    detail: dict[str, Any]


def liveness(telemetry: Telemetry, monotonic: float, stall_s_max: float) -> Health:
    """Return healthy if the event loop runs. A daemon that waits for PostgreSQL or Kafka is alive."""
    stalled_s = monotonic - telemetry.loop_heartbeat
    if stalled_s <= stall_s_max:
        return Health(True, {"alive": True})
    return Health(False, {"alive": False, "reasons": [f"the event loop is stuck for {stalled_s:.0f} s"]})


def readiness(
    telemetry: Telemetry,
    now: float,
    lag_bytes_max: int | None,
    lag_s_max: float | None,
    *,
    during_snapshot: bool = False,
) -> Health:
    """Return ready if the pipeline streams and keeps up, or waits as a standby.

    A standby is ready if both sides answer, because its job is to wait, and a rollout that waits for readiness
    would otherwise never end. An instance is not ready while a side does not answer.

    Args:
        during_snapshot: True if reading the first snapshot counts as keeping up, whatever the lag.
    """
    role = telemetry.role
    reasons = [
        f"{NAMES[side]} is unreachable: {outage.message}"
        for side, outage in telemetry.reach.outages.copy().items()
    ]
    if role == "standby":
        return Health(not reasons, {"ready": not reasons, "role": role} | _reasons(reasons))
    reading = role == "active" and telemetry.streaming and telemetry.reading
    if role != "active":
        reasons.append("not connected yet")
    elif not telemetry.streaming:
        reasons.append("not streaming: reconnecting to PostgreSQL or Kafka")
    elif reading and not during_snapshot:
        reasons.append("not streaming yet: reading the initial snapshot (see ready.during_snapshot)")
    lag_bytes, lag_s = telemetry.lag_bytes(), telemetry.lag_s(now)
    counts = not (reading and during_snapshot)
    if counts and lag_bytes is not None and lag_bytes_max is not None and lag_bytes > lag_bytes_max:
        reasons.append(f"{lag_bytes} bytes behind, more than ready.lag_bytes_max = {lag_bytes_max}")
    if counts and lag_s is not None and lag_s_max is not None and lag_s > lag_s_max:
        reasons.append(f"{lag_s:.0f} s behind, more than ready.lag_s_max = {lag_s_max:g}")
    detail = {"ready": not reasons, "role": role, "lag_bytes": lag_bytes, "lag_s": lag_s}
    return Health(not reasons, detail | ({"snapshot": "reading"} if reading else {}) | _reasons(reasons))


def _reasons(reasons: list[str]) -> dict[str, Any]:
    return {"reasons": reasons} if reasons else {}


REPORT_S: Final = 60.0
"""Seconds between two lines."""


class ProgressReport:
    """Reports; call `due` at short intervals.

    Args:
        now: monotonic seconds.
    """

    def __init__(self, telemetry: Telemetry, now: float) -> None:
        self._telemetry = telemetry
        self._at = now
        self._before = telemetry.totals()

    def due(self, now: float, unix_now: float) -> StreamProgressed | None:
        """Return the report of the last minute, if a minute has passed and there is something to report."""
        seconds = now - self._at
        if seconds < REPORT_S:
            return None
        telemetry, before = self._telemetry, self._before
        totals = self._before = telemetry.totals()
        self._at = now
        lag_bytes = telemetry.lag_bytes() or 0
        if telemetry.role != "active" or (totals == before and not lag_bytes):
            return None
        delivered = totals.since(before)
        lag_s = telemetry.lag_s(unix_now)
        return StreamProgressed(
            seconds=round(seconds, 1),
            transactions=delivered.transactions,
            rows=delivered.rows,
            bytes=delivered.bytes,
            lag_s=None if lag_s is None else round(lag_s, 1),
            lag_bytes=lag_bytes,
            waiting_records=telemetry.queue_records,
            waiting_bytes=telemetry.queue_bytes,
            wal_bytes=telemetry.retained_wal_bytes,
        )
