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

_FILES: Final = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
"""The limit of the control group: version 2, and version 1."""

_UNLIMITED: Final = 1 << 60
"""From here on, a limit of version 1 is none."""


def memory_limit() -> int | None:
    """The memory limit of this process's control group, in bytes; None: there is none, or the system does not say."""
    for file in _FILES:
        try:
            text = file.read_text().strip()
        except OSError:
            continue
        return int(text) if text.isdecimal() and int(text) < _UNLIMITED else None
    return None


def message_bytes_max(limit: int, bounds: int = 0) -> int:
    """The largest message, in bytes on the wire, for which this memory is enough where its record is delivered.

    Args:
        bounds: bytes by which the configured limits exceed the default ones.
    """
    return max(0, (limit - BASE_BYTES - bounds) // (WIRE_COPIES + RECORD_COPIES))
