"""CopyData out of libpq's buffer: the innermost loop of the receiver, here so that it is compiled."""

from collections.abc import Callable
from typing import Final

LARGE_BYTES: Final = 65_536
"""Frames up to this size are copied without a look at what they hold."""

Shorten = Callable[[memoryview], bytes | None]
"""Gives the frame that takes the place of a large one; None: the frame is taken as it is."""

GetCopyData = Callable[[int], tuple[int, memoryview]]
"""`psycopg.pq.PGconn.get_copy_data`: PQgetCopyData's result, and the payload where that is its size."""


def take_frames(
    get_copy_data: GetCopyData, frames: list[bytes], room: int, shorten: Shorten | None = None
) -> tuple[int, int]:
    """Append payloads to `frames` while there are any and `room`, in bytes, is left.

    Args:
        shorten: is asked about each frame of more than `LARGE_BYTES`; None: every frame is taken as it is.

    Returns:
        The last result of PQgetCopyData: a size, 0 when no more is there now, -1 when the copy is over; and the
        room that is left, which may be below 0.
    """
    size = 0
    while room > 0:
        size, data = get_copy_data(1)
        if size <= 0:
            break
        room -= size
        if size > LARGE_BYTES and shorten is not None:
            instead = shorten(data)
            if instead is not None:
                frames.append(instead)
                continue
        frames.append(data.tobytes())
    return size, room
