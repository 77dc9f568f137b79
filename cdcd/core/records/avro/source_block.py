"""The parts of an Avro record around the row: the source block, the op and the times.

The fields and their order are the same as in `debezium_json/connect_schema.py`. As in JSON, all events of a
transaction on the same table share everything except a few numbers. So the shared parts are made once per
transaction and table.

`CountedAvroSource` writes the position of a record in its transaction too, and `RegisteredTransactionMetadata` makes
the BEGIN and END records of transactions. What is counted is the same as in JSON
(`debezium_json/transaction_metadata.py`). The schemas of BEGIN and END must be registered before the first row of any
table, because the transaction of this row begins with BEGIN.
"""

from typing import TYPE_CHECKING, Final

from librt.strings import BytesWriter

from cdcd.core.records.avro.form import AvroForm, known_id
from cdcd.core.records.avro.writing import number, optional, text, write_long
from cdcd.core.records.debezium_json.connect_schema import TRANSACTION_KEY, TRANSACTION_VALUE
from cdcd.core.records.debezium_json.source_block import OPS, SourceBlock
from cdcd.core.records.debezium_json.transaction_metadata import TableCount, TransactionMetadata
from cdcd.core.records.debezium_json.writing import write_integer
from cdcd.core.records.encoder import EncoderSettings, Record
from cdcd.core.records.schema_registrations import SchemaUse

if TYPE_CHECKING:
    from mypy_extensions import i64

_NULL: Final = b"\x00"
_OPS: Final = [text(op) for op in OPS]
_TENS: Final = 10


class AvroSourceBlock(SourceBlock):
    """Makes the pieces of `source` for the open transaction."""

    def __init__(self, settings: EncoderSettings) -> None:
        SourceBlock.__init__(self, settings)
        self._who = text(settings.version) + text("postgresql") + text(settings.prefix)
        self._in_database = text(settings.database)
        self._avro_txid = _NULL
        self._avro_origin = _NULL + _NULL
        self._marker = "false"
        self._position = 0
        self._time_us = 0
        self._before = b""

    def begin(
        self,
        xid: int | None,
        commit_lsn: int,
        unix_us: int,
        last_commit_lsn: int | None,
        snapshot: str = "false",
    ) -> None:
        """See `SourceBlock`."""
        self._avro_txid = optional(None if xid is None else number(xid))
        self._avro_origin = _NULL + _NULL
        self._marker = snapshot
        self._position = commit_lsn
        self._time_us = unix_us
        last = "null" if last_commit_lsn is None else f'"{last_commit_lsn}"'
        self._before = f'[{last},"'.encode("ascii")

    def set_origin(self, name: str | None, lsn: int | None) -> None:
        """See `SourceBlock`."""
        self._avro_origin = optional(None if name is None else text(name)) + optional(
            None if lsn is None else number(lsn)
        )

    def sequence_head(self) -> bytes:
        """Return the part of `sequence` before the event's LSN."""
        return self._before

    def encoded_pieces(self, table: bytes) -> tuple[bytes, bytes, bytes]:
        """Return three pieces of the block: before the text of `sequence`, from it to the LSN, and from there to the
        serial number.
        """
        micros = self._time_us
        # `snapshot` has a default, so null is the second branch of its union.
        head = self._who + number(micros // 1000) + _NULL + text(self._marker) + self._in_database + b"\x02"
        middle = (
            optional(number(micros)) + optional(number(micros * 1000)) + table + self._avro_txid + b"\x02"
        )
        tail = _NULL + self._avro_origin + optional(number(self._position)) + b"\x02"
        return head, middle, tail


class AvroTableSource:
    """Writes what follows the row in the records of one table; `renew` must be called first in each transaction."""

    def __init__(self, schema: str, name: str, schema_id: str | None) -> None:
        self._table = text(schema) + text(name)
        self._described = optional(None if schema_id is None else text(schema_id))
        # The transaction block is null.
        self._closings = [self._described + _NULL + op for op in _OPS]
        self._head = self._middle = self._tail = self._sequence = b""

    def renew(self, source: AvroSourceBlock) -> None:
        """Make the pieces that all events of this table share in the transaction."""
        self._head, self._middle, self._tail = source.encoded_pieces(self._table)
        self._sequence = source.sequence_head()

    def write(self, op: int, lsn: "i64", event_no: "i64", times: bytes, out: BytesWriter) -> None:
        """Append everything that follows a row."""
        self.write_source(lsn, event_no, out)
        out.write(self._closings[op])
        out.write(times)

    def write_source(self, lsn: "i64", event_no: "i64", out: BytesWriter) -> None:
        """Append the source block without `schema_id`."""
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


def times(now_us: int) -> bytes:
    """Return the times at the end of an envelope."""
    return optional(number(now_us // 1000)) + optional(number(now_us)) + optional(number(now_us * 1000))


class RegisteredTransactionMetadata(TransactionMetadata):
    """Counts the open transaction, and makes its BEGIN and END with schemas in a registry.

    Attributes:
        uses: the schemas of BEGIN and END.
    """

    def __init__(self, settings: EncoderSettings, topic: str, form: AvroForm) -> None:
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


class CountedAvroSource(AvroTableSource):
    """An `AvroTableSource` that counts the records of a transaction, and writes the position of each into it."""

    def __init__(self, schema: str, name: str, schema_id: str | None, metadata: TransactionMetadata) -> None:
        AvroTableSource.__init__(self, schema, name, schema_id)
        self._metadata = metadata
        self._name = f"{schema}.{name}"
        self._ops = [text(op) for op in OPS]
        self._is_counted = False
        self._count = TableCount()
        self._before_total = b""

    def renew(self, source: AvroSourceBlock) -> None:
        """See `AvroTableSource`."""
        AvroTableSource.renew(self, source)
        metadata = self._metadata
        self._is_counted = bool(metadata.id)
        if self._is_counted:
            self._count = metadata.table(self._name)
            # The id is JSON: a string without characters that need an escape.
            self._before_total = self._described + b"\x02" + text(metadata.id[1:-1].decode("ascii"))

    def write(self, op: int, lsn: "i64", event_no: "i64", times: bytes, out: BytesWriter) -> None:
        """See `AvroTableSource`."""
        if not self._is_counted:
            AvroTableSource.write(self, op, lsn, event_no, times, out)
            return
        self.write_source(lsn, event_no, out)
        metadata, count = self._metadata, self._count
        metadata.total += 1
        count.records += 1
        out.write(self._before_total)
        write_long(metadata.total, out)
        write_long(count.records, out)
        out.write(self._ops[op])
        out.write(times)
