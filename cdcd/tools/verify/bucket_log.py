"""Entries on disk that are read by their first bytes, one part at a time.

An entry begins with a hash, and all entries with the same hash are in one part, in the order in which they were
added. So a reader of a part has all entries of its hashes, and no entry is ever looked up. The disk gets pieces
that are written sequentially and read once.

A part consists of the entries of a group with the same first byte. A part larger than `PART_BYTES` is split by the
second byte, and so on.
"""

import os
import struct
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Final

from cdcd.core.errors import LimitError
from cdcd.tools.verify.values import HASH_BYTES

PREFIX: Final = struct.Struct(f">{HASH_BYTES}sI")
"""Head of an entry: its hash, and its total size in bytes."""

WAITING_BYTES: Final = 16 << 20
"""Bytes that wait in memory before they are written."""

PART_BYTES: Final = 8 << 20
DEPTH_MAX: Final = 4
"""Maximum number of bytes of the hash by which a part is split. A part that is still larger has many entries of few
hashes, so further bytes would not split it."""

_WRITE_BYTES: Final = 1 << 20
"""Bytes that are written at a time."""

Chunks = Iterator[bytes]
"""Consecutive entries; no entry is split between two chunks."""

_EVERY: Final = range(256)
_PIECE: Final = struct.Struct(">QI")
"""Head of each piece of a bucket in the file: offset and size of the piece before it; size 0: there is none."""


class BucketLog:
    """Entries of several groups, in a temporary file without a name. The caller owes `close`.

    Args:
        depth: index of the hash byte that selects the bucket.
        waiting_bytes: bytes that wait in memory before they are written; None: `WAITING_BYTES`.
    """

    def __init__(self, folder: Path, depth: int = 0, waiting_bytes: int | None = None) -> None:
        self._file: IO[bytes] | None = None
        self._folder = folder
        self._depth = depth
        self._limit = waiting_bytes
        self._waiting: dict[int, bytearray] = {}
        self._waiting_bytes = 0
        self._last: dict[int, tuple[int, int]] = {}
        self._sizes: dict[int, int] = {}
        self._end = 0

    def close(self) -> None:
        """Remove all entries. Idempotent."""
        if self._file is not None:
            self._file.close()
        self._waiting.clear()
        self._waiting_bytes = 0

    @property
    def size(self) -> int:
        """Bytes of all entries that were added."""
        return self._end + self._waiting_bytes

    def add(self, group: int, entry: bytes) -> None:
        """Add an entry, which begins with a `PREFIX`."""
        bucket = group << 8 | entry[self._depth]
        waiting = self._waiting.get(bucket)
        if waiting is None:
            self._waiting[bucket] = bytearray(entry)
        else:
            waiting += entry
        self._waiting_bytes += len(entry)
        if self._waiting_bytes >= (self._limit or WAITING_BYTES):
            self._write()

    def _write(self) -> None:
        try:
            self._append()
        except OSError as error:
            raise not_kept(self._folder, error.strerror) from None

    def _append(self) -> None:
        if self._file is None:
            # The file has no name, so it disappears with the process, however the process ends.
            self._file = TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115  `close` closes it
        pieces: list[bytes | bytearray] = []
        size = 0
        for bucket in sorted(self._waiting):
            data = self._waiting[bucket]
            pieces += (_PIECE.pack(*self._last.get(bucket, (0, 0))), data)
            self._last[bucket] = (self._end, len(data))
            self._sizes[bucket] = self._sizes.get(bucket, 0) + len(data)
            self._end += _PIECE.size + len(data)
            size += _PIECE.size + len(data)
            if size >= _WRITE_BYTES:
                _write_all(self._file, b"".join(pieces))
                pieces, size = [], 0
        _write_all(self._file, b"".join(pieces))
        self._waiting.clear()
        self._waiting_bytes = 0

    def _bytes(self, bucket: int) -> int:
        return self._sizes.get(bucket, 0) + len(self._waiting.get(bucket, b""))

    def _chunks(self, bucket: int) -> Chunks:
        """Yield everything that was added to the bucket so far; the bucket may grow meanwhile."""
        waiting = bytes(self._waiting.get(bucket, b""))
        if self._file is not None:
            number = self._file.fileno()
            at, size = self._last.get(bucket, (0, 0))
            pieces = []
            while size:
                pieces.append((at + _PIECE.size, size))
                at, size = _PIECE.unpack(os.pread(number, _PIECE.size, at))
            for at, size in reversed(pieces):
                yield os.pread(number, size, at)
        if waiting:
            yield waiting

    def _split(self, bucket: int) -> "BucketLog":
        """Return a bucket's entries, in buckets by the next byte of the hash."""
        found = BucketLog(self._folder, self._depth + 1)
        for data in self._chunks(bucket):
            at = 0
            while at < len(data):
                _, size = PREFIX.unpack_from(data, at)
                found.add(0, data[at : at + size])
                at += size
        return found


def entries(chunks: Chunks, head: struct.Struct) -> Iterator[tuple[tuple[Any, ...], bytes]]:
    """Yield the fields of each entry's head, and the bytes after the head.

    Args:
        head: format of the entries' heads; its first two fields are those of `PREFIX`.
    """
    for data in chunks:
        at = 0
        while at < len(data):
            members = head.unpack_from(data, at)
            yield members, data[at + head.size : at + members[1]]
            at += members[1]


def not_kept(folder: Path, reason: str | None) -> LimitError:
    """Return the error for rows that cannot be stored in the folder."""
    return LimitError(
        f"The rows of the topics cannot be kept in {folder}: {reason}.",
        hint="Free space there, or name another folder (--directory). They take about as much as the values of the "
        "tables, with at most 80 bytes for each value.",
    )


def _write_all(file: IO[bytes], data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]


def parts(
    logs: Sequence[BucketLog], group: int, first_bytes: Collection[int] = _EVERY
) -> Iterator[tuple[Chunks, ...]]:
    """Yield the parts of a group, with the entries of each log in them.

    Args:
        first_bytes: first bytes of the wanted hashes.
    """
    for first in first_bytes:
        bucket = group << 8 | first
        size = sum([log._bytes(bucket) for log in logs])
        if size > PART_BYTES and logs[0]._depth + 1 < DEPTH_MAX:
            with ExitStack() as stack:
                split = [stack.enter_context(closing(log._split(bucket))) for log in logs]
                yield from parts(split, 0)
        elif size:
            yield tuple([log._chunks(bucket) for log in logs])
