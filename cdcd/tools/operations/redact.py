"""`cdcd replay --redact`: write a pseudonymous copy of a recording, with replaced values."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from cdcd.adapters.recording.events import Began, item_of
from cdcd.adapters.recording.packed import Item, pack, size_of
from cdcd.adapters.recording.playback import events_by_segment
from cdcd.adapters.recording.redacted_values import ColumnModes
from cdcd.adapters.recording.redaction import Redaction
from cdcd.adapters.recording.segments import Tear
from cdcd.adapters.recording.writer import Limits, RecordingWriter
from cdcd.core.errors import LimitError
from cdcd.core.pasted import cdcd
from cdcd.telemetry.terminal_text import number
from cdcd.tools.operations.replay import Range

BLOCK_BYTES: Final = 1 << 18
UNLIMITED: Final = Limits(bytes_max=1 << 62, age_s_max=None, segment_bytes=1 << 40)


def redact(
    folder: Path, target: Path, wanted: Range, *, modes: ColumnModes, notice: Callable[[str], None]
) -> None:
    """Write the segments of the range, with replaced values, into a new folder.

    Raises:
        RecordingError: the recording is altered, or begins later.
        LimitError: the new folder is not empty, or cannot be written.
        ConfigError: a mode does not fit its column.
    """
    segments = wanted.segments(folder)
    if target.exists() and any(target.iterdir()):
        raise LimitError(f"{target} is not empty.", hint="Name a folder that does not exist yet.")
    redaction = Redaction(os.urandom(32), modes)
    try:
        writer = RecordingWriter(target, UNLIMITED)
    except OSError as error:
        raise LimitError(
            f"{target} cannot be written: {error.strerror}.", hint="Name another folder."
        ) from None
    items: list[Item] = []
    size = events = 0

    def flush() -> None:
        nonlocal items, size
        if items:
            writer.put(pack(items))
            writer.wait()
            items, size = [], 0

    try:
        for segment, event in events_by_segment(segments):
            if isinstance(event, Tear):
                notice(f"{event.path} is torn at offset {event.offset}. Everything before that is redacted.")
                continue
            if isinstance(event, Began):
                flush()
                head = segment.head
                writer.begin_segment(head.kind, head.lsn, head.unix_us)
            item = item_of(redaction.event(event))
            items.append(item)
            size += size_of(item)
            events += 1
            if size >= BLOCK_BYTES:
                flush()
        flush()
    finally:
        writer.close()
    if writer.failure:
        raise LimitError(
            f"{target} cannot be written: {writer.failure}.", hint="Free disk space, or name another folder."
        )
    notice(
        f"{number(events, 'input')} of the engine (frames, answers, times) with replaced values are in {target}. The "
        "copy is pseudonymous, not anonymous: it shows which values are equal, how often each occurs and how long it "
        f"is, and it has all names of tables and columns, times and LSNs. Look at it (`{cdcd('replay', target)}`) "
        "before you give it to anybody."
    )
