"""`cdcd reset`: a pipeline begins again."""

from pathlib import Path

import click

from cdcd.cli.options import checkpoint_of_option, config_option
from cdcd.cli.removal import run


@click.command("reset")
@config_option()
@click.option(
    "--topics", is_flag=True, help="Also delete the topics of the pipeline's tables, and cdcd's other topics."
)
@checkpoint_of_option()
@click.option(
    "--yes", is_flag=True, help="Do it. Carry out the plan. Without this option, the command changes nothing."
)
def command(file: Path, topics: bool, checkpoint_of: str, yes: bool) -> int:
    """Restart a stopped pipeline without its slot and checkpoint.

    The next `cdcd run` makes a new slot and reads the tables again (snapshot.mode). The topics stay unless --topics is
    given: consumers get all rows again, as op r. Rows that are deleted before the next start leave no record.

    Without --yes, it only shows the objects that it would remove. If the command fails in the middle, run it again.
    Until then `cdcd run` refuses to start, with exit code 6.

    \b
    Exits with
      0   done, or shown; also if there is nothing
      3   PostgreSQL refuses or cannot be asked, or another program reads the slot
      4   Kafka refuses or cannot be asked
      6   the pipeline is sealed for a handover, or reads another server
      7   an instance of the pipeline runs: stop it first; or another pipeline uses the transactional id
    """  # noqa: D301  click wants the character, and not a backslash
    return run("reset", file, with_topics=topics, checkpoint_of=checkpoint_of, yes=yes)
