"""Partitions that were added to topics. Producers send the keys of a topic to other partitions from then on."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


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
