"""HTTP contents of a daemon: its status (the object at `/v1/status`), page, metrics, probes, and actions if a token
allows them.

This is the only status object. The page at `/` is made from it, `cdcd top` reads it, and `cdcd status` shows it as
`daemon` beside the data of PostgreSQL and Kafka. Names are stable: keys may be added, and none changes its meaning.
Units are the last part of a name (`_bytes`, `_s`, `_per_s`). Times are ISO 8601 in UTC, positions are texts as
PostgreSQL prints them, and unknown values are null. docs/page.md explains each key.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from cdcd import __version__
from cdcd.build import is_compiled
from cdcd.config.models import Config
from cdcd.config.reference import changed_yaml
from cdcd.core.facts import Observer, Side, cut_short
from cdcd.core.pasted import resume_table
from cdcd.core.protocol.lsn import Lsn
from cdcd.core.records.shaping.shape import NO_RECORD
from cdcd.core.snapshot.progress import Progress
from cdcd.telemetry.access import reading
from cdcd.telemetry.actions import Ask, action_routes
from cdcd.telemetry.html_page import html_page, runbook_page
from cdcd.telemetry.html_style import HEADERS
from cdcd.telemetry.http import (
    AnswerCache,
    HttpRequest,
    HttpRoute,
    Reply,
    Routes,
    json_reply,
    metrics_and_probes,
    serve,
)
from cdcd.telemetry.look_ups import HTML, PageLookUps, Tools
from cdcd.telemetry.state import NAMES, ActiveElsewhere, AsideStatus, Health, Telemetry, liveness, readiness
from cdcd.telemetry.terminal_text import seconds, size
from cdcd.telemetry.throughput import Rates

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


TABLES_MAX: Final = 50
"""Maximum number of tables in the object: the busiest ones. `tables_total` is the number of all tables."""

ALL_TABLES_MAX: Final = 10_000
"""Maximum number of tables in the object if all are requested."""

READING_MAX: Final = 100
"""Maximum number of tables in the object that are being read or wait for that, and of tables that are set aside.
`tables_left` and `set_aside_total` count all of them."""

TEXT_MAX: Final = 300
"""Maximum characters of a snapshot's condition or error."""

_OPERATIONS: Final = {"c": "inserts", "u": "updates", "d": "deletes", "t": "truncates", "r": "rows_read"}
"""Names of the counts by the operation of records."""

_HEADLINES: Final = {
    "starting": "is starting: it connects to PostgreSQL and Kafka",
    "standby": "standby: another instance is active, and this instance takes over when that instance ends",
}


def daemon_status(
    telemetry: Telemetry, ready: Health, now: float, unix_now: float, tables_max: int = TABLES_MAX
) -> dict[str, Any]:
    """Return the status object.

    Args:
        ready: result of `/readyz`.
        now: monotonic seconds.
        unix_now: Unix seconds.
        tables_max: maximum number of tables in the object.
    """
    t, events, totals = telemetry, telemetry.events.copy(), telemetry.totals()
    rates = t.throughput.rates(now, totals, events)
    lag_bytes, lag_s = t.lag_bytes(), t.lag_s(unix_now)
    oldest = t.prepared_oldest_time
    tables = _named_tables(events, rates, t.snapshot, t.aside)
    return {
        "pipeline": t.name,
        "at": _time(unix_now),
        "version": __version__,
        "compiled": is_compiled(),
        "started_at": _time(t.started_time),
        "role": t.role,
        "active_elsewhere": _active_elsewhere(t),
        "streaming": t.streaming,
        "ready": ready.well,
        "reasons": list(ready.detail.get("reasons", ())),
        "summary": _summary(t, lag_bytes, lag_s),
        "lag_bytes": lag_bytes,
        "lag_s": None if lag_s is None else round(lag_s, 1),
        "postgres": _side(t, "postgres", now),
        "kafka": _side(t, "kafka", now),
        "position": {
            "server_lsn": _lsn(t.server_wal_end),
            "received_lsn": _lsn(t.received_lsn),
            "sent_lsn": _lsn(t.sent_lsn),
            "acked_lsn": _lsn(t.acked_lsn),
            "flushed_lsn": _lsn(t.flushed_lsn),
            "last_commit_at": None if t.last_commit_time is None else _time(t.last_commit_time),
        },
        "slot": {
            "name": t.slot,
            "retained_bytes": t.retained_wal_bytes,
            "safe_bytes": t.wal.safe_bytes,
            "written_bytes_per_s": _rounded(t.wal.bytes_per_s),
            "seconds_left": _rounded(t.wal.seconds_left),
        },
        "streamed_open": t.streamed_open,
        "prepared_open": t.prepared_open,
        "prepared_oldest_s": None if oldest is None else round(max(0.0, unix_now - oldest), 1),
        "spool_memory_bytes": t.spool_memory_bytes,
        "spool_disk_bytes": t.spool_disk_bytes,
        "durable_spool_bytes": t.durable_bytes,
        "queue_records": t.queue_records,
        "queue_bytes": t.queue_bytes,
        "queue_bytes_max": t.queue_bytes_max,
        "totals": {"transactions": totals.transactions, "rows": totals.rows, "bytes": totals.bytes},
        "rates": {
            "window_s": round(rates.window_s, 1),
            "transactions_per_s": round(rates.transactions_per_s, 1),
            "rows_per_s": round(rates.rows_per_s, 1),
            "bytes_per_s": round(rates.bytes_per_s, 1),
        },
        "minutes": [
            {"at": _time(at), "transactions": each.transactions, "rows": each.rows, "bytes": each.bytes}
            for at, each in t.throughput.minutes(unix_now, totals)
        ],
        "day": [
            {
                "at": _time(each.at),
                "rows": each.rows,
                "lag_s": _rounded(each.lag_s),
                "delay_s": None if each.delay_s is None else round(each.delay_s, 3),
            }
            for each in t.throughput.day(unix_now, totals, t.all_delays())
        ],
        "transactions": t.transactions.copy(),
        "reconnects": t.reconnects.copy(),
        "snapshot": None if t.snapshot is None else _snapshot(t.snapshot),
        "set_aside": [_aside(each) for each in t.aside[:READING_MAX]],
        "set_aside_total": len(t.aside),
        "tables": tables[:tables_max],
        "tables_total": len(tables),
        "problems": [
            {
                "at": each.at.isoformat(timespec="seconds"),
                "level": each.level,
                "event": each.event,
                "message": each.message,
                "hint": each.hint,
                "count": each.count,
            }
            for each in t.problems.found
        ],
    }


def _summary(t: Telemetry, lag_bytes: int | None, lag_s: float | None) -> str:
    """Return the first sentence for an operator: the main state of the pipeline."""
    away = [NAMES[side] for side in t.reach.outages.copy()]
    if away:
        return f"waits for {' and '.join(away)}; nothing is lost"
    if t.role == "standby" and t.active_elsewhere is not None:
        return f"stands by for {_named(t.active_elsewhere)}, and takes over when that instance ends"
    if t.role != "active":
        return _HEADLINES[t.role]
    if not t.streaming:
        return "is active and does not stream: it connects again"
    if t.reading:
        return "reads the initial snapshot; changes follow after it"
    if lag_bytes is None:
        return "streaming"
    if lag_bytes == 0:
        return "streaming, no lag"
    return f"streaming, {size(lag_bytes)}{'' if not lag_s else f' and {seconds(lag_s)}'} behind"


def _named(other: ActiveElsewhere) -> str:
    return f"the instance at {other.client}" if other.client else f"another instance ({other.name})"


def _active_elsewhere(t: Telemetry) -> dict[str, Any] | None:
    other = t.active_elsewhere
    if t.role != "standby" or other is None:
        return None
    return {
        "application_name": other.name,
        "client": other.client or None,
        "pid": other.pid,
        "seen_at": _time(other.seen_at),
    }


def _side(t: Telemetry, side: Side, now: float) -> dict[str, Any]:
    outage = t.reach.outages.get(side)
    return {
        "up": t.reach.up.get(side),
        "away_s": None if outage is None else round(now - outage.since, 1),
        "message": "" if outage is None else outage.message,
        "hint": "" if outage is None else outage.hint,
    }


def _snapshot(progress: Progress) -> dict[str, Any]:
    return {
        "method": progress.method,
        "paused": progress.paused,
        "tables_left": progress.tables_left,
        "rows": progress.event_no,
        "reading": [
            {
                "table": task.name or f"oid {task.oid}",
                "request": task.request,
                "where": cut_short(task.where, TEXT_MAX),
                "share": round(task.share, 4),
                "rows": task.rows,
                "bytes": None if task.parts is None else task.size,
            }
            for task in progress.tasks[:READING_MAX]
        ],
        "ended": [
            {
                "table": each.name,
                "request": each.request,
                "rows": each.rows,
                "error": cut_short(each.error, TEXT_MAX),
            }
            for each in progress.outcomes
        ],
    }


def _aside(each: AsideStatus) -> dict[str, Any]:
    return {
        "table": each.table,
        "fault": each.fault,
        "since_lsn": _lsn(each.since_lsn),
        "reason": cut_short(each.reason, TEXT_MAX),
        "hint": cut_short(each.hint, TEXT_MAX),
        # The name of a table that is not published any more may be unknown; then no command helps.
        "command": resume_table(each.table) if "." in each.table else "",
        "tries": each.tries,
    }


def _named_tables(
    events: Mapping[tuple[str, str], int],
    rates: Rates,
    progress: Progress | None,
    aside: Sequence[AsideStatus],
) -> list[dict[str, Any]]:
    """Return the tables with rows since the process started: first the busiest now, then those with most rows."""
    found: dict[str, dict[str, Any]] = {}
    for (table, operation), count in events.items():
        if operation in NO_RECORD:
            continue
        entry = found.get(table)
        if entry is None:
            entry = found[table] = {"table": table, **dict.fromkeys(_OPERATIONS.values(), 0), "rows": 0}
        name = _OPERATIONS.get(operation)
        if name is not None:
            entry[name] += count
        entry["rows"] += count
    per_s = rates.rows_by_table
    states = _states(progress) | {each.table: "set aside" for each in aside}
    for entry in found.values():
        entry["state"] = states.get(entry["table"], "published")
        entry["rows_per_s"] = round(per_s.get(entry["table"], 0.0), 1)
    return sorted(found.values(), key=lambda each: (-each["rows_per_s"], -each["rows"], each["table"]))


def _states(progress: Progress | None) -> dict[str, str]:
    """Return the state of each table of the snapshots: failed, published, reading or waiting.

    In each of these states, changes of the table are delivered.
    """
    if progress is None:
        return {}
    # Outcomes are in the order of their ends, so the last outcome of each table wins.
    found = {each.name: "failed" if each.error else "published" for each in progress.outcomes}
    return found | {each.name: "reading" if each.rows or each.began else "waiting" for each in progress.tasks}


def _lsn(position: int) -> str | None:
    return str(Lsn(position)) if position else None


def _time(unix: float) -> str:
    return datetime.fromtimestamp(unix, UTC).isoformat(timespec="seconds")


def _rounded(value: float | None) -> float | None:
    """Round a number; infinity becomes null, because JSON has no infinity, and so does an unknown value."""
    return None if value is None or math.isinf(value) else round(value, 1)


FRESH_S: Final = 0.5
"""Minimum seconds for which an answer is kept, so that many readers cost no more than a few."""

SHARE_MAX: Final = 0.01
"""Maximum share of a core for making the status, and for making its page."""

ALL: Final = "tables=all"
"""Query string that requests all tables."""


def serve_http(
    config: Config,
    telemetry: Telemetry,
    current: Callable[[], Config] | None = None,
    ask: Ask | None = None,
    observe: Observer | None = None,
    *,
    runbook: Callable[[], str] | None = None,
    tools: Tools | None = None,
) -> AbstractContextManager[str]:
    """Serve HTTP while the block runs; yields `host:port`, or "" if `http.enabled` is false.

    Args:
        current: returns the configuration in effect, which SIGHUP may change; None if it is always `config`.
        ask: carries out an action; None if no actions are allowed.
        observe: is called with a fact that says who requested an action.
        runbook: reads the runbook; None if the runbook is not served.
        tools: runs checks and looks up records; None if the server shows neither.
    """
    routes = daemon_routes(current or (lambda: config), telemetry, ask, observe, runbook=runbook, tools=tools)
    return serve(config.http, routes)


def daemon_routes(
    current: Callable[[], Config],
    telemetry: Telemetry,
    ask: Ask | None = None,
    observe: Observer | None = None,
    *,
    runbook: Callable[[], str] | None = None,
    tools: Tools | None = None,
) -> Routes:
    """Return all routes of a daemon."""

    def live() -> Health:
        return liveness(telemetry, time.monotonic(), current().http.stall_s_max)

    def ready() -> Health:
        limits = current().ready
        return readiness(
            telemetry,
            time.time(),
            limits.lag_bytes_max,
            limits.lag_s_max,
            during_snapshot=limits.during_snapshot,
        )

    def registry() -> "CollectorRegistry":
        from cdcd.telemetry.metrics import registry_for  # noqa: PLC0415  the first scrape waits for it, not the start

        return registry_for(telemetry)

    configuration = _Configuration()
    look_ups = None if tools is None else PageLookUps(current, telemetry, tools)
    statuses: AnswerCache[int, dict[str, Any]] = AnswerCache(SHARE_MAX, FRESH_S)
    pages: AnswerCache[int, Reply] = AnswerCache(SHARE_MAX, FRESH_S)
    objects: AnswerCache[int, Reply] = AnswerCache(SHARE_MAX, FRESH_S)

    def status(tables_max: int) -> dict[str, Any]:
        return statuses(
            tables_max,
            lambda: daemon_status(telemetry, ready(), time.monotonic(), time.time(), tables_max),
        )

    def page(asked: HttpRequest) -> Reply:
        most = _tables(asked)
        return pages(
            most,
            lambda: Reply(
                200,
                HTML,
                html_page(
                    status(most),
                    configuration.text(current()),
                    None if look_ups is None else look_ups.checked(),
                ).encode(),
                HEADERS,
            ),
        )

    def runbook_reply(_asked: HttpRequest) -> Reply:
        assert runbook is not None
        return Reply(200, HTML, runbook_page(runbook()).encode(), HEADERS)

    def status_json(asked: HttpRequest) -> Reply:
        most = _tables(asked)
        return objects(most, lambda: json_reply(200, status(most)))

    refuse = reading(lambda: current().http)
    return {
        "/": HttpRoute(get=page, refuse=refuse),
        "/v1/status": HttpRoute(get=status_json, refuse=refuse),
        **({} if runbook is None else {"/runbook": HttpRoute(get=runbook_reply, refuse=refuse)}),
        **({} if look_ups is None else look_ups.routes()),
        **metrics_and_probes(registry, {"/healthz": live, "/readyz": ready}, refuse),
        **action_routes(current, ask, observe),
    }


class _Configuration:
    """Cache of the YAML of the configuration in effect. A reload of the configuration renews the text."""

    def __init__(self) -> None:
        self._of: Config | None = None
        self._text = ""

    def text(self, config: Config) -> str:
        if config is not self._of:
            self._of, self._text = config, changed_yaml(config)
        return self._text


def _tables(asked: HttpRequest) -> int:
    return ALL_TABLES_MAX if asked.query == ALL else TABLES_MAX
