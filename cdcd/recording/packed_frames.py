"""The event of frames that were received: nearly all bytes of a recording, so it has a form of its own.

The frames are written by one call in C, `marshal.dumps`, in version 2 of its form, which has no references between
objects. That takes half the time of joining frames and their sizes. They are read by code of ours, because `marshal`
must not be given bytes of strangers:

```
"(" 2 "g" time f64 "[" number u32, and for each frame "s" bytes u32 the bytes; all little-endian
```
"""

import marshal
from struct import Struct
from typing import Final

from cdcd.recording.errors import RecordingError

TAG: Final = b"("

_VERSION: Final = 2
_HEAD: Final = Struct("<cIcdcI")
_FRAME: Final = Struct("<cI")


def pack_frames(now: float, frames: list[bytes]) -> bytes:
    """The event: these frames were received at `now`."""
    return marshal.dumps((now, frames), _VERSION)


def read_frames(data: bytes, at: int) -> tuple[float, list[bytes], int]:
    """Read the event that begins at `at`.

    Returns:
        The time, the frames, and where the event ends.

    Raises:
        RecordingError: the bytes are no such event.
    """
    if at + _HEAD.size > len(data):
        raise RecordingError("A recorded event ends too early.")
    tag, members, number, now, kind, count = _HEAD.unpack_from(data, at)
    if (tag, members, number, kind) != (TAG, 2, b"g", b"["):
        raise RecordingError("Recorded frames are not of their form.")
    at += _HEAD.size
    frames = []
    for _ in range(count):
        if at + _FRAME.size > len(data):
            raise RecordingError("A recorded event ends too early.")
        kind, size = _FRAME.unpack_from(data, at)
        at += _FRAME.size
        if kind != b"s":
            raise RecordingError("Recorded frames are not of their form.")
        if at + size > len(data):
            raise RecordingError("A recorded event ends too early.")
        frames.append(data[at : at + size])
        at += size
    return now, frames, at
