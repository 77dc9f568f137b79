"""`cdcd downgrade`: writes the checkpoint in the format that the previous version reads.

The previous version refuses format 2. So two records are written in one Kafka transaction: the checkpoint in format
2, marked as the last of its format, and after it the same checkpoint in format 1. This version accepts records of
format 1 only after such a mark, so after the next upgrade it continues with the checkpoints of the former version.
"""

import asyncio
from dataclasses import replace
from typing import Final

from cdcd.config.loading import Config
from cdcd.core.engine.checkpoint import Checkpoint
from cdcd.core.errors import PositionError
from cdcd.daemon.settings import checkpoint_writer
from cdcd.tools.handover.servers import Say, holding_lock
from cdcd.tools.operations.sides import peek

WRITER_S: Final = 60.0
"""Seconds that Kafka may take for each answer."""


def downgrade(config: Config, say: Say, *, write: bool) -> None:
    """Report the position at which the former version would continue, and with `write` write the checkpoint.

    Raises:
        FencedError: an instance of the pipeline is active.
        PositionError: there is no checkpoint, or the former version would ignore contents that only format 2 has.
        TransientError, SourceError, SinkError: a server does not answer, or refuses.
    """
    found = peek(config)
    former = refuse_lossy(found)
    say(f"The former version goes on at {former.position}.")
    if former.bindings:
        say("It does not know which columns the rules of `columns` were bound to: its rules go by names.")
    if write:
        asyncio.run(_write(config, say))
        say("Done. Start the former version, with a configuration that has only its keys.")


def refuse_lossy(found: Checkpoint | None) -> Checkpoint:
    """Return the checkpoint if format 1 can express its relevant contents.

    PositionError: it cannot, or there is no checkpoint.
    """
    if found is None:
        raise PositionError(
            "The pipeline has no checkpoint, so any version can begin with it.",
            hint="Start any version.",
        )
    if found.tables:
        raise PositionError(
            f"{len(found.tables)} tables are set aside, of which the former version knows nothing: it would deliver "
            "their changes again, with a gap.",
            hint="Bring the tables back first, or start the former version with them in tables.exclude after `cdcd "
            "reset`.",
        )
    return found


async def _write(config: Config, say: Say) -> None:
    async with holding_lock(config, 0.0, say):
        await asyncio.to_thread(
            checkpoint_writer(config, WRITER_S).downgrade,
            lambda last: replace(refuse_lossy(last), downgraded=True),
        )
