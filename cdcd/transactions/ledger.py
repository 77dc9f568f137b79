"""Stage 8: acknowledgements -> the position that PostgreSQL may forget.

The rule: `flushed` is the end of the longest prefix of the stream that the broker holds, and nothing else is ever
told to PostgreSQL. Four positions, which only rise:

- `received`: the furthest LSN that the server has mentioned;
- `sent`: the end of the last transaction handed to Kafka's producer;
- `acked`: the end of the last transaction that the broker acknowledged, in any order;
- `flushed`: the end of the last one of the prefix in which all are acknowledged.

An entry is opened when a commit is decoded, before anything of the transaction is queued. Were it opened later, a
keepalive that overtakes the queue would confirm what nobody holds yet. An undecided PREPARE is an entry as well: it
stays open, and with it `flushed` stays before it, until COMMIT PREPARED is acknowledged or ROLLBACK PREPARED decoded.
A keepalive counts when nothing is open, by the same path: as an entry without events whose acknowledgement is the
checkpoint record that says so.

PostgreSQL keeps such a list for its own subscriptions: `worker.c`, `get_flush_position`.
"""

from collections import deque


class Ledger:
    """Open entries in the order of the stream, and the four positions.

    `open` gives a ticket; the caller owes `seal` (the entry's end LSN) when it is known and `ack` when the broker
    holds everything of the entry, or `ack` alone for an entry that leaves no position (an undecided PREPARE).
    """

    def __init__(self, flushed: int = 0) -> None:
        self.received = flushed
        self.sent = flushed
        self.acked = flushed
        self.flushed = flushed
        self._first_ticket = 0
        self._ends: deque[int] = deque()
        self._acked: deque[bool] = deque()

    @property
    def open_entries(self) -> int:
        """Entries between `flushed` and the end of the stream."""
        return len(self._ends)

    def hear(self, lsn: int) -> None:
        """The server mentioned `lsn`: everything before it was decoded or is being sent."""
        if lsn > self.received:
            self.received = lsn

    def open(self) -> int:
        """A transaction's commit (or prepare) was decoded; returns its ticket."""
        self._ends.append(0)
        self._acked.append(False)
        return self._first_ticket + len(self._ends) - 1

    def seal(self, ticket: int, end_lsn: int) -> None:
        """The entry ends at `end_lsn`: a restart from there does not bring it again."""
        self._ends[ticket - self._first_ticket] = end_lsn
        self.hear(end_lsn)

    def is_last(self, ticket: int) -> bool:
        """Whether nothing was opened after `ticket`: only then may its end still move."""
        return ticket == self._first_ticket + len(self._ends) - 1 and ticket >= self._first_ticket

    def send(self, end_lsn: int) -> None:
        """Everything up to `end_lsn` was handed to the producer."""
        if end_lsn > self.sent:
            self.sent = end_lsn

    def ack(self, ticket: int) -> None:
        """The broker holds all events of the entry, or it has none."""
        index = ticket - self._first_ticket
        assert 0 <= index < len(self._ends), f"ticket {ticket} is not open"
        assert not self._acked[index], f"ticket {ticket} acknowledged twice"
        self._acked[index] = True
        end = self._ends[index]
        if end > self.acked:
            self.acked = end
        if index == 0:
            self._advance()

    def _advance(self) -> None:
        while self._acked and self._acked[0]:
            self._acked.popleft()
            end = self._ends.popleft()
            self._first_ticket += 1
            if end > self.flushed:
                self.flushed = end
        assert self.flushed <= self.received, "flushed passed received"
        assert self.flushed <= self.acked, "flushed passed acked"
