"""Stage 8: computes from acknowledgements the position that is confirmed to PostgreSQL.

The rule: `flushed` is the end of the longest prefix of the stream that the broker holds, and cdcd confirms nothing
else to PostgreSQL. There are four positions, which only rise:

- `received`: the highest LSN that the server has mentioned;
- `sent`: the end of the last transaction that Kafka's producer has accepted;
- `acked`: the end of the last transaction that the broker acknowledged, in any order;
- `flushed`: the end of the last transaction of the fully acknowledged prefix, up to `limit`.

An entry is opened when a commit is decoded, before any part of the transaction is queued. If it were opened later,
a keepalive that overtakes the queue would confirm transactions that Kafka does not hold yet. An undecided PREPARE
is an entry, too: it stays open and keeps `flushed` before it, until the broker holds the events of COMMIT PREPARED,
or the position after ROLLBACK PREPARED. A keepalive counts when nothing is open, in the same way: as an entry
without events, whose acknowledgement is the checkpoint record with its position.

PostgreSQL keeps such a list for its own subscriptions: `worker.c`, `get_flush_position`.
"""

import sys
from collections import OrderedDict
from collections.abc import Sequence


class Ledger:
    """Open entries in the order of the stream, and the four positions.

    `open` returns a ticket; the caller owes `seal` with the entry's end LSN as soon as it is known, and `ack` when
    the broker holds all events of the entry. An undecided PREPARE has no end LSN and needs only `ack`. Acknowledged
    entries after an open one are stored as one position, so a PREPARE that stays undecided for days costs no
    memory.

    Attributes:
        limit: maximum of `flushed`. A start must distinguish a slot that cdcd moved from a slot that another client
            moved. So nothing after the `flushed_lsn` of the checkpoint in Kafka is confirmed to PostgreSQL.
    """

    def __init__(self, flushed: int = 0) -> None:
        self.received = flushed
        self.sent = flushed
        self.acked = flushed
        self.limit = sys.maxsize
        self._acknowledged = flushed
        """End of the acknowledged prefix. `flushed` is lower if `limit` is."""
        self._next_ticket = 0
        # After many deletions at its front, a plain dict would be slow to return its first key.
        self._ends: OrderedDict[int, int] = OrderedDict()
        self._behind: dict[int, int] = {}

    @property
    def flushed(self) -> int:
        """Position that may be confirmed to PostgreSQL."""
        return min(self._acknowledged, self.limit)

    @property
    def open_entries(self) -> int:
        """Number of entries that are not acknowledged."""
        return len(self._ends)

    def hear(self, lsn: int) -> None:
        """Register that the server mentioned `lsn`: everything before it was decoded or is being sent."""
        if lsn > self.received:
            self.received = lsn

    def open(self) -> int:
        """Open an entry for a decoded commit or PREPARE; return its ticket."""
        ticket = self._next_ticket
        self._next_ticket += 1
        self._ends[ticket] = 0
        return ticket

    def seal(self, ticket: int, end_lsn: int) -> None:
        """Set the end of the entry: a restart from `end_lsn` does not receive the entry again."""
        assert ticket in self._ends, f"ticket {ticket} is not open"
        self._ends[ticket] = end_lsn
        self.hear(end_lsn)

    def is_last(self, ticket: int) -> bool:
        """Return True if `ticket` is open and no later entry exists: only then may its end still move."""
        return ticket == self._next_ticket - 1 and ticket in self._ends

    def send(self, end_lsn: int) -> None:
        """Register that the producer has accepted everything up to `end_lsn`."""
        if end_lsn > self.sent:
            self.sent = end_lsn

    def ack(self, ticket: int) -> None:
        """Register that the broker holds all events of the entry, or that the entry has none."""
        assert ticket in self._ends, f"ticket {ticket} is not open"
        end = self._ends.pop(ticket)
        if end > self.acked:
            self.acked = end
        end = max(end, self._behind.pop(ticket, 0))
        before = self._last_open_before(ticket)
        if before is None:
            self._flush(end)
        elif end > self._behind.get(before, 0):
            self._behind[before] = end

    def flushed_with(self, tickets: Sequence[int]) -> int:
        """Return what `flushed` could become if these open entries were acknowledged and the limit allowed it."""
        acknowledged = frozenset(tickets)
        flushed = self._acknowledged
        # `items` is not used, because it creates a pair for each of a thousand small transactions in a batch.
        for ticket in self._ends:
            if ticket not in acknowledged:
                break
            flushed = max(flushed, self._ends[ticket])
            if self._behind:
                flushed = max(flushed, self._behind.get(ticket, 0))
        return flushed

    def _last_open_before(self, ticket: int) -> int | None:
        """The search starts at the front: acknowledgements arrive in order, so only undecided PREPAREs are passed."""
        last = None
        for other in self._ends:
            if other > ticket:
                break
            last = other
        return last

    def _flush(self, end_lsn: int) -> None:
        if end_lsn > self._acknowledged:
            self._acknowledged = end_lsn
        assert self.flushed <= self.received, "flushed passed received"
        assert self.flushed <= self.acked, "flushed passed acked"
