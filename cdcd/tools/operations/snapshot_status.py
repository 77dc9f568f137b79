"""`cdcd snapshot status`: all tables that are being read, wait or were read, with their times, for people and programs.

The checkpoint has all data except the names of tables that have not been begun. PostgreSQL has these names.
"""

import asyncio
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from cdcd.adapters.postgres.tables import published_tables
from cdcd.config.loading import Config
from cdcd.core.errors import CdcdError
from cdcd.core.snapshot.outcomes import CANCELLED, Outcome, Requested
from cdcd.core.snapshot.progress import Progress
from cdcd.core.snapshot.signals import ADDED
from cdcd.core.snapshot.table_task import TableTask
from cdcd.telemetry.terminal_text import cut, number, plain, seconds, size
from cdcd.tools.operations.sides import connect_to, peek

State = Literal["reading", "paused", "waiting", "failed", "complete"]

_NAME_MAX: Final = 60
_DAY_S: Final = 86_400


@dataclass(frozen=True, slots=True)
class TableProgress:
    """A read of a table.

    Attributes:
        request: its cause: the name of a request, "added", "replaced", or "" for the initial snapshot.
        share: share of the table that is read, from 0 to 1.
        bytes: size of the table on disk; None before the planning and after the end.
        asked, began, ended: Unix seconds; 0: unknown, or not yet.
        error: reason of a failure.
        now: time of the status in Unix seconds.
    """

    name: str
    state: State
    request: str = ""
    where: str = ""
    rows: int = 0
    share: float = 0.0
    bytes: int | None = None
    asked: int = 0
    began: int = 0
    ended: int = 0
    error: str = ""
    now: int = 0

    @property
    def elapsed_s(self) -> int | None:
        """Seconds since the read began, without the wait before; None: not begun, or unknown."""
        return max(0, (self.ended or self.now) - self.began) if self.began else None

    @property
    def rows_per_s(self) -> float | None:
        """Rows a second since the read began, including pauses; None: unknown, or less than a second."""
        return self.rows / self.elapsed_s if self.elapsed_s and self.rows else None

    @property
    def left_s(self) -> float | None:
        """Estimated seconds until the read ends, at its average speed; None: unknown."""
        if self.state != "reading" or not self.share or self.elapsed_s is None:
            return None
        return self.elapsed_s * (1 - self.share) / self.share


@dataclass(frozen=True, slots=True)
class SnapshotStatus:
    """Status of all snapshots, by the checkpoint. `progress` is None before the first checkpoint.

    Attributes:
        names: published tables as `schema.table`, by oid; empty if PostgreSQL does not answer.
        now: time of the status in Unix seconds.
    """

    progress: Progress | None
    names: Mapping[int, str] = field(default_factory=dict)
    now: int = 0

    @property
    def is_done(self) -> bool:
        """True if nothing is left to read."""
        return self.progress is None or self.progress.is_done

    @property
    def forgotten(self) -> int:
        """Number of ended reads that the checkpoint only counts."""
        found = self.progress
        return 0 if found is None else max(0, found.complete + found.failed - len(found.outcomes))

    def tables(self) -> list[TableProgress]:
        """Return all reads: the active ones, the waiting ones, then the ended ones in the order of their ends."""
        progress = self.progress
        if progress is None:
            return []
        tasks = [self._of_task(task, progress) for task in progress.tasks]
        idle: State = "paused" if progress.paused else "waiting"
        waiting = [
            TableProgress(
                self.names.get(oid, f"oid {oid}"), idle, ADDED if oid in progress.added else "", now=self.now
            )
            for oid in progress.waiting.oids[progress.begun :]
        ]
        return [
            *(each for each in tasks if each.began),
            *(each for each in tasks if not each.began),
            *waiting,
            *(_of_outcome(each, self.now) for each in progress.outcomes),
        ]

    def _of_task(self, task: TableTask, progress: Progress) -> TableProgress:
        state: State = "paused" if progress.paused else "reading" if task.began else "waiting"
        return TableProgress(
            task.name or self.names.get(task.oid, f"oid {task.oid}"),
            state,
            ", ".join(task.askers) or task.request,
            task.where,
            task.rows,
            task.share,
            # The checkpoint keeps the plan of a table only after its first rows.
            task.size if task.parts is not None else None,
            task.asked,
            task.began,
            now=self.now,
        )


def _of_outcome(outcome: Outcome, now: int) -> TableProgress:
    return TableProgress(
        outcome.name,
        "failed" if outcome.error else "complete",
        outcome.request,
        rows=outcome.rows,
        share=0.0 if outcome.error else 1.0,
        asked=outcome.asked,
        began=outcome.began,
        ended=outcome.ended,
        error=outcome.error,
        now=now,
    )


def look(config: Config) -> SnapshotStatus:
    """Return the status of the daemon's snapshots, by the checkpoint in Kafka. Raises as `sides.peek`."""
    found = peek(config)
    if found is None:
        return SnapshotStatus(None, now=int(time.time()))
    progress = found.snapshot or Progress()
    unnamed = progress.begun < len(progress.waiting) or any(not task.name for task in progress.tasks)
    names = asyncio.run(_names(config)) if unnamed else {}
    return SnapshotStatus(progress, names, int(time.time()))


async def _names(config: Config) -> Mapping[int, str]:
    """Return the published tables by oid; empty if PostgreSQL does not answer, so that the status shows oids."""
    try:
        sql = await connect_to(config, "snapshot status")
        try:
            return await published_tables(sql, config.postgres.publication)
        finally:
            await sql.close()
    except CdcdError:
        return {}


def lines(status: SnapshotStatus, *, request: str = "") -> Iterator[str]:
    """Yield the status for people; with `request`, only the tables of this request."""
    progress = status.progress
    if progress is None:
        yield "nothing was delivered yet"
        return
    shown = [each for each in status.tables() if not request or request in each.request.split(", ")]
    if shown:
        yield from _columns(shown)
    if request:
        return
    if status.forgotten:
        kept = [each for each in progress.outcomes if each.error]
        others = max(0, progress.failed - len(kept))
        failed = f", of which {others:,} failed (see the log)" if others else ", all complete"
        yield f"and {number(status.forgotten, 'table')} that ended before{failed}"
    left = number(progress.tables_left, "table")
    state = (
        f"paused, with {left} to read: `cdcd snapshot resume` goes on"
        if progress.paused
        else "nothing is being read"
        if progress.is_done
        else f"{left} to read ({progress.method})"
    )
    yield f"{state}; {progress.event_no:,} rows were read since the pipeline began"


_HEADS: Final = ("table", "state", "read", "rows", "rows/s", "started", "elapsed", "left", "request")
_RIGHT: Final = frozenset({"read", "rows", "rows/s", "elapsed", "left"})


def _columns(tables: list[TableProgress]) -> Iterator[str]:
    cells = [_cells(each) for each in tables]
    used = [at for at in range(len(_HEADS)) if at < 2 or any(row[at] for row in cells)]
    widths = {at: max(len(_HEADS[at]), *(len(row[at]) for row in cells)) for at in used}

    def line(row: tuple[str, ...]) -> str:
        aligned = (
            row[at].rjust(widths[at]) if _HEADS[at] in _RIGHT else row[at].ljust(widths[at]) for at in used
        )
        return "  ".join(aligned).rstrip()

    yield line(_HEADS)
    for table, row in zip(tables, cells, strict=True):
        yield line(row)
        if table.where:
            yield f"    where {plain(table.where)}"
        if table.error:
            yield f"    {plain(table.error)}"


def _cells(table: TableProgress) -> tuple[str, ...]:
    over = table.state in {"complete", "failed"}
    read = "" if over or not table.began else f"{table.share:.0%}"
    if read and table.bytes:
        read += f" of {size(table.bytes)}"
    rate, left, elapsed = table.rows_per_s, table.left_s, table.elapsed_s
    return (
        cut(plain(table.name), _NAME_MAX),
        table.state,
        read,
        f"{table.rows:,}" if table.rows or over else "",
        "" if rate is None else f"{rate:,.0f}",
        _clock(table.began or table.asked, table.now),
        "" if elapsed is None else seconds(elapsed) if elapsed else "< 1 s",
        "" if left is None else seconds(left),
        cut(plain(table.request or "(initial)"), _NAME_MAX),
    )


def _clock(unix_s: int, now: int) -> str:
    """Return a local time of day, with the date if it is another day."""
    if not unix_s:
        return ""
    form = "%H:%M:%S" if abs(now - unix_s) < _DAY_S else "%Y-%m-%d %H:%M"
    return time.strftime(form, time.localtime(unix_s))


def as_object(status: SnapshotStatus) -> dict[str, Any] | None:
    """Return the status for programs: times are Unix seconds, null if unknown. None: nothing has been delivered yet."""
    progress = status.progress
    if progress is None:
        return None
    return {
        "method": progress.method,
        "paused": progress.paused,
        "rows": progress.event_no,
        "left": progress.tables_left,
        "complete": progress.complete,
        "failed": progress.failed,
        "forgotten": status.forgotten,
        "tables": [_table_object(each) for each in status.tables()],
        "requests": [_request_object(each) for each in progress.requests],
    }


def _table_object(table: TableProgress) -> dict[str, Any]:
    return {
        "name": table.name,
        "state": table.state,
        "request": table.request,
        "where": table.where,
        "rows": table.rows,
        "share": round(table.share, 4),
        "bytes": table.bytes,
        "asked": table.asked or None,
        "began": table.began or None,
        "ended": table.ended or None,
        "elapsed_s": table.elapsed_s,
        "rows_per_s": None if table.rows_per_s is None else round(table.rows_per_s, 1),
        "left_s": None if table.left_s is None else round(table.left_s),
        "error": table.error,
    }


def _request_object(request: Requested) -> dict[str, Any]:
    state = "open" if not request.has_ended else "failed" if request.code else "complete"
    return {
        "id": request.id,
        "state": "cancelled" if request.has_ended and request.code == CANCELLED else state,
        "tables": request.tables,
        "complete": request.complete,
        "failed": request.failed,
        "rows": request.rows,
        "asked": request.asked or None,
        "ended": request.ended or None,
        "error": request.error,
        "exit_code": request.code,
    }
