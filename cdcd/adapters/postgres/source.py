"""Reader of the server's state before a stream starts: the `Source` that `position.resume` compares with the
checkpoint.
"""

from cdcd.adapters.postgres.replication import Identity, ReplicationStream
from cdcd.core.engine.checkpoint import Checkpoint, Source


async def read_source(
    stream: ReplicationStream,
    identity: Identity,
    slot_confirmed: int | None,
    found: Checkpoint | None,
    *,
    slot_name: str,
    options: str,
) -> Source:
    """Return the server's state, as far as it matters for the checkpoint that was found.

    Args:
        slot_confirmed: confirmed_flush_lsn of the slot; None: the slot does not exist.
        options: the options that decide which events the server sends (`Source.stream`): publication, messages,
            origin.

    Raises:
        TransientError: the connection is lost.
    """
    before = identity.timeline if found is None else found.timeline
    return Source(
        system_identifier=identity.system_identifier,
        timeline=identity.timeline,
        wal_end=identity.flushed,
        slot_confirmed=slot_confirmed,
        stream=options,
        branched_at=await stream.branched_at(before, identity.timeline),
        slot=slot_name,
    )
