"""Large values, converted a piece at a time.

A value of hundreds of megabytes that is converted as a whole needs several copies of itself, and the interpreter runs
nothing else meanwhile. So what is larger than `PIECE_BYTES` is converted piece by piece, and joined once.
"""

from binascii import a2b_hex, b2a_base64
from collections.abc import Iterator
from typing import Final

PIECE_BYTES: Final = 786_432
"""Bytes of a piece. It is a multiple of three bytes in hexadecimal form, so that base64 has no padding in between."""

_HEX_PREFIX: Final = b"\\x"


def base64_pieces(data: bytes, at: int, end: int) -> Iterator[bytes]:
    """Base64 of `data[at:end]`."""
    while at < end:
        after = min(at + PIECE_BYTES, end)
        yield b2a_base64(data[at:after], newline=False)
        at = after


def base64_pieces_of_hex(data: bytes, at: int, end: int) -> Iterator[bytes]:
    """Base64 of the bytea whose text is `data[at:end]`. ValueError: it is not in bytea_output hex."""
    if data[at : at + len(_HEX_PREFIX)] != _HEX_PREFIX:
        raise ValueError("a bytea that is not in bytea_output hex")
    at += len(_HEX_PREFIX)
    while at < end:
        after = min(at + PIECE_BYTES, end)
        yield b2a_base64(a2b_hex(data[at:after]), newline=False)
        at = after
