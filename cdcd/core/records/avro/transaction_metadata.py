"""BEGIN and END records of transactions, and the position of each record in its transaction, in Avro.

What is counted is the same as in JSON (`debezium_json/transaction_metadata.py`). The schemas of BEGIN and END must
be registered before the first row of any table, because the transaction of this row begins with BEGIN.
"""

from typing import TYPE_CHECKING

from librt.strings import BytesWriter

from cdcd.core.records.avro.form import AvroForm, known_id
from cdcd.core.records.avro.source_block import AvroSourceBlock, AvroTableSource
from cdcd.core.records.avro.writing import text, write_long
from cdcd.core.records.debezium_json.connect_schema import TRANSACTION_KEY, TRANSACTION_VALUE
from cdcd.core.records.debezium_json.source_block import OPS
from cdcd.core.records.debezium_json.transaction_metadata import TableCount, TransactionMetadata
from cdcd.core.records.encoder import EncoderSettings, Record
from cdcd.core.records.schema_registrations import SchemaUse

if TYPE_CHECKING:
    from mypy_extensions import i64


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
