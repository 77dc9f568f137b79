"""What the server says of itself before a stream starts, as the engine judges it against the checkpoint."""

from cdcd.postgres.replication import Identity, ReplicationStream
from cdcd.postgres.slot import SlotState
from cdcd.transactions.position import Checkpoint, Source


async def read_source(
    stream: ReplicationStream,
    identity: Identity,
    slot: SlotState | None,
    found: Checkpoint | None,
    *,
    slot_name: str,
    options: str,
) -> Source:
    """Describe the server beside the checkpoint that was found.

    Args:
        options: what the stream depends on (`Source.stream`): publication, messages, origin.

    Raises:
        TransientError: the connection is lost.
    """
    before = identity.timeline if found is None else found.timeline
    return Source(
        system_identifier=identity.system_identifier,
        timeline=identity.timeline,
        wal_end=identity.flushed,
        slot_confirmed=None if slot is None else slot.confirmed_flush_lsn,
        stream=options,
        branched_at=await stream.branched_at(before, identity.timeline),
        slot=slot_name,
    )
