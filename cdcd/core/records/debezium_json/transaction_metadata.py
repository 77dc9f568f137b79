"""Debezium's transaction metadata: BEGIN and END records of each transaction, and the `transaction` block of its
records.

The rule: a record counts if and only if it has a `transaction` block. So a consumer that has `event_count` records
with the transaction's id has all of them. Records of changes and of TRUNCATE count; an update that changes the key
counts as two. Tombstones, logical messages, events of an outbox and skipped operations do not count. A transaction
without counted records has neither BEGIN nor END.

A record gets its `total_order` and `data_collection_order` together with its source block, which is after the
commit, so changes that were rolled back have no numbers.

If a transaction is delivered in several Kafka transactions, its counts are in the checkpoint
(`transactions/position.py`), because after a restart within it, its earlier records are not read again.
"""

from typing import TYPE_CHECKING, Final

from librt.strings import BytesWriter

from cdcd.core.catalog.wiretext import to_bytes, wire
from cdcd.core.records.debezium_json.connect_schema import CLOSING, WITH_SCHEMA, opening
from cdcd.core.records.debezium_json.event_schemas import TRANSACTION_KEY, TRANSACTION_VALUE
from cdcd.core.records.debezium_json.source_block import (
    OPS,
    Envelope,
    SourceBlock,
    TableSource,
    TransactionFacts,
)
from cdcd.core.records.debezium_json.strings import quote
from cdcd.core.records.debezium_json.writing import write_integer
from cdcd.core.records.encoder import EncoderSettings, Record
from cdcd.core.transactions.position import Counts

if TYPE_CHECKING:
    from mypy_extensions import i64

_TOTAL: Final = b',"total_order":'
_ORDER: Final = b',"data_collection_order":'


class TableCount:
    """Number of records of one table in the open transaction."""

    __slots__ = ("records",)

    def __init__(self) -> None:
        self.records = 0


class TransactionMetadata:
    """Counts the records of the open transaction.

    The encoder calls `begin` and `between`, and records are counted in `CountedTableSource`. The engine calls
    `restore` after `begin` if the first events are delivered already, `begun` after each step, and `ended` at the
    commit.

    Attributes:
        total: number of records of the transaction.
        id: `<xid>:<commit LSN>` as JSON; empty if no transaction is open.
    """

    def __init__(self, settings: EncoderSettings, topic: str) -> None:
        self.topic = topic
        self.total = 0
        self.id = b""
        self._tables: dict[str, TableCount] = {}
        self._time_ms = 0
        self._is_begun = False
        self._key_head = opening(TRANSACTION_KEY) if settings.key_format == WITH_SCHEMA else b""
        self._value_head = opening(TRANSACTION_VALUE) if settings.value_format == WITH_SCHEMA else b""

    def begin(self, xid: int, commit_lsn: int, unix_us: int) -> None:
        """Begin a transaction."""
        self.id = b'"%d:%d"' % (xid, commit_lsn)
        self._time_ms = unix_us // 1000
        self.total = 0
        self._tables = {}
        self._is_begun = False

    def between(self) -> None:
        """Note that what follows belongs to no transaction."""
        self.id = b""

    def table(self, name: str) -> TableCount:
        """Return the count of a table, given by its name as `schema.table`."""
        count = self._tables.get(name)
        if count is None:
            count = self._tables[name] = TableCount()
        return count

    def counts(self) -> Counts:
        """Return how many records each table has so far, for the checkpoint."""
        return tuple([(name, count.records) for name, count in self._tables.items() if count.records])

    def restore(self, counts: Counts) -> None:
        """Set the counts of a transaction that is partly delivered; BEGIN is in the delivered part if that has a
        record.
        """
        self.total = 0
        for name, records in counts:
            self.table(name).records = records
            self.total += records
        self._is_begun = self.total > 0

    def take_back(self, table: str, records: int) -> None:
        """See `TransactionRecords`."""
        self.table(table).records -= records
        self.total -= records

    def begun(self, records: list[Record]) -> int:
        """Insert BEGIN before the first records of the transaction, and return its bytes; 0 if
        these are not the first.
        """
        if self._is_begun or not self.total:
            return 0
        self._is_begun = True
        begin, size = self._record(b"BEGIN", b"null", b"null")
        records.insert(0, begin)
        return size

    def ended(self, records: list[Record]) -> int:
        """Append END at the commit if there was a BEGIN, and return its bytes."""
        if not self._is_begun:
            return 0
        tables = b",".join(
            [
                b'{"data_collection":%b,"event_count":%d}' % (to_bytes(quote(wire(name))), count)
                for name, count in self.counts()
            ]
        )
        end, size = self._record(b"END", b"%d" % self.total, b"[%b]" % tables)
        records.append(end)
        self._is_begun = False
        return size

    def _record(self, status: bytes, total: bytes, tables: bytes) -> tuple[Record, int]:
        key = b'{"id":%b}' % self.id
        value = b'{"status":"%b","id":%b,"event_count":%b,"data_collections":%b,"ts_ms":%d}' % (
            status,
            self.id,
            total,
            tables,
            self._time_ms,
        )
        if self._key_head:
            key = self._key_head + key + CLOSING
        if self._value_head:
            value = self._value_head + value + CLOSING
        return (self.topic, key, value, None), len(key) + len(value)


class CountedTableSource(TableSource):
    """A `TableSource` that counts the records of a transaction, and writes the position of each into it."""

    __slots__ = ("_before_total", "_count", "_described", "_is_counted", "_metadata", "_name", "_op_closings")

    def __init__(
        self, schema: str, name: str, schema_id: str | None, opening: bytes, metadata: TransactionMetadata
    ) -> None:
        TableSource.__init__(self, schema, name, schema_id, opening)
        described = "" if schema_id is None else f',"schema_id":"{schema_id}"'
        self._metadata = metadata
        self._name = f"{schema}.{name}"
        self._described = f'{described}}},"transaction":{{"id":'.encode("ascii")
        self._op_closings = [f'}},"op":"{op}",'.encode("ascii") for op in OPS]
        self._is_counted = False
        self._count = TableCount()
        self._before_total = b""

    def renew(self, source: SourceBlock, facts: TransactionFacts) -> None:
        """See `TableSource`."""
        TableSource.renew(self, source, facts)
        metadata = self._metadata
        self._is_counted = bool(metadata.id)
        if self._is_counted:
            self._count = metadata.table(self._name)
            self._before_total = self._described + metadata.id + _TOTAL

    def _place(self) -> bytes:
        """Count a record, and return its `transaction` block up to the last number, preceded by the end of the source
        block.
        """
        metadata, count = self._metadata, self._count
        metadata.total += 1
        count.records += 1
        return b"%b%d%b%d" % (self._before_total, metadata.total, _ORDER, count.records)

    def ending(self, op: int, processed_at: bytes) -> bytes:
        """See `TableSource`. `joined` puts the position in the transaction before it."""
        if not self._is_counted:
            return TableSource.ending(self, op, processed_at)
        return self._op_closings[op] + processed_at + self._end

    def joined(self, row: list[bytes], lsn: bytes, event_no: bytes, ending: bytes) -> bytes:
        """See `TableSource`."""
        place = self._place() + ending if self._is_counted else ending
        return TableSource.joined(self, row, lsn, event_no, place)

    def envelope(self, ending: bytes) -> Envelope | None:
        """See `TableSource`."""
        return None if self._is_counted else TableSource.envelope(self, ending)

    def write(self, op: int, lsn: "i64", event_no: "i64", processed_at: bytes, out: BytesWriter) -> None:
        """See `TableSource`."""
        if not self._is_counted:
            TableSource.write(self, op, lsn, event_no, processed_at, out)
            return
        out.write(self._head)
        write_integer(lsn, out)
        out.write(self._middle)
        write_integer(lsn, out)
        out.write(self._tail)
        write_integer(event_no, out)
        metadata, count = self._metadata, self._count
        metadata.total += 1
        count.records += 1
        out.write(self._before_total)
        write_integer(metadata.total, out)
        out.write(_ORDER)
        write_integer(count.records, out)
        out.write(self._op_closings[op])
        out.write(processed_at)
        if self._end:
            out.write(self._end)
