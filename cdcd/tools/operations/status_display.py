"""The status of a pipeline as lines for people (`cdcd status`), and as an object for programs (`--format json`)."""

import textwrap
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

from cdcd.adapters.postgres.pipeline_state import Instance, PipelineState
from cdcd.build import PURE
from cdcd.core.engine.checkpoint import Checkpoint
from cdcd.core.errors import CdcdError
from cdcd.core.protocol.lsn import Lsn
from cdcd.telemetry.terminal_text import ago, cut, number, plain, seconds, size, wrapped
from cdcd.tools.operations.pipeline_problems import exit_code_of, problems_of
from cdcd.tools.operations.pipeline_status import PipelineStatus, TableState

TABLES_MAX: Final = 20
"""Maximum number of tables that are shown without the option for all tables. Incomplete tables are first."""

_LABEL: Final = 13
_NAME_MIN: Final = 16
_GID_MAX: Final = 60
"""Maximum characters of a prepared transaction's name. PostgreSQL allows 200."""


def status_lines(status: PipelineStatus, width: int, *, all_tables: bool = False) -> Iterator[str]:
    """Yield the status_lines of the status, with `width` columns."""
    yield f"{status.named.pipeline}: {status.headline}"
    problems = problems_of(status)
    if problems:
        yield ""
    for problem in problems:
        yield f"{problem.level.upper()} {problem.code}"
        yield from wrapped(problem.message, problem.hint, width)
    yield ""
    for label, text in _parts(status):
        yield from textwrap.wrap(
            plain(text),
            max(width, 40),
            initial_indent=label.ljust(_LABEL),
            subsequent_indent=" " * _LABEL,
            break_long_words=False,
            break_on_hyphens=False,
        )
    tables = status.tables()
    if tables:
        yield ""
        shown = tables if all_tables else tables[:TABLES_MAX]
        yield from _tables(shown, width)
        if len(tables) > len(shown):
            yield f"and {number(len(tables) - len(shown), 'table')} more; --all shows them"


def _parts(status: PipelineStatus) -> Iterator[tuple[str, str]]:
    server = status.server
    if isinstance(server, CdcdError):
        yield "postgres", "cannot be asked"
    else:
        yield "postgres", f"{server.version}, database {server.database}"
        yield "instance", _instances(server)
        yield "slot", _slot(status)
        yield "publication", _publication(status)
    yield "checkpoint", _checkpoint(status)
    yield "snapshot", _snapshot(status)
    if isinstance(server, PipelineState) and server.prepared:
        oldest = server.prepared[0]
        age = ago(oldest.since, server.at)
        yield (
            "prepared",
            f"{number(len(server.prepared), 'transaction')}, the oldest for {age}: {cut(plain(oldest.gid), _GID_MAX)}",
        )
    yield "daemon", _daemon(status)


def _instances(server: PipelineState) -> str:
    active = "none is active" if server.active is None else _session(server.active, server)
    standbys = len(server.standbys)
    waiting = f"; {number(standbys, 'instance')} stand{'s' if standbys == 1 else ''} by" if standbys else ""
    return active + waiting


def _session(instance: Instance, server: PipelineState) -> str:
    since = "" if instance.since is None else f" for {ago(instance.since, server.at)}"
    client = f", from {instance.client}" if instance.client else ""
    return f"active{since}{client} (server process {instance.pid})"


def _slot(status: PipelineStatus) -> str:
    slot = status.slot
    if slot is None:
        return f"{status.named.slot} is not there"
    state = "is being read" if slot.active else "nobody reads it"
    text = f"{slot.name}: {state}, keeps {size(slot.retained_bytes)} of WAL"
    if slot.safe_wal_size is not None:
        text += f", {size(max(0, slot.safe_wal_size))} more may be written until it is lost"
    if slot.confirmed_flush_lsn is not None:
        text += f"; confirmed {Lsn(slot.confirmed_flush_lsn)}, the server is at {Lsn(slot.current_lsn)}"
    return f"{text} ({slot.wal_status})" if slot.wal_status else text


def _publication(status: PipelineStatus) -> str:
    assert isinstance(status.server, PipelineState)
    found = status.server.publication
    if found is None:
        return f"{status.named.publication} is not there"
    whole = "all tables, now " if found.all_tables else ""
    return f"{found.name}: {whole}{number(len(found.tables), 'table')}; {', '.join(found.operations)}"


def _checkpoint(status: PipelineStatus) -> str:
    found, topic = status.checkpoint, status.named.checkpoint_topic
    if isinstance(found, Checkpoint):
        return f"{topic}: delivered up to {found.position}"
    return f"{topic} cannot be read" if isinstance(found, CdcdError) else f"there is none in {topic}"


def _snapshot(status: PipelineStatus) -> str:
    if isinstance(status.checkpoint, CdcdError):
        return "not known"
    progress = status.progress
    if progress is None:
        return "no table was read"
    rows = f"{number(progress.event_no, 'row')} read since the pipeline began"
    if progress.is_done:
        return f"nothing is being read; {rows}"
    paused = ", paused" if progress.paused else ""
    return f"{number(progress.tables_left, 'table')} still to be read{paused}; {rows}"


def _daemon(status: PipelineStatus) -> str:
    numbers, url = status.numbers, status.named.url
    if numbers is None:
        return f"does not answer at {url}" if url else "http.port does not say where it answers"
    since = "" if numbers.started_at is None else f", runs for {ago(numbers.started_at, status.at)}"
    form = f" ({PURE})" if numbers.compiled is False else ""
    text = f"cdcd {numbers.version} at {url}: {numbers.role}{since}{form}"
    if numbers.role != "active":
        return text
    if numbers.lag_s:
        text += f"; {seconds(numbers.lag_s)} behind"
    return (
        f"{text}; queue {size(numbers.queue_bytes)} of {size(numbers.queue_bytes_max)}, spool "
        f"{size(numbers.spool_memory_bytes)} in memory and {size(numbers.spool_disk_bytes)} on disk, "
        f"{number(numbers.streamed_open, 'open transaction')} received"
    )


def _tables(tables: list[TableState], width: int) -> Iterator[str]:
    rows = [("TABLE", "STATE", "READ", "ROWS READ", "CHANGES")]
    rows += [
        (
            plain(table.name),
            table.state,
            "-" if table.share is None else f"{table.share:.0%}",
            "-" if table.rows is None else f"{table.rows:,}",
            "-" if table.changes is None else f"{table.changes:,}",
        )
        for table in tables
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    widths[0] = max(_NAME_MIN, min(widths[0], width - sum(widths[1:]) - len(widths) + 1))
    for name, state, *rest in rows:
        cells = [
            cut(name, widths[0]).ljust(widths[0]),
            state.ljust(widths[1]),
            *(cell.rjust(size_) for cell, size_ in zip(rest, widths[2:], strict=True)),
        ]
        yield " ".join(cells).rstrip()


def status_object(status: PipelineStatus) -> dict[str, Any]:
    """Return the status for programs. All keys are always present; unknown values are null. Times are ISO 8601, in UTC.

    `daemon` is the daemon's own object, as at `/v1/status`.
    """
    server = None if isinstance(status.server, CdcdError) else status.server
    checkpoint = status.checkpoint if isinstance(status.checkpoint, Checkpoint) else None
    slot, numbers, progress = status.slot, status.numbers, status.progress
    publication = None if server is None else server.publication
    return {
        "pipeline": status.named.pipeline,
        "at": _time(status.at),
        "exit_code": exit_code_of(status),
        "summary": status.headline,
        "lag_bytes": status.lag_bytes,
        "lag_s": None if numbers is None else numbers.lag_s,
        "problems": [
            {"code": each.code, "level": each.level, "message": each.message, "hint": each.hint}
            for each in problems_of(status)
        ],
        "active": None if server is None or server.active is None else _instance(server.active),
        "standbys": None if server is None else [_instance(each) for each in server.standbys],
        "slot": None
        if slot is None
        else {
            "name": slot.name,
            "active": slot.active,
            "restart_lsn": _lsn(slot.restart_lsn),
            "confirmed_flush_lsn": _lsn(slot.confirmed_flush_lsn),
            "server_lsn": _lsn(slot.current_lsn),
            "retained_bytes": slot.retained_bytes,
            "safe_wal_size": slot.safe_wal_size,
            "wal_status": slot.wal_status or None,
            "invalidation_reason": slot.invalidation_reason or None,
        },
        "publication": None
        if publication is None
        else {
            "name": publication.name,
            "operations": list(publication.operations),
            "tables": len(publication.tables),
        },
        "prepared": None
        if server is None
        else [{"gid": each.gid, "since": _time(each.since)} for each in server.prepared],
        "checkpoint": None
        if checkpoint is None
        else {
            "topic": status.named.checkpoint_topic,
            "commit_lsn": _lsn(checkpoint.position.commit_lsn),
            "end_lsn": _lsn(checkpoint.position.end_lsn),
            "events_done": checkpoint.position.events_done,
            "timeline": checkpoint.timeline,
            "system_identifier": checkpoint.system_identifier,
        },
        "snapshot": None
        if progress is None
        else {
            "tables_left": progress.tables_left,
            "rows": progress.event_no,
            "paused": progress.paused,
        },
        "daemon": None if numbers is None else numbers.status,
        "tables": [
            {
                "table": each.name,
                "state": each.state,
                "share": None if each.share is None else round(each.share, 4),
                "rows_read": each.rows,
                "changes": each.changes,
            }
            for each in status.tables()
        ],
    }


def _instance(instance: Instance) -> dict[str, Any]:
    return {
        "pid": instance.pid,
        "client": instance.client or None,
        "since": None if instance.since is None else _time(instance.since),
    }


def _lsn(position: int | None) -> str | None:
    return None if position is None else str(Lsn(position))


def _time(at: datetime) -> str:
    return at.astimezone(UTC).isoformat()
