"""What `cdcd drop` and `cdcd reset` share: the plan is shown, and carried out only with --yes."""

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from cdcd.cli.output import say

if TYPE_CHECKING:
    from cdcd.tools.operations.removal_plan import Command, RemovalPlan, RemovalStep


def run(command: "Command", file: Path, *, with_topics: bool, checkpoint_of: str, yes: bool) -> int:
    """Show the plan and, with `yes`, carry it out."""
    from cdcd.config.loading import load_config  # noqa: PLC0415  completion and --help need none of it

    config = load_config(file, os.environ)

    from cdcd.tools.operations import removal  # noqa: PLC0415  a wrong configuration is told first
    from cdcd.tools.operations.removal_plan import lines  # noqa: PLC0415

    def show(plan: "RemovalPlan") -> None:
        for line in lines(plan, shutil.get_terminal_size().columns):
            say(line)

    def done(step: "RemovalStep") -> None:
        say(f"done: {step.what}")

    plan = removal.run(
        command,
        config,
        str(file),
        with_topics=with_topics,
        checkpoint_of=checkpoint_of,
        show=show,
        done=done if yes else None,
    )
    if plan.steps and not yes:
        say("Nothing was changed. Run the same command with --yes to do it.")
    return 0
