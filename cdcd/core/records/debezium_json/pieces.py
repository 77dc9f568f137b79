"""Converts large values piece by piece.

To convert a value of hundreds of megabytes as a whole would need several copies of it, and would block the
interpreter in the meantime. So values larger than `PIECE_BYTES` are converted in pieces, which are joined once, with
a pause after each piece.
"""

import io
from binascii import a2b_hex, b2a_base64
from collections.abc import Iterable, Iterator
from typing import Final

from cdcd.core.catalog.wiretext import checked
from cdcd.core.pauses import pause

PIECE_BYTES: Final = 786_432
"""Number of bytes in a piece. The number is a multiple of the six hexadecimal digits of three bytes, so that base64
has no padding between pieces."""

_HEX_PREFIX: Final = b"\\x"


Part = bytes | memoryview
"""A part of a value that is joined later; a part of a large value is a view and not a copy."""


def part_of(data: bytes, at: int, end: int) -> Part:
    """Return `data[at:end]`, as a view if it is large."""
    return memoryview(data)[at:end] if end - at > PIECE_BYTES else data[at:end]


def checked_parts(parts: list[bytes]) -> list[bytes]:
    """Return the parts of a record's value, joined if they are small.

    Raises:
        UnicodeDecodeError: one of them is not UTF-8.
    """
    if sum(map(len, parts)) <= PIECE_BYTES:
        return [checked(b"".join(parts))]
    for part in parts:
        checked(part)
    return parts


def gathered(pieces: Iterable[bytes]) -> bytes:
    """Return all pieces joined.

    Each piece can be freed before the next one is made, so there is only one copy of them all.
    """
    buffer = io.BytesIO()
    for piece in pieces:
        buffer.write(piece)
        pause()
    # This copies nothing, because the value takes over the buffer.
    return buffer.getvalue()


def base64_pieces(data: Part, at: int, end: int) -> Iterator[bytes]:
    """Yield the base64 of `data[at:end]` in pieces."""
    while at < end:
        after = min(at + PIECE_BYTES, end)
        yield b2a_base64(data[at:after], newline=False)
        pause()
        at = after


def bytes_pieces_of_hex(data: bytes, at: int, end: int) -> Iterator[bytes]:
    """Yield the bytes of the bytea whose text is `data[at:end]`. ValueError if the text is not in bytea_output hex."""
    if data[at : at + len(_HEX_PREFIX)] != _HEX_PREFIX:
        raise ValueError("a bytea that is not in bytea_output hex")
    at += len(_HEX_PREFIX)
    while at < end:
        after = min(at + PIECE_BYTES, end)
        yield a2b_hex(data[at:after])
        pause()
        at = after


def base64_pieces_of_hex(data: bytes, at: int, end: int) -> Iterator[bytes]:
    """Yield the base64 of the bytea whose text is `data[at:end]`. ValueError if the text is not in bytea_output hex."""
    for piece in bytes_pieces_of_hex(data, at, end):
        yield b2a_base64(piece, newline=False)


def escape_pieces(data: bytes, at: int, end: int) -> Iterator[bytes]:
    """Yield `data[at:end]` in pieces that do not end within an escape, which is a backslash and one more byte."""
    while at < end:
        after = min(at + PIECE_BYTES, end)
        piece = data[at:after]
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2 and after < end:
            after += 1
            piece = data[at:after]
        yield piece
        at = after
