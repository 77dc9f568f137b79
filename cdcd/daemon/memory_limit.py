"""How much memory the process may use, and how large a message may be for that (docs/sizing.md)."""

from pathlib import Path
from typing import Final

MIB: Final = 1 << 20

BASE_BYTES: Final = 150_000_000
"""What a daemon with the default limits needs, without a large message."""

DEFAULT_BOUNDS: Final = 84 * MIB
"""The defaults of `kafka.queue_bytes_max` and `spool.memory_bytes_max` together, which `BASE_BYTES` includes."""

WIRE_COPIES: Final = 3
"""Copies of the largest message: libpq's buffer, the copy that libpq hands out, and cdcd's."""

RECORD_COPIES: Final = 2
"""Copies of the record of the largest message where it is delivered."""

_ROOT: Final = Path("/sys/fs/cgroup")

_OWN: Final = Path("/proc/self/cgroup")
"""The control groups of this process (cgroups(7)). In a container, they may be named as outside of it."""

_UNLIMITED: Final = 1 << 60
"""From here on, a limit of version 1 is none."""


def memory_limit(own: Path = _OWN, root: Path = _ROOT) -> int | None:
    """The memory limit of this process's control groups, in bytes; None: there is none, or the system does not say.

    Args:
        own: the list of the control groups of this process.
        root: where control groups are mounted. A container sees its own group there.
    """
    limits = [limit for file in _limit_files(own, root) if (limit := _limit_in(file)) is not None]
    return min(limits, default=None)


def _limit_files(own: Path, root: Path) -> list[Path]:
    """Files with limits of the groups of this process and of all groups above them, in version 2 and version 1."""
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
    """The largest message, in bytes on the wire, for which this memory is enough where its record is delivered.

    Args:
        bounds: bytes by which the configured limits exceed the default ones.
    """
    return max(0, (limit - BASE_BYTES - bounds) // (WIRE_COPIES + RECORD_COPIES))
