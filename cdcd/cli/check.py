"""`cdcd check`: what is missing, before it is missed."""

import json
import os
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from cdcd.cli.options import config_option
from cdcd.cli.output import say
from cdcd.core.pasted import with_file
from cdcd.telemetry.terminal_text import plain

if TYPE_CHECKING:
    from cdcd.telemetry.findings import Finding
    from cdcd.tools.checks.run import CheckReport

_COLORS: Final = {"error": "red", "warning": "yellow", "unknown": "cyan", "ok": "green"}
"""The levels in the order in which they are shown."""

_COLUMNS_MAX: Final = 100
"""Longer lines are hard to read, however wide the terminal is."""

_COLUMNS: Final = 80
"""The width where no terminal says how wide it is."""

_INDENT: Final = " " * 9

_ALIKE_MAX: Final = 2
"""So many findings in order with one code are named; more are counted."""


@click.command("check")
@config_option()
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Output format: lines for people, or a JSON object for programs.",
)
@click.option("--all", "shows_all", is_flag=True, help="Also show findings that are in order.")
def command(file: Path, form: str, *, shows_all: bool) -> int:
    """Check PostgreSQL, Kafka and the configuration, and print fixes.

    Connects to PostgreSQL and Kafka and changes nothing. Exits with 0 if there is no error, with 10 if there is one,
    and with 3 or 4 if PostgreSQL or Kafka did not answer. docs/check.md lists the codes.
    """
    from cdcd.config.loading import load_config  # noqa: PLC0415  completion and --help need none of it

    config = load_config(file, os.environ)

    from cdcd.tools.checks.run import examine  # noqa: PLC0415  a wrong configuration is told first

    report = examine(config)
    if form == "json":
        _show_json(report)
    else:
        findings = report.findings
        if os.environ.get("CDCD_CONFIG") != str(file):
            # People paste the commands of a fix, so each command names the configuration.
            findings = tuple([replace(each, fix=with_file(each.fix, file)) for each in findings])
        columns = min(shutil.get_terminal_size((_COLUMNS, 0)).columns, _COLUMNS_MAX)
        for line in lines(findings, columns, shows_all=shows_all):
            click.echo(line)
    return report.exit_code


def _show_json(report: "CheckReport") -> None:
    findings = [
        {
            "level": one.level,
            "code": one.code,
            "subject": one.subject,
            "found": one.found,
            "fix": one.fix,
        }
        for one in report.findings
    ]
    say(json.dumps({"exit_code": report.exit_code, "findings": findings}, indent=2, ensure_ascii=False))


def lines(findings: Sequence["Finding"], columns: int, *, shows_all: bool = False) -> Iterator[str]:
    """The findings for a person: problems first and whole, then what is in order, folded unless `shows_all`."""
    for level, color in _COLORS.items():
        some = [one for one in findings if one.level == level]
        if level == "ok" and not shows_all:
            yield from _folded(some, columns)
            continue
        for one in some:
            head = click.style(f"{level:<8}", fg=color, bold=True)
            yield f"{head} {click.style(plain(one.subject), bold=True)}  ({one.code})"
            yield from _wrapped(one.found, columns)
            if one.fix:
                yield from _wrapped(f"Fix: {one.fix}", columns)
            yield ""
    counts = {level: sum(one.level == level for one in findings) for level in _COLORS}
    unknown = f"{counts['unknown']} not checked, " if counts["unknown"] else ""
    yield (
        f"{_counted(counts['error'], 'error')}, {_counted(counts['warning'], 'warning')}, {unknown}"
        f"{counts['ok']} in order"
    )


def _folded(findings: Sequence["Finding"], columns: int) -> Iterator[str]:
    """One paragraph with the subjects of what is in order."""
    alike: dict[str, list[str]] = {}
    for one in findings:
        alike.setdefault(one.code, []).append(one.subject)
    parts = []
    for subjects in alike.values():
        names = list(dict.fromkeys(subjects))
        more = len(names) - _ALIKE_MAX
        parts += names if more <= 0 else [f"{names[0]} and {len(names) - 1} similar ones"]
    if parts:
        head = click.style(f"{'ok':<8}", fg=_COLORS["ok"])
        first, *rest = _wrapped(", ".join(dict.fromkeys(parts)), columns)
        yield f"{head} {first.removeprefix(_INDENT)}"
        yield from rest
        yield ""


def _wrapped(text: str, columns: int) -> Iterator[str]:
    """The text in lines of the width. A word that is longer, such as a command's argument, is not cut."""
    yield from textwrap.wrap(
        plain(text),
        columns,
        initial_indent=_INDENT,
        subsequent_indent=_INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
