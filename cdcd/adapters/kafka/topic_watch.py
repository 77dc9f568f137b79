"""Checks whether the leaders of the topics that are being written answer, and notices added partitions.

The rule: one partition per leader is asked, so that the load depends on the number of brokers and not on the number
of topics. The broker that is asked for the leaders of partitions may itself be the one that does not answer. So
this answer is awaited only briefly, and then the leaders that were known before are asked.

After partitions were added to a topic, producers send keys to other partitions than before.
"""

import time
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from cdcd.adapters.kafka.errors import Partition, no_leader, silent_leader

TOPICS_MAX: Final = 100
"""Number of topics whose leaders are looked up in one request."""

LOOK_UP_S: Final = 1.0
"""Seconds to wait for the leaders of partitions."""

_SLICE_S: Final = 0.05


class AdminCalls(Protocol):
    """The methods of `Admin` that are used."""

    where: str

    @property
    def is_stopping(self) -> bool: ...

    def leaders(self, topics: Sequence[str], timeout_s: float) -> dict[Partition, int]: ...

    def silent(self, partitions: Sequence[Partition], timeout_s: float) -> list[Partition]: ...


class Leaders:
    """The leaders of partitions according to the last answer."""

    def __init__(self, admin: AdminCalls) -> None:
        self._admin = admin
        self._known: dict[Partition, int] = {}

    def ask(self, topics: Collection[str], deadline: float) -> None:
        """Ask the leaders of some of these topics, and wait for their answers until `deadline` (monotonic seconds).

        TransientError if a leader does not answer, or if a partition had no leader the whole time.
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
        """Return the partitions of these topics with their leaders; TransientError if one has no leader until
        `deadline`.
        """
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
    """A topic that had `before` partitions, and now has more (`now`)."""

    topic: str
    before: int
    now: int


class PartitionCounts:
    """The number of partitions of a pipeline's topics, as this process has seen them.

    Args:
        prefix: prefix of the pipeline's topics, without the point.
        others: further topics of the pipeline. The caller may add to them.
    """

    def __init__(self, prefix: str, others: Container[str] = ()) -> None:
        self._begin = f"{prefix}."
        self._others = others
        self._known: dict[str, int] = {}

    def look(self, counts: Mapping[str, int]) -> list[AddedPartitions]:
        """Compare the numbers of partitions with those of the last call, and return the pipeline's topics that have
        more.

        For a topic that is missing, the old number is kept, because the topic may have been deleted and may be
        created again.
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
