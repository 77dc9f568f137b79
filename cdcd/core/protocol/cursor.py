"""Conversion of wire bytes to numbers and strings, in one place.

A `Cursor` reads one message from front to back. It never reads past the end, and `finish` refuses remaining bytes,
so that a message of unknown form stops the daemon. Every error is a `ProtocolError` that names the message, the
field and the offset in the buffer.

Integers are big-endian, strings end with a zero byte and are UTF-8 (cdcd's connections set `client_encoding`):
manual, "Message Data Types".
"""

from struct import Struct
from typing import Final

from cdcd.core.errors import ProtocolError

HINT: Final = (
    "Nothing past it was confirmed. Either the bytes were damaged on the way (look for a proxy between cdcd"
    " and PostgreSQL), or the server speaks a form of pgoutput that this version of cdcd does not know."
)

_UINT16: Final = Struct("!H")
_INT32: Final = Struct("!i")
_UINT32: Final = Struct("!I")
_INT64: Final = Struct("!q")
_UINT64: Final = Struct("!Q")


class Cursor:
    """A read position in `data`, which belongs to the message called `message`."""

    __slots__ = ("data", "message", "offset")

    def __init__(self, data: bytes, message: str, offset: int = 0) -> None:
        self.data = data
        self.message = message
        self.offset = offset

    def error(self, field: str, problem: str, offset: int | None = None) -> ProtocolError:
        """Return the error for `field` at `offset`; None for the current offset."""
        at = self.offset if offset is None else offset
        return ProtocolError(f"{self.message}: field {field} at offset {at}: {problem}.", hint=HINT)

    def _advance(self, size: int, field: str) -> int:
        """Advance by `size` bytes, and return the former offset."""
        start = self.offset
        left = len(self.data) - start
        if size > left:
            raise self.error(field, f"{size} bytes expected, {left} left")
        self.offset = start + size
        return start

    def uint8(self, field: str) -> int:
        return self.data[self._advance(1, field)]

    def uint16(self, field: str) -> int:
        value: int = _UINT16.unpack_from(self.data, self._advance(2, field))[0]
        return value

    def int32(self, field: str) -> int:
        value: int = _INT32.unpack_from(self.data, self._advance(4, field))[0]
        return value

    def uint32(self, field: str) -> int:
        value: int = _UINT32.unpack_from(self.data, self._advance(4, field))[0]
        return value

    def int64(self, field: str) -> int:
        value: int = _INT64.unpack_from(self.data, self._advance(8, field))[0]
        return value

    def uint64(self, field: str) -> int:
        value: int = _UINT64.unpack_from(self.data, self._advance(8, field))[0]
        return value

    def xid(self, field: str) -> int:
        """Read a transaction id; 0 (InvalidTransactionId) is an error."""
        value = self.uint32(field)
        if value == 0:
            raise self.error(field, "0 is no transaction id", self.offset - 4)
        return value

    def set_lsn(self, field: str) -> int:
        """Read an LSN that must be set, as proto.c's reader demands ("… not set in … message")."""
        value = self.uint64(field)
        if value == 0:
            raise self.error(field, "the LSN is not set", self.offset - 8)
        return value

    def flags(self, field: str, known: int) -> int:
        """Read one byte of flags; a bit outside `known` is an error, as in proto.c ("unrecognized flags")."""
        value = self.uint8(field)
        if value & ~known:
            raise self.error(field, f"unrecognized flags {value:#04x}", self.offset - 1)
        return value

    def boolean(self, field: str) -> bool:
        """Read one byte that is 0 or 1."""
        value = self.uint8(field)
        if value > 1:
            raise self.error(field, f"{value} is neither 0 nor 1", self.offset - 1)
        return value == 1

    def sized(self, field: str) -> bytes:
        """Read an Int32 length, and return as many bytes."""
        start = self.pass_sized(field)
        return self.data[start : self.offset]

    def pass_sized(self, field: str) -> int:
        """Skip an Int32 length and as many bytes. Return the offset of the bytes."""
        size = self.int32(field)
        if size < 0:
            raise self.error(field, f"the length {size} is negative", self.offset - 4)
        return self._advance(size, field)

    def string(self, field: str) -> str:
        start = self.offset
        end = self.data.find(b"\0", start)
        if end < 0:
            raise self.error(field, "the string has no end")
        self.offset = end + 1
        try:
            return self.data[start:end].decode("utf-8")
        except UnicodeDecodeError as error:
            problem = f"not UTF-8: {error.reason}"
            raise self.error(field, problem, start + error.start) from None

    def rest(self) -> bytes:
        """Return all remaining bytes."""
        start = self.offset
        self.offset = len(self.data)
        return self.data[start:]

    def finish(self) -> None:
        """Refuse bytes after the last field."""
        left = len(self.data) - self.offset
        if left:
            raise self.error("end", f"{left} bytes left over")
