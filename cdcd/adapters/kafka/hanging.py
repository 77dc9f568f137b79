"""Finds hanging transactions after an outage of Kafka: committed transactions whose records readers do not see
(KIP-664).

The rule: if cdcd writes nothing to a partition, readers with `read_committed` see all its records within moments.
If they do not for `HANGS_S`, a transaction hangs in the partition. `commit_delay.py` describes the cause. Only
topics that were written during an outage or shortly after are checked.

The next transaction of cdcd in this partition ends the hanging one, and readers get the records of both.
"""

import math
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from cdcd.adapters.kafka.errors import Partition
from cdcd.core.engine.checkpoint import Checkpoint

LOOK_S: Final = 15.0
"""Seconds after an outage for which written topics are suspected and checked."""

HANGS_S: Final = 10.0
"""Seconds without progress after which a transaction hangs. Brokers need some milliseconds to end a transaction."""


def is_acknowledged(
    hidden: Checkpoint | None,
    visible: Checkpoint | None,
    *,
    committed: Checkpoint | None = None,
    told: int = 0,
) -> bool:
    """Return True if Kafka has acknowledged the commit of a checkpoint that readers do not see.

    cdcd confirms a position to PostgreSQL only after Kafka has acknowledged a checkpoint that reaches it. So a
    hidden checkpoint was acknowledged if no other checkpoint reaches the confirmed position. Otherwise its
    transaction may have been aborted.

    Args:
        hidden, visible: the newest checkpoint, and the newest that readers see.
        committed: the last one whose commit this process saw acknowledged.
        told: a position that was confirmed to PostgreSQL because of a checkpoint in Kafka.
    """
    if hidden is None:
        return False
    if committed is not None and hidden.is_same(committed):
        return True
    return visible is not None and visible.position.end_lsn < told <= hidden.position.end_lsn


class Ends(NamedTuple):
    """End offsets of a partition: for `read_committed` readers, and of all records."""

    stable: int
    end: int


class HangingTransactions:
    """State of the search; call `failed` or `answered` for each request to Kafka, and then `looked` with the ends of
    the topics that `answered` returned.

    Attributes:
        hanging: the partitions with a hanging transaction, and the offset at which readers stop in each.
    """

    def __init__(self) -> None:
        self.hanging: dict[Partition, int] = {}
        self._topics: set[str] = set()
        self._until = 0.0
        self._held: dict[Partition, tuple[int, float]] = {}
        """Offset at which readers stop, and the time since which the topic gets no records while they stop there."""

    def failed(self, written: Collection[str]) -> None:
        """Register that Kafka did not answer. `written`: the topics of the transaction that is open."""
        self._topics.update(written)
        self._until = math.inf

    def answered(self, written: Collection[str], now: float) -> frozenset[str]:
        """Register that Kafka answered at `now` (monotonic seconds). Returns the topics to check."""
        if self._until == math.inf:
            self._until = now + LOOK_S
        if now < self._until:
            self._topics.update(written)
        elif not self._held:
            self._topics.clear()
        return frozenset(self._topics)

    def looked(self, ends: Mapping[Partition, Ends], written: Collection[str], now: float) -> list[Partition]:
        """Register the ends of partitions, as far as Kafka returned them.

        Returns the partitions in which a hanging transaction was found now.
        """
        for partition, (stable, end) in ends.items():
            if stable >= end:
                self._held.pop(partition, None)
                continue
            before, since = self._held.get(partition, (-1, now))
            is_same = before == stable and partition[0] not in written
            self._held[partition] = (stable, since if is_same else now)
        hanging = {place: stable for place, (stable, since) in self._held.items() if now - since >= HANGS_S}
        found = [partition for partition in hanging if partition not in self.hanging]
        self.hanging = hanging
        return found
