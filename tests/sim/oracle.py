"""What was promised, checked at every step: a broken promise is a `PromiseBrokenError` that says which.

The oracle sees the truth on both sides: what PostgreSQL committed, in order, and what Kafka committed.
"""

from bisect import bisect_left, bisect_right
from typing import Final

from cdcd.protocol.lsn import Lsn

RECORD: Final = 4
"""Bits that number the records of an event."""


class PromiseBrokenError(AssertionError):
    """A guarantee is broken."""


class Prepared:
    """A prepared transaction that is sent at PREPARE: what may be confirmed depends on its fate."""

    __slots__ = ("commit_index", "decided", "lsn")

    def __init__(self, lsn: int) -> None:
        self.lsn = lsn
        self.decided = False
        self.commit_index = 0


class Oracle:
    """The committed source in order, and how much of it Kafka holds.

    Args:
        exactly_once: whether Kafka's log must be the source's, or may repeat parts of it.
        batch_records_max: a transaction with fewer records must appear in Kafka as a whole.
    """

    def __init__(self, *, exactly_once: bool, batch_records_max: int) -> None:
        self.exactly_once = exactly_once
        self.batch_records_max = batch_records_max
        self.expected: list[int] = []
        self.delivered = 0
        self.told = 0
        self.origins: dict[int, str] = {}
        self.owners: dict[int, int] = {}
        self.places: dict[int, int] = {}
        self._index: dict[int, int] = {}
        self._starts: list[int] = []
        self._lengths: list[int] = []
        self._prepared: dict[int, Prepared] = {}

    # PostgreSQL's side.

    def commit(self, start: int, xid: int, events: list[tuple[int, int]], origin: str) -> None:
        """At `start` the transaction committed; each event is its number and its number of Kafka records."""
        for event, records in events:
            self.origins[event] = origin
            self.owners[event] = xid
            for number in range(records):
                record = event << RECORD | number
                self._index[record] = len(self.expected)
                self.expected.append(record)
        self.places[xid] = start
        self._starts.append(start)
        self._lengths.append(len(self.expected))
        prepared = self._prepared.get(xid)
        if prepared is not None:
            prepared.decided = True
            prepared.commit_index = len(self.expected)

    def prepare(self, lsn: int, xid: int) -> None:
        """A transaction is sent at its PREPARE and not again."""
        self._prepared[xid] = Prepared(lsn)

    def roll_back_prepared(self, xid: int) -> None:
        self._prepared.pop(xid, None)

    # Kafka's side.

    def append(self, records: list[int]) -> None:
        """A Kafka transaction with these records became visible."""
        if not records:
            return
        at = self.delivered
        if not self.exactly_once:
            at = self._index.get(records[0], -1)
            if not 0 <= at <= self.delivered:
                raise PromiseBrokenError(f"G1: Kafka has a gap between {self.delivered} and {at}")
        for index, record in enumerate(records, at):
            if index >= len(self.expected) or self.expected[index] != record:
                raise PromiseBrokenError(self._describe(index, record))
        end = at + len(records)
        if self.exactly_once:
            self._whole(at, end)
        self.delivered = max(self.delivered, end)

    def _describe(self, index: int, record: int) -> str:
        wanted = self.expected[index] if index < len(self.expected) else None
        known = self._index.get(record)
        if known is None:
            return f"G3: record {record} (event {record >> RECORD}) was never committed; expected {wanted} at {index}"
        if known < index:
            return f"G2: record {record} came again at {index}, it was {known}"
        return f"G1/G4: record {record}, which is {known}, came at {index} instead of {wanted}"

    def _whole(self, start: int, end: int) -> None:
        """Only a transaction that is larger than a batch may be cut at either end of a Kafka transaction."""
        for cut in (start, end):
            at = bisect_left(self._lengths, cut)
            if at < len(self._lengths) and self._lengths[at] != cut:
                before = self._lengths[at - 1] if at else 0
                if self._lengths[at] - before < self.batch_records_max and before != cut:
                    raise PromiseBrokenError(
                        f"a transaction of {self._lengths[at] - before} records is cut at {cut}"
                    )

    # What PostgreSQL is told.

    def tell(self, flushed: int, confirmed: int, wal_end: int, two_phase_at: int) -> None:
        """A status update reached the server, whose slot was confirmed up to `confirmed`.

        What is prepared from `two_phase_at` on is sent at PREPARE, and then not again.
        """
        if not flushed:
            return
        if flushed < confirmed:
            raise PromiseBrokenError(f"flushed fell from {Lsn(confirmed)} to {Lsn(flushed)}")
        if flushed > wal_end:
            raise PromiseBrokenError(f"flushed {Lsn(flushed)} is past the end of the WAL, {Lsn(wal_end)}")
        self.told = max(self.told, flushed)
        # The server skips what commits before `flushed` (decode.c, DecodeTXNNeedSkip).
        at = bisect_left(self._starts, flushed)
        if at and self._lengths[at - 1] > self.delivered:
            lost = self._starts[bisect_right(self._lengths, self.delivered)]
            raise PromiseBrokenError(f"G1: told {Lsn(flushed)}, but Kafka lacks the commit at {Lsn(lost)}")
        for xid, prepared in self._prepared.items():
            if two_phase_at <= prepared.lsn < flushed and not (
                prepared.decided and prepared.commit_index <= self.delivered
            ):
                raise PromiseBrokenError(
                    f"G1: told {Lsn(flushed)}, past the PREPARE of {xid} at {Lsn(prepared.lsn)}"
                )

    def finish(self) -> None:
        """Everything was decided, and quiet."""
        if self.delivered != len(self.expected):
            raise PromiseBrokenError(
                f"G1: {len(self.expected) - self.delivered} committed records never came"
            )
