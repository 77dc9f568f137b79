"""A position in the write-ahead log in PostgreSQL's text form, such as `0/16B3748`."""

import re
from typing import Final, Self

from cdcd.core.errors import ProtocolError

LSN_MAX: Final = 2**64 - 1

_TEXT: Final = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})", re.ASCII)


class Lsn(int):
    """A byte position in the write-ahead log: an unsigned 64-bit number that prints as `high/low` in hex.

    An Lsn is an int, and arithmetic on it gives plain ints, because the distance between two positions is not a
    position. Code for single rows uses plain ints, and converts them only for messages. 0 is PostgreSQL's
    InvalidXLogRecPtr, "no position" (access/xlogdefs.h).
    """

    __slots__ = ()

    def __new__(cls, value: int = 0) -> Self:
        if not 0 <= value <= LSN_MAX:
            raise ValueError(f"an LSN is an unsigned 64-bit number, not {value}")
        return super().__new__(cls, value)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read pg_lsn's text form (pg_lsn_in in pg_lsn.c); raise ProtocolError for other text."""
        match = _TEXT.fullmatch(text)
        if match is None:
            raise ProtocolError(
                f"{text!r} is not an LSN",
                hint="An LSN is two hexadecimal numbers with a slash between them, such as 0/16B3748.",
            )
        return cls(int(match[1], 16) << 32 | int(match[2], 16))

    def __str__(self) -> str:
        return f"{int(self) >> 32:X}/{int(self) & 0xFFFFFFFF:X}"

    def __repr__(self) -> str:
        return f"Lsn({self})"

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)
