"""Topics: checked or created before the first record goes to them, with stated partitions, replicas and settings.

A topic that exists is the operator's and is left as it is. Only the checkpoint's is checked further: positions of two
partitions have no order, and a topic that deletes old segments forgets where to resume.
"""

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from cdcd.adapters.kafka.admin import Admin, NewTopicSpec
from cdcd.core.errors import CdcdError, SinkError, TransientError
from cdcd.core.retry import Backoff

CREATED_AT_ONCE: Final = 500
"""Topics in one request that creates them.

A broker answers for 500 as fast as for 20, and makes their logs one after the other behind its answer. Measured with
1000 topics until all had leaders: one a request 36 s, 20 a request 8 s, 200 a request 4.7 s, 500 a request 2.1 s.
"""

PARTITIONS_AT_ONCE: Final = 2000
"""Partitions in one such request: a controller refuses 10,000, each setting counted (ReplicationControlManager)."""

_POLL_FIRST_S: Final = 0.02
_POLL_MAX_S: Final = 0.25

TOPIC_S: Final = 0.1
"""So much longer a broker may take for each topic that it makes: its files are made and synchronized one by one.

A request's topics are seen all at once, so a broker that works on 500 of them shows nothing until it is done.
"""

PROBED: Final = 4
"""About so many topics stand for all that are being made."""

NAMED_MAX: Final = 8

CHECKPOINT_CONFIG: Final[Mapping[str, str]] = {
    "cleanup.policy": "compact",
    # The one key's old records go when a segment is full: small segments keep the topic small.
    "segment.bytes": str(32 << 20),
}


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """How missing topics are created. `enabled` False: a missing one is an error."""

    enabled: bool = True
    partitions: int = 1
    replication_factor: int = 1
    config: Mapping[str, str | int | float | bool] = field(default_factory=dict)


def ensure_topics(
    admin: Admin, names: Sequence[str], spec: TopicSpec, *, checkpoint: str, schemas: str = ""
) -> list[str]:
    """Create what is missing of `names` and return its names; when it returns, every one can be written to.

    `checkpoint` is the name, among `names` or not, of the topic that has to be compacted, with one partition; the topic
    of tables' descriptions, `schemas`, is created like it.
    It blocks, at most a few times the timeout of `admin`, or until that is stopped.

    Raises:
        TransientError: the broker does not answer.
        SinkError: a topic is missing and may not be created, or is not fit for the checkpoint; the broker refuses.
    """
    if pairs := colliding(names):
        raise _collision(*pairs[0])
    found = admin.topics(names)
    missing = [name for name in names if found[name] is None]
    if missing and not spec.enabled:
        raise SinkError(
            f"Topic {_named(missing)} does not exist, and topics.create is off.",
            hint=create_hint(missing, compacted={checkpoint, schemas}),
        )
    if checkpoint in names and checkpoint not in missing:
        _check_checkpoint(admin, checkpoint)
    created = _create(admin, missing, spec, compacted={checkpoint, schemas})
    _await_leaders(admin, [name for name in names if (info := found[name]) is None or not info.has_leaders])
    if checkpoint in missing and checkpoint not in created:
        # Somebody made it meanwhile, or the broker that was asked had not heard of it yet.
        _check_checkpoint(admin, checkpoint)
    return created


def existing_topics(admin: Admin, prefix: str) -> set[str]:
    """A pipeline's topics that are there, by one question for all of them. Raises and blocks as `ensure_topics`."""
    return {name for name in admin.names() if name.startswith(f"{prefix}.")}


def _create(admin: Admin, names: Sequence[str], spec: TopicSpec, *, compacted: Collection[str]) -> list[str]:
    """Create all of `names` by few requests; those that somebody else made meanwhile are left out of the answer."""
    created = []
    for wanted in _requests(names, spec, compacted):
        for name, outcome in admin.create(wanted).items():
            if isinstance(outcome, CdcdError):
                raise _explained(outcome)
            if outcome:
                created.append(name)
    return created


def refusals(
    admin: Admin, names: Sequence[str], spec: TopicSpec, *, compacted: Collection[str]
) -> dict[str, CdcdError]:
    """Why the broker would not create these topics, by name; those that it would create are left out.

    `compacted`: those of cdcd's own that are. Raises TransientError: the broker does not answer.
    """
    found: dict[str, CdcdError] = {}
    for wanted in _requests(names, spec, compacted):
        answers = admin.create(wanted, only_ask=True)
        found |= {
            name: _explained(answer) for name, answer in answers.items() if isinstance(answer, CdcdError)
        }
    return found


def _requests(
    names: Sequence[str], spec: TopicSpec, compacted: Collection[str]
) -> Iterator[list[NewTopicSpec]]:
    """The topics of each request that creates some of them."""
    at_once = max(1, min(CREATED_AT_ONCE, PARTITIONS_AT_ONCE // spec.partitions))
    for start in range(0, len(names), at_once):
        yield [_specified(name, spec, compacted) for name in names[start : start + at_once]]


def _specified(name: str, spec: TopicSpec, compacted: Collection[str]) -> NewTopicSpec:
    config = {key: _text(value) for key, value in spec.config.items()}
    partitions = spec.partitions
    if name in compacted:
        kept = {key: value for key, value in config.items() if key == "min.insync.replicas"}
        config, partitions = {**CHECKPOINT_CONFIG, **kept}, 1
    return NewTopicSpec(name, partitions, spec.replication_factor, config)


def _explained(error: CdcdError) -> CdcdError:
    """A refusal whose code does not say what is meant."""
    if isinstance(error, SinkError) and "collides" in error.message:
        return SinkError(error.message, hint=_COLLISION_HINT)
    if "brokers are currently fenced" in error.message:
        # Not too many replicas, as the code of the error says: brokers that come back after a restart
        # (StripedReplicaPlacer.java).
        return TransientError(
            error.message, hint="Check that all brokers run and reach each other. cdcd tries again."
        )
    return error


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return ", ".join(names[:NAMED_MAX]) + more


def _text(value: str | float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _check_checkpoint(admin: Admin, name: str) -> None:
    if problem := checkpoint_problem(admin, name):
        raise SinkError(
            f"The checkpoint topic {name} {problem}.",
            hint=checkpoint_hint(name),
        )


def checkpoint_hint(name: str) -> str:
    """What to do with a topic that is unfit for the checkpoint."""
    return (
        f"{alter_topic(name, 'cleanup.policy=compact')}; if it has several partitions, name another topic "
        "(topics.checkpoint)."
    )


def checkpoint_problem(admin: Admin, name: str) -> str:
    """What makes an existing topic unfit for the checkpoint, or ""."""
    info = admin.topics([name])[name]
    if info is not None and info.partitions != 1:
        return f"has {info.partitions} partitions, not one"
    try:
        policy = admin.topic_config(name).get("cleanup.policy", "compact")
    except SinkError:
        # Settings need a right of their own (DescribeConfigs); without it, the operator's word has to do.
        return ""
    return (
        "" if policy == "compact" else f"has cleanup.policy={policy}: the position would be deleted some day"
    )


def policy_problem(config: Mapping[str, str], *, has_key: bool, marked: bool = False) -> str:
    """What makes a topic with these settings unfit for a table's records, or "".

    Args:
        has_key: the records have keys.
        marked: watermarks go to the topic, which have none.
    """
    policy = config.get("cleanup.policy", "")
    if "compact" not in policy or (has_key and not marked):
        return ""
    why = "heartbeat.watermark_interval_s asks for watermarks" if marked else "the table has no key"
    return f"has cleanup.policy={policy}, and {why}: the broker refuses records without a key"


def check_keyless(admin: Admin, names: Sequence[str], *, marked: bool = False) -> None:
    """See that topics, which exist, take records without a key. It blocks.

    Args:
        marked: the records are watermarks; False: rows of tables without a key.

    Raises:
        TransientError: the broker does not answer.
        SinkError: a topic is compacted.
    """
    try:
        configs = admin.topic_configs(names)
    except SinkError:
        # Settings need a right of their own (DescribeConfigs); without it, the first record tells.
        return
    for name in names:
        if problem := policy_problem(configs[name], has_key=False, marked=marked):
            raise SinkError(f"Topic {name} {problem}.", hint=keyless_hint(name, marked=marked))


def keyless_hint(name: str, *, marked: bool = False) -> str:
    """What to do with a compacted topic that gets records without a key (`check_keyless`)."""
    if marked:
        return f"{alter_topic(name, 'cleanup.policy=delete')}; or set heartbeat.watermark_interval_s: 0."
    return f"{alter_topic(name, 'cleanup.policy=delete')}; or give the table a primary key."


def alter_topic(name: str, setting: str) -> str:
    """The command that changes a setting of a topic."""
    return (
        f"kafka-configs --bootstrap-server <bootstrap> --alter --entity-type topics --entity-name {name} "
        f"--add-config {setting}"
    )


def create_hint(names: Sequence[str], *, compacted: Collection[str]) -> str:
    """How a person creates missing topics."""
    first = names[0]
    settings = " --partitions 1 --config cleanup.policy=compact" if first in compacted else ""
    more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
    return (
        f"kafka-topics --bootstrap-server <bootstrap> --create --topic {first}{settings}{more}; or set "
        "topics.create.enabled: true."
    )


def _await_leaders(admin: Admin, names: Sequence[str]) -> None:
    """A created topic is known to every broker, and has leaders, a moment after the answer to its creation.

    A broker makes many of them one after the other, and more slowly while it describes them. So a few stand for all
    until they are ready, and as long as one more gets ready, the others are waited for.
    """
    waiting = list(names)
    backoff = Backoff(_POLL_FIRST_S, _POLL_MAX_S)
    patience_s = admin.timeout_s + TOPIC_S * len(waiting)
    deadline, ready = time.monotonic() + patience_s, 0
    while waiting:
        probe = list(dict.fromkeys([*waiting[:: 1 + len(waiting) // PROBED], waiting[-1]]))
        left = _without_leaders(admin, probe)
        if not left and not (left := _without_leaders(admin, waiting)):
            return
        if len(probe) - len(left) != ready:
            deadline, ready = time.monotonic() + patience_s, len(probe) - len(left)
        if time.monotonic() > deadline or admin.is_stopping:
            raise TransientError(
                f"Topic {_named(left)} has no leader after {patience_s:g} s.",
                hint="Check that the brokers of its replicas run. cdcd tries again.",
            )
        time.sleep(backoff.next(0.5))


def _without_leaders(admin: Admin, names: Sequence[str]) -> list[str]:
    found = admin.topics(names)
    return [name for name in names if (info := found[name]) is None or not info.has_leaders]


_COLLISION_HINT: Final = (
    "To Kafka, names that differ only in '.' and '_' are the same. Give one of the tables another topic "
    "(topics.names), or give the pipelines other prefixes (topics.prefix)."
)


def collision_hint() -> str:
    """What to do with topics that are the same to Kafka."""
    return _COLLISION_HINT


def colliding(names: Iterable[str]) -> list[tuple[str, str]]:
    """Pairs of different names that the broker refuses to have both (Topic.hasCollision in Kafka)."""
    first: dict[str, str] = {}
    pairs = []
    for name in names:
        known = first.setdefault(name.replace(".", "_"), name)
        if known != name:
            pairs.append((known, name))
    return pairs


def _collision(one: str, other: str) -> CdcdError:
    return SinkError(f"Topics {one} and {other} differ only in '.' and '_'.", hint=_COLLISION_HINT)
