"""Wire text: bytes held in a str, one character for each byte.

Values that need more than a copy are handled as wire text: they are decoded as Latin-1, which never fails and keeps
offsets, and what was made of them is encoded as Latin-1 again. So UTF-8 goes through untouched.

Whether a record is UTF-8 is checked at the end (`checked`), and costs nothing where it is ASCII.
"""

from codecs import getincrementaldecoder
from typing import Final

PIECE_BYTES: Final = 1 << 20
"""Bytes that are checked at a time."""

# By their numbers: of a call of `ord` mypyc makes a variable.
ZERO: Final = 0x30  # 0
NINE: Final = 0x39  # 9
MINUS: Final = 0x2D  # -
POINT: Final = 0x2E  # .
EXPONENT: Final = 0x65  # e
COLON: Final = 0x3A  # :
SPACE: Final = 0x20  # space


def wire(text: str) -> str:
    """The wire text of `text`, that is of its UTF-8."""
    return text.encode("utf-8").decode("latin-1")


def checked(data: bytes) -> bytes:
    """`data`; UnicodeDecodeError (a ValueError) when it is not UTF-8."""
    if data.isascii():
        return data
    if len(data) <= PIECE_BYTES:
        data.decode("utf-8")
        return data
    # A text takes up to four times the memory of its bytes.
    decoder = getincrementaldecoder("utf-8")()
    for at in range(0, len(data), PIECE_BYTES):
        decoder.decode(data[at : at + PIECE_BYTES], at + PIECE_BYTES >= len(data))
    return data


def to_bytes(text: str) -> bytes:
    """The bytes of wire text; UnicodeDecodeError (a ValueError) when they are not UTF-8."""
    return checked(text.encode("latin-1"))
