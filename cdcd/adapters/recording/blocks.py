"""The form of a segment: a head, then compressed blocks, each with a checksum that continues the one before it. The
contents of a block are a list of items, which one call in C writes as bytes.

An item is an event from `events.py`: bytes, or a tuple of values. Frequent events are tuples, because a tuple costs
nothing until its block is full. Then `marshal.dumps` writes all items in version 2 of its format, which has no
references between objects. This module reads the format itself, because `marshal` must not read untrusted bytes:

```
"[" or "(" number u32, so many values   list, tuple
"s" number u32, the bytes               bytes
"g" f64                                 float
"i" i32                                 int of 32 bits
"l" number i32, so many u16             another int, by digits of 15 bits, the lowest first
```

The number of digits is negative if the int is negative.

All numbers are little-endian.

```
head   magic "cdcdrec3", number u64, LSN u64, Unix time in µs i64, kind u8, crc32 u32
block  "CBLK", bytes u32, bytes when decompressed u32, crc32 u32, pieces
piece  bytes u32, the bytes: 64 KiB (the last one: what is left), compressed by LZ4
end    a block of 0 bytes: the segment was closed in good order
```

The rule: an altered segment is refused, and a torn segment is read up to the tear. The checksum of a block starts
from that of the block before it, and the first block's from the head's. So a block that was altered, removed,
duplicated or moved, also to another segment, is detected at its position. A file that ends within a block, or
without an end block, is torn, because the process was killed. No block is used before its checksum is verified.
"""

import marshal
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Any, BinaryIO, Final, Literal

from cdcd.core.errors import ProtocolError


class RecordingError(ProtocolError):
    """A recording is altered, incomplete, or of a form that this version does not read."""


def altered(path: Path, offset: int, what: str) -> RecordingError:
    """Return the error for a file whose contents were changed after writing."""
    return RecordingError(
        f"Segment {path}, offset {offset}: {what}.",
        hint="The file was altered or damaged after it was written. Replay the segments before it (--to), or get "
        "another copy of the recording.",
    )


Item = bytes | tuple[Any, ...]
"""An encoded event, or the values of an event that is not encoded."""

_VERSION: Final = 2
_DEPTH_MAX: Final = 3
"""Maximum depth: the list of items, an item, and its frames."""

_LIST, _TUPLE, _STRING, _FLOAT, _SHORT, _LONG = b"[(sgil"

_COUNT: Final = Struct("<I")
_SIGNED: Final = Struct("<i")
_DOUBLE: Final = Struct("<d")
_DIGIT_BITS: Final = 15
_DIGITS_MAX: Final = 8
"""Maximum digits of a number, because numbers in a recording have at most 64 bits."""


def size_of(item: Item) -> int:
    """Return the bytes of the item's frames or of its encoded event. Other items are small and count 0."""
    if isinstance(item, bytes):
        return len(item)
    return sum(map(len, item[1])) if len(item) == 2 else 0


def pack(items: list[Item]) -> bytes:
    """Return the bytes of a block that contains these items."""
    return marshal.dumps(items, _VERSION)


def unpack(data: bytes) -> list[Item]:
    """Return the items of a block. RecordingError: the block contains other data."""
    try:
        items, end = _read(data, 0, _DEPTH_MAX)
    except (struct.error, IndexError):
        raise RecordingError("A recorded event ends too early.") from None
    if type(items) is not list or end != len(data) or not all(type(item) in {bytes, tuple} for item in items):
        raise RecordingError("A block holds no list of events.")
    return items


def _read(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    """Return the value that begins at `at`, and the offset of its end."""
    kind = data[at]
    at += 1
    if kind == _STRING:
        begin = at + 4
        end = begin + _COUNT.unpack_from(data, at)[0]
        if end > len(data):
            raise RecordingError("A recorded event ends too early.")
        return data[begin:end], end
    if kind == _FLOAT:
        return _DOUBLE.unpack_from(data, at)[0], at + 8
    if kind == _SHORT:
        return _SIGNED.unpack_from(data, at)[0], at + 4
    if kind == _LONG:
        return _read_long(data, at)
    if kind not in (_LIST, _TUPLE) or not depth:
        raise RecordingError("A recorded event is not of its form.")
    count = _COUNT.unpack_from(data, at)[0]
    at += 4
    values = []
    for _ in range(count):
        value, at = _read(data, at, depth - 1)
        values.append(value)
    return values if kind == _LIST else tuple(values), at


def _read_long(data: bytes, at: int) -> tuple[int, int]:
    count = _SIGNED.unpack_from(data, at)[0]
    if abs(count) > _DIGITS_MAX:
        raise RecordingError("A number in a recording is too large.")
    digits = struct.unpack_from(f"<{abs(count)}H", data, at + 4)
    value = sum(digit << _DIGIT_BITS * place for place, digit in enumerate(digits))
    return value if count >= 0 else -value, at + 4 + 2 * abs(count)


MAGIC: Final = b"cdcdrec3"
BLOCK: Final = b"CBLK"

Kind = Literal["s", "c", "m"]
"""How a segment begins. `s`: with a session. `c`: between transactions, without pending data, so that a replay can
begin here. `m`: in the middle of a transaction."""

_HEAD: Final = Struct("<8sQQqB")
_BLOCK: Final = Struct("<4sIII")
_PIECE: Final = Struct("<I")
_CRC: Final = Struct("<I")

HEAD_BYTES: Final = _HEAD.size + _CRC.size

_RATIO_MAX: Final = 256
"""Maximum ratio of decompressed to compressed bytes: LZ4 produces at most 255 bytes from one. A block with a higher
ratio was not written by cdcd."""

_ACCELERATION: Final = 8
"""Acceleration of LZ4: less work than with 1, for 5 % more bytes."""

_PIECE_BYTES: Final = 1 << 16
"""Bytes that LZ4 compresses at a time. LZ4 keeps a table of positions in the data. Up to this size, an entry of the
table takes two bytes, and LZ4 needs 11 % less time than with four bytes."""


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a segment; every commit in the segment is at or after `lsn`."""

    number: int
    lsn: int
    unix_us: int
    kind: Kind

    def encode(self) -> bytes:
        """Return the first bytes of the file."""
        return self._fields() + _CRC.pack(self.checksum)

    @property
    def checksum(self) -> int:
        """Checksum of the head. The checksum of the first block starts from it."""
        return zlib.crc32(self._fields())

    def _fields(self) -> bytes:
        return _HEAD.pack(MAGIC, self.number, self.lsn, self.unix_us, ord(self.kind))

    @property
    def can_begin(self) -> bool:
        """True if a replay can begin with this segment."""
        return self.kind != "m"


def read_head(data: bytes, path: Path) -> Head | None:
    """Return the head of a segment; None if the process was killed before it was written.

    RecordingError: the head is altered.
    """
    if len(data) < HEAD_BYTES:
        return None
    magic, number, lsn, unix_us, kind = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise RecordingError(
            f"{path} is not a segment of a recording, or has the form of another version of cdcd.",
            hint="Give the folder of a recording, and use the version of cdcd that recorded.",
        )
    if _CRC.unpack_from(data, _HEAD.size)[0] != zlib.crc32(data[: _HEAD.size]):
        raise altered(path, 0, "the checksum of its head is wrong")
    if chr(kind) not in {"s", "c", "m"}:
        raise altered(path, 0, f"{kind} is not a kind of segment")
    found: Any = chr(kind)
    return Head(number, lsn, unix_us, found)


def compressed(data: bytes | bytearray) -> bytes:
    """Return `data` as the pieces of a block; no bytes if `data` is empty."""
    from lz4.block import compress  # noqa: PLC0415  only a daemon that records needs it

    view = memoryview(data)
    parts: list[bytes] = []
    for at in range(0, len(view), _PIECE_BYTES):
        piece = view[at : at + _PIECE_BYTES]
        packed = compress(piece, mode="fast", acceleration=_ACCELERATION, store_size=False)
        parts += (_PIECE.pack(len(packed)), packed)
    return b"".join(parts)


def _decompressed(packed: bytes, size: int) -> bytes:
    """Return the `size` bytes of data in `packed`. ValueError: `packed` does not contain `size` bytes of data."""
    from lz4.block import LZ4BlockError, decompress  # noqa: PLC0415  see above

    parts = []
    at = 0
    try:
        for left in range(size, 0, -_PIECE_BYTES):
            (length,) = _PIECE.unpack_from(packed, at)
            at += _PIECE.size
            parts.append(decompress(packed[at : at + length], uncompressed_size=min(left, _PIECE_BYTES)))
            at += length
    except (LZ4BlockError, struct.error) as error:
        raise ValueError(str(error)) from None
    data = b"".join(parts)
    if at != len(packed) or len(data) != size:
        raise ValueError("its sizes do not fit its pieces")
    return data


class BlockWriter:
    """Writer of the blocks of one segment."""

    def __init__(self, head: Head) -> None:
        self._crc = head.checksum

    def block(self, data: bytes | bytearray) -> bytes:
        """Return the bytes of a block that contains `data`; empty `data` gives the end block."""
        return b"".join(self.parts(data))

    def parts(self, data: bytes | bytearray) -> tuple[bytes, bytes]:
        """Return the head of such a block, and its pieces. Writing both separately saves a copy."""
        packed = compressed(data)
        return self.head_of(packed, len(data)), packed

    def head_of(self, packed: bytes, size: int) -> bytes:
        """Return the head of a block.

        Args:
            packed: pieces of the block, from `compressed`.
            size: bytes of the data before compression.
        """
        self._crc = zlib.crc32(packed, zlib.crc32(_sizes(len(packed), size), self._crc))
        return _BLOCK.pack(BLOCK, len(packed), size, self._crc)


class BlockReader:
    """Reader of the blocks of one segment.

    Attributes:
        torn_at: offset of the tear, after everything before it was read; None: the segment is whole.
        offset: offset of the block that was read last.
    """

    def __init__(self, file: BinaryIO, path: Path, head: Head) -> None:
        self.torn_at: int | None = None
        self.offset = HEAD_BYTES
        self._file = file
        self._path = path
        self._crc = head.checksum

    def blocks(self) -> Iterator[bytes]:
        """Yield the data of each block. RecordingError: a block is altered."""
        file, at = self._file, HEAD_BYTES
        while True:
            self.offset = at
            head = file.read(_BLOCK.size)
            if len(head) < _BLOCK.size:
                self.torn_at = at
                return
            magic, size, data_size, crc = _BLOCK.unpack(head)
            if magic != BLOCK or data_size > size * _RATIO_MAX:
                raise altered(self._path, at, "no block begins there")
            packed = file.read(size)
            if len(packed) < size:
                self.torn_at = at
                return
            self._crc = zlib.crc32(packed, zlib.crc32(_sizes(size, data_size), self._crc))
            if crc != self._crc:
                raise altered(self._path, at, "the checksum of the block is wrong")
            at += len(head) + size
            if not size:
                if file.read(1):
                    raise altered(self._path, at, "something follows the end of the segment")
                return
            try:
                data = _decompressed(packed, data_size)
            except ValueError as error:
                raise altered(self._path, self.offset, f"the block cannot be decompressed: {error}") from None
            yield data


def _sizes(packed: int, data: int) -> bytes:
    return packed.to_bytes(4, "little") + data.to_bytes(4, "little")
