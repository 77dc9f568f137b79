"""`cdcd adopt`: a Debezium connector's work is taken over."""

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from cdcd.cli.output import say

if TYPE_CHECKING:
    from cdcd.tools.adopt.adoption import Adoption
    from cdcd.tools.adopt.connect_api import Connector
    from cdcd.tools.adopt.takeover import TakeoverOutcome

_COLUMNS: Final = 80
"""The width where no terminal says how wide it is."""

_COLUMNS_MAX: Final = 100
"""Longer lines are hard to read, however wide the terminal is."""


@click.command("adopt")
@click.argument("source", metavar="SOURCE")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    default="cdcd.yaml",
    show_default=True,
    help="File to which the configuration is written.",
)
@click.option("--force", is_flag=True, help="Overwrite the file if it exists.")
@click.option(
    "--kafka", metavar="HOST:PORT", help="Addresses of Kafka's brokers (host:port), separated by commas."
)
@click.option(
    "--worker",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="File with the worker's properties, which connectors inherit: brokers, converters, producer.",
)
@click.option("--name", metavar="NAME", help="Name of the pipeline. [default: that of the connector]")
@click.option("--offline", is_flag=True, help="Do not connect to the database.")
@click.option(
    "--takeover", is_flag=True, help="Stop the connector, and show which events are delivered twice."
)
@click.option(
    "--accept",
    "accepted",
    multiple=True,
    metavar="OPTION",
    help="Take over although this option is impossible or unknown. May be repeated; `all` accepts all of them.",
)
@click.option(
    "--accept-gap", is_flag=True, help="Take over although somebody has moved the slot past the offset."
)
@click.option("--run", "runs", is_flag=True, help="Continue as `cdcd run` after the takeover.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Output format: lines for people, or a JSON object for programs.",
)
@click.option("--all", "shows_all", is_flag=True, help="Also show options that are the same or irrelevant.")
def command(
    *,
    source: str,
    output: Path,
    force: bool,
    kafka: str | None,
    worker: Path | None,
    name: str | None,
    offline: bool,
    takeover: bool,
    accepted: tuple[str, ...],
    accept_gap: bool,
    runs: bool,
    form: str,
    shows_all: bool,
) -> int:
    """Take over from a Debezium connector for PostgreSQL.

    SOURCE is the connector's .properties or .json file, or its URL at Kafka Connect:
    http://connect:8083/connectors/NAME. Writes cdcd.yaml, and lists each option of the connector as same, different
    or impossible, with the reason. The file refers to secrets by name, and the output shows no secret.

    Without --takeover, the command changes nothing else. --takeover needs the connector's URL. It creates a
    publication if cdcd needs another one, stops the connector, reads its offset, and compares the slot with the
    topics. If it was interrupted, run it again.

    \b
    Exits with
      0   all is the same, different or irrelevant; with --takeover: taken over
      2   the options or the file are wrong, or cdcd.yaml is there already
      3   PostgreSQL refuses or cannot be asked
      4   Kafka refuses or cannot be asked
      6   a takeover would miss changes; the message says what was done until then
      10  an option is impossible or unknown; nothing was taken over
      11  Kafka Connect refuses or cannot be asked
    """  # noqa: D301  click wants the character, and not a backslash
    is_url = source.startswith(("http://", "https://"))
    if takeover and not is_url:
        raise click.UsageError(
            "--takeover needs the connector's URL, to stop it: http://connect:8083/connectors/NAME"
        )
    if takeover and offline:
        raise click.UsageError("--takeover needs the database, so remove --offline.")
    for option, is_given in (("--accept", accepted), ("--accept-gap", accept_gap), ("--run", runs)):
        if is_given and not takeover:
            raise click.UsageError(f"{option} needs --takeover")

    from cdcd.tools.adopt import adoption, report  # noqa: PLC0415  --help needs none of it
    from cdcd.tools.adopt.connect_api import Connector  # noqa: PLC0415
    from cdcd.tools.adopt.settings import as_text  # noqa: PLC0415

    connector = Connector(source) if is_url else None
    found = adoption.read(connector or Path(source), worker, kafka, name, output, offline=offline)
    found.refuse_unneeded(accepted)
    code = found.exit_code(accepted)
    if form == "text":
        for line in report.lines(found, _columns(), shows_all=shows_all):
            say(line)
        say("")
    text = as_text(
        found.settings, report.comments(found, connector.url if connector else source), found.draft
    )
    written = adoption.save(output, text, force=force)
    outcome = None
    if form == "text":
        say(f"{output} {'is written' if written else 'exists already with the same text'}.")
    if takeover and not found.is_blocked(accepted):
        assert connector is not None, "--takeover has a URL"
        outcome = _take_over(found, connector, accept_gap=accept_gap)
    if form == "json":
        shown = report.as_object(found, code, outcome, file=str(output), written=written)
        say(json.dumps(shown, indent=2, ensure_ascii=False))
    else:
        for line in report.endings(
            found, outcome, _columns(), file=str(output), is_url=is_url, refused=takeover
        ):
            say(line)
    return _run(found, output) if runs and outcome is not None else code


def _take_over(found: "Adoption", connector: "Connector", *, accept_gap: bool) -> "TakeoverOutcome":
    from cdcd.tools.adopt.takeover import TakeoverPlan, take_over  # noqa: PLC0415

    found.refuse_unasked()
    plan = TakeoverPlan(
        found.config,
        connector,
        found.narrowing,
        connector_slot=found.connector_slot,
        driver_confirms=found.driver_confirms,
        accept_gap=accept_gap,
    )
    return take_over(plan, lambda line: say(line, err=True))


def _run(found: "Adoption", file: Path) -> int:
    """`cdcd run`, with the secrets that the connector's configuration showed."""
    from cdcd.cli.run import command as run  # noqa: PLC0415

    for variable, value in found.references.given.items():
        os.environ.setdefault(variable, value)
    assert run.callback is not None, "run is a command"
    return int(run.callback(file, accept_gap=False))


def _columns() -> int:
    return min(shutil.get_terminal_size((_COLUMNS, 0)).columns, _COLUMNS_MAX)
