"""`cdcd downgrade`: the checkpoint is written in the form that the version before reads."""

import os
from pathlib import Path

import click

from cdcd.cli.options import config_option
from cdcd.cli.output import say


@click.command("downgrade")
@config_option()
@click.option(
    "--yes", is_flag=True, help="Do it. Carry out the plan. Without this option, the command changes nothing."
)
def command(file: Path, yes: bool) -> int:
    """Let the previous version continue a stopped pipeline.

    Older versions of cdcd read only checkpoint format 1 and refuse format 2. This command writes the checkpoint in
    format 1. Stop all instances first. Without --yes, it only shows the position at which the former version would
    continue. A later upgrade needs no preparation.

    \b
    Exits with
      0   done, or shown
      3   PostgreSQL refuses or cannot be asked
      4   Kafka refuses or cannot be asked
      6   there is no checkpoint, or tables are set aside, which the former version would not know
      7   an instance of the pipeline runs: stop it first; or another pipeline uses the transactional id
    """  # noqa: D301  click wants the character, and not a backslash
    from cdcd.config.loading import load_config  # noqa: PLC0415  completion and --help need none of it

    config = load_config(file, os.environ)

    from cdcd.tools.handover.downgrade import downgrade  # noqa: PLC0415  a wrong configuration is told first

    downgrade(config, say, write=yes)
    if not yes:
        say("Nothing was changed. Run the same command with --yes to do it.")
    return 0
