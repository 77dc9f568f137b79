"""The memory limit of the process, and the largest message that this memory can hold (docs/sizing.md)."""

from pathlib import Path
from typing import Final

MIB: Final = 1 << 20

BASE_BYTES: Final = 150_000_000
"""Bytes of memory that a daemon with the default limits needs, without a large message."""

DEFAULT_BOUNDS: Final = 84 * MIB
"""Bytes of the defaults of `kafka.queue_bytes_max` and `spool.memory_bytes_max` together, which `BASE_BYTES`
includes."""

WIRE_COPIES: Final = 3
"""Number of copies of the largest message: libpq's buffer, the copy that libpq returns, and cdcd's copy."""

RECORD_COPIES: Final = 2
"""Number of copies of the record of the largest message, if the record is delivered."""

_ROOT: Final = Path("/sys/fs/cgroup")

_OWN: Final = Path("/proc/self/cgroup")
"""File with the control groups of this process (cgroups(7)). In a container, it may have the names of the host."""

_UNLIMITED: Final = 1 << 60
"""Bytes from which a limit means "no limit" in version 1 of control groups."""


def memory_limit(own: Path = _OWN, root: Path = _ROOT) -> int | None:
    """Return the memory limit of this process's control groups in bytes; None: no limit, or it cannot be read.

    Args:
        own: file with the control groups of this process.
        root: mount point of control groups. In a container, it shows the container's own group.
    """
    limits = [limit for file in _limit_files(own, root) if (limit := _limit_in(file)) is not None]
    return min(limits, default=None)


def _limit_files(own: Path, root: Path) -> list[Path]:
    """Return the files with the limits of this process's groups and of all parent groups, in
    version 2 and version 1.
    """
    files = [root / "memory.max", root / "memory" / "memory.limit_in_bytes"]
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return files
    for line in lines:
        _, controllers, group = line.split(":", 2)
        names = [part for part in group.split("/") if part not in ("", "..")]
        for depth in range(1, len(names) + 1):
            path = Path(*names[:depth])
            if not controllers:
                files.append(root / path / "memory.max")
            elif "memory" in controllers.split(","):
                files.append(root / "memory" / path / "memory.limit_in_bytes")
    return files


def _limit_in(file: Path) -> int | None:
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() and int(text) < _UNLIMITED else None


def message_bytes_max(limit: int, bounds: int = 0) -> int:
    """Return the largest message, in bytes on the wire, whose record can be delivered within this memory limit.

    Args:
        bounds: bytes by which the configured limits exceed the default ones.
    """
    return max(0, (limit - BASE_BYTES - bounds) // (WIRE_COPIES + RECORD_COPIES))
