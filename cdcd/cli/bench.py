"""`cdcd bench`: measure the throughput of a daemon between given servers."""

import os
import signal
import sys
from pathlib import Path

import click

from cdcd.cli.options import config_option
from cdcd.cli.output import say


@click.command("bench")
@config_option()
@click.option(
    "--rows", type=click.IntRange(1, 100_000_000), default=200_000, show_default=True, help="Rows to write."
)
@click.option(
    "--rows-each",
    type=click.IntRange(1, 1_000_000),
    default=1000,
    show_default=True,
    help="Rows of each transaction.",
)
@click.option(
    "--row-bytes",
    type=click.IntRange(1, 1_000_000),
    default=200,
    show_default=True,
    help="Size of the text in each written row, in bytes.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option(
    "--remove",
    default="",
    metavar="NAME",
    help="Remove the objects that an earlier run left because it was killed.",
)
def command(file: Path, *, rows: int, rows_each: int, row_bytes: int, yes: bool, remove: str) -> int:
    """Measure the rate and latency of a daemon with your servers.

    Creates a schema with a table, a publication, a slot and topics, writes rows, runs a daemon with your configuration
    under other names, and removes everything again. Prints rows per second, CPU, memory, bytes and latency
    of this daemon. Shows the plan first, and asks for a confirmation.

    The role of the configuration needs CREATE on the database and REPLICATION. Do not run this command on servers
    where additional WAL or load would do harm.
    """
    from cdcd.tools.operations import bench  # noqa: PLC0415  completion and --help need none of it

    names = bench.Names(remove or bench.new_name())
    config = bench.configuration(file, names, os.environ)
    if remove:
        bench.remove(file, config, say)
        return 0
    load = bench.Load(rows, min(rows, rows_each), row_bytes)
    # Without this handler, SIGTERM would end the process before it removes what the run created.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    for line in bench.plan(config, load):
        say(line)
    if not yes:
        click.confirm("Go on?", abort=True, err=True)
    found = bench.run(file, config, load, os.environ, lambda text: say(text, err=True))
    for line in bench.lines(found, load):
        say(line)
    return 0
