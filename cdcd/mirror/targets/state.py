"""What a target table has of its topic: kept in the commit that holds the data, so that the two cannot disagree.

The rule: a change is new to a table exactly if it lies after what the table has of the change's partition. A batch that
was applied and comes again, wholly or in part, therefore changes nothing, whoever was killed when.

A place in a partition is (commit LSN, number of the event, half). Both halves of a key change have one number; the
delete of the old key is half 0, all else 1. Commits of former versions may end between the two. The offset is kept
beside it for snapshot rows, which share one LSN, and for people.

A truncate is one record in one partition, but means all: where it lies is kept too (`truncated`), and what comes later
from another partition but lies before it is left out.

Offsets mean something in one topic only, and a topic that was deleted and made again has the same name and its own
offsets from 0 on. So which topic it was is kept too (`Origin`), by the id that Kafka gave it, with the first offset of
each partition that was there when the table began with it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, NamedTuple

from cdcd.core.errors import PositionError
from cdcd.core.protocol.lsn import Lsn
from cdcd.mirror.targets.fencing import NOBODY, Stamp

PROPERTY: Final = "cdcd.state"
"""Of a snapshot's summary (Iceberg), or the key in the commit's userMetadata (Delta)."""


At = tuple[int, int]
"""(commit LSN, number of the event)."""

WHOLE: Final = 2**63 - 1
"""As the number of an event: all of a transaction."""


class Place(NamedTuple):
    """The last change that a table has of a partition."""

    commit_lsn: int
    event_no: int
    half: int
    offset: int


@dataclass(frozen=True, slots=True)
class Origin:
    """Which topic offsets are of.

    Attributes:
        topic_id: Kafka's id of the topic, as librdkafka writes it; None: brokers before Kafka 2.8 give none, and former
            versions kept none.
        first: by partition, the first offset that was there when the table began with the partition.
    """

    topic_id: str | None = None
    first: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reach:
    """Which part of a topic changes are.

    A key's changes may lie in several partitions, for these may be added, and a key column renamed. So a change counts
    only where nothing that came before it can still be unread, in whichever partition.

    Attributes:
        until: by partition, the offset before which they are all, from what the table has on.
        bound: all of the topic up to here lies before `until`. What lies after it comes again, with more of the other
            partitions. None: nothing does.
        waiting: number of changes after the bound that were left out before.
    """

    until: Mapping[int, int]
    bound: At | None = None
    waiting: int = 0

    def places(self, last: At, held: Mapping[int, int]) -> dict[int, Place]:
        """What a table has of each partition if `last` is the last change that went in.

        Args:
            held: by partition, the offset from which on changes come again.
        """
        ends = {partition: min(end, held.get(partition, end)) for partition, end in self.until.items()}
        return {partition: Place(*last, 1, end - 1) for partition, end in ends.items() if end > 0}


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
        origin: the topic that `partitions` is of.
        stamp: who made the commit.
        made_on: the stamp of the newest commit that the process knew right before it made this commit. None: a former
            version of cdcd wrote the state.
        commit_time: of the newest change of the last batch, by the source's clock, with a time zone; None: the rows are
            a snapshot's, or a former version wrote the state.
        held: number of changes that had been read by then and waited for other partitions or for a common LSN.
    """

    commit_lsn: int = 0
    consistent_lsn: int | None = None
    partitions: Mapping[int, Place] = field(default_factory=dict)
    truncated: tuple[int, int] | None = None
    batch_id: int = 0
    origin: Origin = Origin()
    stamp: Stamp = NOBODY
    made_on: Stamp | None = None
    commit_time: datetime | None = None
    held: int = 0

    def advanced(
        self,
        places: Mapping[int, Place],
        *,
        truncated: tuple[int, int] | None = None,
        consistent_lsn: int | None = None,
        batch_id: int = 0,
        origin: Origin | None = None,
        commit_time: datetime | None = None,
        held: int = 0,
    ) -> "State":
        """The state when changes up to `places` are in too. Nothing ever goes back.

        Args:
            commit_time: of the newest of them. Without a time zone it is local time, as Spark gives it.
        """
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
            origin=origin or self.origin,
            commit_time=self.commit_time if commit_time is None else commit_time.astimezone(UTC),
            held=held,
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
                "topic_id": self.origin.topic_id,
                "first": {str(number): offset for number, offset in sorted(self.origin.first.items())},
                "stamp": list(self.stamp),
                "made_on": None if self.made_on is None else list(self.made_on),
                "commit_time": None if self.commit_time is None else self.commit_time.isoformat(),
                "held": self.held,
            },
            separators=(",", ":"),
        )

    @classmethod
    def from_json(cls, text: str) -> "State":
        """What `to_json` wrote. ValueError, KeyError: it is something else."""
        data = json.loads(text)
        truncated, committed = data["truncated"], data.get("commit_time")
        made_on = data.get("made_on")
        return cls(
            commit_lsn=data["commit_lsn"],
            consistent_lsn=data["consistent_lsn"],
            partitions={int(number): Place(*place) for number, place in data["partitions"].items()},
            truncated=None if truncated is None else (truncated[0], truncated[1]),
            batch_id=data["batch_id"],
            origin=Origin(
                _topic_id(data.get("topic_id")),
                {int(number): offset for number, offset in data.get("first", {}).items()},
            ),
            stamp=Stamp(*data.get("stamp", ())),
            made_on=None if made_on is None else Stamp(*made_on),
            commit_time=None if committed is None else datetime.fromisoformat(committed),
            held=data.get("held", 0),
        )


def _topic_id(written: str | None) -> str | None:
    """Kafka's id of a topic as librdkafka writes it. Former versions of cdcd have written the text of the Java client.

    Both are base64 without padding. The Java client (`Uuid.toString`) has the alphabet that is safe in URLs.
    """
    return None if written is None else written.replace("-", "+").replace("_", "/")


class RolledBackError(PositionError):
    """The newest commit of a table is not the last one of this mirror: somebody rolled the table back or restored it.

    The table itself says which position it has now. Forget what is known of the table, and look at it again.
    """
