"""Transactions whose fate is open: in memory up to a limit, then in one file for all.

The rule: memory is bounded whatever the size or number of open transactions, and so is disk, with a clear stop. Frames
and drafts are kept as they came, in lists of a bounded size; what of a transaction is on disk comes before what is in
memory. When the memory limit is passed, what the largest transaction has there moves to the file, as `reorderbuffer.c`
does it (`ReorderBufferLargestTXN`), so that the small ones, which are many and short-lived, stay in memory.

A list goes to the file as `marshal` writes it, with its length before it: one call makes all its byte strings again,
and a replay stands between the commit and the consumer. The file (`spool_file.py`) is ours alone, and a restart
receives every open transaction from its beginning anyway.
"""

import errno
import marshal
import os
from collections.abc import Iterator
from typing import Final, Protocol

from cdcd.core.errors import LimitError, out_of_files
from cdcd.core.transactions.drafts import SpoolItem, memory_bytes
from cdcd.core.transactions.spool_file import Part, SpoolFile

FRAME_BYTES: Final = 48
"""What a frame, or a part of a draft, costs in memory beside its bytes: head, place in a list, malloc's rounding."""

REPLAY_BYTES: Final = 262_144
"""How much is read, and handed on, at a time; one frame or draft more at most."""

WRITE_BYTES: Final = 1_048_576
"""A transaction that is on disk already goes there in pieces of this size, or smaller ones where memory is short."""

_LENGTH_BYTES: Final = 8

_MARSHAL_VERSION: Final = 2
"""Without references to objects that were written before, for which there is no use here."""


class Cipher(Protocol):
    """Encrypts what goes to disk, so that a value which is protected in the topics is not in clear there.

    It is a Protocol, because its implementation is not compiled, and cannot inherit from a compiled class.
    """

    def seal(self, block: bytes) -> bytes:
        """Ciphertext that `open` turns back."""

    def open(self, sealed: bytes) -> bytes:
        """The block that `seal` was given."""


class _Transaction:
    def __init__(self) -> None:
        self.lists: list[list[SpoolItem]] = []
        self.last_bytes = 0
        self.memory_bytes = 0
        self.on_disk = Part()


class Spool:
    """Frames and drafts by top-level xid.

    Args:
        directory: where the file is; must exist and be writable.
        memory_bytes_max: what is beyond this moves to disk.
        disk_bytes_max: `LimitError` beyond this; None: as much as the file system has.
        cipher: encrypts what goes to the file; None: the file has what came.
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
        """Start keeping what belongs to `xid`."""
        assert xid not in self._transactions, f"transaction {xid} is open already"
        self._transactions[xid] = _Transaction()

    def append(self, xid: int, frame: bytes) -> None:
        """Keep one frame; see `extend`."""
        self.extend(xid, [frame])

    def extend(self, xid: int, kept: list[SpoolItem]) -> None:
        """Keep frames and drafts, as many as were received together.

        Raises:
            LimitError: the disk is full, or `disk_bytes_max` reached.
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
        """Forget a transaction and give its space back."""
        transaction = self._transactions.pop(xid)
        self.memory_bytes -= transaction.memory_bytes
        self.disk_bytes -= transaction.on_disk.size
        self._file.free(transaction.on_disk)

    def close(self) -> None:
        """Forget everything: no transaction outlives its connection."""
        for xid in list(self._transactions):
            self.drop(xid)

    def replay(self, xid: int) -> Iterator[list[SpoolItem]]:
        """What is kept of a transaction in the order it came, in lists of about `REPLAY_BYTES`."""
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
            # A block with a large row must not be in memory while the row is encoded.
            block = b""
            at += size
            yield items
        yield from transaction.lists

    def _read(self, xid: int, part: Part, at: int, size: int) -> bytes:
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
        """Append one list's block to the file."""
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
            # Two writes: joining the length and a large block would copy the block.
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
