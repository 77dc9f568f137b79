"""Wire text: bytes in a str, with one character for each byte.

Values that need more than a copy are processed as wire text: they are decoded as Latin-1, which never fails and
keeps offsets, and the results are encoded as Latin-1 again. So UTF-8 passes unchanged.

`checked` verifies at the end that a record is UTF-8, which costs nothing for ASCII.
"""

from codecs import getincrementaldecoder
from typing import Final

from cdcd.core.pauses import pause

PIECE_BYTES: Final = 1 << 20
"""Bytes that are checked at a time."""

# Characters as numbers, because mypyc treats a call of `ord` as a variable.
ZERO: Final = 0x30  # 0
NINE: Final = 0x39  # 9
MINUS: Final = 0x2D  # -
POINT: Final = 0x2E  # .
EXPONENT: Final = 0x65  # e
COLON: Final = 0x3A  # :
SPACE: Final = 0x20  # space


def wire(text: str) -> str:
    """Return the wire text of `text`, which is the wire text of its UTF-8."""
    return text.encode("utf-8").decode("latin-1")


def checked(data: bytes) -> bytes:
    """Return `data`; raise UnicodeDecodeError (a ValueError) if it is not UTF-8."""
    if data.isascii():
        return data
    if len(data) <= PIECE_BYTES:
        data.decode("utf-8")
        return data
    # A text takes up to four times the memory of its bytes.
    decoder = getincrementaldecoder("utf-8")()
    for at in range(0, len(data), PIECE_BYTES):
        decoder.decode(data[at : at + PIECE_BYTES], at + PIECE_BYTES >= len(data))
        pause()
    return data


def to_bytes(text: str) -> bytes:
    """Return the bytes of wire text; raise UnicodeDecodeError (a ValueError) if they are not UTF-8."""
    return checked(text.encode("latin-1"))
