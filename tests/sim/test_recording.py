import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cdcd.adapters.recording.replay import Replay
from cdcd.adapters.recording.segments import Segment, list_segments, read_events
from cdcd.build import is_compiled
from cdcd.core.engine.session_start import SessionStart
from cdcd.tools.operations.replay import Range, redact
from tests.sim.heartbeats import TOPIC as HEARTBEAT_TOPIC
from tests.sim.planted_focuses import HEARTBEATS, WATERMARKS
from tests.sim.recorded import Recorded, Shipped
from tests.sim.settings import TABLE_FAULTS_AND_KILLS
from tests.sim.world import World

pytestmark = pytest.mark.sim

SEEDS_PER_TEST = 20

WITHOUT_TABLES = {"exactly_once": True, "snapshot_mode": "never", "two_phase": "off", "p_keep_prepared": 0.0}
"""Only changes, and sessions that are often between transactions."""

TABLE_FAULTS_OUTSIDE = [{**TABLE_FAULTS_AND_KILLS[name], "row_faults": False} for name in ("cut", "metadata")]
"""Faults of tables that Kafka reports. What a row of the simulation cannot have is in no recording."""


def replayed(folder: Path, spool: Path, **options) -> tuple[Replay, list[list[Any]]]:
    batches: list[list[Any]] = []
    notes: list[str] = []
    replay = Replay(
        lambda batch: batches.append(list(batch.records)),
        notes.append,
        lambda fact: None,
        str(spool),
        **options,
    )
    replay.run(read_events(list_segments(folder)))
    return replay, batches


def must_be_what_was_delivered(shipped: list[Shipped], batches: list[list[Any]]) -> None:
    """Everything that was delivered, in its order; and of the rest only what the broker had without an answer."""
    at = 0
    for each in shipped:
        if at < len(batches) and batches[at] == each.records:
            at += 1
        else:
            assert not (each.delivered and each.closes and each.records), (
                "it was delivered, and is not replayed"
            )
    assert at == len(batches), "only what was shipped is replayed"


@pytest.mark.skipif(is_compiled(), reason="the test looks into compiled classes")
@pytest.mark.parametrize(
    ("first", "focus"),
    [
        (0, None),
        # Interpreted, twenty seeds take twenty seconds: `make sim` replays more of them.
        *(pytest.param(first, None, marks=pytest.mark.search) for first in (20, 40)),
        (0, HEARTBEATS),
        pytest.param(0, WATERMARKS, marks=pytest.mark.search),
        (0, TABLE_FAULTS_OUTSIDE[0]),
        *(pytest.param(0, focus, marks=pytest.mark.search) for focus in TABLE_FAULTS_OUTSIDE[1:]),
    ],
)
def test_an_exact_replay_writes_what_the_daemon_wrote(first, focus, tmp_path, monkeypatch):
    exact = segments = 0
    for seed in range(first, first + SEEDS_PER_TEST):
        spool, folder = tmp_path / f"spool{seed}", tmp_path / f"recording{seed}"
        spool.mkdir()
        with monkeypatch.context() as patch:
            recorded = Recorded(folder)
            recorded.plant(patch)
            World(seed, str(spool), focus=focus).run()
        recorded.close()
        try:
            for name, shipped in recorded.shipped.items():
                replay, batches = replayed(recorded.folder_of(name), spool)
                assert replay.exact_sessions == replay.sessions
                exact += replay.exact_sessions
                segments += len(list_segments(recorded.folder_of(name)))
                must_be_what_was_delivered(shipped, batches)
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
    assert exact > SEEDS_PER_TEST
    assert segments > exact + SEEDS_PER_TEST, "sessions had several segments"


PROCESSED = re.compile(rb',"ts_ms":\d+,"ts_us":\d+,"ts_ns":\d+}$')
OF_MESSAGE = re.compile(rb'(?<=^{"op":"m",)"ts_ms":\d+,')
TIME = re.compile(rb'"ts_(?:ms|us|ns)":\d+,')


def without_processing_times(value: bytes) -> bytes:
    """A message outside of a transaction has no time of a commit: all its times are those of its processing."""
    if value.startswith(b'{"op":"m"') and b'"txId":null' in value:
        return TIME.sub(b"", value)
    return OF_MESSAGE.sub(b"", PROCESSED.sub(b"}", value))


def changes(batches: list[list[Any]]) -> list[tuple[Any, ...]]:
    """The records of changes, without the times at which they were made."""
    return [
        (topic, key, None if value is None else without_processing_times(value), headers)
        for batch in batches
        for topic, key, value, headers in batch
        if value is None or b'"op":"r"' not in value
    ]


@pytest.mark.skipif(is_compiled(), reason="the test looks into compiled classes")
def test_a_replay_that_begins_within_a_session_writes_the_same_changes(tmp_path, monkeypatch):
    begun = 0
    for seed in range(40):
        spool, folder = tmp_path / f"spool{seed}", tmp_path / f"recording{seed}"
        spool.mkdir()
        with monkeypatch.context() as patch:
            recorded = Recorded(folder)
            recorded.plant(patch)
            world = World(seed, str(spool), focus=WITHOUT_TABLES)
            world.run()
        recorded.close()
        try:
            for name in recorded.shipped:
                segments = list_segments(recorded.folder_of(name))
                whole = changes(replayed(recorded.folder_of(name), spool)[1])
                for number, segment in enumerate(segments):
                    if segment.head.kind == "c":
                        begun += must_be_the_end_of(whole, segments[number:], spool)
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
    assert begun > 10


@pytest.mark.skipif(is_compiled(), reason="the test looks into compiled classes")
def test_a_free_replay_has_the_changes_and_no_heartbeats(tmp_path, monkeypatch):
    spool = tmp_path / "spool"
    spool.mkdir()
    with monkeypatch.context() as patch:
        recorded = Recorded(tmp_path / "recording")
        recorded.plant(patch)
        World(1, str(spool), focus={**WITHOUT_TABLES, **HEARTBEATS}).run()
    recorded.close()
    for name in recorded.shipped:
        exact = changes(replayed(recorded.folder_of(name), spool)[1])
        free = changes(replayed(recorded.folder_of(name), spool, adapt=another_limit)[1])
        wanted = [each for each in exact if each[0] != HEARTBEAT_TOPIC]
        assert wanted
        assert len(wanted) < len(exact)
        assert free[: len(wanted)] == wanted
        assert not any(topic == HEARTBEAT_TOPIC for topic, *_ in free)


@pytest.mark.skipif(is_compiled(), reason="the test looks into compiled classes")
def test_a_redacted_recording_has_the_same_changes_with_other_values(tmp_path, monkeypatch):
    seen = 0
    for seed in range(30):
        spool, folder = tmp_path / f"spool{seed}", tmp_path / f"recording{seed}"
        spool.mkdir()
        with monkeypatch.context() as patch:
            recorded = Recorded(folder)
            recorded.plant(patch)
            World(seed, str(spool), focus=WITHOUT_TABLES).run()
        recorded.close()
        try:
            for name in recorded.shipped:
                target = tmp_path / f"redacted{seed}{name}"
                redact(recorded.folder_of(name), target, Range(), rules=(), notice=lambda text: None)
                segments = list_segments(recorded.folder_of(name))
                assert [each.head for each in list_segments(target)] == [each.head for each in segments]
                # The free replay of the original is what the free replay of the other one is compared with.
                before = changes(replayed(recorded.folder_of(name), spool, adapt=another_limit)[1])
                after = changes(replayed(target, spool)[1])
                seen += must_differ_in_values_only(before, after)
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
    assert seen > 200


def another_limit(start: SessionStart) -> SessionStart:
    """Not the recorded start, so that the replay is a free one."""
    batches = start.settings.batches
    batches = replace(batches, queue_bytes_max=batches.queue_bytes_max + 1)
    return replace(start, settings=replace(start.settings, batches=batches))


def must_differ_in_values_only(before: list[tuple[Any, ...]], after: list[tuple[Any, ...]]) -> int:
    """The same records in the same topics, and each key became one other key."""
    assert [topic for topic, *_ in after] == [topic for topic, *_ in before]
    keys: dict[tuple[Any, ...], bytes] = {}
    for (topic, key, value, _), (_, other_key, other_value, _) in zip(before, after, strict=True):
        assert (value is None) == (other_value is None)
        if key is not None:
            assert keys.setdefault((topic, key), other_key) == other_key
        if value is not None and b'"op":' in value:
            one, other = json.loads(value), json.loads(other_value)
            assert one["op"] == other["op"]
            assert one["source"]["commit_lsn"] == other["source"]["commit_lsn"]
            assert (one.get("after") or {}).keys() == (other.get("after") or {}).keys()
    return len(before)


def must_be_the_end_of(whole: list[tuple[Any, ...]], segments: list[Segment], spool: Path) -> bool:
    """Whether a replay of these segments makes the last changes of the whole, and what was on its way at the end."""
    batches: list[list[Any]] = []
    Replay(
        lambda batch: batches.append(list(batch.records)), lambda note: None, lambda fact: None, str(spool)
    ).run(read_events(segments))
    found = changes(batches)
    if not found or found[0] not in whole:
        return False
    rest = whole[whole.index(found[0]) :]
    assert found[: len(rest)] == rest
    return True
