"""Compact form of a row: each value as it is in a record, or the hash of a long value.

A value of at most `SHORT` bytes is stored whole. For a longer value, half of its SHA-256, its length and its
beginning are stored, so rows are compared and shown without being stored. A zero byte separates two values. JSON
contains no zero byte, and no value begins with one of these bytes:

| byte | what follows |
|---|---|
| 252 | nothing: the value is that of the row before this change |
| 253 | nothing: the value is in the row that had the former key, which is looked for at the end |
| 254 | nothing: the value was never sent |
| 255 | hash in hexadecimal digits, a blank, length in decimal digits, a blank, beginning |
"""

from collections import defaultdict
from collections.abc import Sequence
from hashlib import blake2b, sha256
from typing import Final

SHORT: Final = 40
HASH_BYTES: Final = 16
SHOWN_BYTES: Final = 24

_LONG: Final = b"\xff"
BEFORE: Final = b"\xfc"
MOVED: Final = b"\xfd"
UNSENT: Final = b"\xfe"
"""Mark of a placeholder for which the row has no earlier value."""

NULL: Final = b"null"


def pack(value: bytes) -> bytes:
    """Return the packed form of a record's value.

    Two values have the same packed form if and only if they are equal.
    """
    if len(value) <= SHORT:
        return value
    digest = sha256(value).hexdigest()[: 2 * HASH_BYTES].encode()
    return b"\xff%b %d %b" % (digest, len(value), value[:SHOWN_BYTES])


def pack_row(values: Sequence[bytes]) -> bytes:
    """Return the packed form of a row."""
    if values and max(map(len, values)) > SHORT:
        values = [pack(value) for value in values]
    return join(values)


def join(packed: Sequence[bytes]) -> bytes:
    """Join packed values to a packed row."""
    return b"\0".join(packed)


def split(packed: bytes) -> list[bytes]:
    """Return the packed values of a row."""
    return packed.split(b"\0") if packed else []


def shown(packed: bytes) -> str:
    """Return a value as text for the operator."""
    if packed == UNSENT:
        return "(never sent)"
    if packed == MOVED:
        return "(in the row with the former key, which is not there)"
    if not packed.startswith(_LONG):
        return packed.decode(errors="replace")
    digest, size, beginning = packed[1:].split(b" ", 2)
    return f"{beginning.decode(errors='ignore')}… ({size.decode()} bytes, sha256 {digest[:12].decode()})"


def key_hash(key: bytes) -> bytes:
    """Return the hash of a row's key. Its leading bits determine the range of the row."""
    return blake2b(key, digest_size=HASH_BYTES).digest()


def row_hash(key: bytes, packed: bytes) -> int:
    """Return the number that a row adds to the sum of its range.

    `key` is the hash of its key, which has a fixed length.
    """
    return int.from_bytes(blake2b(key + packed, digest_size=HASH_BYTES).digest(), "big")


class RangeSums:
    """Sums of the hashes of rows, by ranges of the hash of their key; the order of the rows does not matter.

    They are sums and not exclusive ors, so two equal rows do not cancel each other.
    """

    RANGES: Final = 1 << 12

    def __init__(self) -> None:
        self._sums: defaultdict[int, int] = defaultdict(int)
        self._counts: defaultdict[int, int] = defaultdict(int)

    def add(self, key: bytes, packed: bytes, count: int = 1) -> None:
        """Add `count` rows with this hash of the key and these values."""
        at = range_of(key)
        self._sums[at] += count * row_hash(key, packed)
        self._counts[at] += count

    @property
    def rows(self) -> int:
        return sum(self._counts.values())

    def differing(self, other: "RangeSums") -> list[int]:
        """Return the ranges whose rows differ."""
        return [
            at
            for at in range(self.RANGES)
            if self._sums.get(at, 0) != other._sums.get(at, 0)
            or self._counts.get(at, 0) != other._counts.get(at, 0)
        ]


def range_of(key: bytes) -> int:
    """Return the range of a key's hash: its first bits."""
    return key[0] << 4 | key[1] >> 4


def first_byte(at: int) -> int:
    """Return the first byte of the hashes in a range."""
    return at >> 4
