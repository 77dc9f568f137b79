"""`cdcd tables`: every table of a pipeline with its state, its position and the command that helps."""

import shutil
from collections.abc import Iterator
from typing import Any, Final

from cdcd.core.engine.checkpoint import Checkpoint
from cdcd.core.pasted import cdcd, on_table, table_option
from cdcd.core.protocol.lsn import Lsn
from cdcd.telemetry.terminal_text import cut, number, plain, size, wrapped
from cdcd.tools.operations.pipeline_problems import ASIDE, PipelineProblem, problems_of
from cdcd.tools.operations.pipeline_status import PipelineStatus, TableState

TABLES_MAX: Final = 50
"""Tables that are shown unless all are asked for. Those that need somebody come first."""

_NAME_MIN: Final = 16


def exit_code_of(status: PipelineStatus) -> int:
    """Return the exit code: that of a side that did not answer, `ASIDE` if a table is set aside, or 0."""
    sides = [each.exit_code for each in problems_of(status) if each.code in ("postgres.away", "kafka.away")]
    return sides[0] if sides else ASIDE if status.aside else 0


def command_for(table: TableState, status: PipelineStatus) -> str:
    """Return the command that helps the table; "" if it needs none."""
    file = status.named.file
    if table.state == "set aside":
        if not table.is_published:
            return ""
        return cdcd("tables", "resume", table_option(table.name), "--config", file)
    if table.state == "failed":
        return f"{cdcd('snapshot', 'start')} {on_table('--table', table.name)} {_config(file)}"
    if table.state == "waiting" and status.progress is not None and status.progress.paused:
        return cdcd("snapshot", "resume", "--config", file)
    return ""


def position_of(table: TableState, status: PipelineStatus) -> int | None:
    """Return the LSN up to which Kafka has the table's changes; None: the checkpoint does not tell."""
    if table.since_lsn is not None:
        return table.since_lsn
    return status.checkpoint.position.end_lsn if isinstance(status.checkpoint, Checkpoint) else None


def lag_of(table: TableState, status: PipelineStatus) -> int | None:
    """Return the bytes of WAL behind the table's position; None: unknown."""
    if table.since_lsn is None:
        return status.lag_bytes
    return None if status.slot is None else max(0, status.slot.current_lsn - table.since_lsn)


def tables_object(status: PipelineStatus) -> dict[str, Any]:
    """Return the object for programs. Every key is always there; what is not known is null."""
    tables = status.tables()
    return {
        "pipeline": status.named.pipeline,
        "exit_code": exit_code_of(status),
        "tables_total": len(tables),
        "tables_set_aside": sum(table.state == "set aside" for table in tables),
        "problems": [
            {"code": each.code, "message": each.message, "hint": each.hint} for each in _problems(status)
        ],
        "tables": [
            {
                "table": table.name,
                "state": table.state,
                "position": None if (position := position_of(table, status)) is None else str(Lsn(position)),
                "rows_read": table.rows,
                "changes": table.changes,
                "share": None if table.share is None else round(table.share, 4),
                "lag_bytes": lag_of(table, status),
                "error": table.error or None,
                "command": command_for(table, status) or None,
            }
            for table in tables
        ],
    }


def table_lines(status: PipelineStatus, width: int = 0, *, all_tables: bool = False) -> Iterator[str]:
    """Return the list of tables as lines for people. `width`: columns of the screen; 0: the width of this terminal."""
    width = width or shutil.get_terminal_size().columns
    for problem in _problems(status):
        yield f"{problem.level.upper()} {problem.code}"
        yield from wrapped(problem.message, problem.hint, width)
    tables = status.tables()
    if not tables:
        yield "the pipeline has no table"
        return
    shown = tables if all_tables else tables[:TABLES_MAX]
    yield from _rows(shown, status, width)
    if len(tables) > len(shown):
        yield f"and {number(len(tables) - len(shown), 'table')} more; --all shows them"


def _problems(status: PipelineStatus) -> list[PipelineProblem]:
    """Return the sides that did not answer, without which the list is not complete."""
    return [each for each in problems_of(status) if each.code in ("postgres.away", "kafka.away")]


def _rows(tables: list[TableState], status: PipelineStatus, width: int) -> Iterator[str]:
    rows = [("TABLE", "STATE", "POSITION", "LAG", "ROWS READ", "CHANGES")]
    for table in tables:
        position, lag = position_of(table, status), lag_of(table, status)
        rows.append(
            (
                plain(table.name),
                table.state if table.share is None else f"{table.state} {table.share:.0%}",
                "-" if position is None else str(Lsn(position)),
                "-" if lag is None else size(lag),
                "-" if table.rows is None else f"{table.rows:,}",
                "-" if table.changes is None else f"{table.changes:,}",
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    widths[0] = max(_NAME_MIN, min(widths[0], width - sum(widths[1:]) - len(widths) + 1))
    for row, shown in zip(rows, [None, *tables], strict=True):
        name, state, *rest = row
        cells = [cut(name, widths[0]).ljust(widths[0]), state.ljust(widths[1])]
        cells += [cell.rjust(wide) for cell, wide in zip(rest, widths[2:], strict=True)]
        yield " ".join(cells).rstrip()
        if shown is not None and (shown.error or command_for(shown, status)):
            yield from wrapped(plain(shown.error), command_for(shown, status), width)


def _config(file: str) -> str:
    return cdcd("--config", file).removeprefix("cdcd ")
