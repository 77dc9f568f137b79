"""One file for all transactions on disk: growing byte strings with reuse of their space.

The rule: the file is never larger than the maximum of bytes that were stored at the same time. It grows only if no
part of it is free, is truncated if its end is free, and is closed when it is empty. So one descriptor is enough for
any number of transactions, and the limit for the stored bytes also limits the file.

Space is allocated in units. The bytes of a part lie in several extents, each a run of units, in the order of
writing; the last unit has room for later bytes. The file has no name (`O_TMPFILE`), so a killed process leaves no
file.
"""

import os
import tempfile
from bisect import bisect_left, bisect_right
from typing import IO, Final

UNIT_BYTES: Final = 4096
"""Bytes of the smallest allocation: a block of most file systems."""


class Part:
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

    def append(self, part: Part, data: bytes) -> None:
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

    def read(self, part: Part, at: int, size: int) -> bytes:
        """Return bytes of the part from `at` on; fewer if the file was truncated by others."""
        assert self._file is not None
        pieces = [_read_all(self._file.fileno(), offset, length) for offset, length in part.pieces(at, size)]
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def free(self, part: Part) -> None:
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

    def _reserve(self, part: Part, units: int) -> None:
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
