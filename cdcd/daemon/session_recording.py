"""Recording of a session, if the configuration sets it.

A recording that cannot begin is reported by an event, and is not an error.
"""

import asyncio
import time
from pathlib import Path
from typing import Final, Protocol

from cdcd.adapters.recording.tap import Tap
from cdcd.adapters.recording.writer import Limits, RecordingWriter
from cdcd.config.loading import Config
from cdcd.core.engine.building import SessionStart
from cdcd.core.engine.engine import Engine
from cdcd.core.engine.startup import Ready
from cdcd.core.facts import Observer
from cdcd.core.facts_operation import RecordingStarted, RecordingStopped
from cdcd.telemetry.state import Telemetry

HINT: Final = (
    "The pipeline goes on without a recording. Make room, or correct record.directory; then restart cdcd, or wait for "
    "its next session."
)


class Around(Protocol):
    """The part of the wiring that a recording needs."""

    @property
    def config(self) -> Config: ...
    @property
    def telemetry(self) -> Telemetry: ...
    @property
    def observe(self) -> Observer: ...
    @property
    def ready(self) -> Ready: ...


def record_session(around: Around, engine: Engine, start: SessionStart, now: float) -> Tap | None:
    """Return the recorder of the engine's calls, for which the caller owes `close`; None: nothing is recorded.

    Args:
        now: time (monotonic seconds) with which the engine was constructed. The engine decides by this time, so a
            replay needs it.
    """
    config, telemetry, observe = around.config, around.telemetry, around.observe
    record = config.record
    if record.directory is None:
        return None
    directory = str(record.directory)
    limits = Limits(record.bytes_max, record.age_s_max, record.segment_bytes)
    before = telemetry.recorded_bytes

    def wrote(size: int) -> None:
        telemetry.recorded_bytes = before + size

    def failed(reason: str) -> None:
        telemetry.recording_stopped = True
        observe(RecordingStopped(directory=directory, reason=reason, hint=HINT))

    try:
        writer = RecordingWriter(Path(directory), limits)
    except BlockingIOError:
        failed("another process records into the folder")
        return None
    except OSError as error:
        failed(f"the folder cannot be written: {error.strerror}")
        return None
    telemetry.recording_stopped = False
    later = asyncio.get_running_loop().call_later
    tap = Tap(engine, start, around.ready.flushed, writer, limits, later=later, wrote=wrote, failed=failed)
    tap.begin(now, time.time_ns() // 1000)
    observe(RecordingStarted(directory=directory))
    return tap
