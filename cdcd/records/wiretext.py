"""Wire text: bytes held in a str, one character for each byte.

Values that need more than a copy become JSON as wire text: they are decoded as Latin-1, which never fails and keeps
offsets, and what was made of them is encoded as Latin-1 again. So UTF-8 goes through untouched, ready as JSON writers
like Jackson give it (not escaped). JSON's syntax is ASCII, and no byte of a multi-byte UTF-8 character is, so quoting
is safe this way, and may look at bytes alone.

Whether a record is UTF-8 is checked at the end (`checked`), and costs nothing where it is ASCII.
"""

import re
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, Final

from cdcd.protocol.peek import COMPILED

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


def wire(text: str) -> str:
    """The wire text of `text`, that is of its UTF-8."""
    return text.encode("utf-8").decode("latin-1")


def quote(text: str) -> str:
    """The JSON string of wire text: quotes, backslashes and control characters escaped, nothing else."""
    if len(text) <= SHORT or len(text.encode("latin-1").translate(None, _ESCAPED)) != len(text):
        return encode_basestring(text)
    return f'"{text}"'


def escaped(value: bytes) -> bytes:
    """What stands between the quotes of a JSON string: as `quote`, for bytes and without its quotes."""
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


def checked(data: bytes) -> bytes:
    """`data`; UnicodeDecodeError (a ValueError) when it is not UTF-8."""
    if not data.isascii():
        data.decode("utf-8")
    return data


def to_bytes(text: str) -> bytes:
    """The bytes of wire text; UnicodeDecodeError (a ValueError) when they are not UTF-8."""
    return checked(text.encode("latin-1"))
