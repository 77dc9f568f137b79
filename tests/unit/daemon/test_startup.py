"""The order in which a session is made ready: what must not be done before what."""

import pytest

from cdcd.daemon.startup import STEPS, Startup


def place(name: str) -> int:
    return STEPS.index(getattr(Startup, name))


@pytest.mark.parametrize(
    ("first", "then", "because"),
    [
        ("_take_lock", "_connect_stream", "a standby disturbs no stream"),
        ("_judge", "_fence", "who must refuse to start shuts nobody out"),
        ("_judge", "_ensure_publication", "who must refuse to start creates nothing"),
        ("_fence", "_ensure_slot", "a former instance can not move the slot any more"),
        ("_refuse_collisions", "_ensure_slot", "a slot that nobody uses would hold WAL"),
        ("_ensure_publication", "_ensure_slot", "a slot decodes what is published when it was made"),
        ("_ensure_slot", "_import_snapshot", "the slot exports it"),
        ("_import_snapshot", "_choose_tables", "tables may be added while the creation of the slot waits"),
        (
            "_choose_tables",
            "_resume",
            "which tables are read is in the checkpoint that the session begins with",
        ),
        ("_import_snapshot", "_resume", "the snapshot goes with the next command"),
        ("_fence", "_resume", "the checkpoint is written by the one writer"),
    ],
)
def test_the_steps_have_their_order(first: str, then: str, because: str):
    assert place(first) < place(then), because


def test_the_lock_is_first_and_the_checkpoint_last():
    assert STEPS[0] is Startup._take_lock
    assert STEPS[-1] is Startup._resume
    assert len(set(STEPS)) == len(STEPS)
