"""`cdcd verify`: whether the topics have what the tables have."""

import asyncio
import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from cdcd.cli.options import config_option

if TYPE_CHECKING:
    from collections.abc import Callable

    from cdcd.config.loading import Config
    from cdcd.verify.report import Report

MEBIBYTE: Final = 1 << 20


@click.command("verify")
@config_option()
@click.option(
    "--table",
    "tables",
    multiple=True,
    metavar="SCHEMA.TABLE",
    help="Only this table; * and ? stand for any characters and for one. May be repeated.",
)
@click.option(
    "--rate",
    type=click.FloatRange(min=0),
    default=20.0,
    show_default=True,
    metavar="MIB",
    help="MiB of rows that are read from PostgreSQL each second, at most; 0: without limit.",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=1),
    default=300.0,
    show_default=True,
    metavar="SECONDS",
    help="How long the pipeline may take to deliver what was committed before the snapshot.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Lines for people, or an object for programs.",
)
@click.option(
    "--show",
    "shown",
    type=click.IntRange(min=0, max=1000),
    default=10,
    show_default=True,
    metavar="N",
    help="Differences of each table that are shown; all of them are counted.",
)
@click.option(
    "--repair",
    is_flag=True,
    help="Ask the daemon to read the rows that differ again, wait for that, and compare once more.",
)
@click.option("--no-values", is_flag=True, help="Show keys and names of columns, and no values.")
@click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Where the rows of the topics are kept meanwhile, on disk. [default: the system's temporary one]",
)
def command(  # noqa: PLR0917  click gives one argument for each option
    file: Path,
    tables: tuple[str, ...],
    rate: float,
    timeout_s: float,
    form: str,
    shown: int,
    repair: bool,
    no_values: bool,
    directory: Path | None,
) -> int:
    """Compare the topics with the tables, at one moment.

    A snapshot of PostgreSQL is taken, the topics are folded as far as that snapshot sees, and the two are compared,
    value by value, while writers and daemon go on. Nothing waits for it. The daemon must run.

    \b
    Exits with
      0    equal: every row and every value was compared
      9    the pipeline did not deliver in time (--timeout)
      10   there are differences; they are named
      11   no difference was found, but not everything could be compared; the output says what and why
    """  # noqa: D301  click wants the character, and not a backslash
    from cdcd.config.loading import load_config  # noqa: PLC0415  completion and --help need none of it

    config = load_config(file, os.environ)

    from cdcd.verify.report import as_object, lines  # noqa: PLC0415  a wrong configuration is told first
    from cdcd.verify.topics import Options, TopicsTarget  # noqa: PLC0415

    def notice(text: str) -> None:
        click.echo(f"note: {text}", err=True)

    options = Options(tables=tables, rate_bytes_s=rate * MEBIBYTE, timeout_s=timeout_s)
    with tempfile.TemporaryDirectory(prefix="cdcd-verify-", dir=directory) as folder:
        target = TopicsTarget(config, options, Path(folder), notice)
        try:
            report = asyncio.run(target.verify())
            if repair and report.differences and _repair(config, report, timeout_s, notice):
                report = asyncio.run(target.verify())
        finally:
            target.close()
    if form == "json":
        click.echo(json.dumps(as_object(report, shown=shown, values=not no_values), ensure_ascii=False))
    else:
        for line in lines(report, shown=shown, values=not no_values):
            click.echo(line)
    return report.exit_code


def _repair(config: "Config", report: "Report", timeout_s: float, notice: "Callable[[str], None]") -> bool:
    """Have the daemon read again what differs; whether there was anything to read."""
    from cdcd.operations.snapshot_request import ask  # noqa: PLC0415  few need it
    from cdcd.operations.snapshot_wait import Lines, wait  # noqa: PLC0415
    from cdcd.snapshots.signals import Signal  # noqa: PLC0415
    from cdcd.verify.repair import not_repairable, requests  # noqa: PLC0415

    for text in not_repairable(report):
        notice(text)
    asked = []
    for table, where in requests(report):
        request = f"verify-{os.urandom(4).hex()}"
        signal = Signal("start", (table,), where=where, request=request, pipeline=config.name)
        asked.append((request, ask(config, signal, notice)[1]))
        notice(f"Asked for {'the whole of ' if not where else 'rows of '}{table} again, as {request}.")
    for request, position in asked:
        code, text = wait(config, request, position, timeout_s, Lines(notice))
        notice(f"{request}: {text}")
        if code:
            break
    return bool(asked)
