"""`cdcd trace`: follow one row from PostgreSQL to Kafka and the mirror."""

import json
import os
from pathlib import Path
from typing import TextIO

import click

from cdcd.cli.options import config_option
from cdcd.cli.output import say

FOUND_NOTHING = 10
"""The exit code if no record has the key (`errors.EXIT_CODES`)."""


@click.command("trace")
@config_option()
@click.option(
    "--last",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="Number of newest records to show.",
)
@click.option(
    "--mirror-status",
    "mirror",
    type=click.File(),
    metavar="FILE",
    help="Output of `cdcd mirror status --format json`: also say whether the mirror has the newest record.",
)
@click.argument("table", metavar="TABLE")
@click.argument("key", metavar="KEY...", nargs=-1, required=True)
def command(file: Path, *, last: int, mirror: TextIO | None, table: str, key: tuple[str, ...]) -> int:
    """Follow one row to its records in Kafka.

    Shows whether the table is published, which filter and route it has, and each record of the row: LSN, transaction,
    time, topic, partition and offset. If there is no record, the command shows possible reasons. Give KEY as the value
    that records have, as COLUMN=VALUE for each column of the key, or as JSON.

    \b
      cdcd trace public.orders 5
      cdcd trace public.order_items order_id=5 line=2

    The command reads all topics of the table from their beginning, which takes a long time for large topics. The
    command does not read the table itself. Exits with 0 if there is a record, and with 10 if there is no record.
    """  # noqa: D301  click wants the character, and not a backslash
    from cdcd.config.loading import load_config  # noqa: PLC0415  completion and --help need none of it

    config = load_config(file, os.environ)

    from cdcd.tools.operations import pipeline_status, trace  # noqa: PLC0415  a wrong configuration is told first

    wanted = trace.parse_key(key)
    name, topics = trace.topics_of(config, table)
    count, found = trace.find(
        config, topics, wanted, last=last, notice=lambda text: say(f"note: {text}", err=True)
    )
    of_mirror = (
        [] if mirror is None else trace.mirror_lines(_read(mirror), name, found[-1] if found else None)
    )
    looked = pipeline_status.look(config, str(file))
    for line in trace.lines(name, config, looked, topics, count=count, found=found, mirrored=of_mirror):
        say(line)
    return 0 if count else FOUND_NOTHING


def _read(stream: TextIO) -> dict[str, object]:
    try:
        found = json.load(stream)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise click.UsageError("--mirror-status is not the output of `cdcd mirror status --format json`.")
    return found
