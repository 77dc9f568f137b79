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
    help="topics: what the pipeline delivered. slot: what is committed from now on, by a temporary slot.",
)
@click.option(
    "--table",
    "tables",
    multiple=True,
    metavar="SCHEMA.TABLE",
    help="Only of this table; * and ? stand for any characters and for one. May be repeated.",
)
@click.option(
    "--where",
    default="",
    metavar="CONDITION",
    help="Only rows that satisfy the condition (CEL): \"row.status == 'open'\".",
)
@click.option(
    "--json", "as_objects", is_flag=True, help="One JSON object a line: topic, key and the whole record."
)
@click.option(
    "--beginning", is_flag=True, help="Begin with the oldest record of the topics, not with the next one."
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

    From the topics, only what is committed is shown (read_committed), in the order of each partition. No group stores
    an offset. From a slot, Kafka is not asked. The slot is temporary, so it is gone when the command ends, also when
    the command is killed.

    \b
    A condition is CEL, as in filters.tables. It is evaluated here, and never goes to a server:
      row.status == 'open' && (row.total > 100 || row.note == null)
      row.id in [1, 2] && row['Mixed Case'] != 'x'
    It is judged on the row after the change, and on the row before a delete.

    Ends with 0 on Ctrl-C, when its output is closed, and after --limit.
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
