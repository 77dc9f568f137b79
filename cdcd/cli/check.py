"""`cdcd check`: what is missing, before it is missed."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from cdcd.cli.options import config_option

if TYPE_CHECKING:
    from cdcd.checks.run import Report

_STYLES: Final = {"ok": "green", "warning": "yellow", "error": "bold red"}

_PIPE_COLUMNS: Final = 160
"""Width of the table where no terminal says how wide it is."""


@click.command("check")
@config_option()
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="A table for people, or an object for programs.",
)
def command(file: Path, form: str) -> int:
    """Look at both sides and say what is missing, with the fix.

    Connects to PostgreSQL and Kafka and changes nothing. Exits with 0 when nothing stands in the way, with 10 when
    something does, and with the code of the failure when a side could not be asked.
    """
    from cdcd.config.loading import load_config  # noqa: PLC0415  completion and --help need none of it

    config = load_config(file, os.environ)

    from cdcd.checks.run import examine  # noqa: PLC0415  a wrong configuration is told first

    report = examine(config)
    _SHOW[form](report)
    return report.exit_code


def _show_json(report: "Report") -> None:
    findings = [
        {"level": one.level, "subject": one.subject, "found": one.found, "fix": one.fix}
        for one in report.findings
    ]
    click.echo(
        json.dumps({"exit_code": report.exit_code, "findings": findings}, indent=2, ensure_ascii=False)
    )


def _show_table(report: "Report") -> None:
    from rich.console import Console  # noqa: PLC0415  completion and --help need none of it
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    console = Console()
    if not console.is_terminal:
        console.width = _PIPE_COLUMNS
    table = Table("", "subject", "found", "fix", pad_edge=False)
    for one in report.findings:
        # Text, not str: names from the database may look like rich's markup.
        table.add_row(Text(one.level, _STYLES[one.level]), *map(Text, (one.subject, one.found, one.fix)))
    console.print(table)
    counts = {level: sum(one.level == level for one in report.findings) for level in _STYLES}
    console.print(f"{counts['error']} errors, {counts['warning']} warnings, {counts['ok']} in order")


_SHOW: Final = {"json": _show_json, "table": _show_table}
