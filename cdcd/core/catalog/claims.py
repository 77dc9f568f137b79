"""Claims: which pipeline of a Kafka cluster may write to a topic whose name does not show it.

All pipelines of a cluster read and write one compacted topic (`topics.claims`). A claim is a record: its key names the
topic and the pipeline, its value says who that is. The rule: of the claims on a topic that are not released, the first
record counts, because all readers see the records of a partition in one order. A pipeline writes a claim, reads the
topic up to its end, and only then writes to the claimed topic. So of two pipelines that claim a topic at once, both see
the same winner, whichever of them reads first. A killed pipeline leaves its claim, and finds it when it starts again.

A claim is released by a tombstone, which has the same key. So a tombstone releases the claim of one pipeline, and
compaction, which keeps the last record of a key, removes no claim of another pipeline. A pipeline never writes a claim
again while it has it, because the new record would stand behind others.

Topics that begin with the prefix of a pipeline need no claim: `foreign_prefix` finds such a topic of another pipeline
by the checkpoint topic there.

Whoever may write to the topic can write any claim, and release any. So what is read here is never trusted beyond one
question: whether this pipeline must leave a topic alone.
"""

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from cdcd.core.bounded_json import fields, parse, text
from cdcd.core.errors import ClaimedError

FORMAT: Final = 1

IS_CLAIMED: Final = "belongs to another pipeline"
"""Words of every `ClaimedError`, by which a recording shows its kind."""

RECORD_BYTES_MAX: Final = 4096
"""Maximum size of a record's key and value together. Names of topics and pipelines need less."""

_NAMED: Final = frozenset({"topic", "pipeline", "checkpoint"})

CLAIMS_MAX: Final = 200_000
"""Number of claims that are remembered. Later ones are ignored, and reported."""


@dataclass(frozen=True, slots=True)
class Claimant:
    """A pipeline: its name, and its checkpoint topic, which no other pipeline has."""

    pipeline: str
    checkpoint: str

    def key(self, topic: str) -> bytes:
        """Return the key of the pipeline's claim on a topic."""
        named = {"topic": topic, "pipeline": self.pipeline, "checkpoint": self.checkpoint}
        return json.dumps(named, separators=(",", ":")).encode()

    def value(self, transactional_id: str, since_ms: int) -> bytes:
        """Return the value of the pipeline's claims. `since_ms`: the time of the claim, in milliseconds."""
        said = {"format": FORMAT, "transactional_id": transactional_id, "since_ms": since_ms}
        return json.dumps(said, separators=(",", ":")).encode()


class Claims:
    """The claims of a cluster, as far as the topic was read.

    Attributes:
        next_offset: offset up to which the records were taken.
        ignored: number of records that are no claims.
        reason: why the last ignored record is no claim.
    """

    def __init__(self) -> None:
        self.next_offset = 0
        self.ignored = 0
        self.reason = ""
        self._claims: dict[str, list[Claimant]] = {}
        """By topic, the claimants in the order of their claims."""
        self._count = 0

    def start_over(self) -> None:
        """Forget all claims, because the topic was deleted and created again."""
        self.next_offset = self._count = 0
        self._claims.clear()

    def take(self, offset: int, key: bytes | None, value: bytes | None) -> None:
        """Take the next record of the topic. A record that is no claim is counted, and changes nothing."""
        self.next_offset = offset + 1
        try:
            topic, claimant = _read(key, value)
        except ValueError as error:
            self.ignored += 1
            self.reason = str(error)
            return
        of_topic = self._claims.setdefault(topic, [])
        if value is None:
            if claimant in of_topic:
                of_topic.remove(claimant)
                self._count -= 1
        elif claimant not in of_topic:
            if self._count >= CLAIMS_MAX:
                self.ignored += 1
                self.reason = f"there are {CLAIMS_MAX} claims already"
            else:
                of_topic.append(claimant)
                self._count += 1
        if not of_topic:
            del self._claims[topic]

    def holder(self, topic: str) -> Claimant | None:
        """Return the pipeline that has the topic; None: no pipeline claims it."""
        of_topic = self._claims.get(topic)
        return of_topic[0] if of_topic else None

    def of(self, claimant: Claimant) -> list[str]:
        """Return the topics that the pipeline claims, whether it has them or waits behind another one."""
        return sorted([topic for topic, each in self._claims.items() if claimant in each])

    def unclaimed(self, topics: Iterable[str]) -> list[str]:
        """Return those of the topics that no pipeline claims. Write a claim for each before its first record."""
        return [topic for topic in topics if topic not in self._claims]

    def refused(self, claimant: Claimant, topics: Iterable[str], claims: str) -> dict[str, ClaimedError]:
        """Return those of the topics that another pipeline has, each with the error.

        Args:
            claims: name of the topic with the claims.
        """
        found: dict[str, ClaimedError] = {}
        for topic in topics:
            holder = self.holder(topic)
            if holder is not None and holder != claimant:
                found[topic] = claimed(topic, holder, claims)
        return found


def _read(key: bytes | None, value: bytes | None) -> tuple[str, Claimant]:
    """Return the topic of a record, and the pipeline that claims or releases it. ValueError: the record is neither."""
    if key is None or len(key) + len(value or b"") > RECORD_BYTES_MAX:
        raise ValueError("it has no key" if key is None else "it is too large")
    named = fields(parse(key), _NAMED)
    topic, claimant = (
        text(named.get("topic")),
        Claimant(text(named.get("pipeline")), text(named.get("checkpoint"))),
    )
    if claimant.key(topic) != key:
        # Two spellings of a key would be two claims, and a tombstone would release one of them.
        raise ValueError("its key is not written as cdcd writes it")
    if value is not None and fields(parse(value)).get("format") != FORMAT:
        raise ValueError("its value has another format")
    return topic, claimant


def claimed(topic: str, holder: Claimant, claims: str) -> ClaimedError:
    """Return the error of a topic that another pipeline has claimed."""
    return ClaimedError(
        f"Topic {topic} {IS_CLAIMED}: {holder.pipeline!r}, whose checkpoint is in topic "
        f"{holder.checkpoint!r}, has claimed it in topic {claims}.",
        hint="Give the table another topic (topics.names, topics.rename). If that pipeline does not write to the topic "
        "any more, release its claim: `cdcd drop` with its configuration, or a start of it without the table.",
    )


def foreign_prefix(topic: str, existing: Collection[str], own: Collection[str]) -> str:
    """Return the checkpoint topic of another pipeline whose prefix the topic begins with; "": there is none.

    Args:
        existing: all topics of the cluster that this principal may see.
        own: topics that belong to this pipeline itself.
    """
    for place, character in enumerate(topic):
        if character == ".":
            checkpoint = f"{topic[:place]}.checkpoint"
            if checkpoint in existing and checkpoint not in own:
                return checkpoint
    return ""


def under_prefix(topic: str, checkpoint: str) -> ClaimedError:
    """Return the error of a topic that begins with the prefix of another pipeline."""
    prefix = checkpoint.removesuffix(".checkpoint")
    return ClaimedError(
        f"Topic {topic} {IS_CLAIMED}: topic {checkpoint} shows that a pipeline has the prefix {prefix}, "
        "and all topics that begin with it.",
        hint="Give the table another topic (topics.names, topics.rename). If that pipeline does not exist any more, "
        f"delete topic {checkpoint}.",
    )
