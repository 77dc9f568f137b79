"""Reading of CopyData from libpq's buffer, the innermost loop of the receiver, here because this
package is compiled.
"""

from collections.abc import Callable
from typing import Final

LARGE_BYTES: Final = 65_536
"""Maximum bytes of a frame that is copied without examining its contents."""

Shorten = Callable[[memoryview], bytes | None]
"""Returns the replacement for a large frame; None: the frame is kept."""

GetCopyData = Callable[[int], tuple[int, memoryview]]
"""`psycopg.pq.PGconn.get_copy_data`: PQgetCopyData's result, and the payload if the result is a size."""


def take_frames(
    get_copy_data: GetCopyData, frames: list[bytes], room: int, shorten: Shorten | None = None
) -> tuple[int, int]:
    """Append payloads to `frames` until none is left or `room` (bytes) is used up.

    Args:
        shorten: called with each frame of more than `LARGE_BYTES`; None: every frame is kept.

    Returns:
        The last result of PQgetCopyData: a size, 0 if no payload is available now, -1 at the end of the copy; and
            the
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
