"""Stage 4: converts the row in a raw frame into JSON values.

A frame (`w`, 25 bytes of header, then Insert, Update or Delete) is read once from the beginning to the end: each
value is converted at its place in the frame, into the slot that its column has among the fragments of the record.
No message objects are made on the way.

As few bounds as possible are checked. A length that points past the end makes the next read fail, or makes the
returned end wrong, so the caller must check the end (`ends`). An error is explained afterwards: `explain` reads the
frame again with the strict reader of stage 2, then value by value, and names the message, the field and the offset.
So this reader and the strict one must accept the same frames, which tests check.
"""

from typing import TYPE_CHECKING, Final

from librt.strings import BytesWriter

from cdcd.core.catalog.binary_text import WithoutReaderError
from cdcd.core.catalog.hints import HINT, HINT_BINARY
from cdcd.core.catalog.wiretext import EXPONENT, NINE, POINT, ZERO, checked
from cdcd.core.errors import CdcdError, ProtocolError, WithoutBinaryError
from cdcd.core.protocol import messages
from cdcd.core.protocol.frames import XLOG_HEADER
from cdcd.core.protocol.messages import Binary, Delete, Insert, Relation, TupleData, Update, Value
from cdcd.core.protocol.peek import (
    BINARY,
    HEAD_BYTES,
    NULL,
    ROW_HEAD_BYTES,
    SIZE_0,
    SIZE_8,
    SIZE_16,
    SIZE_24,
    STREAMED_HEAD_BYTES,
    TEXT,
    UNCHANGED,
    VALUE_HEAD_BYTES,
    value_size,
)
from cdcd.core.protocol.reader import read_message
from cdcd.core.records.debezium_json.converter import (
    AS_IS,
    ASCII,
    BOOLEAN,
    DECIMAL,
    FLOAT,
    QUOTED,
    STRING,
    Converter,
)
from cdcd.core.records.debezium_json.strings import escaped
from cdcd.core.records.unwritable import UnwritableError

if TYPE_CHECKING:
    from mypy_extensions import i64  # an int, for mypyc one of the machine's

Plan = list[tuple[int, int, int]]
"""For each column: its slot among a record's fragments, the mode of its converter, and its number from 0.

If the mode is one of `QUOTED`, the slots before and after it have the quotes of the JSON string that the value
usually is.
"""

LEFT: Final = -1
"""Returned for a row that only `read_row` can convert, because some of its values were not sent."""


class ColumnPlace:
    """The place of a column in the rows that are written.

    Attributes:
        fragment: JSON before the value.
        null: JSON for NULL.
        is_key: whether the column belongs to the key, in which `key_fragment` precedes it.
        begin, end: where its value is in the last written row, if the column belongs to the key.
    """

    __slots__ = ("begin", "converter", "end", "fragment", "is_key", "key_fragment", "null")

    def __init__(self, fragment: bytes, converter: Converter, null: bytes) -> None:
        self.fragment = fragment
        self.converter = converter
        self.null = null
        self.is_key = False
        self.key_fragment = b""
        self.begin: i64 = 0
        self.end: i64 = 0


_TRUE: Final = b"t"


def write_row(frame: bytes, start: "i64", places: list[ColumnPlace], out: BytesWriter) -> "i64":
    """Convert a row like `read_row`, but append fragments and values to `out`; compiled code uses this where it can.

    Returns:
        The end of the row according to its own lengths, or LEFT.

    Raises:
        ValueError, IndexError: the row is malformed; `explain` says how.
    """
    at: i64 = start
    limit: i64 = len(frame)
    for place in places:
        out.write(place.fragment)
        begin: i64 = len(out)
        kind = frame[at]
        if kind in (TEXT, BINARY):
            size: i64 = value_size(frame, at)
            at += VALUE_HEAD_BYTES
            if size < 0 or size > limit - at:
                raise ValueError("a value ends after the frame")
            if kind == TEXT:
                place.converter.write(frame, at, at + size, out)
            else:
                place.converter.write_binary(frame, at, at + size, out)
            at += size
        elif kind == NULL:
            out.write(place.null)
            at += 1
        elif kind == UNCHANGED:
            return LEFT
        else:
            raise ValueError("unknown kind of value")
        if place.is_key:
            place.begin = begin
            place.end = len(out)
    return at


def read_row(  # noqa: C901, PLR0912  a table of functions, or an object, would cost as much as a column
    frame: bytes,
    start: int,
    plan: Plan,
    converters: list[Converter],
    values: list[bytes],
    unchanged: list[int],
) -> int:
    """Convert the row whose first value is at `start`, and return its end according to its own lengths.

    Args:
        values: gets the JSON of each value, in the slot of its column.
        unchanged: gets the slot of each column whose value is unchanged TOAST; the content of the slot stays as it
            is.

    Raises:
        ValueError, IndexError: the row is malformed; `explain` says how.
    """
    at: i64 = start
    for slot, mode, column in plan:
        kind = frame[at]
        if kind == TEXT:
            size: i64 = frame[at + SIZE_0]
            if frame[at + SIZE_8] or frame[at + SIZE_16] or frame[at + SIZE_24]:
                size += (frame[at + SIZE_24] << 24) + (frame[at + SIZE_16] << 16) + (frame[at + SIZE_8] << 8)
            at += VALUE_HEAD_BYTES
            end = at + size
            value = frame[at:end]
            at = end
            if mode == STRING:
                values[slot] = escaped(value)
            elif mode == AS_IS:
                values[slot] = value
            elif mode == DECIMAL:
                if value[-1] <= NINE:
                    values[slot] = value
                else:
                    put_whole(values, slot, converters[column].wire(value))
            elif mode == FLOAT:
                if POINT in value:
                    values[slot] = value
                elif ZERO <= value[-1] <= NINE and EXPONENT not in value:
                    values[slot] = value + b".0"
                else:
                    values[slot] = converters[column].wire(value)
            elif mode == BOOLEAN:
                values[slot] = b"true" if value == _TRUE else converters[column].wire(value)
            else:
                values[slot] = converters[column].wire(value)
        elif kind == NULL:
            if mode in QUOTED:
                put_whole(values, slot, b"null")
            else:
                values[slot] = b"null"
            at += 1
        elif kind == UNCHANGED:
            unchanged.append(slot)
            at += 1
        elif kind == BINARY:
            size = (frame[at + SIZE_24] << 24) + (frame[at + SIZE_16] << 16)
            size += (frame[at + SIZE_8] << 8) + frame[at + SIZE_0]
            at += VALUE_HEAD_BYTES
            end = at + size
            value = frame[at:end]
            at = end
            converter = converters[column]
            if converter.binary_is_text:
                values[slot] = escaped(value)
            elif mode in QUOTED:
                put_whole(values, slot, converter.wire_of_binary(value))
            else:
                values[slot] = converter.wire_of_binary(value)
        else:
            raise ValueError("unknown kind of value")
    return at


def put_whole(values: list[bytes], slot: int, json: bytes) -> None:
    """Put the whole JSON of a value into its slot, and nothing into the slots for quotes around it."""
    values[slot - 1] = b""
    values[slot] = json
    values[slot + 1] = b""


def explain(
    frame: bytes, in_stream: bool, relation: Relation, converters: list[Converter]
) -> CdcdError | None:
    """Return the error that says why the row message in `frame` was refused; None if it is not malformed.

    The error is a ProtocolError, or a WithoutBinaryError for a binary value of a type without a reader.
    """
    try:
        message = read_message(frame, XLOG_HEADER, in_stream=in_stream)
    except ProtocolError as error:
        return error
    assert isinstance(message, Insert | Update | Delete), "only row messages come here"
    at = (STREAMED_HEAD_BYTES if in_stream else HEAD_BYTES) - ROW_HEAD_BYTES
    for row, name in _rows(message):
        at += ROW_HEAD_BYTES
        table = f"{type(message).__name__} of {relation.schema}.{relation.name}"
        if len(row) != len(converters):
            return ProtocolError(
                f"{table}: field {name} at offset {at - 2}: {len(row)} columns, but {len(converters)} in the Relation.",
                hint=HINT,
            )
        for index, value in enumerate(row):
            column = relation.columns[index]
            problem = _problem(value, converters[index])
            if problem:
                field = f"{name}[{index}], column {column.name!r} of type {column.type_oid}, at offset {at}"
                if problem is WITHOUT_READER:
                    return WithoutBinaryError(f"{table}: field {field}: {problem}.", hint=HINT_BINARY)
                return ProtocolError(f"{table}: field {field}: {problem}.", hint=HINT)
            at += _size(value)
    return None


WITHOUT_READER: Final = "a binary value of a type without a binary reader"


def _rows(message: Insert | Update | Delete) -> list[tuple[TupleData, str]]:
    if isinstance(message, Insert):
        return [(message.new, "new")]
    if isinstance(message, Delete):
        return [(message.old, "old")]
    old = [] if message.old is None else [(message.old, "old")]
    return [*old, (message.new, "new")]


def _size(value: Value) -> int:
    if value is None or value is messages.UNCHANGED:
        return 1
    return VALUE_HEAD_BYTES + len(value.data if isinstance(value, Binary) else value)


def _problem(value: Value, converter: Converter) -> str:
    """Return what is wrong with a value, "" if nothing is; the value itself is not shown, because it may be secret."""
    try:
        if isinstance(value, Binary):
            checked(converter.wire_of_binary(value.data))
        elif isinstance(value, bytes):
            converter.wire(checked(value))
    except WithoutReaderError:
        return WITHOUT_READER
    except UnwritableError:
        # The value is not malformed: `StandIns` replaces it by another one.
        return ""
    except UnicodeDecodeError:
        # The same is true here if the value is a text that somebody wrote.
        return _malformed(value) if converter.mode in ASCII else ""
    except (ValueError, IndexError):
        return _malformed(value)
    return ""


def _malformed(value: Value) -> str:
    if isinstance(value, Binary):
        return f"a binary value of {len(value.data)} bytes is not of its type's form"
    assert isinstance(value, bytes)
    return f"a text of {len(value)} bytes is not of its type's form"
