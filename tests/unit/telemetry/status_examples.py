"""A status with everything in it, for the page and the terminal."""

import time
from collections.abc import Iterator
from typing import Any

from cdcd.core.errors import TransientError
from cdcd.core.facts.process import ReconnectScheduled
from cdcd.core.snapshot.outcomes import Outcome
from cdcd.core.snapshot.progress import Progress
from cdcd.core.snapshot.table_task import Part, TableTask
from cdcd.telemetry.daemon_pages import TABLES_MAX, daemon_status
from cdcd.telemetry.state import AsideStatus, Telemetry, readiness

HOSTILE = '<script>alert("1")</script>\x1b[31m&\'"'


def busy(name: str = "shop", table: str = "public.orders", message: str = "connection refused") -> Telemetry:
    """A pipeline that streams, reads tables, has an outage of Kafka and open transactions."""
    telemetry = Telemetry(name, f"cdcd_{name}")
    now, unix_now = time.monotonic(), time.time()
    telemetry.role, telemetry.streaming = "active", True
    telemetry.events = {(table, "c"): 5, (table, "u"): 2, ("public.items", "d"): 1, ("public.items", "r"): 9}
    telemetry.delivered_rows = 17
    telemetry.throughput.look(now - 10, unix_now - 10, telemetry.totals(), {})
    telemetry.server_wal_end, telemetry.received_lsn, telemetry.flushed_lsn = 0x2000, 0x1F00, 0x1000
    telemetry.last_commit_time = unix_now - 30
    telemetry.retained_wal_bytes = 18_000_000
    telemetry.wal.observe(now - 100, 0, 0, 2_000_000_000)
    telemetry.wal.observe(now, 100_000_000, 0, 1_000_000_000)
    telemetry.streamed_open, telemetry.prepared_open, telemetry.prepared_oldest_time = 2, 1, unix_now - 75
    telemetry.queue_bytes_max = 20 << 20
    telemetry.reach.up["postgres"] = True
    telemetry.reach.failed(
        "kafka", TransientError(message, hint=f"Hint: {message}"), asked_at=now - 5, patience_s=9, now=now
    )
    telemetry.problems.note(
        ReconnectScheduled(side="kafka", message=message, hint=f"Hint: {message}", wait_s=1)
    )
    telemetry.aside = (
        AsideStatus(f"{table}2", "topic", 0x1800, message, f"Hint: {message}", 2),
        AsideStatus("public.aside", "request", 0x1700),
    )
    telemetry.snapshot = Progress(
        tasks=(
            TableTask(
                table,
                oid=7,
                request=message,
                where=message,
                parts=(Part(7, 7, 10, 81920, ((0, 4),)),),
                rows=40,
            ),
            TableTask("public.later", oid=8),
        ),
        outcomes=(Outcome("public.done", "", 12), Outcome("public.legacy", "", 3, message)),
        event_no=52,
    )
    return telemetry


def status_of(telemetry: Telemetry, tables_max: int = TABLES_MAX) -> dict[str, Any]:
    """The object at /v1/status."""
    now = time.time()
    return daemon_status(telemetry, readiness(telemetry, now, None, None), time.monotonic(), now, tables_max)


def keys(value: object, prefix: str = "") -> Iterator[str]:
    """The names in the object, dotted. Those below `transactions` and `reconnects` are values."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield f"{prefix}{name}"
            if name not in {"transactions", "reconnects"}:
                yield from keys(inner, f"{prefix}{name}.")
    elif isinstance(value, list) and value:
        yield from keys(value[0], prefix)
