"""`cdcd top`: a running daemon on the terminal, live."""

import os
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from cdcd.cli.options import config_option, url_option
from cdcd.cli.output import say

if TYPE_CHECKING:
    pass

SILENT: Final = 10
"""The exit code of `--once` if no daemon of this pipeline answers (`errors.EXIT_CODES`)."""


@click.command("top")
@config_option()
@url_option()
@click.option("--once", is_flag=True, help="Print the screen once, and exit.")
def command(file: Path, url: str, *, once: bool) -> int:
    """Show a running daemon on the terminal, live.

    Lag, rates, slot, open transactions, spool, and the busiest tables. The screen is a client of the daemon's
    /v1/status, and asks once a second. If the daemon is down, the screen says so and goes on when the daemon is back.
    If the output is not a terminal, the screen is printed once.

    \b
    Keys
      q   leave
      r   sort the tables by rate; t by all rows, i inserts, u updates, d deletes, n by name

    \b
    Exits with
      0   the user left, or --once had an answer
      2   the configuration is wrong
      10  --once: no daemon of this pipeline answers
    """  # noqa: D301  click wants the character, and not a backslash
    from cdcd.config.loading import load_config  # noqa: PLC0415  completion and --help need none of it

    config = load_config(file, os.environ)

    from cdcd.telemetry.http_client import status_of, url_of  # noqa: PLC0415
    from cdcd.tools.operations.top import DaemonAnswer, text_lines  # noqa: PLC0415  a wrong configuration is told first

    place = url or url_of(config)
    last: DaemonAnswer = DaemonAnswer(place)
    answered_at = time.monotonic()

    def ask(all_tables: bool) -> DaemonAnswer:
        nonlocal last, answered_at
        found = status_of(config, place, all_tables=all_tables)
        now = time.monotonic()
        if found is None:
            last = DaemonAnswer(place, last.status, now - answered_at)
        elif found["pipeline"] != config.name:
            last = DaemonAnswer(place, stranger=found["pipeline"])
        else:
            last, answered_at = DaemonAnswer(place, found), now
        return last

    if not once and sys.stdout.isatty() and sys.stdin.isatty():
        import curses  # noqa: PLC0415  few need it

        from cdcd.tools.operations.top import show  # noqa: PLC0415

        try:
            show(ask, last, str(file))
        except curses.error as error:
            say(f"This terminal cannot show a screen ({error}); this is what it would show.", err=True)
        else:
            return 0
    answer = ask(False)
    for line in text_lines(answer, str(file), shutil.get_terminal_size().columns):
        say(line)
    return 0 if answer.status is not None else SILENT
