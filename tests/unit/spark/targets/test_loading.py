from datetime import UTC, datetime

import pytest

from cdcd.errors import PositionError
from cdcd.spark.targets.changelog import Found
from cdcd.spark.targets.lakehouse import _Step
from cdcd.spark.targets.loading import loaded
from cdcd.spark.targets.state import Origin, Place, State

COMMITTED = datetime(2026, 1, 1, tzinfo=UTC)
NEW = Found({}, rows=1, unfit=0, commit_time=COMMITTED, first_lsn=None, held={}, waiting=2)


def test_what_the_snapshot_sees_is_not_new_any_more_wherever_it_lies():
    state = loaded("t", State(), 500, {0: 10, 1: 0})
    assert state.commit_lsn == 500
    assert state.consistent_lsn == 500
    assert state.truncated == (500, 0)
    # Where the topic has something, reading goes on behind it; elsewhere it begins at the beginning.
    assert state.partitions == {0: Place(500, 1, 1, 9)}
    assert State.from_json(state.to_json()) == state


def test_a_table_that_is_loaded_once_more_keeps_how_far_its_topic_was_read():
    before = State(
        commit_lsn=400, partitions={0: Place(400, 3, 1, 70), 1: Place(90, 1, 1, 5)}, truncated=(50, 2)
    )
    state = loaded("t", before, 500, {0: 20})
    assert state.partitions == {0: Place(500, 1, 1, 70), 1: Place(90, 1, 1, 5)}
    assert state.truncated == (500, 0)


def test_a_table_with_later_changes_is_not_taken_back():
    with pytest.raises(PositionError, match="after the snapshot's"):
        loaded("t", State(commit_lsn=501), 500, {})


def test_a_cut_before_the_snapshot_is_no_point_of_the_table():
    state = loaded("t", State(), 500, {})
    before = _Step(batch_id=1, consistent_lsn=499).after(state, {0: Place(510, 1, 1, 3)}, None, NEW)
    assert before.consistent_lsn == 500
    after = _Step(batch_id=2, consistent_lsn=520).after(before, {0: Place(515, 1, 1, 4)}, None, NEW)
    assert after.consistent_lsn == 520
    # When its newest change was committed is known by then; a snapshot has no such time.
    assert (state.commit_time, before.commit_time, before.held) == (None, COMMITTED, 2)
    assert loaded("t", before, 600, {}).commit_time is None


def test_places_in_a_former_topic_are_forgotten_with_it():
    before = State(commit_lsn=400, partitions={0: Place(400, 1, 1, 90)}, origin=Origin("a", {0: 0}))
    state = loaded("t", before, 500, {0: 20}, Origin("b"))
    assert state.origin == Origin("b")
    assert state.partitions[0].offset == 19
