"""What a target table has of its topic: kept in the commit that holds the data, so that the two cannot disagree.

The rule: a change is new to a table exactly if it lies after what the table has of the change's partition. A batch that
was applied and comes again, wholly or in part, therefore changes nothing, whoever was killed when.

A place in a partition is (commit LSN, number of the event, half). Both halves of a key change have one number; the
delete of the old key is half 0, all else 1, so that a batch may end between the two. The offset is kept beside it for
snapshot rows, which share one LSN, and for people.

A truncate is one record in one partition, but means all: where it lies is kept too (`truncated`), and what comes later
from another partition but lies before it is left out.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from cdcd.protocol.lsn import Lsn
from cdcd.spark.schema import BatchPosition

PROPERTY: Final = "cdcd.state"
"""Of a snapshot's summary (Iceberg), or the key in the commit's userMetadata (Delta)."""


class Place(NamedTuple):
    """The last change that a table has of a partition."""

    commit_lsn: int
    event_no: int
    half: int
    offset: int


@dataclass(frozen=True, slots=True)
class State:
    """What one commit of a target table says of its position.

    Attributes:
        commit_lsn: of the newest change that is in; from other partitions, older ones may be missing.
        consistent_lsn: every change of the table that committed at or before it is in, and none after it; None where
            the job does not promise that.
        partitions: by partition of the topic.
        truncated: (commit LSN, number of the event) of the last truncate.
        batch_id: of the stream, to be shown.
    """

    commit_lsn: int = 0
    consistent_lsn: int | None = None
    partitions: Mapping[int, Place] = field(default_factory=dict)
    truncated: tuple[int, int] | None = None
    batch_id: int = 0

    def advanced(
        self,
        places: Mapping[int, Place],
        *,
        truncated: tuple[int, int] | None = None,
        consistent_lsn: int | None = None,
        batch_id: int = 0,
    ) -> "State":
        """The state when changes up to `places` are in too. Nothing ever goes back."""
        partitions = dict(self.partitions)
        for partition, place in places.items():
            had = partitions.get(partition, place)
            furthest = max(had, place)
            partitions[partition] = furthest._replace(offset=max(had.offset, place.offset))
        truncates = [at for at in (self.truncated, truncated) if at is not None]
        return State(
            commit_lsn=max([self.commit_lsn, *[place.commit_lsn for place in places.values()]]),
            consistent_lsn=self.consistent_lsn if consistent_lsn is None else consistent_lsn,
            partitions=partitions,
            truncated=max(truncates, default=None),
            batch_id=batch_id,
        )

    @property
    def position(self) -> BatchPosition:
        """The same for readers."""
        return BatchPosition(
            commit_lsn=self.commit_lsn,
            positions={
                number: (place.commit_lsn, place.event_no) for number, place in self.partitions.items()
            },
            offsets={number: place.offset + 1 for number, place in self.partitions.items()},
            batch_id=self.batch_id,
        )

    def to_json(self) -> str:
        return json.dumps(
            {
                "lsn": str(Lsn(self.commit_lsn)),
                "commit_lsn": self.commit_lsn,
                "consistent_lsn": self.consistent_lsn,
                "partitions": {str(number): list(place) for number, place in sorted(self.partitions.items())},
                "truncated": None if self.truncated is None else list(self.truncated),
                "batch_id": self.batch_id,
            },
            separators=(",", ":"),
        )

    @classmethod
    def from_json(cls, text: str) -> "State":
        """What `to_json` wrote. ValueError, KeyError: it is something else."""
        data = json.loads(text)
        truncated = data["truncated"]
        return cls(
            commit_lsn=data["commit_lsn"],
            consistent_lsn=data["consistent_lsn"],
            partitions={int(number): Place(*place) for number, place in data["partitions"].items()},
            truncated=None if truncated is None else (truncated[0], truncated[1]),
            batch_id=data["batch_id"],
        )
