"""Errors of a recording, with the file and the offset in it."""

from pathlib import Path

from cdcd.core.errors import ProtocolError


class RecordingError(ProtocolError):
    """A recording is altered, incomplete, or of a form that this version does not read."""


def altered(path: Path, offset: int, what: str) -> RecordingError:
    """Return the error for a file whose contents were changed after writing."""
    return RecordingError(
        f"Segment {path}, offset {offset}: {what}.",
        hint="The file was altered or damaged after it was written. Replay the segments before it (--to), or get "
        "another copy of the recording.",
    )
