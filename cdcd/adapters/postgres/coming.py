"""The size of a large message that is still arriving. libpq gives a message only when the message is complete.

The memory that libpq maps shows the size first. If the system does not report mapped memory, the bytes of the reads
show the size.
"""

import fcntl
import os
import termios
import time
from array import array
from collections.abc import Callable
from contextlib import suppress
from typing import Final

COUNTED_READS: Final = 16
"""Number of reads without a complete message after which the bytes of further reads are counted, by one system call
each."""

COMING_BYTES: Final = 16 << 20
"""Bytes of an incomplete message from which the message is reported."""

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")

_KNOWN_S: Final = 0.05
"""Seconds for which a size of the address space counts as the size at the start of the next pass over the socket.

In this time, cdcd itself maps much less than a message that is reported (`COMING_BYTES`). Small transactions need
many passes a second, and each read of the size costs as much as a third of a row.
"""


class MappedMemory:
    """The size of this process's address space (proc(5), statm).

    When libpq knows the length of a message, it enlarges its buffer, by doubling, until the message fits. Then it reads
    all that the server has sent, in one call. So the address space grows for a large message before the message needs
    memory.
    """

    def __init__(self) -> None:
        self._descriptor = -1
        with suppress(OSError):
            self._descriptor = os.open("/proc/self/statm", os.O_RDONLY)
        self._known_bytes = 0
        self._known_until = 0.0
        self._digits = b"?"
        """The number of pages and the blank after it, as the file had them at the last measurement."""

    def begin(self, now: float) -> None:
        """Start to measure growth at `now` (`time.monotonic`), or keep a measurement younger than `_KNOWN_S`."""
        if now >= self._known_until:
            self.growth_bytes()

    def growth_bytes(self) -> int:
        """Return the number of bytes by which the address space has grown since the last call.

        Most calls find the digits of the last one, which takes two thirds of the time of a measurement.
        """
        self._known_until = time.monotonic() + _KNOWN_S
        digits = self._digits
        if self._descriptor >= 0 and os.pread(self._descriptor, len(digits), 0) == digits:
            return 0
        mapped = self.mapped_bytes()
        self._digits = b"%d " % (mapped // _PAGE_BYTES)
        growth = mapped - self._known_bytes
        self._known_bytes = mapped
        return growth

    def mapped_bytes(self) -> int:
        """Return the size in bytes; 0 where the system does not provide it. A call takes 2 to 4 µs."""
        if self._descriptor < 0:
            return 0
        return int(os.pread(self._descriptor, 24, 0).split(b" ", 1)[0]) * _PAGE_BYTES

    def close(self) -> None:
        """Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class ComingMessage:
    """Reports an incomplete message that is large.

    Call `begin` before a pass over the socket, `look` when no complete message is left, `reading` before each read of
    the socket, and after the read `arrived` if a message was complete, else `count`.

    Args:
        report: called with the received bytes, each time that they have doubled.
    """

    def __init__(self, report: Callable[[int], None]) -> None:
        self._report = report
        self.memory = MappedMemory()
        self._was_read = False
        self._reads = 0
        self._bytes = 0
        self._reported = COMING_BYTES

    def begin(self, now: float) -> None:
        self.memory.begin(now)

    def reading(self) -> None:
        self._was_read = True

    def look(self) -> None:
        """Report a large message if libpq has mapped memory for it since the last read of the socket.

        libpq enlarges its buffer only for an incomplete message, and only after a read of the socket.
        """
        if self._was_read:
            self._was_read = False
            growth = self.memory.growth_bytes()
            if growth > 2 * COMING_BYTES:
                self._tell(growth // 2)

    def count(self, socket: int) -> None:
        """Count a read that brought no complete message, and from `COUNTED_READS` on the bytes of the next read.

        Under TLS, the message itself gets slightly fewer bytes.
        """
        self._reads += 1
        if self._reads > COUNTED_READS:
            waiting = array("i", [0])
            fcntl.ioctl(socket, termios.FIONREAD, waiting)
            self._bytes += waiting[0]
            if self._bytes > self._reported:
                self._tell(self._bytes)

    def arrived(self) -> None:
        """Forget the counted reads, because a message was complete."""
        if self._reads:
            self._reads = self._bytes = 0
            self._reported = COMING_BYTES

    def close(self) -> None:
        """Idempotent."""
        self.memory.close()

    def _tell(self, size: int) -> None:
        self._reported = 2 * size
        self._report(size)
