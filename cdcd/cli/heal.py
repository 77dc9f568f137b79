"""`cdcd heal`: the topics of a pipeline get what they lack."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cdcd.cli.options import config_option

if TYPE_CHECKING:
    from cdcd.config.loading import Config
    from cdcd.tools.heal.comparer import TopicComparer

_PLAN = """\
`cdcd heal` would create the slot {slot} again, and compare each topic of the pipeline {name} with its table at the
slot's first position. Each difference becomes a record: a delete, an update or an insert. If a topic cannot be compared
reliably, a truncate record ends the former rows, and the table is read again. A change has no record if it was made
after the last delivery and was undone or overwritten since.

Nothing was changed. Stop the daemon, and run the command with --yes.
"""


@click.command("heal")
@config_option()
@click.option(
    "--yes", is_flag=True, help="Do it. Carry out the plan. Without this option, the command changes nothing."
)
def command(file: Path, *, yes: bool) -> int:
    """Make the topics equal to the tables again.

    Use it after a slot was lost, or if records are missing. It creates the slot again, and compares each topic with
    its table at the slot's first position. It writes an ordinary record for each difference. The command ends when
    all topics are healed; `cdcd run` then goes on. With snapshot.mode: when_needed, `cdcd run` does the same by
    itself after a slot was lost.

    Stop the daemon first: this command waits while another instance runs. If the command is killed, run it again.

    The exit codes are those of `cdcd run`.
    """
    from cdcd.config.loading import load_config  # noqa: PLC0415  completion and --help need none of it

    config = load_config(file, os.environ)
    if not yes:
        click.echo(_PLAN.format(slot=config.postgres.slot, name=config.name), nl=False)
        return 0
    from cdcd.daemon import running  # noqa: PLC0415  a wrong configuration is told before the clients are loaded

    # The session ends when all tables are healed or read.
    ends = config.snapshot.model_copy(update={"mode": "only"})
    return running.run(
        config.model_copy(update={"snapshot": ends}), make_comparer=make_comparer, heals_now=True
    )


def make_comparer(config: "Config", snapshot: str) -> "TopicComparer":
    """Make what compares topics with tables at an exported snapshot."""
    from cdcd.tools.heal.comparer import TopicComparer  # noqa: PLC0415  only a lost slot needs it

    return TopicComparer(config, snapshot)
