"""Wire text: bytes held in a str, one character for each byte.

Rows become JSON as wire text: the frame is decoded once as Latin-1, which never fails and keeps offsets, its pieces
are put between fixed fragments, and the whole is encoded as Latin-1 again. So UTF-8 goes through untouched, ready
as JSON writers like Jackson give it (not escaped), and every step is one of CPython's quick ones for one-byte
strings. JSON's syntax is ASCII, and no byte of a multi-byte UTF-8 character is, so quoting is safe this way.

Whether the result is UTF-8 is checked at the end (`to_bytes`), and costs nothing where it is ASCII.
"""

from json.encoder import encode_basestring
from typing import Final

_ESCAPED: Final = bytes(range(0x20)) + b'"\\'
"""What JSON does not allow inside a string as it is (RFC 8259, 7)."""

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


def to_bytes(text: str) -> bytes:
    """The bytes of wire text; UnicodeDecodeError (a ValueError) when they are not UTF-8."""
    data = text.encode("latin-1")
    if not text.isascii():
        data.decode("utf-8")
    return data
