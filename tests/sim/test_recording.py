from pathlib import Path

import pytest

from cdcd.build import is_compiled
from cdcd.recording.playback import read_events
from cdcd.recording.replay import Replay
from cdcd.recording.segments import list_segments
from tests.sim.recorded import Recorded, Shipped
from tests.sim.world import World

pytestmark = pytest.mark.sim

SEEDS_PER_TEST = 20


def replayed(folder: Path, spool: Path, **options) -> tuple[Replay, list[list]]:
    batches: list[list] = []
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


def must_be_what_was_delivered(shipped: list[Shipped], batches: list[list]) -> None:
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
@pytest.mark.parametrize("first", range(0, 100, SEEDS_PER_TEST))
def test_an_exact_replay_writes_what_the_daemon_wrote(first, tmp_path, monkeypatch):
    exact = segments = 0
    for seed in range(first, first + SEEDS_PER_TEST):
        spool, folder = tmp_path / f"spool{seed}", tmp_path / f"recording{seed}"
        spool.mkdir()
        with monkeypatch.context() as patch:
            recorded = Recorded(folder)
            recorded.plant(patch)
            World(seed, str(spool)).run()
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
    assert segments > 2 * exact, "sessions had several segments"
