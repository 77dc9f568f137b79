"""Decides when a Kafka transaction may end after an outage, and whether the broker may have ended it already.

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
"""

import math
from typing import Final

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
