"""Entries on disk that are read by the bytes with which they begin, a part of them at a time.

An entry begins with a hash, and everything of one hash is in one part, in the order in which it was added. So whoever
reads a part has all that there is of its hashes, and nothing is ever looked up. A disk sees pieces that are written one
after the other, and that are read once.

A part is the entries of a group whose first byte is the same. One that is larger than `PART_BYTES` is read by its
second byte too, and so on.
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
"""How an entry begins: its hash, and how many bytes it has in all."""

WAITING_BYTES: Final = 16 << 20
"""What waits in memory before it is written."""

PART_BYTES: Final = 8 << 20
DEPTH_MAX: Final = 4
"""Largest number of bytes of the hash by which a part is split. A part that is still larger has many entries of few
hashes, so more bytes would not split it."""

_WRITE_BYTES: Final = 1 << 20
"""Bytes that are written at a time."""

Chunks = Iterator[bytes]
"""Entries side by side; none is in two chunks."""

_EVERY: Final = range(256)
_PIECE: Final = struct.Struct(">QI")
"""Before each piece of a bucket in the file: where the piece before it begins, and how long that is; 0: there is
none."""


class BucketLog:
    """Entries of several groups, in a file without a name. The caller owes `close`.

    Args:
        depth: by which byte of the hash the buckets are told apart.
        waiting_bytes: that wait in memory before they are written; None: `WAITING_BYTES`.
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
        """Forget everything. Idempotent."""
        if self._file is not None:
            self._file.close()
        self._waiting.clear()
        self._waiting_bytes = 0

    @property
    def size(self) -> int:
        """Bytes that were added."""
        return self._end + self._waiting_bytes

    def add(self, group: int, entry: bytes) -> None:
        """Add an entry, which begins as `PREFIX` says."""
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
            # Without a name, the file is gone with the process, however that ends.
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
        """What was added so far, also to a bucket that gets more meanwhile."""
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
        """A bucket's entries, in buckets by the next byte."""
        found = BucketLog(self._folder, self._depth + 1)
        for data in self._chunks(bucket):
            at = 0
            while at < len(data):
                _, size = PREFIX.unpack_from(data, at)
                found.add(0, data[at : at + size])
                at += size
        return found


def entries(chunks: Chunks, head: struct.Struct) -> Iterator[tuple[tuple[Any, ...], bytes]]:
    """The members of each entry's head, and the bytes that follow the head.

    Args:
        head: how the entries begin; its first two members are those of `PREFIX`.
    """
    for data in chunks:
        at = 0
        while at < len(data):
            members = head.unpack_from(data, at)
            yield members, data[at + head.size : at + members[1]]
            at += members[1]


def not_kept(folder: Path, reason: str | None) -> LimitError:
    """The rows cannot be kept in the folder."""
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
    """The parts of a group, with the entries that each log has in them.

    Args:
        first_bytes: of the hashes that are wanted.
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
