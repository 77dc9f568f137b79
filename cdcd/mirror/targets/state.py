"""What a table has of its topic, where a job brings the changes: kept in the commit that holds the data.

The rule: a change is new to a table exactly if it lies after what the table has of the change's partition. A batch that
was applied and comes again, wholly or in part, therefore changes nothing, whoever was killed when.

A place in a partition is (commit LSN, number of the event, half). Both halves of a key change have one number; the
delete of the old key is half 0, all else 1. The offset is kept beside it for snapshot rows, which share one LSN.

A truncate is one record in one partition, but means all: where it lies is kept too (`truncated`), and what comes later
from another partition but lies before it is left out.

Commits of mirrors without a log, which former versions of cdcd made, have a state too.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

PROPERTY: Final = "cdcd.state"
"""Of a mirror without a log: in the summary of a snapshot (Iceberg), or the key in a commit's userMetadata (Delta)."""


At = tuple[int, int]
"""(commit LSN, number of the event)."""


class Place(NamedTuple):
    """The last change that a table has of a partition."""

    commit_lsn: int
    event_no: int
    half: int
    offset: int


@dataclass(frozen=True, slots=True)
class State:
    """What one commit says of the changes that the table has.

    Attributes:
        commit_lsn: of the newest change that is in; from other partitions, older ones may be missing.
        partitions: by partition of the topic, the last change that is in.
        truncated: (commit LSN, number of the event) of the last truncate.
        topic_id: Kafka's id of the topic that `partitions` is of. None: not known.
        batch_id: number that the job gave to its last batch, for people.
    """

    commit_lsn: int = 0
    partitions: Mapping[int, Place] = field(default_factory=dict)
    truncated: At | None = None
    topic_id: str | None = None
    batch_id: int = 0

    def advanced(self, places: Mapping[int, Place], truncated: At | None = None) -> "State":
        """The state when changes up to `places` are in too. Nothing ever goes back."""
        partitions = dict(self.partitions)
        for partition, place in places.items():
            had = partitions.get(partition, place)
            furthest = max(had, place)
            partitions[partition] = furthest._replace(offset=max(had.offset, place.offset))
        truncates = [at for at in (self.truncated, truncated) if at is not None]
        return State(
            max([self.commit_lsn, *[place.commit_lsn for place in places.values()]]),
            partitions,
            max(truncates, default=None),
            self.topic_id,
            self.batch_id,
        )

    def has(self, other: "State") -> bool:
        """True if each change that `other` has is in."""
        return all(
            number in self.partitions and self.partitions[number] >= place
            for number, place in other.partitions.items()
        )

    def to_json(self) -> str:
        return json.dumps(
            {
                "commit_lsn": self.commit_lsn,
                "partitions": {str(number): list(place) for number, place in sorted(self.partitions.items())},
                "truncated": None if self.truncated is None else list(self.truncated),
                "topic_id": self.topic_id,
                "batch_id": self.batch_id,
            },
            separators=(",", ":"),
        )

    @classmethod
    def from_json(cls, text: str) -> "State":
        """What `to_json` or a former version wrote. ValueError, KeyError: it is something else."""
        data: Any = json.loads(text)
        truncated = data["truncated"]
        return cls(
            data["commit_lsn"],
            {int(number): Place(*place) for number, place in data["partitions"].items()},
            None if truncated is None else (truncated[0], truncated[1]),
            _topic_id(data.get("topic_id")),
            data.get("batch_id", 0),
        )


def _topic_id(written: str | None) -> str | None:
    """Kafka's id of a topic as librdkafka writes it. Former versions of cdcd have written the text of the Java client.

    Both are base64 without padding. The Java client (`Uuid.toString`) has the alphabet that is safe in URLs.
    """
    return None if written is None else written.replace("-", "+").replace("_", "/")
