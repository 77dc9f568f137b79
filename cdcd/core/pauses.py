"""Pauses in the conversion of large values, in which other threads run.

Compiled code keeps the interpreter's lock, because the interpreter gives the lock to a waiting thread only while it
runs Python's own code. So a loop of compiled code over a large value calls `pause` at regular intervals. The engine
converts large values in a thread (`Engine.has_large`). During each pause, the event loop can send status updates, and
the thread of the advisory lock can prove that the lock is held.

This module is not compiled, so that a call of `pause` runs Python's own code.
"""

from typing import Final

PAUSE_BYTES: Final = 1 << 14
"""Bytes of a value between two pauses: about a millisecond of compiled code, if the value has small elements."""


PAUSE_ITEMS: Final = 1024
"""Number of parts of a value between two pauses, where a loop has parts and no position in bytes."""


def pause() -> None:
    """Let another thread run that waits for the interpreter's lock. The result of the conversion stays the same."""
