"""The process: its memory and memory limit, its open files, and the directories that it writes to (docs/sizing.md).

Python's garbage collector and the C library's heap are set for a stream of records. Millions of small objects are
created and freed, none of them in a cycle, and librdkafka copies each record once more. With the defaults, a tenth of
the time is spent on searching cycles among waiting records. Another tenth is spent on growing the heap page by page,
because it is returned to the kernel after each batch (glibc, malloc/arena.c, `heap_trim`). Setting one limit fixes the
other at its default. A request to Kafka, some MB, would then be mapped, cleared and unmapped each time, which takes a
third of the time of librdkafka's thread.

Threads share one heap. By default, glibc gives each thread a separate heap. It grows page by page with a system
call (arena.c, `grow_heap`), and its memory is useless for other threads, while records are created in one thread,
copied in the next and freed in either. With one heap, a large transaction takes a tenth less time from its commit
on. The threads hardly wait for each other, because Python's threads hold the interpreter's lock anyway.

A small block is merged with its free neighbours as soon as it is freed (M_MXFAST is 0). By default, glibc keeps
free blocks of up to 128 bytes separate (malloc.c, `global_max_fast`), and merges all of them when a program
allocates a kilobyte. librdkafka allocates as much for each record, and by then the blocks have left the processor's
cache. With M_MXFAST 0, small transactions of mixed rows take 4 to 8 % less CPU.

The rule: if the limit of open files is lower than every daemon needs, the start ends at once with exit code 8. If a
running process has no descriptor left, the call that fails raises the error. librdkafka and the HTTP server only retry,
so the daemon also calls `exhausted` regularly.

Directories are checked before they are needed: by `cdcd run` at its start, and by `cdcd check`.
"""

import ctypes
import gc
import os
import resource
from pathlib import Path
from typing import Final

from cdcd.config.loading import Config
from cdcd.core.errors import FILES_HINT, LimitError, out_of_files

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


GARBAGE: Final = (500_000, 50, 100)
"""Thresholds of `gc.set_threshold`: more than the records that may wait, so that the collector runs only in
`collect`."""

TRIM_BYTES: Final = 64 * 1024 * 1024
"""Bytes of free memory at the heap's end that are kept."""

MAP_BYTES: Final = 32 * 1024 * 1024
"""Bytes from which an allocation is mapped separately; glibc's maximum (malloc.c, `DEFAULT_MMAP_THRESHOLD_MAX`)."""

_M_MXFAST: Final = 1
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
"""Parameters of mallopt(3)."""


def settle() -> None:
    """Set the garbage collector and the heap. Call this once, after all modules are loaded.

    The collector never examines objects that exist by then.
    """
    gc.freeze()
    gc.set_threshold(*GARBAGE)
    # A C library without mallopt, such as musl, has no such heap either.
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, TRIM_BYTES)
        mallopt(_M_MMAP_THRESHOLD, MAP_BYTES)
        mallopt(_M_ARENA_MAX, 1)
        mallopt(_M_MXFAST, 0)


def collect() -> None:
    """Free cycles, which failures and tasks leave; call this from time to time."""
    gc.collect()


FILES_MIN: Final = 40
"""Minimum number of file descriptors for every daemon. A daemon with one broker and one reader of tables had at most 37
files open."""

BASE_FILES: Final = 40
"""Number of descriptors that do not depend on the configuration: standard streams, event loops, three connections to
PostgreSQL, the wake-up pipes of Kafka's clients, the spool, and files that are open for a moment."""

OF_EACH_BROKER: Final = 6
"""Number of connections to each broker: producer, admin clients, consumers, and clients that check for an outage."""

OF_HTTP: Final = 32
"""Number of connections to the HTTP server at the same time."""


def files_needed(config: Config, brokers: int) -> int:
    """Return the maximum number of descriptors that cdcd has open."""
    pages = OF_HTTP if config.http.enabled else 0
    return BASE_FILES + OF_EACH_BROKER * brokers + config.snapshot.parallelism + pages


def file_limit() -> int | None:
    """Return the hard limit of descriptors, to which this process may raise its soft limit; None: no limit."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return None if hard == resource.RLIM_INFINITY else hard


def raise_file_limit() -> None:
    """Raise the soft limit to the hard one.

    Raises:
        LimitError: no daemon can run with the hard limit.
    """
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard != resource.RLIM_INFINITY and hard < FILES_MIN:
        raise LimitError(
            f"This process may have {hard} files and connections open, and cdcd needs {FILES_MIN} at least.",
            hint=FILES_HINT,
        )


def exhausted() -> LimitError | None:
    """Return an error if this process cannot open another file or connection now, else None."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return out_of_files(error)
    return None


def spool_problem(directory: Path, what: str = "spool", key: str = "spool.directory") -> LimitError | None:
    """Return the error if this process cannot keep the spool in the directory; None if it can. Nothing is created.

    A start creates a missing directory, so the nearest existing parent is checked.

    Args:
        what, key: purpose of the directory, and the configuration key that names it.
    """
    nearest = existing(directory)
    if nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK):
        return None
    why = "Permission denied" if nearest.is_dir() else "Not a directory"
    where = "" if nearest == directory else f" below {nearest}"
    return spool_error(directory, f"{why}{where}", what, key)


def existing(directory: Path) -> Path:
    """Return the directory, or its nearest existing parent."""
    nearest = directory
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    return nearest


def spool_error(directory: Path, why: str, what: str = "spool", key: str = "spool.directory") -> LimitError:
    """Return the error of a start that cannot use the directory."""
    return LimitError(
        f"Cannot use the {what} directory {directory}: {why}.",
        hint=f"Create {directory} so that the user of the daemon may write to it, or change {key}.",
    )
