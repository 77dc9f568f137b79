"""Store of undecided transactions: in memory up to a limit, then in one file for all, which reuses its space.

The rule: the file is never larger than the maximum of bytes that were stored at the same time. It grows only if no
part of it is free, is truncated if its end is free, and is closed when it is empty. So one descriptor is enough for
any number of transactions, and the limit for the stored bytes also limits the file.

Space is allocated in units. The bytes of a part lie in several extents, each a run of units, in the order of
writing; the last unit has room for later bytes. The file has no name (`O_TMPFILE`), so a killed process leaves no
file.

The rule: memory is bounded, whatever the size and number of open transactions, and disk usage too, with a clear
error. Frames and drafts are kept in their order of arrival, in lists of a bounded size; a transaction's contents on
disk precede its contents in memory. When the memory limit is exceeded, the largest transaction's contents in memory
move to the file, as in `reorderbuffer.c` (`ReorderBufferLargestTXN`), so that the many small and short-lived
transactions stay in memory.

A list is written to the file by `marshal`, with its length before it: one call restores all its byte strings, which
matters because a replay delays the consumer. Only this process uses the file (`spool.py`), and a restart
receives every open transaction from its beginning anyway.
"""

import errno
import marshal
import os
import tempfile
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import IO, Final, Protocol

from cdcd.core.errors import LimitError, out_of_files
from cdcd.core.transactions.drafts import SpoolItem, memory_bytes

UNIT_BYTES: Final = 4096
"""Bytes of the smallest allocation: a block of most file systems."""


class SpoolPart:
    """Stored bytes of one transaction.

    Attributes:
        size: number of its bytes.
        extents: first unit and number of units of each extent.
        begins: number of its bytes before each extent.
        units: number of units in all extents.
    """

    def __init__(self) -> None:
        self.size = 0
        self.extents: list[tuple[int, int]] = []
        self.begins: list[int] = []
        self.units = 0

    def add(self, first: int, units: int) -> None:
        """Append units to the part."""
        if self.extents and sum(self.extents[-1]) == first:
            self.extents[-1] = (self.extents[-1][0], self.extents[-1][1] + units)
        else:
            self.begins.append(self.units * UNIT_BYTES)
            self.extents.append((first, units))
        self.units += units

    def pieces(self, at: int, size: int) -> list[tuple[int, int]]:
        """Return the file's (offset, length) pairs for `size` bytes of the part from `at` on."""
        found: list[tuple[int, int]] = []
        index = bisect_right(self.begins, at) - 1
        while size:
            first, units = self.extents[index]
            inside = at - self.begins[index]
            length = min(size, units * UNIT_BYTES - inside)
            found.append((first * UNIT_BYTES + inside, length))
            at += length
            size -= length
            index += 1
        return found


class SpoolFile:
    """The file, with its free units."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._file: IO[bytes] | None = None
        self._units = 0
        self._free: list[tuple[int, int]] = []

    @property
    def allocated_bytes(self) -> int:
        """Size of the file in bytes, including free parts."""
        return self._units * UNIT_BYTES

    def append(self, part: SpoolPart, data: bytes) -> None:
        """Append `data` to the part. OSError: the part stays unchanged."""
        file = self._file
        if file is None:
            file = self._file = tempfile.TemporaryFile(  # noqa: SIM115  open until nothing is kept
                dir=self._directory, prefix="cdcd-", buffering=0
            )
        self._reserve(part, -(-(part.size + len(data)) // UNIT_BYTES))
        done = 0
        for offset, length in part.pieces(part.size, len(data)):
            _write_all(file.fileno(), data[done : done + length], offset)
            done += length
        part.size += len(data)

    def read(self, part: SpoolPart, at: int, size: int) -> bytes:
        """Return bytes of the part from `at` on; fewer if the file was truncated by others."""
        assert self._file is not None
        pieces = [_read_all(self._file.fileno(), offset, length) for offset, length in part.pieces(at, size)]
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def free(self, part: SpoolPart) -> None:
        """Free the part's space."""
        for first, units in part.extents:
            self._release(first, units)
        if self._free and sum(self._free[-1]) == self._units:
            self._units = self._free.pop()[0]
            if self._file is not None:
                os.ftruncate(self._file.fileno(), self._units * UNIT_BYTES)
        if not self._units and self._file is not None:
            self._file.close()
            self._file = None

    def _reserve(self, part: SpoolPart, units: int) -> None:
        """Allocate units until the part has `units` units: the first free ones, then new ones."""
        while part.units < units:
            wanted = units - part.units
            if self._free:
                first, number = self._free[0]
                taken = min(number, wanted)
                if taken == number:
                    del self._free[0]
                else:
                    self._free[0] = (first + taken, number - taken)
            else:
                first, taken = self._units, wanted
                self._units += taken
            part.add(first, taken)

    def _release(self, first: int, units: int) -> None:
        """Add units to the free ones, which are in ascending order and never adjacent."""
        free = self._free
        at = bisect_left(free, (first, 0))
        if at < len(free) and first + units == free[at][0]:
            units += free.pop(at)[1]
        if at and sum(free[at - 1]) == first:
            at -= 1
            before, number = free.pop(at)
            first, units = before, number + units
        free.insert(at, (first, units))


def _write_all(descriptor: int, data: bytes, offset: int) -> None:
    """Write all data; a full file system or a signal may cause partial writes."""
    done = os.pwrite(descriptor, data, offset)
    while done < len(data):
        done += os.pwrite(descriptor, data[done:], offset + done)


def _read_all(descriptor: int, offset: int, size: int) -> bytes:
    data = os.pread(descriptor, size, offset)
    while 0 < len(data) < size:
        more = os.pread(descriptor, size - len(data), offset + len(data))
        if not more:
            break
        data += more
    return data


FRAME_BYTES: Final = 48
"""Bytes of memory for a frame, or a part of a draft, besides its contents: object head, list entry, malloc's
rounding."""

REPLAY_BYTES: Final = 262_144
"""Approximate bytes that are read and passed on at a time, at most one frame or draft more."""

WRITE_BYTES: Final = 1_048_576
"""Bytes of a piece that a transaction on disk appends at a time; smaller if memory is short."""

_LENGTH_BYTES: Final = 8

_MARSHAL_VERSION: Final = 2
"""Version without references to earlier objects, which are useless here."""


class Cipher(Protocol):
    """Encrypts data for the disk, so that a value that is protected in the topics is not stored in clear text.

    It is a Protocol, because its implementation is not compiled and cannot inherit from a compiled class.
    """

    def seal(self, block: bytes) -> bytes:
        """Return the ciphertext of a block, for `open`."""

    def open(self, sealed: bytes) -> bytes:
        """Return the block from the ciphertext of `seal`."""


class _Transaction:
    def __init__(self) -> None:
        self.lists: list[list[SpoolItem]] = []
        self.last_bytes = 0
        self.memory_bytes = 0
        self.on_disk = SpoolPart()


class Spool:
    """Frames and drafts by top-level xid.

    Args:
        directory: folder of the file, which must exist and be writable.
        memory_bytes_max: bytes in memory above which contents move to disk.
        disk_bytes_max: bytes on disk above which `LimitError` is raised; None: the free space of the file system.
        cipher: encrypts the contents of the file; None: no encryption.
    """

    def __init__(
        self,
        directory: str,
        memory_bytes_max: int,
        disk_bytes_max: int | None = None,
        cipher: Cipher | None = None,
    ) -> None:
        self._cipher = cipher
        self._directory = directory
        self._memory_bytes_max = memory_bytes_max
        self._disk_bytes_max = disk_bytes_max
        self._transactions: dict[int, _Transaction] = {}
        self._file = SpoolFile(directory)
        self.memory_bytes = 0
        self.disk_bytes = 0

    def __contains__(self, xid: int) -> bool:
        return xid in self._transactions

    def __len__(self) -> int:
        return len(self._transactions)

    def open(self, xid: int) -> None:
        """Begin to store transaction `xid`."""
        assert xid not in self._transactions, f"transaction {xid} is open already"
        self._transactions[xid] = _Transaction()

    def append(self, xid: int, frame: bytes) -> None:
        """Store one frame; see `extend`."""
        self.extend(xid, [frame])

    def extend(self, xid: int, kept: list[SpoolItem]) -> None:
        """Store the frames and drafts that were received together.

        Raises:
            LimitError: the disk is full, or `disk_bytes_max` is reached.
        """
        transaction = self._transactions[xid]
        lists, last_bytes = transaction.lists, transaction.last_bytes
        before = self.memory_bytes
        for one in kept:
            size = FRAME_BYTES + len(one) if isinstance(one, bytes) else memory_bytes(one)
            last_bytes += size
            if not lists or last_bytes > REPLAY_BYTES:
                lists.append([])
                last_bytes = size
            lists[-1].append(one)
            self.memory_bytes += size
        transaction.last_bytes = last_bytes
        transaction.memory_bytes += self.memory_bytes - before
        if transaction.on_disk.size and transaction.memory_bytes >= WRITE_BYTES:
            self._spill(xid)
        if self.memory_bytes > self._memory_bytes_max:
            self._spill(max(self._transactions, key=self._memory_of))

    def drop(self, xid: int) -> None:
        """Remove a transaction and free its space."""
        transaction = self._transactions.pop(xid)
        self.memory_bytes -= transaction.memory_bytes
        self.disk_bytes -= transaction.on_disk.size
        self._file.free(transaction.on_disk)

    def close(self) -> None:
        """Remove everything, because no transaction outlives its connection."""
        for xid in list(self._transactions):
            self.drop(xid)

    def replay(self, xid: int) -> Iterator[list[SpoolItem]]:
        """Yield the contents of a transaction in their order of arrival, in lists of about `REPLAY_BYTES`."""
        transaction = self._transactions[xid]
        part = transaction.on_disk
        at = 0
        while at < part.size:
            size = int.from_bytes(self._read(xid, part, at, _LENGTH_BYTES), "big")
            at += _LENGTH_BYTES
            block = self._read(xid, part, at, size)
            if self._cipher is not None:
                block = self._cipher.open(block)
            items: list[SpoolItem] = marshal.loads(block)  # noqa: S302  ours, without a name
            # A block with a large row must not stay in memory while the row is encoded.
            block = b""
            at += size
            yield items
        yield from transaction.lists

    def _read(self, xid: int, part: SpoolPart, at: int, size: int) -> bytes:
        data = self._file.read(part, at, size)
        if len(data) < size:
            missing = part.size - at - len(data)
            raise LimitError(
                f"The spool file of transaction {xid} in {self._directory} is {missing} bytes short.",
                hint="Something truncated it; the transaction will be received again after a restart.",
            )
        return data

    def _spill(self, xid: int) -> None:
        transaction = self._transactions[xid]
        for kept in transaction.lists:
            block = marshal.dumps(kept, _MARSHAL_VERSION)
            self._write(xid, transaction, block if self._cipher is None else self._cipher.seal(block))
        self.memory_bytes -= transaction.memory_bytes
        transaction.memory_bytes = 0
        transaction.lists = []

    def _write(self, xid: int, transaction: _Transaction, block: bytes) -> None:
        """Append the block of one list to the file."""
        size = _LENGTH_BYTES + len(block)
        if self._disk_bytes_max is not None and self.disk_bytes + size > self._disk_bytes_max:
            raise LimitError(
                f"Open transactions need {self.disk_bytes + size} bytes of spool in {self._directory}, "
                f"spool.disk_bytes_max is {self._disk_bytes_max}; the largest is transaction {xid}.",
                hint="Raise spool.disk_bytes_max, end the transaction in PostgreSQL, or set postgres.streaming: off "
                "(PostgreSQL then keeps it until it commits). Nothing of it was confirmed.",
            )
        part = transaction.on_disk
        before = part.size
        try:
            # Two writes, because joining the length and a large block would copy the block.
            self._file.append(part, len(block).to_bytes(_LENGTH_BYTES, "big"))
            self._file.append(part, block)
        except OSError as error:
            part.size = before
            full = out_of_files(error)
            if full is not None:
                raise full from error
            raise LimitError(
                f"Cannot write the spool of transaction {xid} in {self._directory}: "
                f"{os.strerror(error.errno or errno.EIO)}.",
                hint="Free or enlarge that file system, or point spool.directory at a larger one. "
                "Nothing of the transaction was confirmed; it is received again after a restart.",
            ) from error
        self.disk_bytes += size

    def _memory_of(self, xid: int) -> int:
        return self._transactions[xid].memory_bytes
