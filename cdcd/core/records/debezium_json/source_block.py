"""Stage 5: makes the parts of a record around the JSON values: the source block and the times.

Debezium's `source` has what consumers need to order and find events. Its fields here are Debezium's for PostgreSQL,
in its order, followed by two with the names of Debezium's SQL Server connector: `commit_lsn`, the position of the
transaction, and `event_serial_no`, the number of the event in the transaction, from 1. Together these two order all
events of a slot. `lsn` does not, because the rows of one multi-insert share it, and transactions do not commit in
the order in which their rows were written. The last field is `schema_id`, which identifies the description of the
table (`records/schemas.py`).

All events of a transaction on the same table share everything except three numbers (the LSN of the event, twice,
and its serial number), so the shared parts are made once per transaction and table.
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
"""A record's `op`, as its index in `OPS`."""


THOUSAND: Final = 1000

EVENT_NOS: Final = [str(event_no).encode("ascii") for event_no in range(THOUSAND)]
"""Text of the number of an event, for numbers of up to three digits; most transactions have fewer events."""

_LAST_DIGITS: Final = [b"%03d" % event_no for event_no in range(THOUSAND)]
"""Text of the last three digits of a larger number."""


class TransactionFacts:
    """Facts about the open transaction, which the stream sets and from which a format makes the source block.

    Attributes:
        number: number of these facts. It rises when they change, so pieces that were made with another number are
            outdated.
        xid: transaction id; None if it has none.
        commit_lsn: LSN of its commit record.
        unix_us: time of its commit in microseconds since 1970.
        last_commit_lsn: commit LSN of the previous transaction; None if not known.
        snapshot: marker of rows that a snapshot read, otherwise "false".
        origin, origin_lsn: the server where the transaction was made, and its commit LSN there; None if it was made
            here, or if not known.
    """

    __slots__ = (
        "commit_lsn",
        "last_commit_lsn",
        "number",
        "origin",
        "origin_lsn",
        "snapshot",
        "unix_us",
        "xid",
    )

    def __init__(self) -> None:
        self.number = 0
        self.xid: int | None = None
        self.commit_lsn = 0
        self.unix_us = 0
        self.last_commit_lsn: int | None = None
        self.snapshot = "false"
        self.origin: str | None = None
        self.origin_lsn: int | None = None

    def begin(
        self,
        xid: int | None,
        commit_lsn: int,
        unix_us: int,
        last_commit_lsn: int | None,
        snapshot: str = "false",
    ) -> None:
        """Set the facts of another transaction, which was made here."""
        self.number += 1
        self.xid = xid
        self.commit_lsn = commit_lsn
        self.unix_us = unix_us
        self.last_commit_lsn = last_commit_lsn
        self.snapshot = snapshot
        self.origin = self.origin_lsn = None

    def set_origin(self, name: str | None, lsn: int | None) -> None:
        """Set the origin of a transaction that was made on another server; `lsn` is its commit position there."""
        self.number += 1
        self.origin, self.origin_lsn = name, lsn


class SourceBlock:
    """Makes the pieces of `source` from the facts of a transaction."""

    def __init__(self, settings: EncoderSettings) -> None:
        name = quote(wire(settings.prefix))
        version = quote(wire(settings.version))
        self._start = f',"source":{{"version":{version},"connector":"postgresql","name":{name},"ts_ms":'
        self._sequence = f'","db":{quote(wire(settings.database))},"sequence":"['

    @staticmethod
    def constants(settings: EncoderSettings) -> dict[str, bytes]:
        """Return the JSON of the fields that all records of a pipeline share."""
        return {
            "version": quote(wire(settings.version)).encode("latin-1"),
            "connector": b'"postgresql"',
            "name": quote(wire(settings.prefix)).encode("latin-1"),
            "db": quote(wire(settings.database)).encode("latin-1"),
            "xmin": b"null",
        }

    @staticmethod
    def values(facts: TransactionFacts) -> dict[str, bytes]:
        """Return the JSON of the fields that all events of the transaction share.

        `last` is the first part of `sequence`, escaped as it is within that text.
        """
        origin, origin_lsn = _origin_values(facts)
        micros = facts.unix_us
        found = {
            "ts_ms": str(micros // 1000),
            "ts_us": str(micros),
            "ts_ns": str(micros * 1000),
            "snapshot": f'"{facts.snapshot}"',
            "txId": _txid(facts),
            "commit_lsn": str(facts.commit_lsn),
            "origin": origin,
            "origin_lsn": origin_lsn,
            "last": _last(facts),
        }
        return {name: value.encode("latin-1") for name, value in found.items()}

    def pieces(self, facts: TransactionFacts, table: str) -> tuple[bytes, bytes, bytes]:
        """Return three pieces of the block: before the event's LSN, from it to the second LSN, and from there to the
        serial number.

        `table` is the piece for the table. The closing brace belongs to what follows.
        """
        micros = facts.unix_us
        head = f'{self._start}{micros // 1000},"snapshot":"{facts.snapshot}{self._sequence}{_last(facts)},\\"'
        middle = f'\\"]","ts_us":{micros},"ts_ns":{micros * 1000}{table},"txId":{_txid(facts)},"lsn":'
        origin = _NO_ORIGIN
        if facts.origin is not None or facts.origin_lsn is not None:
            origin = _origin(*_origin_values(facts))
        tail = f'{origin}{facts.commit_lsn},"event_serial_no":'
        return head.encode("latin-1"), middle.encode("latin-1"), tail.encode("latin-1")


def _txid(facts: TransactionFacts) -> str:
    return "null" if facts.xid is None else str(facts.xid)


def _last(facts: TransactionFacts) -> str:
    return "null" if facts.last_commit_lsn is None else f'\\"{facts.last_commit_lsn}\\"'


def _origin_values(facts: TransactionFacts) -> tuple[str, str]:
    origin = "null" if facts.origin is None else quote(wire(facts.origin))
    return origin, "null" if facts.origin_lsn is None else str(facts.origin_lsn)


def _origin(name: str, lsn: str) -> str:
    return f',"xmin":null,"origin":{name},"origin_lsn":{lsn},"commit_lsn":'


_NO_ORIGIN: Final = _origin("null", "null")


class Envelope:
    """The parts of records around consecutive rows of one table with the same op, in one transaction.

    Most of a consumer's waiting time is the loop that calls `value`. So the digits that a thousand numbers share
    are made once, and a record is put together in a buffer, which takes two thirds of the time of a list and its
    `join`.

    Args:
        opening, head, middle, tail: the pieces of `TableSource`.
        ending: the part after the event's number.
    """

    __slots__ = ("_ending", "_head", "_middle", "_opening", "_tail", "_thousands", "_until_digits", "size")

    def __init__(self, opening: bytes, head: bytes, middle: bytes, tail: bytes, ending: bytes) -> None:
        self.size = len(opening) + len(head) + len(middle) + len(tail) + len(ending)
        """Bytes of a record without its row, the two LSNs of the event and its number."""
        self._opening = opening
        self._head = head
        self._middle = middle
        self._tail = tail
        self._ending = ending
        self._thousands: i64 = 0
        self._until_digits = tail

    def value(self, row: bytes, lsn: bytes, event_no: "i64", buffer: BytesWriter) -> bytes:
        """Return the value of one record: the row and the pieces around it. The content of `buffer` is overwritten."""
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
    """Makes the parts around the row in the records of one table: the source block, the op and the times.

    No other code depends on the order of these pieces. `renew` must be called first in each transaction.

    Attributes:
        opening: beginning of a record with a schema, else empty.
    """

    __slots__ = ("_closings", "_end", "_head", "_middle", "_table", "_tail", "opening")

    def __init__(self, schema: str, name: str, schema_id: str | None = None, opening: bytes = b"") -> None:
        self.opening = opening
        self._end = CLOSING if opening else b""
        self._table = f',"schema":{quote(wire(schema))},"table":{quote(wire(name))}'
        described = "" if schema_id is None else f',"schema_id":"{schema_id}"'
        self._closings = [f'{described}}},"transaction":null,"op":"{op}",'.encode("ascii") for op in OPS]
        self._head = self._middle = self._tail = b""

    def renew(self, source: SourceBlock, facts: TransactionFacts) -> None:
        """Make the pieces that all events of this table share in the transaction."""
        self._head, self._middle, self._tail = source.pieces(facts, self._table)

    def ending(self, op: int, processed_at: bytes) -> bytes:
        """Return the part after the event's number."""
        return self._closings[op] + processed_at + self._end

    def joined(self, row: list[bytes], lsn: bytes, event_no: bytes, ending: bytes) -> bytes:
        """Return a record: the parts of its row, which are joined only once because they can be large, and everything
        that follows.
        """
        return b"".join(
            (self.opening, *row, self._head, lsn, self._middle, lsn, self._tail, event_no, ending)
        )

    def envelope(self, ending: bytes) -> Envelope | None:
        """Return the pieces around consecutive rows; None if each record also has its position in the transaction."""
        return Envelope(self.opening, self._head, self._middle, self._tail, ending)

    def around_number(self, row: bytes, lsn: bytes, op: int, processed_at: bytes) -> tuple[bytes, bytes]:
        """Return the two parts of the row's record: before the event's number, and after it."""
        return self.joined([row], lsn, b"", b""), self.ending(op, processed_at)

    def write(self, op: int, lsn: "i64", event_no: "i64", processed_at: bytes, out: BytesWriter) -> None:
        """Append everything that follows the row; the caller has written what precedes it."""
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
    """Return the times at the end of an envelope, and its closing brace."""
    return f'"ts_ms":{now_us // 1000},"ts_us":{now_us},"ts_ns":{now_us * 1000}}}'.encode("ascii")


def unix_us(postgres_us: int) -> int:
    """Convert a time on the wire, in microseconds since 2000, to microseconds since 1970."""
    return postgres_us + POSTGRES_EPOCH_US
