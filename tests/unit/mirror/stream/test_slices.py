import random
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from cdcd.mirror.stream.frontier import Tip
from cdcd.mirror.stream.slices import distance, reach_of, slice_of
from cdcd.mirror.targets.state import At


def test_a_batch_that_is_small_enough_is_taken_whole():
    assert slice_of({0: 5}, {0: 10, 1: 3}, 8) == {0: 10, 1: 3}


def test_a_larger_one_goes_on_in_every_partition_in_proportion():
    assert slice_of({0: 0, 1: 100}, {0: 900, 1: 200}, 100) == {0: 90, 1: 110}


def test_slices_come_to_the_end():
    ends = {0: 1000, 1: 7, 2: 0}
    start: dict[int, int] = {}
    turns = 0
    while any(start.get(partition, 0) < end for partition, end in ends.items()):
        start = slice_of(start, ends, 100)
        turns += 1
    assert start == ends
    assert turns <= 12


@dataclass
class Topic:
    """Changes in several partitions. The offset of a change is its place in its partition."""

    partitions: list[list[At]]
    steps: list[int] = field(default_factory=list)
    """How many offsets each step read."""

    @property
    def tip(self) -> Tip:
        ends = {number: len(changes) for number, changes in enumerate(self.partitions)}
        return Tip(ends, max(changes[-1][0] for changes in self.partitions if changes))

    def first(self, start: Mapping[int, int], _ends: Mapping[int, int]) -> At | None:
        """The first change that is not read, of those that are."""
        return min(self.partitions[number][start[number]] for number in _ends)

    def step(self, start: Mapping[int, int], ends: Mapping[int, int], size: int) -> dict[int, int]:
        """Apply the next part. Where the one after it begins."""
        reach, _ = reach_of(start, ends, size, None, lambda: self.tip, self.first)
        assert reach.bound is not None
        self.steps.append(distance(start, reach.until))
        taken = {number: self.partitions[number][start[number] : end] for number, end in reach.until.items()}
        return {
            number: start[number] + sum(change <= reach.bound for change in changes)
            for number, changes in taken.items()
        }


def topic_of(changes: int, partitions: int, seed: int) -> Topic:
    """Keys of few partitions are changed more often, and for some time only keys of one."""
    rng = random.Random(seed)
    topic = Topic([[] for _ in range(partitions)])
    for lsn in range(1, changes + 1):
        favoured = (lsn * 7 // changes) % partitions
        topic.partitions[favoured if rng.random() < 0.1 else rng.randrange(partitions)].append((lsn, 0))
    return topic


@pytest.mark.parametrize("partitions", [2, 5])
@pytest.mark.parametrize("seed", range(5))
def test_a_long_history_is_applied_in_parts_as_large_as_they_may_be_by_batches_that_end_anywhere(
    partitions: int, seed: int
) -> None:
    size, share = 1000, 200
    topic = topic_of(20_000, partitions, seed)
    at, ends, last = dict.fromkeys(range(partitions), 0), dict.fromkeys(range(partitions), 0), topic.tip.ends
    while ends != last:
        # WHEN a batch of Spark goes on in each partition in proportion
        ends = slice_of(ends, last, share)
        while any(at[number] < end for number, end in ends.items()):
            before = at
            at = topic.step(at, ends, size)
            # THEN each step gets on, and none takes more than it may
            assert at != before
    assert at == last
    assert max(topic.steps) <= size + partitions
    assert len(topic.steps) < 30


@pytest.mark.parametrize("seed", range(5))
def test_a_long_history_that_one_batch_has_is_applied_in_parts_of_the_size_that_is_asked_for(
    seed: int,
) -> None:
    size, topic = 1000, topic_of(20_000, 3, seed)
    at = dict.fromkeys(range(3), 0)
    while at != topic.tip.ends:
        at = topic.step(at, topic.tip.ends, size)
    assert max(topic.steps) <= size + 3
    assert len(topic.steps) < 30
