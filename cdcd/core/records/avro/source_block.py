"""The parts of an Avro record around the row: the source block, the op and the times.

The fields and their order are the same as in `debezium_json/connect_schema.py`. As in JSON, all events of a
transaction on the same table share everything except a few numbers. So the shared parts are made once per
transaction and table.

`RegisteredTransactionMetadata` makes the BEGIN and END records of transactions. What is counted is the same as in JSON
(`debezium_json/transaction_metadata.py`). The schemas of BEGIN and END must be registered before the first row of any
table, because the transaction of this row begins with BEGIN.
"""

from typing import TYPE_CHECKING, Final

from librt.strings import BytesWriter

from cdcd.core.records.avro.converters import BinaryForm
from cdcd.core.records.avro.form import known_id
from cdcd.core.records.avro.writing import number, optional, text, write_long
from cdcd.core.records.debezium_json.event_schemas import TRANSACTION_KEY, TRANSACTION_VALUE
from cdcd.core.records.debezium_json.source_block import OPS, TransactionFacts
from cdcd.core.records.debezium_json.transaction_metadata import TableCount, TransactionMetadata
from cdcd.core.records.debezium_json.writing import write_integer
from cdcd.core.records.encoder import EncoderSettings, Record
from cdcd.core.records.schema_registrations import SchemaUse

if TYPE_CHECKING:
    from mypy_extensions import i64

_NULL: Final = b"\x00"
_OPS: Final = [text(op) for op in OPS]
_TENS: Final = 10


class BinarySourceBlock:
    """Makes the pieces of `source` in a binary format from the facts of a transaction."""

    def pieces(self, facts: TransactionFacts, table: bytes) -> tuple[bytes, bytes, bytes]:
        """Return three pieces of the block: before the text of `sequence`, from it to the LSN, and from there to the
        serial number.
        """
        raise NotImplementedError


class AvroSourceBlock(BinarySourceBlock):
    """Makes the pieces of `source` in Avro."""

    def __init__(self, settings: EncoderSettings) -> None:
        self._who = text(settings.version) + text("postgresql") + text(settings.prefix)
        self._in_database = text(settings.database)

    def pieces(self, facts: TransactionFacts, table: bytes) -> tuple[bytes, bytes, bytes]:
        """See `BinarySourceBlock`."""
        micros = facts.unix_us
        txid = optional(None if facts.xid is None else number(facts.xid))
        origin = optional(None if facts.origin is None else text(facts.origin))
        origin += optional(None if facts.origin_lsn is None else number(facts.origin_lsn))
        # `snapshot` has a default, so null is the second branch of its union.
        head = self._who + number(micros // 1000) + _NULL + text(facts.snapshot) + self._in_database + b"\x02"
        middle = optional(number(micros)) + optional(number(micros * 1000)) + table + txid + b"\x02"
        tail = _NULL + origin + optional(number(facts.commit_lsn)) + b"\x02"
        return head, middle, tail


class BinaryTableSource:
    """Writes what follows the row in the records of one table; `renew` must be called first in each transaction.

    If there is transaction metadata, records are counted in it, and have their position in the transaction.

    Args:
        table: piece of the source block for the table.
        closings: for each op, what follows the source block in a record without a transaction block.
        name: `schema.table`, under which records are counted.
    """

    def __init__(
        self, table: bytes, closings: list[bytes], name: str, metadata: TransactionMetadata | None
    ) -> None:
        self._table = table
        self._closings = closings
        self._name = name
        self._metadata = metadata
        self.is_counted = False
        self._count = TableCount()
        self._head = self._middle = self._tail = self._sequence = b""

    def renew(self, block: BinarySourceBlock, facts: TransactionFacts) -> None:
        """Make the pieces that all events of this table share in the transaction."""
        self._head, self._middle, self._tail = block.pieces(facts, self._table)
        last = "null" if facts.last_commit_lsn is None else f'"{facts.last_commit_lsn}"'
        self._sequence = f'[{last},"'.encode("ascii")
        metadata = self._metadata
        if metadata is not None:
            self.is_counted = bool(metadata.id)
            if self.is_counted:
                self._count = metadata.table(self._name)
                # The id is JSON: a string without characters that need an escape.
                self.take_transaction(metadata.id[1:-1].decode("ascii"))

    def write(self, op: int, lsn: "i64", event_no: "i64", times: bytes, out: BytesWriter) -> None:
        """Append everything that follows a row."""
        self.write_source(lsn, event_no, out)
        if self.is_counted:
            metadata, count = self._metadata, self._count
            assert metadata is not None, "it counts"
            metadata.total += 1
            count.records += 1
            self.write_place(op, metadata.total, count.records, out)
        else:
            out.write(self._closings[op])
        out.write(times)

    def take_transaction(self, transaction_id: str) -> None:
        """Take the id of the open transaction."""
        raise NotImplementedError

    def write_source(self, lsn: "i64", event_no: "i64", out: BytesWriter) -> None:
        """Append the source block, in Avro without `schema_id`."""
        raise NotImplementedError

    def write_place(self, op: int, total: "i64", order: "i64", out: BytesWriter) -> None:
        """Append what follows the source block, up to the times, in a record with a transaction block."""
        raise NotImplementedError


class AvroTableSource(BinaryTableSource):
    """Writes what follows the row in the records of one table in Avro."""

    def __init__(
        self, schema: str, name: str, schema_id: str | None, metadata: TransactionMetadata | None = None
    ) -> None:
        self._described = optional(None if schema_id is None else text(schema_id))
        # The transaction block is null.
        closings = [self._described + _NULL + op for op in _OPS]
        BinaryTableSource.__init__(self, text(schema) + text(name), closings, f"{schema}.{name}", metadata)
        self._before_total = b""

    def take_transaction(self, transaction_id: str) -> None:
        """See `BinaryTableSource`."""
        self._before_total = self._described + b"\x02" + text(transaction_id)

    def write_source(self, lsn: "i64", event_no: "i64", out: BytesWriter) -> None:
        """See `BinaryTableSource`."""
        out.write(self._head)
        digits: i64 = 1
        rest: i64 = lsn
        while rest >= _TENS:
            rest //= _TENS
            digits += 1
        size: i64 = len(self._sequence)
        write_long(size + digits + 2, out)
        out.write(self._sequence)
        write_integer(lsn, out)
        out.write(b'"]')
        out.write(self._middle)
        write_long(lsn, out)
        out.write(self._tail)
        write_long(event_no, out)

    def write_place(self, op: int, total: "i64", order: "i64", out: BytesWriter) -> None:
        """See `BinaryTableSource`."""
        out.write(self._before_total)
        write_long(total, out)
        write_long(order, out)
        out.write(_OPS[op])


def times(now_us: int) -> bytes:
    """Return the times at the end of an envelope."""
    return optional(number(now_us // 1000)) + optional(number(now_us)) + optional(number(now_us * 1000))


class RegisteredTransactionMetadata(TransactionMetadata):
    """Counts the open transaction, and makes its BEGIN and END with schemas in a registry.

    Attributes:
        uses: the schemas of BEGIN and END.
    """

    def __init__(self, settings: EncoderSettings, topic: str, form: BinaryForm) -> None:
        TransactionMetadata.__init__(self, settings, topic)
        self._settings = settings
        self._form = form
        self._value_use = form.use(settings, topic, TRANSACTION_VALUE, "value")
        self._key_use: SchemaUse | None = None
        if settings.key_format == form.format:
            self._key_use = form.use(settings, topic, TRANSACTION_KEY, "key")
        uses = (self._key_use, self._value_use)
        self._heads: tuple[bytes, bytes] | None = None
        """The heads of keys (empty if they have no schema) and values, once the schemas have ids."""
        self.uses: tuple[SchemaUse, ...] = tuple([use for use in uses if use is not None])

    def _record(self, status: bytes, total: bytes, tables: bytes) -> tuple[Record, int]:
        """See `TransactionMetadata`."""
        (topic, key, value, _), _ = TransactionMetadata._record(self, status, total, tables)
        assert key is not None, "BEGIN and END have a key"
        assert value is not None, "BEGIN and END have a value"
        if self._heads is None:
            self._heads = (
                b"" if self._key_use is None else self._form.head(known_id(self._settings, self._key_use)),
                self._form.head(known_id(self._settings, self._value_use)),
            )
        key_head, value_head = self._heads
        if key_head:
            key = key_head + self._form.record(TRANSACTION_KEY, key)
        value = value_head + self._form.record(TRANSACTION_VALUE, value)
        return (topic, key, value, None), len(key) + len(value)
