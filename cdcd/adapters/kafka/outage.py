"""Outages of Kafka: decides when a Kafka transaction may end after one, and whether the broker may have ended it
already; and finds hanging transactions: committed transactions whose records readers do not see (KIP-664).

The rule: no transaction ends until Kafka has answered for `SETTLE_S`, so that its partitions have leaders again.

A broker that stood still for longer than its session (`broker.session.timeout.ms`) is fenced for a moment when it
returns, and its partitions have no leader during that time. When Kafka 4.3 ends a transaction, it mistakes a
partition without a leader for a deleted one. It acknowledges the commit, but writes no marker to that partition.
Its log says: "Couldn't find leader endpoint for partitions … these partitions are likely deleted already and hence
can be skipped" (TransactionMarkerChannelManager.addTxnMarkersToBrokerQueue). Readers with `read_committed` then
stop before the records of the transaction (a hanging transaction, KIP-664), until the producer ends another
transaction in this partition. The records then share the outcome of that transaction. So records of an aborted
transaction become visible with the commit that delivers them again, and readers get them twice.

The broker may have ended our Kafka transaction by its timeout, which fences the producer (KIP-98).

It is safe to go on then, because only the holder of the lock gets a new producer. If no transaction can have
expired, a fenced producer means that another producer has the same transactional id.

The rule: if cdcd writes nothing to a partition, readers with `read_committed` see all its records within moments.
If they do not for `HANGS_S`, a transaction hangs in the partition. `outage.py` describes the cause. Only
topics that were written during an outage or shortly after are checked.

The next transaction of cdcd in this partition ends the hanging one, and readers get the records of both.
"""

import math
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from cdcd.adapters.kafka.errors import Partition
from cdcd.core.engine.checkpoint import Checkpoint

SETTLE_S: Final = 3.0
"""Seconds for which Kafka must have answered before a transaction ends. A broker that returns is fenced and admitted
again within some tenths of a second, or on a busy machine within about a second. No transaction waits longer than
this: if nobody can tell whether Kafka answers, the transaction ends anyway."""


class Settling:
    """Decides how long the end of a transaction waits: `failed` and `answered` are called for each request to Kafka.

    One thread calls these two methods, and another thread calls `wait_s`.

    A transaction ends by a commit, by an abort, or by the next producer, for which the coordinator aborts the
    transaction.
    """

    def __init__(self) -> None:
        self._settled_at = 0.0

    def failed(self) -> None:
        """Note that Kafka did not answer, or that a partition which is written has no leader."""
        self._settled_at = math.inf

    def answered(self, now: float) -> None:
        """Note that Kafka answered at `now` (monotonic seconds)."""
        if self._settled_at == math.inf:
            self._settled_at = now + SETTLE_S

    def wait_s(self, asked_at: float, now: float) -> float:
        """Return the seconds that the end of a transaction still has to wait; 0 if it may end now.

        Args:
            asked_at: when the transaction was ready to end. It waits until `SETTLE_S` after this time at most.
        """
        return max(0.0, min(self._settled_at, asked_at + SETTLE_S) - now)


class Expiry:
    """Timeouts of the transactions of successive producers.

    Args:
        timeout_s: `transaction.timeout.ms`, in seconds.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._begun_at: float | None = None
        self._left_open = False
        """True if a former producer left a transaction open. The coordinator may end it while the present producer
        works."""

    def replaced(self) -> None:
        """Register that a new producer is about to replace the present one.

        A producer that begins no transaction, because the broker is unreachable, leaves none open either; then an
        older open transaction still exists. So the suspicion applies to one producer that begins a transaction, and
        not to the next one.
        """
        if self._begun_at is not None:
            self._left_open = not self._left_open
        self._begun_at = None

    def begun(self, now: float) -> None:
        """Note that a transaction begins."""
        self._begun_at = now

    def committed(self) -> None:
        """Register a commit, before which the coordinator has ended all earlier transactions."""
        self._begun_at = None
        self._left_open = False

    def may_have_happened(self, now: float) -> bool:
        """Return True if a producer that is fenced now may have been fenced because of a timeout."""
        return self._left_open or (self._begun_at is not None and now - self._begun_at >= self._timeout_s)


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


class EndOffsets(NamedTuple):
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

    def looked(
        self, ends: Mapping[Partition, EndOffsets], written: Collection[str], now: float
    ) -> list[Partition]:
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
