r"""Rows of `COPY … TO STDOUT` in text format: fields, NULL and escapes.

With the same session settings, COPY writes each value in pgoutput's text (both call the type's output function), so
the same converters of a format apply. COPY adds tabs between values, `\N` for NULL, and backslash escapes
(copyto.c, CopyAttributeOutText).
"""

import io
import re
from typing import Final

from cdcd.core.pauses import pause

_ESCAPE: Final = re.compile(rb"\\(.)", re.DOTALL)
_MEANING: Final = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}
_PIECE_BYTES: Final = 1 << 16
"""Size above which a field is unescaped in pieces, because a substitution needs memory and time for each escape."""

BACKSLASH: Final = b"\\"
_ESCAPED_BACKSLASH: Final = BACKSLASH * 2

OTHER_WIDTH: Final = "the row has another number of columns than the relation"

NULL: Final = rb"\N"


def split_row(line: bytes) -> list[bytes]:
    """Return the fields of a row with its newline, without unescaping them. A row without columns has no fields."""
    if len(line) <= 1:
        return []
    fields = line.split(b"\t")
    # The row may be large, so it is not copied just to remove its last byte.
    fields[-1] = fields[-1][:-1]
    return fields


def unescape(field: bytes) -> bytes:
    """Return the value of a field that is not NULL."""
    value, at = value_in(field)
    return value[at:]


def value_in(field: bytes) -> tuple[bytes, int]:
    """Unescape a field as `unescape` does.

    Return bytes that end with the value, and the offset of the value; so a bytea is not copied.
    """
    if BACKSLASH not in field:
        return field, 0
    if field.startswith(_ESCAPED_BACKSLASH) and field.find(BACKSLASH, len(_ESCAPED_BACKSLASH)) < 0:
        return field, 1
    if len(field) <= _PIECE_BYTES:
        return _ESCAPE.sub(_meaning, field), 0
    return _unescaped_large(field), 0


def _unescaped_large(field: bytes) -> bytes:
    made = io.BytesIO()
    at = 0
    while at < len(field):
        piece = field[at : at + _PIECE_BYTES]
        if (len(piece) - len(piece.rstrip(BACKSLASH))) % 2:
            # The last escape belongs to the next piece.
            piece = piece[:-1]
        made.write(_unescaped(piece or field[at : at + 2]))
        at += len(piece) or 2
        pause()
    # This copies nothing, because the value takes over the buffer.
    return made.getvalue()


def _unescaped(piece: bytes) -> bytes:
    if _ESCAPED_BACKSLASH not in piece:
        # Each backslash begins an escape. This takes a tenth of the time of a substitution.
        for letter, meaning in _MEANING.items():
            piece = piece.replace(BACKSLASH + letter, meaning)
    return _ESCAPE.sub(_meaning, piece)


def _meaning(match: re.Match[bytes]) -> bytes:
    letter = match[1]
    return _MEANING.get(letter, letter)


def escape(value: bytes) -> bytes:
    """Return the field of a value, as the server writes it."""
    text = value.replace(BACKSLASH, BACKSLASH * 2)
    for letter, meaning in _MEANING.items():
        text = text.replace(meaning, BACKSLASH + letter)
    return text


def fields_of(lines: list[bytes], width: int) -> tuple[list[bytes], bool]:
    """Return the escaped fields of rows in one list, and True if any has escapes.

    Args:
        lines: rows, each with its newline.
        width: number of fields in each row, not 0.

    Raises:
        ValueError: a row has another number of fields, or is not UTF-8.
    """
    raw = b"".join(lines)
    if not raw.isascii():
        raw.decode("utf-8")
    tabs = width - 1
    for line in lines:
        if line.count(b"\t") != tabs:
            raise ValueError(OTHER_WIDTH)
    return raw[:-1].replace(b"\n", b"\t").split(b"\t"), BACKSLASH in raw
