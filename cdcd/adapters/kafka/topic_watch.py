"""Asks the leaders of the topics that are being written whether they answer, and notices added partitions.

The rule: one partition of each leader is asked, so that the number of brokers bounds the load, whatever the number of
topics. A broker that is asked which leader a partition has may itself be the one that is silent. So the answer is
awaited for a short time only, and the leaders that were known before are asked then.

After partitions were added to a topic, producers send its keys to other partitions.
"""

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from cdcd.adapters.kafka.errors import Partition, no_leader, silent_leader

TOPICS_MAX: Final = 100
"""The number of topics whose leaders are looked up at a time."""

LOOK_UP_S: Final = 1.0
"""Seconds to wait for the names of leaders."""

_SLICE_S: Final = 0.05


class Asked(Protocol):
    """What of `Admin` is asked."""

    where: str

    @property
    def is_stopping(self) -> bool: ...

    def leaders(self, topics: Sequence[str], timeout_s: float) -> dict[Partition, int]: ...

    def silent(self, partitions: Sequence[Partition], timeout_s: float) -> list[Partition]: ...


class Leaders:
    """Leaders as they were last named."""

    def __init__(self, admin: Asked) -> None:
        self._admin = admin
        self._known: dict[Partition, int] = {}

    def ask(self, topics: Collection[str], deadline: float) -> None:
        """Ask the leaders of some of these topics, and wait for their answers until `deadline` (monotonic seconds).

        Raises TransientError: a leader does not answer, or a partition had none all the time.
        """
        some = sorted(topics)[:TOPICS_MAX]
        partitions = self._look_up(some, deadline)
        by_leader = {leader: partition for partition, leader in reversed(partitions.items())}
        if not by_leader:
            return
        silent = self._admin.silent(list(by_leader.values()), max(deadline - time.monotonic(), _SLICE_S))
        for partition in silent:
            raise silent_leader(self._admin.where, partitions[partition], partition)

    def _look_up(self, topics: Sequence[str], deadline: float) -> dict[Partition, int]:
        """The partitions of these topics with their leaders. Raises TransientError: one has none until `deadline`."""
        while True:
            known = {partition: leader for partition, leader in self._known.items() if partition[0] in topics}
            found = self._known = {**known, **self._admin.leaders(topics, LOOK_UP_S)}
            orphan = next((partition for partition, leader in found.items() if leader < 0), None)
            if orphan is None:
                return found
            if self._admin.is_stopping or time.monotonic() > deadline:
                raise no_leader(self._admin.where, orphan)
            time.sleep(_SLICE_S)


@dataclass(frozen=True, slots=True)
class AddedPartitions:
    """A topic had `before` partitions and has `now`, which is more."""

    topic: str
    before: int
    now: int


class PartitionCounts:
    """The number of partitions of a pipeline's topics, as this process has seen them.

    Args:
        prefix: what the topics of the pipeline begin with, without the point.
        others: topics of the pipeline that begin otherwise.
    """

    def __init__(self, prefix: str, others: Iterable[str] = ()) -> None:
        self._begin = f"{prefix}."
        self._others = frozenset(others)
        self._known: dict[str, int] = {}

    def look(self, counts: Mapping[str, int]) -> list[AddedPartitions]:
        """Compare all topics of the cluster with the last look, and return the pipeline's that have more partitions.

        A topic that is missing keeps its number: it may be deleted and created again with another one.
        """
        ours = {
            topic: count
            for topic, count in counts.items()
            if count and (topic.startswith(self._begin) or topic in self._others)
        }
        added = [
            AddedPartitions(topic, self._known[topic], count)
            for topic, count in sorted(ours.items())
            if count > self._known.get(topic, count)
        ]
        self._known |= ours
        return added
