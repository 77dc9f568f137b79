"""A row in few bytes: each value as it stands in a record, or the hash of a long one.

A value of at most `SHORT` bytes is kept whole. Of a longer one, its SHA-256 (16 bytes of it), its length and its
beginning are kept, so that rows are compared and shown without being kept. The bytes begin with a tag, so that a row's
values need nothing between them:

| tag | what follows |
|---|---|
| 0 to 40 | so many bytes of JSON |
| 252 | nothing: the value is that of the row before this change |
| 253 | nothing: the value is in the row that had the former key, which is looked for at the end |
| 254 | nothing: the value was never sent |
| 255 | hash, length, beginning |
"""

from collections import defaultdict
from collections.abc import Sequence
from hashlib import blake2b, sha256
from typing import Final

SHORT: Final = 40
HASH_BYTES: Final = 16
SHOWN_BYTES: Final = 24
_LENGTH_BYTES: Final = 4
_LONG_BYTES: Final = 1 + HASH_BYTES + _LENGTH_BYTES + SHOWN_BYTES

_LONG: Final = 255
BEFORE: Final = b"\xfc"
MOVED: Final = b"\xfd"
UNSENT: Final = b"\xfe"
"""A placeholder that no earlier value of the row fills."""

NULL: Final = b"\x04null"

_TAGS: Final = [bytes([size]) for size in range(SHORT + 1)]


def pack(value: bytes) -> bytes:
    """A value of a record. Two values have the same bytes if and only if they are equal."""
    size = len(value)
    if size <= SHORT:
        return _TAGS[size] + value
    return (
        b"\xff"
        + sha256(value).digest()[:HASH_BYTES]
        + size.to_bytes(_LENGTH_BYTES, "big")
        + value[:SHOWN_BYTES]
    )


def pack_row(values: Sequence[bytes]) -> bytes:
    """All values of a row."""
    return b"".join([_TAGS[len(value)] + value if len(value) <= SHORT else pack(value) for value in values])


def split(packed: bytes) -> list[bytes]:
    """The values of a row, each packed."""
    found = []
    at = 0
    while at < len(packed):
        tag = packed[at]
        end = at + (1 + tag if tag <= SHORT else _LONG_BYTES if tag == _LONG else 1)
        found.append(packed[at:end])
        at = end
    return found


def shown(packed: bytes) -> str:
    """A value for a person."""
    if packed == UNSENT:
        return "(never sent)"
    if packed == MOVED:
        return "(in the row with the former key, which is not there)"
    if packed[0] <= SHORT:
        return packed[1:].decode(errors="replace")
    digest = packed[1 : 1 + HASH_BYTES].hex()[:12]
    size = int.from_bytes(packed[1 + HASH_BYTES : 1 + HASH_BYTES + _LENGTH_BYTES], "big")
    return f"{packed[-SHOWN_BYTES:].decode(errors='ignore')}… ({size} bytes, sha256 {digest})"


def key_hash(key: bytes) -> bytes:
    """What stands for a row's key. Its leading bits say in which range the row is."""
    return blake2b(key, digest_size=HASH_BYTES).digest()


def row_hash(key: bytes, packed: bytes) -> int:
    """What a row adds to the sum of its range."""
    return int.from_bytes(blake2b(packed, digest_size=HASH_BYTES, key=key).digest(), "big")


class RangeSums:
    """Sums of the hashes of rows, by ranges of the hash of their key: the same whatever the order of the rows.

    A sum, and not an exclusive or: two rows that are there twice do not cancel each other.
    """

    RANGES: Final = 1 << 12

    def __init__(self) -> None:
        self._sums: defaultdict[int, int] = defaultdict(int)
        self._counts: defaultdict[int, int] = defaultdict(int)

    def add(self, key: bytes, packed: bytes, count: int = 1) -> None:
        """So many rows with this key (its hash) and these values."""
        at = range_of(key)
        self._sums[at] += count * row_hash(key, packed)
        self._counts[at] += count

    @property
    def rows(self) -> int:
        return sum(self._counts.values())

    def differing(self, other: "RangeSums") -> list[int]:
        """The ranges whose rows are not the same."""
        return [
            at
            for at in range(self.RANGES)
            if self._sums.get(at, 0) != other._sums.get(at, 0)
            or self._counts.get(at, 0) != other._counts.get(at, 0)
        ]


def range_of(key: bytes) -> int:
    """The range of a key's hash: its first bits."""
    return key[0] << 4 | key[1] >> 4


def first_byte(at: int) -> int:
    """The first byte of the hashes in a range."""
    return at >> 4
