"""CopyData out of libpq's buffer: the innermost loop of the receiver, here so that it is compiled."""

from collections.abc import Callable

GetCopyData = Callable[[int], tuple[int, memoryview]]
"""`psycopg.pq.PGconn.get_copy_data`: PQgetCopyData's result, and the payload where that is its size."""


def take_frames(get_copy_data: GetCopyData, frames: list[bytes], room: int) -> tuple[int, int]:
    """Append payloads to `frames` while there are any and `room`, in bytes, is left.

    Returns:
        The last result of PQgetCopyData: a size, 0 when no more is there now, -1 when the copy is over; and the
        room that is left, which may be below 0.
    """
    size = 0
    while room > 0:
        size, data = get_copy_data(1)
        if size <= 0:
            break
        frames.append(data.tobytes())
        room -= size
    return size, room
