"""`cdcd drop`: what a pipeline that is given up leaves behind is removed."""

from pathlib import Path

import click

from cdcd.cli.options import checkpoint_of_option, config_option
from cdcd.cli.removal import run


@click.command("drop")
@config_option()
@click.option(
    "--topics", is_flag=True, help="Also delete the topics of the pipeline's tables, and cdcd's other topics."
)
@checkpoint_of_option()
@click.option(
    "--yes", is_flag=True, help="Do it. Carry out the plan. Without this option, the command changes nothing."
)
def command(file: Path, topics: bool, checkpoint_of: str, yes: bool) -> int:
    """Remove the slot and everything else that a pipeline left.

    It removes the slot, the checkpoint and the publication of the pipeline. Without --yes, it only shows the objects
    that it would remove, the WAL that this frees, and the objects that stay, with the reason. It removes the slot
    first, because the slot holds WAL. Objects that cdcd did not create stay. If the command fails in the middle, run
    it again. If the pipeline reads another server than this one, as after `cdcd handover adopt`, the checkpoint and
    the topics stay.

    \b
    Exits with
      0   done, or shown; also if there is nothing
      3   PostgreSQL refuses or cannot be asked, or another program reads the slot
      4   Kafka refuses or cannot be asked
      6   the pipeline is sealed for a handover
      7   an instance of the pipeline runs: stop it first; or another pipeline uses the transactional id
    """  # noqa: D301  click wants the character, and not a backslash
    return run("drop", file, with_topics=topics, checkpoint_of=checkpoint_of, yes=yes)
