"""Large values, converted a piece at a time.

A value of hundreds of megabytes that is converted as a whole needs several copies of itself, and the interpreter runs
nothing else meanwhile. So what is larger than `PIECE_BYTES` is converted piece by piece, and joined once.
"""

import io
from binascii import a2b_hex, b2a_base64
from collections.abc import Iterable, Iterator
from typing import Final

from cdcd.core.catalog.wiretext import checked

PIECE_BYTES: Final = 786_432
"""Bytes of a piece. It is a multiple of three bytes in hexadecimal form, so that base64 has no padding in between."""

_HEX_PREFIX: Final = b"\\x"


Part = bytes | memoryview
"""A part of a value that is joined later. A part of a large value is not copied."""


def part_of(data: bytes, at: int, end: int) -> Part:
    """`data[at:end]`."""
    return memoryview(data)[at:end] if end - at > PIECE_BYTES else data[at:end]


def checked_parts(parts: list[bytes]) -> list[bytes]:
    """The parts of a record's value, joined if they are small.

    Raises:
        UnicodeDecodeError: one of them is not UTF-8.
    """
    if sum(map(len, parts)) <= PIECE_BYTES:
        return [checked(b"".join(parts))]
    for part in parts:
        checked(part)
    return parts


def gathered(pieces: Iterable[bytes]) -> bytes:
    """Join all pieces. Each piece can be freed before the next one is made, so that only one copy of all exists."""
    buffer = io.BytesIO()
    for piece in pieces:
        buffer.write(piece)
    # The value takes the buffer over. Nothing is copied.
    return buffer.getvalue()


def base64_pieces(data: Part, at: int, end: int) -> Iterator[bytes]:
    """Base64 of `data[at:end]`."""
    while at < end:
        after = min(at + PIECE_BYTES, end)
        yield b2a_base64(data[at:after], newline=False)
        at = after


def bytes_pieces_of_hex(data: bytes, at: int, end: int) -> Iterator[bytes]:
    """The bytea whose text is `data[at:end]`. ValueError: it is not in bytea_output hex."""
    if data[at : at + len(_HEX_PREFIX)] != _HEX_PREFIX:
        raise ValueError("a bytea that is not in bytea_output hex")
    at += len(_HEX_PREFIX)
    while at < end:
        after = min(at + PIECE_BYTES, end)
        yield a2b_hex(data[at:after])
        at = after


def base64_pieces_of_hex(data: bytes, at: int, end: int) -> Iterator[bytes]:
    """Base64 of the bytea whose text is `data[at:end]`. ValueError: it is not in bytea_output hex."""
    for piece in bytes_pieces_of_hex(data, at, end):
        yield b2a_base64(piece, newline=False)
