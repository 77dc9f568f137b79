"""Finds hanging transactions after an outage of Kafka: committed ones whose records readers do not see (KIP-664).

The rule: a partition in which cdcd writes nothing shows all of its records to readers with `read_committed` within
moments. If it does not for `HANGS_S`, a transaction hangs there. `commit_delay.py` says how. Only the
topics that were written during an outage, and shortly after, are looked at.

The next transaction of cdcd in such a partition ends it, and readers get the records of both.
"""

import math
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from cdcd.adapters.kafka.errors import Partition
from cdcd.core.engine.checkpoint import Checkpoint

LOOK_S: Final = 15.0
"""Seconds after an outage for which topics that are written are suspected, and looked at."""

HANGS_S: Final = 10.0
"""Seconds without progress after which a transaction hangs. Brokers need some milliseconds for the end of one."""


def is_acknowledged(
    hidden: Checkpoint | None,
    visible: Checkpoint | None,
    *,
    committed: Checkpoint | None = None,
    told: int = 0,
) -> bool:
    """Whether Kafka has acknowledged the commit of a checkpoint that readers do not see.

    PostgreSQL is told a position only after Kafka has acknowledged a checkpoint that reaches it. So a hidden checkpoint
    that is the only one to reach it was acknowledged. If this is not certain, its transaction may have been aborted.

    Args:
        hidden, visible: the newest checkpoint, and the newest that readers see.
        committed: the last one whose commit this process saw acknowledged.
        told: a position that PostgreSQL was told because of a checkpoint in Kafka.
    """
    if hidden is None:
        return False
    if committed is not None and hidden.is_same(committed):
        return True
    return visible is not None and visible.position.end_lsn < told <= hidden.position.end_lsn


class Ends(NamedTuple):
    """Where a partition ends for readers with `read_committed`, and where it ends."""

    stable: int
    end: int


class HangingTransactions:
    """For each question to Kafka, call `failed` or `answered`, and then `looked` with what `answered` asks for.

    Attributes:
        hanging: the partitions with a hanging transaction, and where readers stop in each.
    """

    def __init__(self) -> None:
        self.hanging: dict[Partition, int] = {}
        self._topics: set[str] = set()
        self._until = 0.0
        self._held: dict[Partition, tuple[int, float]] = {}
        """Where readers stop, and since when nothing is written to the topic while they stop there."""

    def failed(self, written: Collection[str]) -> None:
        """Kafka did not answer. `written`: the topics of the transaction that is open."""
        self._topics.update(written)
        self._until = math.inf

    def answered(self, written: Collection[str], now: float) -> frozenset[str]:
        """Kafka answered at `now` (monotonic seconds). Returns the topics to look at."""
        if self._until == math.inf:
            self._until = now + LOOK_S
        if now < self._until:
            self._topics.update(written)
        elif not self._held:
            self._topics.clear()
        return frozenset(self._topics)

    def looked(self, ends: Mapping[Partition, Ends], written: Collection[str], now: float) -> list[Partition]:
        """Where partitions end, so far as Kafka told. Returns those in which a transaction was found to hang now."""
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
