"""Transactions whose fate is open: in memory up to a limit, then one file each.

The rule: memory is bounded whatever the size or number of open transactions, and so is disk, with a clear stop. A
frame is kept as it came, with its length before it; what of a transaction is on disk comes before what is in memory.
When the memory limit is passed, the largest transaction's frames move to its file, as `reorderbuffer.c` does it
(`ReorderBufferLargestTXN`), so that the small ones, which are
many and short-lived, stay in memory.

The files have no names (`O_TMPFILE`): a killed process leaves nothing behind, and a restart receives every open
transaction from its beginning anyway.
"""

import errno
import os
import tempfile
from collections.abc import Iterator
from typing import IO, Final

from cdcd.errors import LimitError

LENGTH_BYTES: Final = 4

REPLAY_BYTES: Final = 262_144
"""How much of a file is read, and handed on, at a time."""

WRITE_BYTES: Final = 1_048_576
"""A transaction that is on disk already goes there in writes of this size, or smaller ones where memory is short."""


class _Transaction:
    def __init__(self) -> None:
        self.memory = bytearray()
        self.file: IO[bytes] | None = None
        self.file_bytes = 0


class Spool:
    """Frames by top-level xid.

    Args:
        directory: where the files are; must exist and be writable.
        memory_bytes_max: frames beyond this move to disk.
        disk_bytes_max: `LimitError` beyond this; None: as much as the file system has.
    """

    def __init__(self, directory: str, memory_bytes_max: int, disk_bytes_max: int | None = None) -> None:
        self._directory = directory
        self._memory_bytes_max = memory_bytes_max
        self._disk_bytes_max = disk_bytes_max
        self._transactions: dict[int, _Transaction] = {}
        self.memory_bytes = 0
        self.disk_bytes = 0

    def __contains__(self, xid: int) -> bool:
        return xid in self._transactions

    def __len__(self) -> int:
        return len(self._transactions)

    def open(self, xid: int) -> None:
        """Start keeping frames of `xid`."""
        assert xid not in self._transactions, f"transaction {xid} is open already"
        self._transactions[xid] = _Transaction()

    def append(self, xid: int, frame: bytes) -> None:
        """Keep one frame.

        Raises:
            LimitError: the disk is full, or `disk_bytes_max` reached.
        """
        transaction = self._transactions[xid]
        memory = transaction.memory
        memory += len(frame).to_bytes(LENGTH_BYTES, "big")
        memory += frame
        self.memory_bytes += LENGTH_BYTES + len(frame)
        if transaction.file is not None and len(memory) >= WRITE_BYTES:
            self._spill(xid)
        if self.memory_bytes > self._memory_bytes_max:
            self._spill(max(self._transactions, key=self._memory_of))

    def drop(self, xid: int) -> None:
        """Forget a transaction and give its space back."""
        transaction = self._transactions.pop(xid)
        self.memory_bytes -= len(transaction.memory)
        if transaction.file is not None:
            self.disk_bytes -= transaction.file_bytes
            transaction.file.close()

    def close(self) -> None:
        """Forget everything: no transaction outlives its connection."""
        for xid in list(self._transactions):
            self.drop(xid)

    def replay(self, xid: int) -> Iterator[list[bytes]]:
        """The frames of a transaction in the order they came, in lists of about `REPLAY_BYTES`."""
        transaction = self._transactions[xid]
        rest = b""
        if transaction.file is not None:
            transaction.file.seek(0)
            left = transaction.file_bytes
            while left:
                block = transaction.file.read(min(REPLAY_BYTES, left))
                if not block:
                    raise LimitError(
                        f"The spool file of transaction {xid} in {self._directory} is {left} bytes short.",
                        hint="Something truncated it; the transaction will be received again after a restart.",
                    )
                left -= len(block)
                frames, rest = _split(rest + block)
                if frames:
                    yield frames
        assert not rest, "a frame never spans file and memory"
        for start in range(0, len(transaction.memory), REPLAY_BYTES):
            frames, rest = _split(rest + transaction.memory[start : start + REPLAY_BYTES])
            if frames:
                yield frames
        assert not rest, "the last frame is whole"

    def _spill(self, xid: int) -> None:
        transaction = self._transactions[xid]
        size = len(transaction.memory)
        if self._disk_bytes_max is not None and self.disk_bytes + size > self._disk_bytes_max:
            raise LimitError(
                f"Open transactions need {self.disk_bytes + size} bytes of spool in {self._directory}, "
                f"spool.disk_bytes_max is {self._disk_bytes_max}; the largest is transaction {xid}.",
                hint="Raise spool.disk_bytes_max, end the transaction in PostgreSQL, or set postgres.streaming: off "
                "(PostgreSQL then keeps it until it commits). Nothing of it was confirmed.",
            )
        try:
            if transaction.file is None:
                transaction.file = tempfile.TemporaryFile(  # noqa: SIM115  # open until `drop`
                    dir=self._directory, prefix="cdcd-", buffering=0
                )
            _write(transaction.file, transaction.memory)
        except OSError as error:
            raise LimitError(
                f"Cannot write the spool of transaction {xid} in {self._directory}: "
                f"{os.strerror(error.errno or errno.EIO)}.",
                hint="Free or enlarge that file system, or point spool.directory at a larger one. "
                "Nothing of the transaction was confirmed; it is received again after a restart.",
            ) from error
        transaction.file_bytes += size
        transaction.memory = bytearray()
        self.memory_bytes -= size
        self.disk_bytes += size

    def _memory_of(self, xid: int) -> int:
        return len(self._transactions[xid].memory)


def _write(file: IO[bytes], data: bytearray) -> None:
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


def _split(data: bytes) -> tuple[list[bytes], bytes]:
    """Whole frames at the beginning of `data`, and the rest."""
    frames: list[bytes] = []
    at = 0
    end = len(data)
    while at + LENGTH_BYTES <= end:
        stop = at + LENGTH_BYTES + int.from_bytes(data[at : at + LENGTH_BYTES], "big")
        if stop > end:
            break
        frames.append(data[at + LENGTH_BYTES : stop])
        at = stop
    return frames, data[at:]
