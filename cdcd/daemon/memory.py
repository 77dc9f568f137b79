"""How the process keeps memory: Python's garbage collector and the C library's heap, set for a stream of records.

Millions of small objects come and go, none of them in a cycle, and librdkafka copies each record once more.
With the defaults a tenth of the time goes into looking for cycles among records that wait, and another into growing
the heap a page at a time, because it is given back as soon as a batch is gone (glibc, malloc/arena.c, `heap_trim`).
Setting one limit fixes the other where it is, and a request to Kafka, some MB, would be mapped, cleared and unmapped
each time: a third of what librdkafka's thread takes.

Threads share one heap. A heap of its own, which glibc gives to each thread, grows a page at a time by a system call
(arena.c, `grow_heap`), and its memory serves no other thread, while records are made in one thread, copied in the next
and freed in either. With one heap a large transaction takes a tenth less time from its commit on. The threads hardly
wait for each other: those of Python hold the interpreter's lock anyway.

A small block is joined with its free neighbours as soon as it is freed (M_MXFAST is 0). By default, glibc keeps free
blocks of up to 128 bytes apart (malloc.c, `global_max_fast`), and joins all of them when a program asks for a kilobyte.
librdkafka asks for that much for each record, and by then the blocks have left the processor's cache. With M_MXFAST 0,
small transactions of mixed rows take 4 to 8 % less CPU.
"""

import ctypes
import gc
from typing import Final

GARBAGE: Final = (500_000, 50, 100)
"""`gc.set_threshold`: more than the records that may wait, so that the collector runs when `collect` is called."""

TRIM_BYTES: Final = 64 * 1024 * 1024
"""So much free memory at the heap's end is kept."""

MAP_BYTES: Final = 32 * 1024 * 1024
"""From here on memory is mapped by itself; glibc's maximum (malloc.c, `DEFAULT_MMAP_THRESHOLD_MAX`)."""

_M_MXFAST: Final = 1
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
"""mallopt(3)."""


def settle() -> None:
    """Set the garbage collector and the heap. Call this once, after all modules are loaded.

    The collector never looks at objects again that exist by then.
    """
    gc.freeze()
    gc.set_threshold(*GARBAGE)
    # A C library without mallopt, as musl, has no such heap either.
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, TRIM_BYTES)
        mallopt(_M_MMAP_THRESHOLD, MAP_BYTES)
        mallopt(_M_ARENA_MAX, 1)
        mallopt(_M_MXFAST, 0)


def collect() -> None:
    """Free cycles, which failures and tasks leave; now and then."""
    gc.collect()
