"""`cdcd snapshot`: tables read on demand, while changes go on."""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from cdcd.cli.options import CommandGroup, config_option
from cdcd.cli.output import say
from cdcd.core.pasted import cdcd
from cdcd.core.visible import visible

if TYPE_CHECKING:
    from cdcd.config.loading import Config
    from cdcd.core.protocol.lsn import Lsn
    from cdcd.core.snapshot.signals import Signal
    from cdcd.tools.operations.snapshot_status import SnapshotStatus
    from cdcd.tools.operations.snapshot_wait import Screen

WATCH_S: Final = 1.0

_NAMED_MAX: Final = 5
"""Tables that are named when they are asked for."""


@click.group("snapshot", cls=CommandGroup)
def command() -> None:
    """Ask a running daemon to read tables, and show the progress.

    A request is a logical message in the source's WAL. The daemon reads it in the stream, also if it was stopped when
    the request was sent. docs/snapshots.md shows the SQL for requests from other programs.
    """


@command.command("start")
@config_option()
@click.option(
    "--table",
    "tables",
    multiple=True,
    required=True,
    metavar="SCHEMA.TABLE",
    help="A published table, or a partitioned table with published partitions. May be repeated.",
)
@click.option("--where", default="", metavar="SQL", help="Read only rows that satisfy this condition.")
@click.option(
    "--id", "request", default="", help="Name of the request in the status. [default: a generated name]"
)
@click.option("--wait", "waits", is_flag=True, help="Wait until all rows are read, and show the progress.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0),
    default=0.0,
    metavar="SECONDS",
    help="Limit for the wait, in seconds; the request itself goes on. 0: no limit.",
)
def start(
    *, file: Path, tables: tuple[str, ...], where: str, request: str, waits: bool, timeout_s: float
) -> int:
    """Read published tables again, beside the stream.

    Tables and condition are checked first, as the daemon does it: that each table is published, that the condition is
    one, and that the role may read. For a table without a key, a truncate record ends the former rows of the topic, and
    all rows follow.

    \b
    Exits with
      0    the request was sent; with --wait: everything is read
      2    a table or the condition is wrong, or the daemon's settings do not allow the request
      3    PostgreSQL refuses, a table has no key and truncate records are off, or (--wait) a table could not be read
      4    (--wait) Kafka refuses a topic, or the checkpoint cannot be read
      9    (--wait) cancelled, or not complete within --timeout
      130  interrupted; the request goes on
    """  # noqa: D301  click wants the character, and not a backslash
    if timeout_s and not waits:
        raise click.UsageError("--timeout needs --wait")
    request = request or f"start-{os.urandom(4).hex()}"
    config = _load(file)
    signal, position = _send(config, action="start", tables=tables, where=where, request=request)
    names = ", ".join(signal.tables[:_NAMED_MAX])
    more = "" if len(signal.tables) <= _NAMED_MAX else f" and {len(signal.tables) - _NAMED_MAX} more"
    if not waits:
        say(f"asked for {names}{more} as {request} at {position}")
        say(f"`{cdcd('snapshot', 'status', '--config', file)}` shows the progress")
        return 0
    try:
        say(f"asked for {names}{more} as {request} at {position}; waiting until it is read")
        return _wait(config, request, position, timeout_s)
    except KeyboardInterrupt:
        say(f"interrupted; {request} goes on: `cdcd snapshot status` shows how far it is", err=True)
        raise


@command.command("pause")
@config_option()
def pause(file: Path) -> int:
    """Pause the reading of tables until `resume`. Changes are still streamed."""
    return _ask(file, action="pause")


@command.command("resume")
@config_option()
def resume(file: Path) -> int:
    """Continue the reading of tables after `pause`."""
    return _ask(file, action="resume")


@command.command("cancel")
@config_option()
@click.option(
    "--table", "tables", multiple=True, metavar="SCHEMA.TABLE", help="Of these only. May be repeated."
)
def cancel(file: Path, tables: tuple[str, ...]) -> int:
    """Cancel requested snapshots that are not complete. Delivered rows stay in the topics."""
    return _ask(file, action="cancel", tables=tables)


@command.command("status")
@config_option()
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="Output format: a table for people, or a JSON object for programs.",
)
@click.option("--watch", is_flag=True, help="Print the progress every second until all tables are read.")
def status(file: Path, form: str, watch: bool) -> int:
    """Show the progress of each table's snapshot, from the checkpoint in Kafka.

    A table is reading, waiting, paused, complete or failed. Rates are averages since the reading of the table began.
    The checkpoint keeps the last 20 finished tables, failed tables longest, and the number of the others.
    """
    config = _load(file)

    from cdcd.tools.operations.snapshot_status import as_object, lines, look  # noqa: PLC0415

    if watch and form == "table":
        _watch(lambda: look(config))
        return 0
    while True:
        found = look(config)
        if form == "json":
            say(json.dumps(as_object(found), ensure_ascii=False))
        else:
            for line in lines(found):
                say(line)
        if not watch or found.is_done:
            return 0
        time.sleep(WATCH_S)


def _load(file: Path) -> "Config":
    from cdcd.config.loading import load_config  # noqa: PLC0415  completion and --help need none of it

    return load_config(file, os.environ)


def _ask(file: Path, **fields: Any) -> int:
    _, position = _send(_load(file), **fields)
    say(f"The request is in the WAL at {position}. `cdcd snapshot status` shows the progress")
    return 0


def _send(config: "Config", **fields: Any) -> "tuple[Signal, Lsn]":
    from cdcd.core.snapshot.signals import Signal  # noqa: PLC0415
    from cdcd.tools.operations.sides import check_server  # noqa: PLC0415  a wrong configuration is told first
    from cdcd.tools.operations.snapshot_request import ask  # noqa: PLC0415

    def notice(text: str) -> None:
        say(text, err=True)

    check_server(config, "snapshot request", notice)
    return ask(config, Signal(pipeline=config.name, **fields), notice)


def _wait(config: "Config", request: str, position: "Lsn", timeout_s: float) -> int:
    from cdcd.tools.operations.snapshot_wait import WaitLines, wait  # noqa: PLC0415

    if sys.stdout.isatty():
        with _live() as screen:
            code, text = wait(config, request, position, timeout_s, screen)
    else:
        code, text = wait(config, request, position, timeout_s, WaitLines(say))
    say(f"{request}: {text}", err=code != 0)
    return code


@contextmanager
def _live() -> "Iterator[Screen]":
    """A screen on the terminal: the progress in place, and notes above it."""
    from rich.live import Live  # noqa: PLC0415  completion and --help need none of it
    from rich.text import Text  # noqa: PLC0415

    from cdcd.tools.operations.snapshot_wait import Screen  # noqa: PLC0415

    with Live(refresh_per_second=4, transient=True) as live:

        class OnTerminal(Screen):
            def show(self, text: list[str]) -> None:
                live.update(Text(visible("\n".join(text), lines=True)))

            def note(self, text: str) -> None:
                live.console.print(Text(visible(text, lines=True)))

        yield OnTerminal()


def _watch(look: "Callable[[], SnapshotStatus]") -> None:
    from rich.live import Live  # noqa: PLC0415  completion and --help need none of it
    from rich.text import Text  # noqa: PLC0415

    from cdcd.tools.operations.snapshot_status import lines  # noqa: PLC0415

    with Live(refresh_per_second=4) as live:
        while True:
            found = look()
            live.update(Text(visible("\n".join(lines(found)), lines=True)))
            if found.is_done:
                return
            time.sleep(WATCH_S)
