"""Stage 8: acknowledgements -> the position that PostgreSQL may forget.

The rule: `flushed` is the end of the longest prefix of the stream that the broker holds, and nothing else is ever
told to PostgreSQL. Four positions, which only rise:

- `received`: the furthest LSN that the server has mentioned;
- `sent`: the end of the last transaction handed to Kafka's producer;
- `acked`: the end of the last transaction that the broker acknowledged, in any order;
- `flushed`: the end of the last one of the prefix in which all are acknowledged, up to `limit`.

An entry is opened when a commit is decoded, before anything of the transaction is queued. Were it opened later, a
keepalive that overtakes the queue would confirm what nobody holds yet. An undecided PREPARE is an entry as well: it
stays open, and with it `flushed` stays before it, until the broker holds what COMMIT PREPARED sends, or the position
after ROLLBACK PREPARED. A keepalive counts when nothing is open, by the same path: as an entry without events whose
acknowledgement is the checkpoint record that says so.

PostgreSQL keeps such a list for its own subscriptions: `worker.c`, `get_flush_position`.
"""

import sys
from collections import OrderedDict
from collections.abc import Sequence


class Ledger:
    """Open entries in the order of the stream, and the four positions.

    `open` gives a ticket; the caller owes `seal` (the entry's end LSN) when it is known and `ack` when the broker
    holds everything of the entry. An undecided PREPARE leaves no position: `ack` alone.
    Acknowledged entries behind an open one are kept as one position, so that what a PREPARE holds up for days costs
    nothing.

    Attributes:
        limit: how far `flushed` may go. A start must be able to tell a slot that cdcd moved from one that somebody else
            moved, so PostgreSQL is told nothing past the `flushed_lsn` of the checkpoint that the broker holds.
    """

    def __init__(self, flushed: int = 0) -> None:
        self.received = flushed
        self.sent = flushed
        self.acked = flushed
        self.limit = sys.maxsize
        self._acknowledged = flushed
        """The end of the acknowledged prefix. `flushed` is before it, if `limit` is."""
        self._next_ticket = 0
        # A plain dict would be slow to give its first key after many deletions there.
        self._ends: OrderedDict[int, int] = OrderedDict()
        self._behind: dict[int, int] = {}

    @property
    def flushed(self) -> int:
        """What PostgreSQL may be told."""
        return min(self._acknowledged, self.limit)

    @property
    def open_entries(self) -> int:
        """Entries that are not acknowledged."""
        return len(self._ends)

    def hear(self, lsn: int) -> None:
        """The server mentioned `lsn`: everything before it was decoded or is being sent."""
        if lsn > self.received:
            self.received = lsn

    def open(self) -> int:
        """A transaction's commit or PREPARE was decoded; returns its ticket."""
        ticket = self._next_ticket
        self._next_ticket += 1
        self._ends[ticket] = 0
        return ticket

    def seal(self, ticket: int, end_lsn: int) -> None:
        """The entry ends at `end_lsn`: a restart from there does not bring it again."""
        assert ticket in self._ends, f"ticket {ticket} is not open"
        self._ends[ticket] = end_lsn
        self.hear(end_lsn)

    def is_last(self, ticket: int) -> bool:
        """Whether `ticket` is open and nothing was opened after it: only then may its end still move."""
        return ticket == self._next_ticket - 1 and ticket in self._ends

    def send(self, end_lsn: int) -> None:
        """Everything up to `end_lsn` was handed to the producer."""
        if end_lsn > self.sent:
            self.sent = end_lsn

    def ack(self, ticket: int) -> None:
        """The broker holds all events of the entry, or it has none."""
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
        """Where `flushed` can be when these open entries are acknowledged too, with a limit that allows it."""
        acknowledged = frozenset(tickets)
        flushed = self._acknowledged
        # Without `items`, which makes a pair for each of a thousand small transactions in a batch.
        for ticket in self._ends:
            if ticket not in acknowledged:
                break
            flushed = max(flushed, self._ends[ticket])
            if self._behind:
                flushed = max(flushed, self._behind.get(ticket, 0))
        return flushed

    def _last_open_before(self, ticket: int) -> int | None:
        """Near the front: acknowledgements come in order, so that only undecided PREPAREs are passed on the way."""
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
