import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest

from cdcd.adapters.recording import tap as taps
from cdcd.adapters.recording.replay import Replay
from cdcd.adapters.recording.segments import list_segments, read_events
from cdcd.adapters.recording.tap import Tap
from cdcd.adapters.recording.writer import RecordingWriter
from cdcd.core.engine.actions import Published
from cdcd.core.engine.building import build_engine
from cdcd.core.engine.engine import Engine
from cdcd.core.transactions.ledger import Ledger
from cdcd.core.transactions.spool import Spool
from tests.bench.recording import LIMITS, START, NoTimer, make_frames, work_off

ROWS = 3000


def engine_for(folder: Path) -> Engine:
    return build_engine(START, Spool(str(folder), START.spool_bytes), Ledger(1), lambda _: None, 0.0)


def tapped(folder: Path, spool: Path, failures: list[str]) -> tuple[Engine, Tap]:
    engine = engine_for(spool)
    writer = RecordingWriter(folder, LIMITS)
    tap = Tap(engine, START, 1, writer, later=NoTimer, wrote=lambda _: None, failed=failures.append)
    tap.begin(0.0, 1_700_000_000_000_000)
    return engine, tap


def test_a_session_is_recorded_and_replayed(tmp_path):
    failures: list[str] = []
    engine, tap = tapped(tmp_path / "recording", tmp_path, failures)
    work_off(engine, tap, make_frames(ROWS))
    tap.close()
    assert not failures
    notes: list[str] = []
    replay = Replay(lambda batch: None, notes.append, lambda fact: None, str(tmp_path))
    replay.run(read_events(list_segments(tmp_path / "recording")))
    assert (replay.records, replay.exact_sessions, notes) == (ROWS, 1, [])


def test_what_a_block_is_too_small_for_is_on_the_disk_when_its_time_is_over(tmp_path):
    # GIVEN a session that goes on, of which the disk has nothing yet
    timers: list[Callable[[], None]] = []

    class Later(NoTimer):
        def __init__(self, _seconds: float, function: Callable[[], None]) -> None:
            timers.append(function)

    engine = engine_for(tmp_path)
    writer = RecordingWriter(tmp_path / "recording", LIMITS)
    tap = Tap(engine, START, 1, writer, later=Later, wrote=lambda _: None, failed=pytest.fail)
    tap.begin(0.0, 1_700_000_000_000_000)
    work_off(engine, tap, make_frames(ROWS))
    assert len(timers) == 1, "it runs once, whatever comes meanwhile"
    # WHEN the time is over, and the thread has done what it got
    timers[0]()
    reached = Event()
    writer._work.put(reached)
    assert reached.wait(30)
    # THEN everything can be replayed, though nothing was closed
    replay = Replay(lambda batch: None, lambda note: None, lambda fact: None, str(tmp_path))
    replay.run(read_events(list_segments(tmp_path / "recording")))
    assert replay.records == ROWS
    tap.close()


def test_a_full_disk_is_told_once_and_the_engine_goes_on(tmp_path, monkeypatch):
    failures: list[str] = []
    engine, tap = tapped(tmp_path / "recording", tmp_path, failures)

    def full(_file: int, _data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    work_off(engine, tap, make_frames(ROWS))
    tap.close()
    assert failures == ["the disk is full"]
    assert engine.checkpoint.position.end_lsn > 1 << 32, "everything was delivered"


def test_what_cannot_be_written_down_ends_the_recording_and_not_the_engine(tmp_path, monkeypatch):
    failures: list[str] = []
    engine, tap = tapped(tmp_path / "recording", tmp_path, failures)

    def unwritable(_event: object) -> bytes:
        raise TypeError("Progress is not recorded")

    monkeypatch.setattr(taps, "item_of", unwritable)
    work_off(engine, tap, make_frames(ROWS))
    tap.close()
    (failure,) = failures
    assert "Progress is not recorded" in failure
    assert engine.checkpoint.position.end_lsn > 1 << 32


def test_a_segment_ends_by_its_size_and_by_its_age(tmp_path):
    recordings = []
    for name, limits in (
        ("size", replace(LIMITS, segment_bytes=20_000)),
        ("age", replace(LIMITS, age_s_max=60.0)),
        ("none", LIMITS),
    ):
        engine = engine_for(tmp_path)
        writer = RecordingWriter(tmp_path / name, limits)
        tap = Tap(engine, START, 1, writer, later=NoTimer, wrote=lambda _: None, failed=pytest.fail)
        tap.begin(0.0, 1_700_000_000_000_000)
        for minutes, frames in enumerate(make_frames(ROWS)):
            work_off(engine, tap, [frames])
            tap._flush()
            writer.wait()
            tap.next_action(0.0, 1_700_000_000_000_000 + minutes * 60_000_000)
        tap.close()
        recordings.append([segment.head.kind for segment in list_segments(tmp_path / name)])
    size, age, none = recordings
    assert len(size) > 1
    assert len(age) > 1
    assert none == ["s"]


def test_only_the_types_that_are_needed_are_kept(tmp_path):
    _, tap = tapped(tmp_path / "recording", tmp_path, [])
    answer = Published({5: "public.other"}, 1, {})
    assert tap._kept(answer) is answer
    tap.close()


@pytest.mark.parametrize("at", [0.3, 0.6, 0.9])
def test_a_recording_that_was_cut_off_is_replayed_up_to_the_cut(tmp_path, at):
    engine, tap = tapped(tmp_path / "recording", tmp_path, [])
    work_off(engine, tap, make_frames(ROWS))
    tap.close()
    (segment,) = list_segments(tmp_path / "recording")
    whole = segment.path.read_bytes()
    segment.path.write_bytes(whole[: int(len(whole) * at)])
    notes: list[str] = []
    replay = Replay(lambda batch: None, notes.append, lambda fact: None, str(tmp_path))
    replay.run(read_events(list_segments(tmp_path / "recording")))
    assert 0 <= replay.records < ROWS
    assert any("is torn at offset" in note for note in notes)
