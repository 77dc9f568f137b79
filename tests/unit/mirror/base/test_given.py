"""What a batch and a snapshot say of the changes that a table has."""

from typing import Any

import pytest
from pyspark.sql import SparkSession

from cdcd.core.errors import PositionError
from cdcd.mirror.base.given import batch_of
from cdcd.mirror.base.load_snapshot import _loaded
from cdcd.mirror.targets.reduction import prepared
from cdcd.mirror.targets.state import Place, State
from tests.spark.source_model import FORM, change, frame


class Read:
    """A snapshot that sees every commit up to an LSN."""

    def __init__(self, lsn: int, ends: dict[int, int], topic_id: str | None = None) -> None:
        self.commit_lsn, self._ends, self._topic_id = lsn, ends, topic_id

    def offsets(self, _table: str) -> dict[int, int]:
        return self._ends

    def topic_id(self, _table: str) -> str | None:
        return self._topic_id


def loaded(state: State, lsn: int, ends: dict[int, int], topic_id: str | None = None) -> State:
    snapshot: Any = Read(lsn, ends, topic_id)
    return _loaded(snapshot, "public.items", state, "items")


def test_what_the_snapshot_sees_is_not_new_any_more_wherever_it_lies():
    state = loaded(State(), 500, {0: 10, 1: 0})
    assert (state.commit_lsn, state.truncated) == (500, (500, 0))
    # Where the topic has something, reading goes on behind it; elsewhere it begins at the beginning.
    assert state.partitions == {0: Place(500, 1, 1, 9)}
    assert State.from_json(state.to_json()) == state


def test_a_table_that_is_loaded_once_more_keeps_how_far_its_topic_was_read():
    before = State(400, {0: Place(400, 3, 1, 70), 1: Place(90, 1, 1, 5)}, (50, 2))
    state = loaded(before, 500, {0: 20})
    assert state.partitions == {0: Place(500, 1, 1, 70), 1: Place(90, 1, 1, 5)}
    assert state.truncated == (500, 0)


def test_a_table_with_later_changes_is_not_taken_back():
    with pytest.raises(PositionError, match="after the snapshot's"):
        loaded(State(501), 500, {})


def test_places_in_a_former_topic_are_forgotten_with_it():
    state = loaded(State(400, {0: Place(400, 1, 1, 90)}, topic_id="a"), 500, {0: 20}, "b")
    assert state.topic_id == "b"
    assert state.partitions[0].offset == 19


def test_a_batch_says_where_each_partition_is_whatever_became_of_the_key_later(spark: SparkSession):
    changes = [
        change("c", 10, 5),
        change("d", 20, 5, partition=1, offset=3),
        change("c", 30, 6, partition=1, offset=2),
        change("t", 15, None, partition=2),
    ]
    found = batch_of(prepared(frame(spark, changes)), FORM)
    assert found.places == {0: Place(10, 1, 1, 10), 1: Place(30, 1, 1, 3), 2: Place(15, 1, 1, 15)}
    assert (found.count, found.first, found.last, found.cut) == (4, 10, 30, (15, 1))


def test_a_batch_without_changes_says_so(spark: SparkSession):
    found = batch_of(prepared(frame(spark, [])), FORM)
    assert (found.count, found.first, found.last, found.cut, found.places) == (0, 1, 0, None, {})
