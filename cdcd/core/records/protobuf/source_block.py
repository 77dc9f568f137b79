"""The parts of a Protobuf record around the row: the source block, the op and the times.

The fields, their order and their numbers are the same as in `debezium_json/connect_schema.py`. As in Avro, all
events of a transaction on the same table share everything except a few numbers, so the shared parts are made once
per transaction and table.
"""

from typing import TYPE_CHECKING, Final

from librt.strings import BytesWriter

from cdcd.core.records.avro.source_block import BinarySourceBlock, BinaryTableSource
from cdcd.core.records.debezium_json.source_block import OPS, TransactionFacts
from cdcd.core.records.debezium_json.transaction_metadata import TransactionMetadata
from cdcd.core.records.debezium_json.writing import write_integer
from cdcd.core.records.encoder import EncoderSettings
from cdcd.core.records.protobuf.writing import (
    LENGTH,
    VARINT,
    number_field,
    tag,
    text_field,
    varint_size,
    write_varint,
)

if TYPE_CHECKING:
    from mypy_extensions import i64

_TENS: Final = 10

# These are the numbers of the fields of `source`.
_VERSION: Final = 1
_CONNECTOR: Final = 2
_NAME: Final = 3
_TS_MS: Final = 4
_SNAPSHOT: Final = 5
_DB: Final = 6
_SEQUENCE: Final = 7
_TS_US: Final = 8
_TS_NS: Final = 9
_SCHEMA: Final = 10
_TABLE: Final = 11
_TX_ID: Final = 12
_LSN: Final = 13
_ORIGIN: Final = 15
_ORIGIN_LSN: Final = 16
_COMMIT_LSN: Final = 17
_EVENT_SERIAL_NO: Final = 18
_SCHEMA_ID: Final = 19

SOURCE: Final = 3
"""Number of `source` in the envelope and in logical messages."""
_OP: Final = 5
_ENVELOPE_TS_MS: Final = 6
_ENVELOPE_TS_US: Final = 7
_ENVELOPE_TS_NS: Final = 8

_SOURCE_TAG: Final = tag(SOURCE, LENGTH)
_CLOSINGS: Final = [text_field(_OP, op) for op in OPS]
"""For each op, what follows the source block."""

_TRANSACTION: Final = tag(4, LENGTH)
_ID: Final = 1
_TOTAL: Final = tag(2, VARINT)
_ORDER: Final = tag(3, VARINT)
_TAGS_BYTES: Final = 2
"""Bytes of the two numbers' tags."""


def _text(number: int, value: str) -> bytes:
    """Return a field that cannot be null, which is left out if its text is empty."""
    return text_field(number, value) if value else b""


class ProtobufSourceBlock(BinarySourceBlock):
    """Makes the pieces of `source` in Protobuf."""

    def __init__(self, settings: EncoderSettings) -> None:
        self._constants = (
            _text(_VERSION, settings.version)
            + _text(_CONNECTOR, "postgresql")
            + _text(_NAME, settings.prefix)
        )
        self._place = _text(_DB, settings.database)

    def pieces(self, facts: TransactionFacts, table: bytes) -> tuple[bytes, bytes, bytes]:
        """See `BinarySourceBlock`."""
        micros = facts.unix_us
        millis = micros // 1000
        head = (
            self._constants
            + (number_field(_TS_MS, millis) if millis else b"")
            + text_field(_SNAPSHOT, facts.snapshot)
            + self._place
            + tag(_SEQUENCE, LENGTH)
        )
        middle = number_field(_TS_US, micros) + number_field(_TS_NS, micros * 1000) + table
        if facts.xid is not None:
            middle += number_field(_TX_ID, facts.xid)
        tail = b"" if facts.origin is None else text_field(_ORIGIN, facts.origin)
        if facts.origin_lsn is not None:
            tail += number_field(_ORIGIN_LSN, facts.origin_lsn)
        tail += number_field(_COMMIT_LSN, facts.commit_lsn) + tag(_EVENT_SERIAL_NO, VARINT)
        return head, middle + tag(_LSN, VARINT), tail


class ProtobufTableSource(BinaryTableSource):
    """Writes what follows the rows in the records of one table in Protobuf."""

    def __init__(
        self, schema: str, name: str, schema_id: str | None, metadata: TransactionMetadata | None = None
    ) -> None:
        table = _text(_SCHEMA, schema) + _text(_TABLE, name)
        BinaryTableSource.__init__(self, table, _CLOSINGS, f"{schema}.{name}", metadata)
        self._described = b"" if schema_id is None else text_field(_SCHEMA_ID, schema_id)
        self._id = b""

    def take_transaction(self, transaction_id: str) -> None:
        """See `BinaryTableSource`."""
        self._id = text_field(_ID, transaction_id)

    def write_source(self, lsn: "i64", event_no: "i64", out: BytesWriter) -> None:
        """See `BinaryTableSource`."""
        digits: i64 = 1
        rest: i64 = lsn
        while rest >= _TENS:
            rest //= _TENS
            digits += 1
        sequence: i64 = len(self._sequence) + digits + 2
        size: i64 = len(self._head) + varint_size(sequence) + sequence + len(self._middle) + varint_size(lsn)
        size += len(self._tail) + varint_size(event_no) + len(self._described)
        out.write(_SOURCE_TAG)
        write_varint(size, out)
        out.write(self._head)
        write_varint(sequence, out)
        out.write(self._sequence)
        write_integer(lsn, out)
        out.write(b'"]')
        out.write(self._middle)
        write_varint(lsn, out)
        out.write(self._tail)
        write_varint(event_no, out)
        out.write(self._described)

    def write_place(self, op: int, total: "i64", order: "i64", out: BytesWriter) -> None:
        """See `BinaryTableSource`."""
        out.write(_TRANSACTION)
        write_varint(len(self._id) + _TAGS_BYTES + varint_size(total) + varint_size(order), out)
        out.write(self._id)
        out.write(_TOTAL)
        write_varint(total, out)
        out.write(_ORDER)
        write_varint(order, out)
        out.write(_CLOSINGS[op])


def times(now_us: int) -> bytes:
    """Return the times at the end of an envelope."""
    return (
        number_field(_ENVELOPE_TS_MS, now_us // 1000)
        + number_field(_ENVELOPE_TS_US, now_us)
        + number_field(_ENVELOPE_TS_NS, now_us * 1000)
    )
