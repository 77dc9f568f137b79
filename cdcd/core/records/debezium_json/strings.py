"""JSON strings, made from wire text (`catalog/wiretext.py`) and from bytes.

UTF-8 is not escaped, as by JSON writers such as Jackson. The syntax of JSON is ASCII, and no byte of a multi-byte
UTF-8 character is ASCII, so quoting wire text is safe byte by byte.
"""

import re
from collections.abc import Iterator
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, Final

from cdcd.core.pauses import pause
from cdcd.core.protocol.peek import COMPILED
from cdcd.core.records.debezium_json.pieces import PIECE_BYTES, gathered

if TYPE_CHECKING:
    from mypy_extensions import i64, u8

_ESCAPED: Final = bytes(range(0x20)) + b'"\\'
"""Characters that JSON does not allow unescaped in a string (RFC 8259, 7)."""

# Characters are written as numbers, here and elsewhere, because mypyc makes a variable of a call of `ord`.
QUOTE: Final = 0x22  # "
BACKSLASH: Final = 0x5C  # \
find_escaped: Final = re.compile(rb'[\x00-\x1f"\\]').search

SHORT: Final = 128
"""Length up to which a pass that also escapes is faster than checking first."""


def quote(text: str) -> str:
    """Return the JSON string of wire text, in which only quotes, backslashes and control characters are escaped."""
    if len(text) <= SHORT or len(text.encode("latin-1").translate(None, _ESCAPED)) != len(text):
        return encode_basestring(text)
    return f'"{text}"'


def escaped(value: bytes) -> bytes:
    """Return the content of a JSON string without its quotes, for bytes."""
    if len(value) > PIECE_BYTES:
        return _escaped_large(value)
    if COMPILED:
        # This loop costs two instructions per byte, which is less than a call, and it seldom ends early.
        at: i64
        for at in range(len(value)):
            byte: u8 = value[at]
            if byte < 0x20 or byte in (QUOTE, BACKSLASH):
                break
        else:
            return value
    elif find_escaped(value) is None:
        return value
    return encode_basestring(value.decode("latin-1"))[1:-1].encode("latin-1")


def has_escaped(value: bytes) -> bool:
    """Return whether `value` has a byte that JSON does not allow unescaped in a string."""
    if len(value) <= PIECE_BYTES:
        return find_escaped(value) is not None
    for at in range(0, len(value), PIECE_BYTES):
        piece = value[at : at + PIECE_BYTES]
        # For a large value, this takes a third of the time of a search.
        if len(piece.translate(None, _ESCAPED)) != len(piece):
            return True
        pause()
    return False


def _escaped_large(value: bytes) -> bytes:
    return gathered(_escaped_pieces(value)) if has_escaped(value) else value


def _escaped_pieces(value: bytes) -> Iterator[bytes]:
    for at in range(0, len(value), PIECE_BYTES):
        yield escaped(value[at : at + PIECE_BYTES])
