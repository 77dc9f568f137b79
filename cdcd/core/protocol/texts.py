"""Texts in a `w` frame, and replacing them: for sessions without encoding conversion.

The rule: PostgreSQL converts every text of pgoutput to the client's encoding, except the content of logical
messages. A session that receives texts in the server's encoding replaces each text here, before other code reads
the frame. A malformed frame has no texts, so that the strict reader refuses it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from struct import Struct
from struct import error as StructError  # noqa: N812  a class
from typing import Final

from cdcd.core.protocol.frames import XLOG_HEADER
from cdcd.core.protocol.peek import (
    BINARY,
    MESSAGE,
    NEW_ROW,
    NULL,
    RELATION,
    ROWS,
    TEXT,
    UNCHANGED,
    VALUE_HEAD_BYTES,
    XLOG_DATA,
)

_INT16: Final = Struct("!H")
_INT32: Final = Struct("!I")
_XID_BYTES: Final = 4
_COLUMN_TAIL_BYTES: Final = 8  # type and modifier

_TYPE: Final = 0x59  # Y
_ORIGIN: Final = 0x4F  # O
_GID_AT: Final = {
    0x62: 29,  # b: tag, three 64-bit fields, xid
    0x50: 30,  # P, with flags
    0x4B: 30,  # K
    0x72: 38,  # r: four 64-bit fields
    0x70: 30,  # p
}
"""Offset of a message's gid, by its tag. The gid is the last field."""

STREAM_START: Final = 0x53  # S
STREAM_STOP: Final = 0x45  # E


class TextKind(Enum):
    """Kind of a text, which decides what happens if it cannot be decoded."""

    VALUE = "a value of a row"
    NAME = "the name of a table, a schema or a column"
    LABEL = "a gid, an origin, a type's name, or the prefix of a logical message"


@dataclass(frozen=True, slots=True)
class TextRange:
    """A text between two offsets of a frame; before a VALUE its size has four bytes."""

    begin: int
    end: int
    kind: TextKind


def texts_of(frame: bytes, in_stream: bool) -> list[TextRange]:
    """Return the texts of a frame that are not ASCII, in their order.

    `in_stream`: True between Stream Start and Stream Stop.
    """
    if len(frame) <= XLOG_HEADER or frame[0] != XLOG_DATA:
        return []
    tag = frame[XLOG_HEADER]
    at = XLOG_HEADER + 1
    try:
        if tag in ROWS:
            found = _values(frame, at + (_XID_BYTES if in_stream else 0) + 4)
        elif tag == RELATION:
            found = _relation(frame, at + (_XID_BYTES if in_stream else 0) + 4)
        elif tag == _TYPE:
            at += (_XID_BYTES if in_stream else 0) + 4
            found = _strings(frame, at, 2, TextKind.LABEL)
        elif tag == MESSAGE:
            found = _strings(frame, at + (_XID_BYTES if in_stream else 0) + 9, 1, TextKind.LABEL)
        elif tag == _ORIGIN:
            found = _strings(frame, at + 8, 1, TextKind.LABEL)
        elif tag in _GID_AT:
            found = _strings(frame, XLOG_HEADER + _GID_AT[tag], 1, TextKind.LABEL)
        else:
            return []
    except (IndexError, ValueError, StructError):
        return []
    return [text for text in found if not frame[text.begin : text.end].isascii()]


def _values(frame: bytes, at: int) -> list[TextRange]:
    """Return the values of one row, or of the old and the new row."""
    found: list[TextRange] = []
    while True:
        kind_of_row = frame[at]
        (columns,) = _INT16.unpack_from(frame, at + 1)
        at += 3
        for _ in range(columns):
            kind = frame[at]
            if kind in (NULL, UNCHANGED):
                at += 1
                continue
            if kind not in (TEXT, BINARY):
                raise ValueError("unknown kind of value")
            (size,) = _INT32.unpack_from(frame, at + 1)
            at += VALUE_HEAD_BYTES
            if size > len(frame) - at:
                raise ValueError("a value ends after the frame")
            if kind == TEXT:
                found.append(TextRange(at, at + size, TextKind.VALUE))
            at += size
        if kind_of_row == NEW_ROW or at == len(frame):
            return found


def _relation(frame: bytes, at: int) -> list[TextRange]:
    found = _strings(frame, at, 2, TextKind.NAME)
    at = found[-1].end + 2
    (columns,) = _INT16.unpack_from(frame, at)
    at += 2
    for _ in range(columns):
        found += _strings(frame, at + 1, 1, TextKind.NAME)
        at = found[-1].end + 1 + _COLUMN_TAIL_BYTES
    return found


def _strings(frame: bytes, at: int, count: int, kind: TextKind) -> list[TextRange]:
    """Read `count` strings that end with a zero byte. ValueError: a string has no end."""
    found: list[TextRange] = []
    for _ in range(count):
        end = frame.index(b"\0", at)
        found.append(TextRange(at, end, kind))
        at = end + 1
    return found


def with_texts(frame: bytes, texts: list[TextRange], convert: Callable[[bytes, TextKind], bytes]) -> bytes:
    """Return the frame with these texts replaced by the results of `convert`."""
    parts: list[bytes] = []
    done = 0
    for text in texts:
        written = convert(frame[text.begin : text.end], text.kind)
        before = text.begin
        if text.kind is TextKind.VALUE:
            before -= 4
            written = _INT32.pack(len(written)) + written
        parts += [frame[done:before], written]
        done = text.end
    parts.append(frame[done:])
    return b"".join(parts)
