"""`cdcd drop`: what a pipeline that is given up leaves behind is removed."""

from pathlib import Path

import click

from cdcd.cli.options import checkpoint_of_option, config_option
from cdcd.cli.removal import run


@click.command("drop")
@config_option()
@click.option("--topics", is_flag=True, help="Also delete the topics of its tables, and cdcd's other topics.")
@checkpoint_of_option()
@click.option("--yes", is_flag=True, help="Do it. Without this option, nothing is changed.")
def command(file: Path, topics: bool, checkpoint_of: str, yes: bool) -> int:
    """Remove the slot and everything else that a pipeline left.

    That is its slot, its checkpoint and its publication. Without --yes, only shows what would be removed, what that
    frees, and what is left and why. The slot goes first, because it holds WAL. What cdcd did not make stays. If the
    command fails in the middle, run it again. If the pipeline reads another server than this one, as after `cdcd
    handover adopt`, the checkpoint and the topics stay.

    \b
    Exits with
      0   done, or shown; also if there is nothing
      3   PostgreSQL refuses or cannot be asked, or another program reads the slot
      4   Kafka refuses or cannot be asked
      6   the pipeline is sealed for a handover
      7   an instance of the pipeline runs: stop it first
    """  # noqa: D301  click wants the character, and not a backslash
    return run("drop", file, with_topics=topics, checkpoint_of=checkpoint_of, yes=yes)
