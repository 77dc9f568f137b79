"""`cdcd snapshot`: tables read on demand, while changes go on."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from cdcd.cli.options import config_option

if TYPE_CHECKING:
    from cdcd.snapshots.progress import Progress

WATCH_S: Final = 1.0

_PIPE_COLUMNS: Final = 160


@click.group("snapshot")
def command() -> None:
    """Ask a running daemon to read tables, and see how far it is.

    A request is a logical message in the source's WAL, which the daemon meets in the stream; one that is down meets it
    later. From SQL: SELECT pg_logical_emit_message(true, 'cdcd.snapshot', '{"action": "start", "tables":
    ["public.orders"]}').
    """


@command.command("start")
@config_option()
@click.option(
    "--table", "tables", multiple=True, required=True, metavar="SCHEMA.TABLE", help="May be repeated."
)
@click.option("--where", default="", metavar="SQL", help="Only rows that satisfy this condition.")
@click.option("--id", "request", default="", help="A name for the request, shown in the status.")
def start(file: Path, tables: tuple[str, ...], where: str, request: str) -> int:
    """Read published tables again, beside the stream."""
    return _ask(file, action="start", tables=tables, where=where, request=request)


@command.command("pause")
@config_option()
def pause(file: Path) -> int:
    """Read no further until `resume`. Changes are streamed on."""
    return _ask(file, action="pause")


@command.command("resume")
@config_option()
def resume(file: Path) -> int:
    """Go on where `pause` stopped."""
    return _ask(file, action="resume")


@command.command("cancel")
@config_option()
@click.option(
    "--table", "tables", multiple=True, metavar="SCHEMA.TABLE", help="Of these only. May be repeated."
)
def cancel(file: Path, tables: tuple[str, ...]) -> int:
    """Give up what is not read. Rows that were delivered stay."""
    return _ask(file, action="cancel", tables=tables)


@command.command("status")
@config_option()
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="A table for people, or an object for programs.",
)
@click.option("--watch", is_flag=True, help="Look again every second until nothing is left to read.")
def status(file: Path, form: str, watch: bool) -> int:
    """Show how far the reading of each table is, by what is committed in Kafka."""
    from cdcd.config.loading import load_config  # noqa: PLC0415  completion and --help need none of it

    config = load_config(file, os.environ)

    from cdcd.cli.snapshot_requests import look  # noqa: PLC0415  a wrong configuration is told first

    show = _SHOW[form]
    if watch and form == "table":
        _watch(lambda: look(config))
        return 0
    while True:
        progress = look(config)
        show(progress)
        if not watch or progress is None or progress.is_done:
            return 0
        time.sleep(WATCH_S)


def _ask(file: Path, **fields: Any) -> int:
    from cdcd.config.loading import load_config  # noqa: PLC0415  completion and --help need none of it
    from cdcd.snapshots.signals import Signal  # noqa: PLC0415

    config = load_config(file, os.environ)

    from cdcd.cli.snapshot_requests import ask  # noqa: PLC0415  a wrong configuration is told first

    signal = Signal(pipeline=config.name, **fields)
    try:
        Signal.decode(signal.encode().encode())
    except ValueError as error:
        raise click.UsageError(f"{error}") from None
    position = ask(config, signal)
    click.echo(f"asked at {position}; `cdcd snapshot status` shows what becomes of it")
    return 0


def _show_json(progress: "Progress | None") -> None:
    fields = None if progress is None else progress.to_json()
    if progress is not None and fields is not None:
        fields["tables"] = [
            {"name": task.name, "rows": task.rows, "bytes": task.size, "share": round(task.share, 4)}
            for task in progress.tasks
        ]
        fields.pop("tasks", None)
    click.echo(json.dumps(fields, ensure_ascii=False))


def _show_table(progress: "Progress | None") -> None:
    from rich.console import Console  # noqa: PLC0415  completion and --help need none of it

    from cdcd.telemetry.progress_bars import lines  # noqa: PLC0415

    console = Console()
    if not console.is_terminal:
        console.width = _PIPE_COLUMNS
    for each in lines(progress, {}):
        console.print(each)


def _watch(look: "Callable[[], Progress | None]") -> None:
    from rich.console import Group  # noqa: PLC0415  completion and --help need none of it
    from rich.live import Live  # noqa: PLC0415

    from cdcd.telemetry.progress_bars import Began, lines  # noqa: PLC0415

    began: Began = {}
    with Live(refresh_per_second=4) as live:
        while True:
            progress = look()
            live.update(Group(*lines(progress, began)))
            if progress is None or progress.is_done:
                return
            time.sleep(WATCH_S)


_SHOW: Final = {"json": _show_json, "table": _show_table}
