"""What `cdcd downgrade` does: it writes the checkpoint in the format that the version before reads.

That version refuses format 2. So two records are written in one Kafka transaction: the checkpoint in format 2, marked
as the last one of its kind, and behind it the same in format 1. This version counts records of format 1 behind such a
mark only, so that it goes on with what the former version wrote, after the next upgrade.
"""

import asyncio
from dataclasses import replace
from typing import Final

from cdcd.adapters.kafka import client
from cdcd.adapters.kafka.forgetting import downgrade_checkpoint
from cdcd.config.loading import Config
from cdcd.core.engine.checkpoint import Checkpoint
from cdcd.core.errors import PositionError
from cdcd.daemon.settings import checkpoint_records
from cdcd.tools.handover.servers import Say, holding_lock
from cdcd.tools.operations.sides import peek

WRITER_S: Final = 60.0
"""Seconds that Kafka may take for each answer."""


def downgrade(config: Config, say: Say, *, write: bool) -> None:
    """Say what the former version would go on with, and with `write` write it.

    Raises:
        FencedError: an instance of the pipeline is active.
        PositionError: there is no checkpoint, or the former version would leave out what only format 2 says.
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
    """The checkpoint, if format 1 can say what matters of it. PositionError: it cannot, or there is none."""
    if found is None:
        raise PositionError(
            "The pipeline has no checkpoint, so any version can begin with it.",
            hint="Start the version that you want.",
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
        kafka = config.kafka
        connection, producer = client.configured(kafka)
        await asyncio.to_thread(
            downgrade_checkpoint,
            connection,
            producer,
            config.topics.checkpoint,
            checkpoint_records(config),
            kafka.transactional_id if kafka.delivery == "exactly_once" else None,
            WRITER_S,
            lambda last: replace(refuse_lossy(last), downgraded=True),
        )
