"""JSON strings, of wire text (`catalog/wiretext.py`) and of bytes.

UTF-8 goes through as JSON writers like Jackson give it, not escaped. JSON's syntax is ASCII, and no byte of a
multi-byte UTF-8 character is, so quoting wire text is safe, and may look at bytes alone.
"""

import re
from collections.abc import Iterator
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, Final

from cdcd.core.protocol.peek import COMPILED
from cdcd.core.records.debezium_json.pieces import PIECE_BYTES, gathered

if TYPE_CHECKING:
    from mypy_extensions import i64, u8

_ESCAPED: Final = bytes(range(0x20)) + b'"\\'
"""What JSON does not allow inside a string as it is (RFC 8259, 7)."""

# By its number, here and elsewhere: of a call of `ord` mypyc makes a variable.
QUOTE: Final = 0x22  # "
BACKSLASH: Final = 0x5C  # \
find_escaped: Final = re.compile(rb'[\x00-\x1f"\\]').search

SHORT: Final = 128
"""Up to this length one pass that also escapes is quicker than a check beforehand."""


def quote(text: str) -> str:
    """The JSON string of wire text: quotes, backslashes and control characters escaped, nothing else."""
    if len(text) <= SHORT or len(text.encode("latin-1").translate(None, _ESCAPED)) != len(text):
        return encode_basestring(text)
    return f'"{text}"'


def escaped(value: bytes) -> bytes:
    """What stands between the quotes of a JSON string: as `quote`, for bytes and without its quotes."""
    if len(value) > PIECE_BYTES:
        return _escaped_large(value)
    if COMPILED:
        # A loop that costs two instructions a byte: less than a call, and what stops it is rare.
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
    """Whether `value` has a byte that JSON does not allow inside a string as it is."""
    if len(value) <= PIECE_BYTES:
        return find_escaped(value) is not None
    for at in range(0, len(value), PIECE_BYTES):
        piece = value[at : at + PIECE_BYTES]
        # In a large value, this takes a third of the time that the search takes.
        if len(piece.translate(None, _ESCAPED)) != len(piece):
            return True
    return False


def _escaped_large(value: bytes) -> bytes:
    return gathered(_escaped_pieces(value)) if has_escaped(value) else value


def _escaped_pieces(value: bytes) -> Iterator[bytes]:
    for at in range(0, len(value), PIECE_BYTES):
        yield escaped(value[at : at + PIECE_BYTES])
