"""`cdcd tail`: changes as they come."""

import os
import sys
from pathlib import Path

import click

from cdcd.cli.options import config_option
from cdcd.cli.output import say


@click.command("tail")
@config_option()
@click.option(
    "--from",
    "source",
    type=click.Choice(["topics", "slot"]),
    default="topics",
    show_default=True,
    help="topics: records that the pipeline delivered. slot: changes that are committed from now on, by a temporary "
    "slot.",
)
@click.option(
    "--table",
    "tables",
    multiple=True,
    metavar="SCHEMA.TABLE",
    help="Only this table. * stands for any characters, ? for one character. May be repeated.",
)
@click.option(
    "--where",
    default="",
    metavar="CONDITION",
    help="Only rows that satisfy the condition (CEL): \"row.status == 'open'\".",
)
@click.option(
    "--json",
    "as_objects",
    is_flag=True,
    help="Print one JSON object per line: topic, key and the whole record.",
)
@click.option(
    "--beginning", is_flag=True, help="Start at the oldest record of the topics instead of the next one."
)
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="End after N changes.")
def command(
    *,
    file: Path,
    source: str,
    tables: tuple[str, ...],
    where: str,
    as_objects: bool,
    beginning: bool,
    limit: int | None,
) -> int:
    """Show changes as they come, from the topics or a slot.

    From the topics, it shows committed records only (read_committed), in the order of each partition. It stores no
    offsets in a consumer group. From a slot, it does not use Kafka. The slot is temporary: PostgreSQL drops it when
    the command ends, also if the command is killed.

    \b
    A condition is CEL, as in filters.tables. The command evaluates it, and never sends it to a server:
      row.status == 'open' && (row.total > 100 || row.note == null)
      row.id in [1, 2] && row['Mixed Case'] != 'x'
    It is evaluated on the row after the change, and on the row before a delete.

    Exits with 0 on Ctrl-C, when its output is closed, and after --limit.
    """  # noqa: D301  click wants the character, and not a backslash
    if source == "slot" and beginning:
        raise click.UsageError("--beginning is for --from topics: a new slot has no past.")
    from cdcd.config.loading import load_config  # noqa: PLC0415  completion and --help need none of it

    config = load_config(file, os.environ)

    from cdcd.tools.operations import tail  # noqa: PLC0415  a wrong configuration is told first

    def notice(text: str) -> None:
        say(f"note: {text}", err=True)

    shown = tail.Shown(
        tail.filter_of(tables, where, config if source == "topics" else None),
        as_objects=as_objects,
        show=say,
        notice=notice,
        limit=limit or 0,
        watched=sys.stdout,
        descriptions=tail.descriptions_of(config, notice, from_topics=source == "topics"),
    )
    try:
        if source == "slot":
            tail.follow_slot(config, shown, notice=notice)
        else:
            tail.follow_topics(config, shown, tables, beginning=beginning, notice=notice)
    except KeyboardInterrupt:
        pass
    except BrokenPipeError:
        # What is left in the buffer must not be tried again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0
