"""What a format of records is for the stream of records: eight methods, and three parts that a format may have.

The rule: the stream (`stream.py`) decides which events have records, in which order and with which numbers. It sets
`Current` before each call. A format writes the bytes of one event, and appends records to `out`. A format is a subclass
of `Format` and of nothing else; `available.py` has one row for each.
"""

from collections.abc import Mapping
from typing import Final

from cdcd.core.catalog.wiretext import checked
from cdcd.core.protocol.messages import Binary, LogicalMessage, Relation, Value
from cdcd.core.records.debezium_json.source_block import OPS, TransactionFacts
from cdcd.core.records.debezium_json.table_fragments import Headers, TableFragments
from cdcd.core.records.debezium_json.transaction_metadata import TransactionMetadata
from cdcd.core.records.encoder import (
    HEADER_NEW_KEY,
    HEADER_OLD_KEY,
    EncoderSettings,
    Record,
    SnapshotPosition,
)
from cdcd.core.records.late_records import LateRecords
from cdcd.core.records.schema_registrations import SchemaUse
from cdcd.core.records.stand_ins import StandIns
from cdcd.core.transactions.drafts import Draft, SpoolItem

LSN_MAX: Final = 2**63 - 1
"""Maximum LSN that is written without Python's own integers."""


class Current:
    """The event that is encoded, and its transaction. The stream sets the values and formats read them.

    Attributes:
        facts: facts about the open transaction, or of the place of rows between transactions.
        lsn: LSN of the event.
        serial: number of the event in its transaction.
        now_us: time at which the event is encoded, in microseconds since 1970.
        came: list for the records of the insert, while an update is encoded as a delete and an insert; otherwise None.
        stands_in: whether the row has replacements for values without a form, of which NULL may be in the key.
        ends_rows: whether the record is a truncate record that no event made.
        skips: True for each op whose events have a number but no record.
        messages: number of logical messages that have a record.
    """

    def __init__(self, settings: EncoderSettings) -> None:
        self.facts = TransactionFacts()
        self.lsn = 0
        self.serial = 0
        self.now_us = -1
        self.came: list[Record] | None = None
        self.stands_in = False
        self.ends_rows = False
        self.skips = [op in settings.skipped for op in OPS]
        self.messages = 0


class CopiedRows:
    """Rows of COPY that become records in one call.

    Attributes:
        position: where the rows are in the stream.
        dropped: keys of rows that get no record.
        out: the records.
        count: number of records so far; the next one has the number `position.event_no + count + 1`.
        size: bytes of the records.
        keys: key of each record, in their order; empty for a table without a key.
        left_out: indexes of the rows without a record.
        stand_ins: finds replacements for values without a form.
    """

    def __init__(
        self, position: SnapshotPosition, dropped: set[bytes], out: list[Record], stand_ins: StandIns
    ) -> None:
        self.position = position
        self.dropped = dropped
        self.out = out
        self.count = 0
        self.size = 0
        self.keys: list[bytes] = []
        self.left_out: list[int] = []
        self.stand_ins = stand_ins


class Schemas:
    """The schemas that the values of a format need. This class is for formats without a registry."""

    def unregistered(self, relation_oid: int) -> tuple[SchemaUse, ...]:
        """See `Encoder`."""
        return ()

    def to_topic(self, relation_oid: int, record: Record, topic: str) -> Record:
        """See `Encoder`."""
        _, key, value, headers = record
        return topic, key, value, headers

    def check(self, table: TableFragments, column: int, value: Value) -> None:
        """Write a value to nowhere.

        Raises:
            UnwritableError: it has no form.
            UnicodeDecodeError: it is not UTF-8.
            ValueError, IndexError: it is malformed.
        """
        if isinstance(value, Binary):
            checked(table.converters[column].wire_of_binary(value.data))
        elif isinstance(value, bytes):
            table.converters[column].wire(checked(value))


class Drafts:
    """Makes records in two steps: drafts of rows of a transaction that is open, and the rest after its commit."""

    def draft_all(
        self, frames: list[SpoolItem], relations: Mapping[int, tuple[int, Relation]]
    ) -> list[SpoolItem]:
        """See `Encoder`."""
        raise NotImplementedError

    def late_records(self, draft: Draft, table: TableFragments) -> LateRecords | None:
        """Return records that are made when they are handed over; None if `finish` must make them.

        Raises:
            OutdatedDraftError: the draft was made with another description of the table.
        """
        raise NotImplementedError

    def finish(self, draft: Draft, table: TableFragments, out: list[Record]) -> int:
        """Append the records of a draft, and return their bytes. It raises what `late_records` raises."""
        raise NotImplementedError


class Format:
    """Writes the records of events.

    Attributes:
        metadata: BEGIN and END records of transactions; None if there are none.
        schemas: the schemas that values need.
        drafts: makes drafts of rows; None if rows of open transactions stay frames.
    """

    def __init__(
        self, metadata: TransactionMetadata | None, schemas: Schemas, drafts: Drafts | None = None
    ) -> None:
        self.metadata = metadata
        self.schemas = schemas
        self.drafts = drafts

    def describe(self, table: TableFragments) -> None:
        """Take the new description of a table."""

    def begin(self, table: TableFragments, out: list[Record]) -> None:
        """Prepare a table for the open transaction. Its description is in `out`, if it is new."""

    def row(
        self, table: TableFragments, tag: int, kind: int, width: int, frame: bytes, at: int, out: list[Record]
    ) -> int:
        """Append the records of a row, and return their bytes.

        Args:
            tag: Insert, Update or Delete.
            kind, width: kind and number of columns of the first row in the frame.
            at: where the first value of that row is in the frame.

        Raises:
            ValueError, IndexError: the row is malformed, or has a value without a form.
            SourceError: a value of the key was not sent.
        """
        raise NotImplementedError

    def lines(self, table: TableFragments, lines: list[bytes], first: int, rows: CopiedRows) -> None:
        """Append the records of rows of COPY to `rows`; `first` is the index of the first line among all of them.

        Raises:
            ProtocolError: a row is malformed.
        """
        raise NotImplementedError

    def deletes(
        self,
        table: TableFragments,
        keys: list[tuple[bytes, ...]],
        position: SnapshotPosition,
        out: list[Record],
    ) -> int:
        """Append deletes of rows that the topic has and the table lacks, and return their bytes. Only topics in JSON
        are compared with tables.
        """
        raise NotImplementedError

    def truncate(self, table: TableFragments, out: list[Record]) -> int:
        """Append the record of a TRUNCATE of a table, and return its bytes."""
        raise NotImplementedError

    def message(
        self,
        message: LogicalMessage,
        content: memoryview,
        facts: TransactionFacts,
        serial: int,
        out: list[Record],
    ) -> int:
        """Append the record of a logical message, and return its bytes. `message` comes without its content."""
        raise NotImplementedError

    def heartbeat(self, lsn: int, out: list[Record]) -> int:
        """Append the record of a heartbeat, and return its bytes."""
        raise NotImplementedError


def moved_to(key: bytes | None) -> Headers:
    """Return the header for the delete of a row that has this key now."""
    return [] if key is None else [(HEADER_NEW_KEY, key)]


def moved_from(key: bytes | None) -> Headers:
    """Return the header for the insert of a row that had this key before."""
    return [] if key is None else [(HEADER_OLD_KEY, key)]


def size_of(record: Record) -> int:
    """Return the bytes of a record's key and value."""
    _, key, value, _ = record
    return len(key or b"") + len(value or b"")
