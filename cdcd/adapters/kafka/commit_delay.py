"""When a Kafka transaction may end after an outage, and whether the broker may have ended it before.

The rule: no transaction ends until Kafka has answered for `SETTLE_S`, so that its partitions have leaders again.

A broker that stood still for longer than its session (`broker.session.timeout.ms`) is fenced for a moment when it comes
back, and its partitions have no leader meanwhile. Kafka 4.3 takes a partition without a leader for a deleted one when
it ends a transaction. It answers the commit, and writes no marker to that partition. Its log says: "Couldn't find
leader endpoint for partitions … these partitions are likely deleted already and hence can be skipped"
(TransactionMarkerChannelManager.addTxnMarkersToBrokerQueue). Readers with `read_committed` then stop before the records
of the transaction (a hanging transaction, KIP-664), until the producer ends another transaction in this partition. The
records then share the outcome of that transaction. So records of an aborted transaction become visible with the commit
that delivers them again, and readers get them twice.

The broker may have ended our Kafka transaction by its timeout, which fences the producer (KIP-98).

Going on after that is safe: only the holder of the lock gets a new producer. If no transaction can have expired, a
fenced producer means another one with the same transactional id.
"""

import math
from typing import Final

SETTLE_S: Final = 3.0
"""Seconds. A broker that has come back is fenced and let in again within some tenths of a second; on a busy machine,
within about a second. No transaction waits longer than this: if nobody can say whether Kafka answers, it goes on."""


class Settling:
    """Call `failed` and `answered` for each question to Kafka. One thread calls them, and another one asks `wait_s`.

    A transaction ends by a commit, by an abort, or by the next producer, for which the coordinator aborts it.
    """

    def __init__(self) -> None:
        self._settled_at = 0.0

    def failed(self) -> None:
        """Kafka did not answer, or a partition that is written has no leader."""
        self._settled_at = math.inf

    def answered(self, now: float) -> None:
        """Kafka answered at `now` (monotonic seconds)."""
        if self._settled_at == math.inf:
            self._settled_at = now + SETTLE_S

    def wait_s(self, asked_at: float, now: float) -> float:
        """Seconds that the end of a transaction has still to wait; 0: it may end.

        Args:
            asked_at: when it was ready to end. It waits until `SETTLE_S` later at most.
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
        """A transaction begins."""
        self._begun_at = now

    def committed(self) -> None:
        """Register a commit, before which the coordinator has ended all earlier transactions."""
        self._begun_at = None
        self._left_open = False

    def may_have_happened(self, now: float) -> bool:
        """Return True if a producer that is fenced now may have been fenced because of a timeout."""
        return self._left_open or (self._begun_at is not None and now - self._begun_at >= self._timeout_s)
