"""Facts about the open transaction for its events, which are kept where the source block of an
envelope would be begun.
"""

from cdcd.core.records.avro.source_block import AvroSourceBlock
from cdcd.core.records.debezium_json.source_block import SourceBlock
from cdcd.core.records.encoder import EncoderSettings


class TransactionFacts:
    """Facts about the open transaction.

    Attributes:
        xid: transaction id; None if it has none.
        unix_us: time of its commit in microseconds since 1970.
        last_commit_lsn: commit LSN of the previous transaction; None if not known.
        snapshot: marker of rows that a snapshot read, otherwise "false".
        origin, origin_lsn: the server where the transaction was made, and its commit LSN there; None if it was made
            here, or if not known.
    """

    __slots__ = ("commit_lsn", "last_commit_lsn", "origin", "origin_lsn", "snapshot", "unix_us", "xid")

    def __init__(self) -> None:
        self.xid: int | None = None
        self.commit_lsn = 0
        self.unix_us = 0
        self.last_commit_lsn: int | None = None
        self.snapshot = "false"
        self.origin: str | None = None
        self.origin_lsn: int | None = None

    def begin(
        self, xid: int | None, commit_lsn: int, unix_us: int, last_commit_lsn: int | None, snapshot: str
    ) -> None:
        """See `SourceBlock`."""
        self.xid = xid
        self.commit_lsn = commit_lsn
        self.unix_us = unix_us
        self.last_commit_lsn = last_commit_lsn
        self.snapshot = snapshot
        self.origin = self.origin_lsn = None


class EventBlock(SourceBlock):
    """A source block that keeps what it is told; `facts` is the same object in all transactions."""

    def __init__(self, settings: EncoderSettings) -> None:
        SourceBlock.__init__(self, settings)
        self.facts = TransactionFacts()

    def begin(
        self,
        xid: int | None,
        commit_lsn: int,
        unix_us: int,
        last_commit_lsn: int | None,
        snapshot: str = "false",
    ) -> None:
        """See `SourceBlock`."""
        self.facts.begin(xid, commit_lsn, unix_us, last_commit_lsn, snapshot)

    def set_origin(self, name: str | None, lsn: int | None) -> None:
        """See `SourceBlock`."""
        self.facts.origin, self.facts.origin_lsn = name, lsn

    def pieces(self, table: str) -> tuple[bytes, bytes, bytes]:
        """Return nothing, because events have no envelope."""
        return b"", b"", b""


class FlatEventBlock(EventBlock):
    """An `EventBlock` for flattened rows, to which fields of `source` may be added."""

    def begin(
        self,
        xid: int | None,
        commit_lsn: int,
        unix_us: int,
        last_commit_lsn: int | None,
        snapshot: str = "false",
    ) -> None:
        """See `SourceBlock`."""
        EventBlock.begin(self, xid, commit_lsn, unix_us, last_commit_lsn, snapshot)
        SourceBlock.begin(self, xid, commit_lsn, unix_us, last_commit_lsn, snapshot)

    def set_origin(self, name: str | None, lsn: int | None) -> None:
        """See `SourceBlock`."""
        EventBlock.set_origin(self, name, lsn)
        SourceBlock.set_origin(self, name, lsn)


class AvroEventBlock(AvroSourceBlock):
    """An `EventBlock` for data in Avro."""

    def __init__(self, settings: EncoderSettings) -> None:
        AvroSourceBlock.__init__(self, settings)
        self.facts = TransactionFacts()

    def begin(
        self,
        xid: int | None,
        commit_lsn: int,
        unix_us: int,
        last_commit_lsn: int | None,
        snapshot: str = "false",
    ) -> None:
        """See `SourceBlock`."""
        self.facts.begin(xid, commit_lsn, unix_us, last_commit_lsn, snapshot)

    def set_origin(self, name: str | None, lsn: int | None) -> None:
        """See `SourceBlock`."""
        self.facts.origin, self.facts.origin_lsn = name, lsn

    def encoded_pieces(self, table: bytes) -> tuple[bytes, bytes, bytes]:
        """Return nothing, because events have no envelope."""
        return b"", b"", b""

    def sequence_head(self) -> bytes:
        """See `encoded_pieces`."""
        return b""
