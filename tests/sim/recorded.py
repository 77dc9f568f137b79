"""Instances of the simulation whose sessions are recorded, and what each of them shipped and delivered."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from cdcd.adapters.recording.tap import Tap
from cdcd.adapters.recording.writer import RecordingLimits, RecordingWriter
from cdcd.core.engine.actions import Ship, Wait
from cdcd.core.engine.engine import Engine
from cdcd.core.engine.session_start import SessionStart
from cdcd.core.records.encoder import Record
from tests.sim import session as sessions

LIMITS: Final = RecordingLimits(bytes_max=1 << 30, age_s_max=None, segment_bytes=6_000)
"""Small segments, so that most recordings have several."""

VERBS: Final = frozenset(
    {
        "frames_received",
        "described",
        "topics_ready",
        "topics_refused",
        "refused",
        "answered",
        "stream_begun",
        "heartbeat_query_ended",
        "lock_lost",
        "stop",
    }
)


class NoTimer:
    """Blocks end by their size only."""

    def __init__(self, _seconds: float, _function: Callable[[], None]) -> None:
        pass

    def cancel(self) -> None:
        pass


@dataclass
class Shipped:
    """A batch as it was when it was shipped."""

    records: list[Record]
    closes: bool
    delivered: bool = False


@dataclass
class Recorded:
    """The recordings of the instances of a world, by name, and what they shipped."""

    folder: Path
    shipped: dict[str, list[Shipped]] = field(default_factory=dict)
    taps: list[Tap] = field(default_factory=list)

    def folder_of(self, name: str) -> Path:
        return self.folder / name

    def plant(self, monkeypatch: Any) -> None:
        """Record every session from now on."""
        close = sessions.Session.close
        build = sessions.Session._build

        def build_recorded(session: sessions.Session, ready: Any) -> None:
            build(session, ready)
            self._record(session, ready)

        def close_recorded(session: sessions.Session) -> None:
            tap = getattr(session.engine, "tap", None)
            if tap is not None:
                tap.close()
            close(session)

        monkeypatch.setattr(sessions.Session, "_build", build_recorded)
        monkeypatch.setattr(sessions.Session, "close", close_recorded)

    def close(self) -> None:
        """The world is over, perhaps in the middle of sessions."""
        for tap in self.taps:
            tap.close()

    def _record(self, session: sessions.Session, ready: Any) -> None:
        engine: Any = session.engine
        start = SessionStart(
            settings=engine._settings,
            checkpoint=ready.checkpoint,
            encoding=engine.encoder._settings,
            published=ready.published,
            exported=ready.exported,
            unstreamed_until=session.instance.unstreamed_until,
            abort_info=ready.options.abort_info,
            spool_bytes=session.settings.spool_memory_max,
        )
        name = session.instance.name
        writer = PatientWriter(self.folder_of(name), LIMITS)
        tap = Tap(engine, start, ready.flushed, writer, later=NoTimer, wrote=lambda _: None, failed=_failed)
        self.taps.append(tap)
        tap.begin(session.around.now, session._unix_us)
        session.engine = RecordedEngine(engine, tap, writer, self.shipped.setdefault(name, []))  # type: ignore[assignment]


class PatientWriter(RecordingWriter):
    """Ends when the disk has everything, however long that takes."""

    def close(self) -> None:
        self.wait()
        super().close()


def _failed(reason: str) -> None:
    raise AssertionError(f"the recording failed: {reason}")


class RecordedEngine:
    """The engine and its tap, as one."""

    def __init__(self, engine: Engine, tap: Tap, writer: RecordingWriter, shipped: list[Shipped]) -> None:
        self.tap = tap
        self._writer = writer
        self._engine = engine
        self._shipped = shipped

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tap if name in VERBS else self._engine, name)

    def next_action(self, now: float, unix_us: int) -> Any:
        action = self.tap.next_action(now, unix_us)
        if isinstance(action, Ship):
            self._shipped.append(Shipped(list(action.batch.records), action.batch.closes))
        elif isinstance(action, Wait):
            # The timer's part: a block ends. Where a segment ends follows from what the disk has.
            self.tap._flush()
            self._writer.wait()
        return action

    def delivered(self, batch: Any, now: float) -> None:
        self._shipped[-1].delivered = True
        self.tap.delivered(batch, now)
