"""Finds other pipelines that use the transactional id of this pipeline.

Two pipelines with one transactional id end each other: each start shuts the other one's producer out. Kafka's clients
cannot ask who uses an id. So each checkpoint record of a pipeline that uses Kafka transactions has headers with the id
and the slot, and the checkpoint topics of other pipelines tell who uses the id.

A header proves nothing, because others may write to such a topic. So a header refuses a start only under these
conditions, and is otherwise just reported:

- This pipeline has not yet written a checkpoint by the id. A pipeline that has done so never looks, so no topic can
  end it at its start.
- The principal may write to the topic too. With the rights of deploy/acl.md, only cdcd can have written the record.
- The record is younger than `RECENT_S`, so the topic of a pipeline that is gone refuses no start for longer.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from confluent_kafka import Message

from cdcd.adapters.kafka.admin import Admin, TopicInfo
from cdcd.adapters.kafka.bounded_reading import Last, read_last
from cdcd.adapters.kafka.client import Properties
from cdcd.core.engine.checkpoint import Checkpoint
from cdcd.core.errors import CdcdError, FencedError, PositionError

HEADER_ID: Final = "cdcd.transactional_id"
HEADER_SLOT: Final = "cdcd.slot"

SUFFIX: Final = ".checkpoint"
"""End of the names of topics that are read. It is the end of each checkpoint topic without a name of its own."""

TOPICS_AT_ONCE: Final = 100
"""Number of topics that one consumer reads at the same time. The others follow, in the order of their names."""

OFFSETS: Final = 16
"""Number of offsets at the end of a topic that are read. Each transaction has a record and a marker there."""

READ_S: Final = 5.0
"""Maximum seconds for reading all topics. Some thousand topics take this time."""

RECENT_S: Final = 600
"""Age in seconds up to which a record shows that its pipeline may still run."""


@dataclass(frozen=True, slots=True)
class IdUse:
    """Use of a transactional id by a pipeline, as the headers of its checkpoint records tell it.

    Attributes:
        transactional_id: the id; "": the pipeline does not use Kafka transactions.
        slot: name of the pipeline's replication slot.
    """

    transactional_id: str
    slot: str

    @property
    def headers(self) -> list[tuple[str, str | bytes | None]]:
        """Headers of a checkpoint record."""
        if not self.transactional_id:
            return []
        return [(HEADER_ID, self.transactional_id.encode()), (HEADER_SLOT, self.slot.encode())]


@dataclass(frozen=True, slots=True)
class Sharer:
    """Another pipeline whose newest checkpoint names the transactional id.

    Attributes:
        pipeline: name of the pipeline, which somebody else may have chosen.
        age_s: seconds since the record was written, by the clock of its writer.
        may_write: True if this principal may write to the topic too.
    """

    pipeline: str
    topic: str
    age_s: float
    may_write: bool

    @property
    def is_recent(self) -> bool:
        """True if the pipeline may still run."""
        return abs(self.age_s) < RECENT_S

    @property
    def told(self) -> str:
        """Text that names the pipeline and its topic."""
        return f"pipeline {self.pipeline!r:.60} (topic {self.topic})"


@dataclass(frozen=True, slots=True)
class IdSearch:
    """The answer of the checkpoint topics.

    Attributes:
        sharers: the other pipelines that use the transactional id.
        unread: number of topics that were not read, because the time was over or Kafka did not answer.
    """

    sharers: tuple[Sharer, ...] = ()
    unread: int = 0


NOTHING_FOUND: Final = IdSearch()


def id_of(message: Message) -> str:
    """Return the transactional id that the record's headers name; "" if they name none."""
    return _header(message, HEADER_ID)


def _header(message: Message, name: str) -> str:
    given = message.headers() or ()
    for key, value in given.items() if isinstance(given, dict) else given:
        if key == name and isinstance(value, bytes):
            return value.decode(errors="replace")
    return ""


def find_sharers(
    client: Properties, own_topic: str, use: IdUse, system_identifier: str, timeout_s: float = READ_S
) -> IdSearch:
    """Return the other pipelines whose newest checkpoint names the transactional id of `use`. The call blocks.

    Topics that the principal may not read are left out, because nothing is known about them.

    Args:
        own_topic: checkpoint topic of this pipeline.
        system_identifier: identifier of this pipeline's server; "": not known. A record with this server and the slot
            of `use` is a former record of this pipeline, in the topic of a former `topics.prefix`.
    """
    if not use.transactional_id:
        return NOTHING_FOUND
    ends = time.monotonic() + timeout_s
    newest: dict[str, Message] = {}
    described: dict[str, TopicInfo] = {}
    left: list[str] = []
    try:
        admin = Admin(client, timeout_s)
        left = sorted(name for name in admin.names() if name.endswith(SUFFIX) and name != own_topic)
        while left and (left_s := ends - time.monotonic()) > 0:
            names = left[:TOPICS_AT_ONCE]
            found = admin.each_topic(names)
            infos = {name: info for name, info in found.items() if isinstance(info, TopicInfo)}
            readable = [
                name for name, info in infos.items() if info.partitions == 1 and info.may_read is not False
            ]
            limits = Last(OFFSETS, TOPICS_AT_ONCE, left_s)
            for message in read_last(client, f"{own_topic}-others", readable, limits) if readable else ():
                newest[str(message.topic())] = message
            described |= infos
            left = left[TOPICS_AT_ONCE:]
    except CdcdError:
        # The caller's next request fails too if Kafka does not answer. The records that were read before count.
        pass
    sharers = _sharing(newest.values(), described, use, system_identifier)
    return IdSearch(tuple(sharers), len(left))


def _sharing(
    newest: Iterable[Message], described: dict[str, TopicInfo], use: IdUse, system_identifier: str
) -> Iterable[Sharer]:
    for message in newest:
        if str(message.topic()) not in described:
            continue
        if message.value() is None or id_of(message) != use.transactional_id:
            continue
        if _header(message, HEADER_SLOT) == use.slot and system_identifier in ("", _server_of(message)):
            continue
        topic = str(message.topic())
        pipeline = (message.key() or b"").decode(errors="replace")
        age_s = time.time() - message.timestamp()[1] / 1000
        yield Sharer(pipeline, topic, age_s, described[topic].may_write is not False)


def _server_of(message: Message) -> str:
    try:
        return Checkpoint.decode(message.value() or b"", "").system_identifier
    except PositionError:
        return ""


def refusal(sharers: Iterable[Sharer], transactional_id: str) -> FencedError | None:
    """Return the error with which a pipeline that has not used the id yet refuses to start; None: it starts."""
    for each in sharers:
        if each.is_recent and each.may_write:
            return FencedError(
                f"Another pipeline uses the transactional id {transactional_id}: {each.told} has written a checkpoint "
                f"with it {max(0, round(each.age_s))} s ago. Two pipelines with one transactional id end each other.",
                hint=shared_hint(each, transactional_id),
            )
    return None


def shared_hint(sharer: Sharer, transactional_id: str) -> str:
    """Return the hint for a transactional id that another pipeline uses."""
    return (
        f"Set kafka.transactional_id: {transactional_id}-2 for one of the two pipelines. If the other one is gone, "
        f"delete its topic: kafka-topics --bootstrap-server <bootstrap> --delete --topic {sharer.topic}"
    )
