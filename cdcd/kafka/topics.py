"""Topics: checked or created before the first record goes to them, with stated partitions, replicas and settings.

A topic that exists is the operator's and is left as it is. Only the checkpoint's is checked further: positions of two
partitions have no order, and a topic that deletes old segments forgets where to resume.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from cdcd.errors import CdcdError, SinkError, TransientError
from cdcd.kafka.admin import Admin

_POLL_S: Final = 0.05

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
            f"Topic {', '.join(missing)} does not exist, and topics.create is off.",
            hint=f"kafka-topics --create --topic {missing[0]} (with partitions, replicas and settings of your choice"
            f"{', cleanup.policy=compact and one partition' if missing[0] == checkpoint else ''}), or switch "
            "topics.create.enabled on.",
        )
    if checkpoint in names and checkpoint not in missing:
        _check_checkpoint(admin, checkpoint)
    created = [
        name for name in missing if _create(admin, name, spec, compacted=name in {checkpoint, schemas})
    ]
    _await_leaders(admin, names)
    if checkpoint in missing and checkpoint not in created:
        # Somebody made it meanwhile, or the broker that was asked had not heard of it yet.
        _check_checkpoint(admin, checkpoint)
    return created


def existing_topics(admin: Admin, prefix: str) -> set[str]:
    """A pipeline's topics that are there, by one question for all of them. Raises and blocks as `ensure_topics`."""
    return {name for name in admin.names() if name.startswith(f"{prefix}.")}


def _create(admin: Admin, name: str, spec: TopicSpec, *, compacted: bool) -> bool:
    config = {key: _text(value) for key, value in spec.config.items()}
    partitions = spec.partitions
    if compacted:
        kept = {key: value for key, value in config.items() if key == "min.insync.replicas"}
        config, partitions = {**CHECKPOINT_CONFIG, **kept}, 1
    try:
        return admin.create(name, partitions, spec.replication_factor, config)
    except SinkError as error:
        if "collides" in error.message:
            raise SinkError(error.message, hint=_COLLISION_HINT) from error
        if "brokers are currently fenced" in error.message:
            # Not too many replicas, as the code of the error says: brokers that come back after a restart
            # (StripedReplicaPlacer.java).
            raise TransientError(
                error.message, hint="Are the brokers starting, or cut off? cdcd tries again."
            ) from error
        raise


def _text(value: str | float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _check_checkpoint(admin: Admin, name: str) -> None:
    if problem := checkpoint_problem(admin, name):
        raise SinkError(
            f"The checkpoint topic {name} {problem}.",
            hint=f"kafka-configs --alter --entity-type topics --entity-name {name} --add-config "
            "cleanup.policy=compact; instead of one with several partitions name another (topics.checkpoint).",
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


def _await_leaders(admin: Admin, names: Sequence[str]) -> None:
    """A created topic is known to every broker, and has leaders, a moment after the answer to its creation."""
    deadline = time.monotonic() + admin.timeout_s
    while True:
        found = admin.topics(names)
        waiting = [name for name in names if (info := found[name]) is None or not info.has_leaders]
        if not waiting:
            return
        if time.monotonic() > deadline:
            raise TransientError(
                f"Topic {', '.join(waiting)} has no leader after {admin.timeout_s:g} s.",
                hint="Is a broker of its replicas down? cdcd tries again.",
            )
        time.sleep(_POLL_S)


_COLLISION_HINT: Final = (
    "Kafka takes two names that differ only in '.' and '_' for the same metric: rename one of the tables, or give the "
    "pipelines other prefixes (topics.prefix)."
)


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
