"""Stage 5: JSON values -> what stands around them in a record: the source block and the times.

Debezium's `source` has what a consumer needs to order and find an event. Its fields here are Debezium's for
PostgreSQL, in its order, and two at the end under the names of Debezium's SQL Server connector: `commit_lsn`, the
position of the transaction, and `event_serial_no`, the number of the event in it, from 1. Together they order all
events of a slot, which `lsn` does not: rows of one multi-insert share one, and transactions commit in another order
than their rows were written. After them comes `schema_id`, which names the description of the table
(`records/schemas.py`).

Everything but three numbers (twice the event's LSN, its serial number) is the same for all events of a transaction on a
table, so it is made once for that and kept in pieces.
"""

from typing import TYPE_CHECKING, Final

from librt.strings import BytesWriter

from cdcd.core.catalog.wiretext import wire
from cdcd.core.protocol.messages import POSTGRES_EPOCH_US
from cdcd.core.records.debezium_json.connect_schema import CLOSING
from cdcd.core.records.debezium_json.strings import quote
from cdcd.core.records.debezium_json.writing import write_integer
from cdcd.core.records.encoder import EncoderSettings

if TYPE_CHECKING:
    from mypy_extensions import i64

OPS: Final = "rcudt"
READ: Final = 0
CREATED: Final = 1
UPDATED: Final = 2
DELETED: Final = 3
TRUNCATED: Final = 4
"""A record's `op`, by its place in `OPS`."""


THOUSAND: Final = 1000

EVENT_NOS: Final = [str(event_no).encode("ascii") for event_no in range(THOUSAND)]
"""The text of an event's number, if the number has up to three digits. Most transactions have fewer events."""

_LAST_DIGITS: Final = [b"%03d" % event_no for event_no in range(THOUSAND)]
"""The last three digits of a larger number."""


class SourceBlock:
    """The pieces of `source` for the transaction that is open."""

    def __init__(self, settings: EncoderSettings) -> None:
        name = quote(wire(settings.prefix))
        version = quote(wire(settings.version))
        self._start = f',"source":{{"version":{version},"connector":"postgresql","name":{name},"ts_ms":'
        self._snapshot = "false"
        self._sequence = f'","db":{quote(wire(settings.database))},"sequence":"['
        self._txid = ""
        self._commit_lsn = 0
        self._unix_us = 0
        self._last = ""
        self._origin = _NO_ORIGIN
        self._origin_values = ("null", "null")

    def begin(
        self,
        xid: int | None,
        commit_lsn: int,
        unix_us: int,
        last_commit_lsn: int | None,
        snapshot: str = "false",
    ) -> None:
        """A transaction begins. `unix_us`: its commit, in microseconds since 1970; `xid` None: there is none."""
        self._txid = "null" if xid is None else str(xid)
        self._snapshot = snapshot
        self._commit_lsn = commit_lsn
        self._unix_us = unix_us
        self._last = "null" if last_commit_lsn is None else f'\\"{last_commit_lsn}\\"'
        self._origin = _NO_ORIGIN
        self._origin_values = ("null", "null")

    def set_origin(self, name: str | None, lsn: int | None) -> None:
        """The transaction was made on another server; `lsn` is where it was committed there."""
        origin = "null" if name is None else quote(wire(name))
        self._origin_values = (origin, "null" if lsn is None else str(lsn))
        self._origin = _origin(*self._origin_values)

    @staticmethod
    def constants(settings: EncoderSettings) -> dict[str, bytes]:
        """JSON of the fields that are the same for all records of a pipeline."""
        return {
            "version": quote(wire(settings.version)).encode("latin-1"),
            "connector": b'"postgresql"',
            "name": quote(wire(settings.prefix)).encode("latin-1"),
            "db": quote(wire(settings.database)).encode("latin-1"),
            "xmin": b"null",
        }

    def values(self) -> dict[str, bytes]:
        """JSON of the fields that are the same for all events of the transaction.

        `last` is the first part of `sequence` as it stands within that text.
        """
        origin, origin_lsn = self._origin_values
        micros = self._unix_us
        found = {
            "ts_ms": str(micros // 1000),
            "ts_us": str(micros),
            "ts_ns": str(micros * 1000),
            "snapshot": f'"{self._snapshot}"',
            "txId": self._txid,
            "commit_lsn": str(self._commit_lsn),
            "origin": origin,
            "origin_lsn": origin_lsn,
            "last": self._last,
        }
        return {name: value.encode("latin-1") for name, value in found.items()}

    def pieces(self, table: str) -> tuple[bytes, bytes, bytes]:
        """What stands before the event's LSN, between it and its repetition, and from there to the serial number.

        `table` is the table's own piece. The closing brace is the next piece's.
        """
        micros = self._unix_us
        head = f'{self._start}{micros // 1000},"snapshot":"{self._snapshot}{self._sequence}{self._last},\\"'
        middle = f'\\"]","ts_us":{micros},"ts_ns":{micros * 1000}{table},"txId":{self._txid},"lsn":'
        tail = f'{self._origin}{self._commit_lsn},"event_serial_no":'
        return head.encode("latin-1"), middle.encode("latin-1"), tail.encode("latin-1")


def _origin(name: str, lsn: str) -> str:
    return f',"xmin":null,"origin":{name},"origin_lsn":{lsn},"commit_lsn":'


_NO_ORIGIN: Final = _origin("null", "null")


class Envelope:
    """What stands around the rows of one table in a transaction, for records of one op that follow each other.

    Consumers wait for the loop that calls `value`. So the digits of a number that are the same for a thousand rows are
    made once, and a record is put together in a buffer, which takes two thirds of the time that a list and its `join`
    take.

    Args:
        opening, head, middle, tail: the pieces of `TableSource`.
        ending: what follows the event's number.
    """

    __slots__ = ("_ending", "_head", "_middle", "_opening", "_tail", "_thousands", "_until_digits", "size")

    def __init__(self, opening: bytes, head: bytes, middle: bytes, tail: bytes, ending: bytes) -> None:
        self.size = len(opening) + len(head) + len(middle) + len(tail) + len(ending)
        """Bytes of a record besides its row, the event's LSN (twice) and its number."""
        self._opening = opening
        self._head = head
        self._middle = middle
        self._tail = tail
        self._ending = ending
        self._thousands: i64 = 0
        self._until_digits = tail

    def value(self, row: bytes, lsn: bytes, event_no: "i64", buffer: BytesWriter) -> bytes:
        """The value of one record: the row with the pieces around it. The content of `buffer` is overwritten."""
        if event_no < THOUSAND:
            until_digits, digits = self._tail, EVENT_NOS[event_no]
        else:
            if event_no // THOUSAND != self._thousands:
                self._thousands = event_no // THOUSAND
                self._until_digits = self._tail + str(self._thousands).encode("ascii")
            until_digits, digits = self._until_digits, _LAST_DIGITS[event_no % THOUSAND]
        buffer.truncate(0)
        buffer.write(self._opening)
        buffer.write(row)
        buffer.write(self._head)
        buffer.write(lsn)
        buffer.write(self._middle)
        buffer.write(lsn)
        buffer.write(until_digits)
        buffer.write(digits)
        buffer.write(self._ending)
        return buffer.getvalue()


class TableSource:
    """What stands around the row in the records of one table: the source block, the op and the times.

    Nobody else knows the order of its pieces. `renew` comes first in each transaction.

    Attributes:
        opening: what a record begins with that has a schema; else empty.
    """

    __slots__ = ("_closings", "_end", "_head", "_middle", "_table", "_tail", "opening")

    def __init__(self, schema: str, name: str, schema_id: str | None = None, opening: bytes = b"") -> None:
        self.opening = opening
        self._end = CLOSING if opening else b""
        self._table = f',"schema":{quote(wire(schema))},"table":{quote(wire(name))}'
        described = "" if schema_id is None else f',"schema_id":"{schema_id}"'
        self._closings = [f'{described}}},"transaction":null,"op":"{op}",'.encode("ascii") for op in OPS]
        self._head = self._middle = self._tail = b""

    def renew(self, source: SourceBlock) -> None:
        """Make the pieces that are the same for all events of this table in a transaction."""
        self._head, self._middle, self._tail = source.pieces(self._table)

    def ending(self, op: int, processed_at: bytes) -> bytes:
        """What follows the event's number."""
        return self._closings[op] + processed_at + self._end

    def joined(self, row: list[bytes], lsn: bytes, event_no: bytes, ending: bytes) -> bytes:
        """A record: the parts of its row, joined once because they can be large, and all that follows."""
        return b"".join(
            (self.opening, *row, self._head, lsn, self._middle, lsn, self._tail, event_no, ending)
        )

    def envelope(self, ending: bytes) -> Envelope | None:
        """The pieces around rows that follow each other. None: each record also has its place in the transaction."""
        return Envelope(self.opening, self._head, self._middle, self._tail, ending)

    def around_number(self, row: bytes, lsn: bytes, op: int, processed_at: bytes) -> tuple[bytes, bytes]:
        """A record of the row: before the event's number, and after it."""
        return self.joined([row], lsn, b"", b""), self.ending(op, processed_at)

    def write(self, op: int, lsn: "i64", event_no: "i64", processed_at: bytes, out: BytesWriter) -> None:
        """Append all that follows a row. What it begins with, the caller has written."""
        out.write(self._head)
        write_integer(lsn, out)
        out.write(self._middle)
        write_integer(lsn, out)
        out.write(self._tail)
        write_integer(event_no, out)
        out.write(self._closings[op])
        out.write(processed_at)
        if self._end:
            out.write(self._end)


def processed_at(now_us: int) -> bytes:
    """The times at the end of an envelope, and its end."""
    return f'"ts_ms":{now_us // 1000},"ts_us":{now_us},"ts_ns":{now_us * 1000}}}'.encode("ascii")


def unix_us(postgres_us: int) -> int:
    """Microseconds since 1970 of a time on the wire, in microseconds since 2000."""
    return postgres_us + POSTGRES_EPOCH_US
