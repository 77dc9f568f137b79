"""Checks and creation of topics before their first record, with configured partitions, replicas and settings.

An existing topic belongs to the operator and is not changed. Only the checkpoint topic is checked further:
positions in two partitions have no order, and a topic that deletes old segments loses the checkpoint.
"""

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from cdcd.adapters.kafka.admin import Admin, NewTopicSpec, TopicInfo
from cdcd.adapters.kafka.errors import rights_hint
from cdcd.core.errors import CdcdError, SinkError, TransientError
from cdcd.core.retry import Backoff

CREATED_AT_ONCE: Final = 500
"""Maximum number of topics in one request that creates topics.

A broker answers for 500 topics as fast as for 20, and creates their logs one after the other after its answer.
Measured with 1000 topics until all had leaders: one a request 36 s, 20 a request 8 s, 200 a request 4.7 s, 500 a
request 2.1 s.
"""

PARTITIONS_AT_ONCE: Final = 2000
"""Maximum number of partitions in one such request: a controller refuses 10,000, where each setting counts
(ReplicationControlManager)."""

_POLL_FIRST_S: Final = 0.02
_POLL_MAX_S: Final = 0.25

TOPIC_S: Final = 0.1
"""Additional seconds that a broker may take for each topic, because it creates and synchronizes their files one by
one.

All topics of a request become visible at once, so a broker shows none of 500 topics until all are created.
"""

PROBED: Final = 4
"""Approximate number of topics that are checked in place of all topics that are being created."""

NAMED_MAX: Final = 8

COMPACTED: Final[Mapping[str, str]] = {
    "cleanup.policy": "compact",
    # Old records of the single key are removed when a segment is full: small segments keep the topic small.
    "segment.bytes": str(32 << 20),
}

PLAIN: Final = "uncompressed"
"""`compression.type` with which a broker decompresses records before it compares their size with the limit."""

DESCRIPTIONS_BYTES_MAX: Final = 4 << 20
"""`max.message.bytes` of a created topic with descriptions, in bytes, if `topics.create.config` has no larger value.
The descriptions of many tables are sent at once, and the limit holds for their size without compression."""

Compacted = Mapping[str, Mapping[str, str]]
"""Settings of cdcd's own topics, by name."""

_OWN: Final[Mapping[str, str]] = {**COMPACTED, "compression.type": PLAIN}


def own_topics(checkpoint: str, schemas: str = "") -> Compacted:
    """Return the settings of the topic with small records and of the topic with descriptions of tables or claims.

    The daemon reads these topics. A compressed record of somebody else with 1 MB may need 1 GB of memory, so the
    topics take no compressed records.
    """
    return {schemas: {**_OWN, "max.message.bytes": str(DESCRIPTIONS_BYTES_MAX)}, checkpoint: _OWN}


MARKER_LIMITS: Final[Mapping[str, int]] = {
    "max.message.bytes": 128,
    "message.timestamp.before.max.ms": 60_000,
    "message.timestamp.difference.max.ms": 60_000,
}
"""Least values of settings with which a topic takes the markers of transactions for certain.

A marker has 78 bytes. Its age in ms counts from its creation until its leader has the lock of the log, so that a slow
disk or a pause of the broker adds to it. Brokers before 4.0 have the setting `difference`.
"""


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """Settings for the creation of missing topics. `enabled` False: a missing topic is an error."""

    enabled: bool = True
    partitions: int = 1
    replication_factor: int = 1
    config: Mapping[str, str | int | float | bool] = field(default_factory=dict)


def ensure_topics(
    admin: Admin,
    names: Sequence[str],
    spec: TopicSpec,
    *,
    checkpoint: str,
    schemas: str = "",
    refused: dict[str, CdcdError] | None = None,
) -> list[str]:
    """Create the missing topics of `names`, and return their names when all of `names` can be written to.

    `checkpoint` is the name of the topic that must be compacted and have one partition; `schemas`, the topic of
    table descriptions, is created the same way. The call blocks for a few times the timeout of `admin` at most, or
    until `admin` is stopped.
    `refused` gets the topics that cannot be used, each with the error; None: the first error is raised.

    Raises:
        TransientError: the broker does not answer.
        SinkError: a topic is missing and may not be created, or is unfit for the checkpoint, or the broker refuses.
    """
    refusals = _Refusals(refused)
    for one, other in colliding(names):
        refusals.add(other, _collision(one, other))
    found = refusals.without_refused(admin, names)
    names = [name for name in names if name not in refusals]
    missing = [name for name in names if found[name] is None]
    if missing and not spec.enabled:
        refusals.add_all(
            missing,
            SinkError(
                f"Topic {_named(missing)} does not exist, and topics.create is off.",
                hint=create_hint(missing, compacted=own_topics(checkpoint, schemas)),
            ),
        )
        missing = []
    names = [name for name in names if name not in refusals]
    if checkpoint in names and checkpoint not in missing:
        _check_checkpoint(admin, checkpoint)
    created = _create(admin, missing, spec, refusals, compacted=own_topics(checkpoint, schemas))
    names = [name for name in names if name not in refusals]
    _await_leaders(admin, [name for name in names if (info := found[name]) is None or not info.has_leaders])
    if checkpoint in missing and checkpoint not in created:
        # Another client created it meanwhile, or the broker that was asked did not know it yet.
        _check_checkpoint(admin, checkpoint)
    return created


class _Refusals:
    """Collects the errors of topics that cannot be used. Without a dictionary for them, the first one is raised."""

    def __init__(self, found: dict[str, CdcdError] | None) -> None:
        self._found = found

    def __contains__(self, name: str) -> bool:
        return self._found is not None and name in self._found

    def add(self, name: str, error: CdcdError) -> None:
        """Note the error because of which the topic cannot be used."""
        if self._found is None or isinstance(error, TransientError):
            raise error
        self._found.setdefault(name, error)

    def add_all(self, names: Sequence[str], error: CdcdError) -> None:
        """None of these topics can be had, for the same reason."""
        for name in names:
            self.add(name, error)

    def without_refused(self, admin: Admin, names: Sequence[str]) -> dict[str, TopicInfo | None]:
        """Each topic that is not refused, or None where there is none."""
        if self._found is None:
            return admin.topics(names)
        found: dict[str, TopicInfo | None] = {}
        for name, info in admin.each_topic(names).items():
            if isinstance(info, CdcdError):
                self.add(name, info)
                continue
            found[name] = info
            if info is not None and info.may_write is False:
                self.add(name, not_writable(name))
        return found


def not_writable(name: str) -> SinkError:
    """The error of a topic to which this principal may not write."""
    return SinkError(
        f"Topic {name}: Topic authorization failed, because this principal may not write to it.",
        hint=rights_hint(),
    )


def _create(
    admin: Admin, names: Sequence[str], spec: TopicSpec, refusals: _Refusals, *, compacted: Compacted
) -> list[str]:
    """Create all of `names` by few requests; return the names without those that another client created meanwhile."""
    created = []
    for wanted in _requests(names, spec, compacted):
        for name, outcome in admin.create(wanted).items():
            if isinstance(outcome, CdcdError):
                refusals.add(name, _explained(outcome))
            elif outcome:
                created.append(name)
    return created


def refusals(
    admin: Admin, names: Sequence[str], spec: TopicSpec, *, compacted: Compacted
) -> dict[str, CdcdError]:
    """Return the broker's errors for topics that it would not create, by name.

    Raises TransientError if the broker does not answer.
    """
    found: dict[str, CdcdError] = {}
    for wanted in _requests(names, spec, compacted):
        answers = admin.create(wanted, only_ask=True)
        found |= {
            name: _explained(answer) for name, answer in answers.items() if isinstance(answer, CdcdError)
        }
    return found


def _requests(names: Sequence[str], spec: TopicSpec, compacted: Compacted) -> Iterator[list[NewTopicSpec]]:
    """Yield the topics of each request that creates topics."""
    at_once = max(1, min(CREATED_AT_ONCE, PARTITIONS_AT_ONCE // spec.partitions))
    for start in range(0, len(names), at_once):
        yield [_specified(name, spec, compacted) for name in names[start : start + at_once]]


def _specified(name: str, spec: TopicSpec, compacted: Compacted) -> NewTopicSpec:
    config = {key: _text(value) for key, value in spec.config.items()}
    partitions = spec.partitions
    if name in compacted:
        config, partitions = _own_config(compacted[name], config), 1
    return NewTopicSpec(name, partitions, spec.replication_factor, config)


def _own_config(own: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Return `own`, with the settings of `topics.create.config` (`given`) that also hold for topics of cdcd's own."""
    kept = {key: value for key, value in given.items() if key == "min.insync.replicas"}
    size = "max.message.bytes"
    if size in own and given.get(size, "").isdecimal():
        kept[size] = str(max(int(own[size]), int(given[size])))
    return {**own, **kept}


def takes_compressed(config: Mapping[str, str]) -> bool:
    """Return True if a topic with these settings takes compressed records."""
    return config.get("compression.type", PLAIN) != PLAIN


def plain_hint(name: str, config: Mapping[str, str], own: Mapping[str, str]) -> str:
    """Return the command after which an existing topic takes no compressed records.

    Args:
        config: present settings of the topic.
        own: settings with which cdcd would create the topic.
    """
    least = own.get("max.message.bytes", "0")
    size = f",max.message.bytes={least}" if int(config.get("max.message.bytes", least)) < int(least) else ""
    return f"{alter_topic(name, f'compression.type={PLAIN}{size}')}."


def _explained(error: CdcdError) -> CdcdError:
    """Return a clearer error for a refusal whose code is misleading."""
    if isinstance(error, SinkError) and "collides" in error.message:
        return SinkError(error.message, hint=_COLLISION_HINT)
    if "brokers are currently fenced" in error.message:
        # The error's code says too many replicas, but the brokers have just restarted and are still fenced
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
    """Return the hint for a topic that is unfit for the checkpoint."""
    return (
        f"{alter_topic(name, 'cleanup.policy=compact')}; if it has several partitions, name another topic "
        "(topics.checkpoint)."
    )


def checkpoint_problem(admin: Admin, name: str) -> str:
    """Return the reason why an existing topic is unfit for the checkpoint, or ""."""
    info = admin.topics([name])[name]
    if info is not None and info.partitions != 1:
        return f"has {info.partitions} partitions, not one"
    try:
        policy = admin.topic_config(name).get("cleanup.policy", "compact")
    except SinkError:
        # Reading settings needs its own right (DescribeConfigs); without it, cdcd relies on the operator.
        return ""
    return "" if policy == "compact" else f"has cleanup.policy={policy}, so Kafka would delete the position"


def message_limits(admin: Admin, names: Sequence[str]) -> dict[str, int]:
    """Return `max.message.bytes` of existing topics: the size up to which a topic accepts a compressed record batch.

    The call blocks. Topics are left out whose settings this principal may not read: the broker's refusal shows the
    limit then.

    Raises:
        TransientError: the broker does not answer.
    """
    found = {
        name: config.get("max.message.bytes", "") for name, config in admin.readable_configs(names).items()
    }
    return {name: int(limit) for name, limit in found.items() if limit.isdecimal()}


def marker_problem(name: str, config: Mapping[str, str]) -> SinkError | None:
    """Return the error of a topic whose settings make Kafka refuse the markers of transactions, or None.

    Kafka's coordinator does not repeat a marker that was refused for its size or its timestamp
    (TransactionMarkerRequestCompletionHandler.scala). So the transaction does not end, and no other one begins.
    """
    for setting, least in MARKER_LIMITS.items():
        value = config.get(setting, "")
        is_time = setting.startswith("message.timestamp.")
        if is_time and config.get("message.timestamp.type") == "LogAppendTime":
            continue
        if value.isdecimal() and int(value) < least:
            return SinkError(
                f"Topic {name} has {setting}={value}, so Kafka may refuse the marker that ends a transaction. Then the "
                "transaction would not end, and no table could be written to.",
                hint=f"{alter_topic(name, f'{setting}={least}')} (at least).",
            )
    return None


def marker_problems(admin: Admin, existing: Sequence[str], created: Sequence[str]) -> dict[str, SinkError]:
    """Return the error of each of these topics whose settings make Kafka refuse the markers of transactions.

    Topics are left out whose settings this principal may not read. The call blocks.

    Args:
        created: topics that were just created with equal settings.

    Raises:
        TransientError: the broker does not answer.
    """
    configs = admin.readable_configs([*existing, *created[:1]])
    configs |= {name: configs[created[0]] for name in created[1:] if created[0] in configs}
    problems = {name: marker_problem(name, config) for name, config in configs.items()}
    return {name: problem for name, problem in problems.items() if problem is not None}


def policy_problem(
    config: Mapping[str, str], *, has_key: bool, marked: bool = False, repeats: bool = False
) -> str:
    """Return the reason why a topic with these settings is unfit for a table's records, or "".

    Args:
        has_key: True if the records have keys.
        marked: True if the topic also gets watermarks, which have no key.
        repeats: True if rows of several tables may have the same key in the topic.
    """
    policy = config.get("cleanup.policy", "")
    if "compact" not in policy or (has_key and not marked):
        return ""
    if repeats and not marked:
        return (
            f"has cleanup.policy={policy}, and its tables have no key_field (topics.shared): compaction would remove "
            "rows of one table for rows of another one"
        )
    why = "heartbeat.watermark_interval_s asks for watermarks" if marked else "the table has no key"
    return f"has cleanup.policy={policy}, and {why}: the broker refuses records without a key"


def check_keyless(
    admin: Admin,
    names: Sequence[str],
    *,
    marked: bool = False,
    refused: dict[str, CdcdError] | None = None,
    repeating: Collection[str] = (),
) -> None:
    """Check that existing topics accept records without a key, or with keys of several tables. The call blocks.

    Args:
        marked: True if the records are watermarks; False: rows of tables without a key.
        refused: gets the topics that do not accept such records, each with the error; None: the first error is raised.
        repeating: topics in which rows of several tables may have the same key.

    Raises:
        TransientError: the broker does not answer.
        SinkError: a topic is compacted.
    """
    # Without the right to read settings (DescribeConfigs), the first record shows the problem.
    for name, config in admin.readable_configs(names).items():
        repeats = name in repeating
        if problem := policy_problem(config, has_key=False, marked=marked, repeats=repeats):
            hint = keyless_hint(name, marked=marked, repeats=repeats)
            error = SinkError(f"Topic {name} {problem}.", hint=hint)
            _Refusals(refused).add(name, error)


def keyless_hint(name: str, *, marked: bool = False, repeats: bool = False) -> str:
    """Return the hint for a compacted topic that gets records without a key (`check_keyless`)."""
    if marked:
        return f"{alter_topic(name, 'cleanup.policy=delete')}; or set heartbeat.watermark_interval_s: 0."
    other = f"set key_field of topics.shared.{name}" if repeats else "give the table a primary key"
    return f"{alter_topic(name, 'cleanup.policy=delete')}; or {other}."


def alter_topic(name: str, setting: str) -> str:
    """Return the command that changes a setting of a topic."""
    return (
        f"kafka-configs --bootstrap-server <bootstrap> --alter --entity-type topics --entity-name {name} "
        f"--add-config {setting}"
    )


def create_hint(names: Sequence[str], *, compacted: Compacted) -> str:
    """Return the hint with the command that creates missing topics."""
    first = names[0]
    config = "".join([f" --config {key}={value}" for key, value in compacted.get(first, {}).items()])
    settings = f" --partitions 1{config}" if config else ""
    more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
    return (
        f"kafka-topics --bootstrap-server <bootstrap> --create --topic {first}{settings}{more}; or set "
        "topics.create.enabled: true."
    )


def _await_leaders(admin: Admin, names: Sequence[str]) -> None:
    """Wait until every broker knows the created topics, and the leaders of all their partitions have created the logs.

    A broker names itself as leader before it has created the log, and 2,000 logs may take a minute. A record for such a
    topic would be refused until then, and all other records of its batch would wait.

    A broker creates many topics one after the other, and more slowly while it describes topics. So a few topics are
    checked in place of all until they are ready. The wait continues as long as another topic gets ready.
    """
    waiting = list(names)
    backoff = Backoff(_POLL_FIRST_S, _POLL_MAX_S)
    patience_s = admin.timeout_s + TOPIC_S * len(waiting)
    deadline, ready = time.monotonic() + patience_s, 0
    while waiting:
        probe = list(dict.fromkeys([*waiting[:: 1 + len(waiting) // PROBED], waiting[-1]]))
        left = _not_ready(admin, probe)
        if not left and not (left := _not_ready(admin, waiting)):
            return
        if len(probe) - len(left) != ready:
            deadline, ready = time.monotonic() + patience_s, len(probe) - len(left)
        if time.monotonic() > deadline or admin.is_stopping:
            raise TransientError(
                f"Topic {_named(left)} has no leader after {patience_s:g} s.",
                hint="Check that the brokers of its replicas run. cdcd tries again.",
            )
        time.sleep(backoff.next(0.5))


def _not_ready(admin: Admin, names: Sequence[str]) -> list[str]:
    """Return the topics with a partition that has no leader, or whose leader has not created the log."""
    found = admin.topics(names)
    led = {name: info.partitions for name, info in found.items() if info is not None and info.has_leaders}
    ready = admin.with_logs(led) if led else set()
    return [name for name in names if name not in ready]


_COLLISION_HINT: Final = (
    "To Kafka, names that differ only in '.' and '_' are the same. Give one of the tables another topic "
    "(topics.names), or give the pipelines other prefixes (topics.prefix)."
)


def collision_hint() -> str:
    """Return the hint for topics that are the same to Kafka."""
    return _COLLISION_HINT


def colliding(names: Iterable[str]) -> list[tuple[str, str]]:
    """Return pairs of different names that a broker does not accept together (Topic.hasCollision in Kafka)."""
    first: dict[str, str] = {}
    pairs = []
    for name in names:
        known = first.setdefault(name.replace(".", "_"), name)
        if known != name:
            pairs.append((known, name))
    return pairs


def _collision(one: str, other: str) -> CdcdError:
    return SinkError(f"Topics {one} and {other} differ only in '.' and '_'.", hint=_COLLISION_HINT)
