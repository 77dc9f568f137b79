"""Memory settings of the process: Python's garbage collector and the C library's heap, for a stream of records.

Millions of small objects are created and freed, none of them in a cycle, and librdkafka copies each record once
more. With the defaults, a tenth of the time is spent on searching cycles among waiting records. Another tenth is
spent on growing the heap page by page, because it is returned to the kernel after each batch (glibc,
malloc/arena.c, `heap_trim`). Setting one limit fixes the other at its default. A request to Kafka, some MB, would
then be mapped, cleared and unmapped each time, which takes a third of the time of librdkafka's thread.

Threads share one heap. By default, glibc gives each thread a separate heap. It grows page by page with a system
call (arena.c, `grow_heap`), and its memory is useless for other threads, while records are created in one thread,
copied in the next and freed in either. With one heap, a large transaction takes a tenth less time from its commit
on. The threads hardly wait for each other, because Python's threads hold the interpreter's lock anyway.

A small block is merged with its free neighbours as soon as it is freed (M_MXFAST is 0). By default, glibc keeps
free blocks of up to 128 bytes separate (malloc.c, `global_max_fast`), and merges all of them when a program
allocates a kilobyte. librdkafka allocates as much for each record, and by then the blocks have left the processor's
cache. With M_MXFAST 0, small transactions of mixed rows take 4 to 8 % less CPU.
"""

import ctypes
import gc
from typing import Final

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
