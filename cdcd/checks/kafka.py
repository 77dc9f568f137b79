"""What `cdcd check` says of Kafka: broker, topics and their settings, limits of transactions. Nothing is changed."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from cdcd.checks.finding import Finding
from cdcd.errors import CdcdError
from cdcd.kafka.admin import Admin, ClusterInfo, Properties, TopicInfo
from cdcd.kafka.topics import TopicSpec, checkpoint_problem, colliding

A = TypeVar("A")
T = TypeVar("T")

NAMED_MAX: Final = 8

MESSAGE_MAX_BYTES: Final = 1_000_000
"""librdkafka's message.max.bytes where the configuration sets none."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the configuration asks of Kafka. `topics` holds the checkpoint's, and all that are known beforehand."""

    topics: Sequence[str]
    checkpoint: str
    prefix: str
    spec: TopicSpec
    exactly_once: bool = True
    transaction_timeout_s: float | None = None
    """None: as long as the brokers allow."""
    message_max_bytes: int = MESSAGE_MAX_BYTES
    schemas: str = ""
    """The topic of descriptions; "": none."""


@dataclass(frozen=True, slots=True)
class Facts:
    """All that the checks look at."""

    cluster: ClusterInfo
    broker: Mapping[str, str] | CdcdError
    """The settings of one broker."""
    topics: Mapping[str, TopicInfo | CdcdError | None]
    configs: Mapping[str, Mapping[str, str]]
    """Settings of the topics that exist, where we may read them."""
    checkpoint_problem: str
    names: frozenset[str]
    """Every topic that we may see."""


def examine(properties: Properties, wanted: Wanted, timeout_s: float = 10.0) -> list[Finding]:
    """All findings, in the order of `CHECKS`. It blocks. TransientError or SinkError: the broker could not be asked."""
    facts = read_facts(Admin(properties, timeout_s), wanted)
    return [finding for check in CHECKS for finding in check(facts, wanted)]


def read_facts(admin: Admin, wanted: Wanted) -> Facts:
    """Ask the broker. Raises TransientError and SinkError."""
    cluster = admin.cluster()
    names = admin.names()
    known = sorted({*wanted.topics, *(name for name in names if name.startswith(f"{wanted.prefix}."))})
    topics = {name: _or_error(lambda name: admin.topics([name])[name], name) for name in known}
    existing = [name for name, topic in topics.items() if isinstance(topic, TopicInfo)]
    configs = {name: _or_error(admin.topic_config, name) for name in existing}
    return Facts(
        cluster,
        _or_error(admin.broker_config, cluster.brokers[0][0]),
        topics,
        {name: config for name, config in configs.items() if not isinstance(config, CdcdError)},
        checkpoint_problem(admin, wanted.checkpoint) if wanted.checkpoint in existing else "",
        frozenset(names),
    )


def _or_error(ask: Callable[[A], T], about: A) -> T | CdcdError:
    try:
        return ask(about)
    except CdcdError as error:
        return error


def check_cluster(facts: Facts, _: Wanted) -> Iterator[Finding]:
    """Who answers."""
    brokers = ", ".join(address for _, address in facts.cluster.brokers)
    version = ""
    if not isinstance(facts.broker, CdcdError):
        version = facts.broker.get("inter.broker.protocol.version", "")
    spoken = f", protocol {version}" if version else ""
    yield Finding("ok", "kafka", f"cluster {facts.cluster.cluster_id}: {brokers}{spoken}")


def check_transactions(facts: Facts, wanted: Wanted) -> Iterator[Finding]:
    """What the brokers allow transactions, and whether their log can exist at all."""
    if not wanted.exactly_once:
        return
    if isinstance(facts.broker, CdcdError):
        yield Finding(
            "warning",
            "broker settings",
            facts.broker.message,
            "Allow DescribeConfigs on the cluster to have transaction.max.timeout.ms and others checked here. "
            "Without it, and without kafka.transaction.timeout_s, the timeout of transactions is 60 s.",
        )
        return
    limit_ms = int(facts.broker.get("transaction.max.timeout.ms", "900000"))
    name = "transaction.max.timeout.ms"
    if wanted.transaction_timeout_s is not None and wanted.transaction_timeout_s * 1000 > limit_ms:
        yield Finding(
            "error",
            name,
            f"{limit_ms}, less than kafka.transaction.timeout_s of {wanted.transaction_timeout_s:g}",
            f"Set kafka.transaction.timeout_s to {limit_ms // 1000} at most, or raise {name} on the brokers.",
        )
    else:
        yield Finding("ok", name, str(limit_ms))
    count = len(facts.cluster.brokers)
    name = "transaction.state.log.replication.factor"
    replicas = int(facts.broker.get(name, "3"))
    if replicas > count and "__transaction_state" not in facts.names:
        yield Finding(
            "error",
            name,
            f"{replicas}, but there are {count} brokers: no transaction can begin",
            f"Set {name}={count} and transaction.state.log.min.isr={count} on the brokers, or add brokers.",
        )
    elif replicas == 1 and count > 1:
        yield Finding("warning", name, "1: a lost disk loses what transactions there were", f"Set {name}=3.")
    else:
        yield Finding("ok", name, str(replicas))


def check_missing(facts: Facts, wanted: Wanted) -> Iterator[Finding]:
    """Topics that are to be created, and whether that can be."""
    missing = [name for name in wanted.topics if facts.topics[name] is None]
    if not missing:
        return
    spec, brokers = wanted.spec, len(facts.cluster.brokers)
    if not spec.enabled:
        yield Finding(
            "error",
            "topics",
            f"missing: {_named(missing)}",
            f"kafka-topics --create --topic {missing[0]} ..., or set topics.create.enabled: true.",
        )
    elif spec.replication_factor > brokers:
        yield Finding(
            "error",
            "topics",
            f"cannot be created with {spec.replication_factor} replicas on {brokers} brokers: {_named(missing)}",
            f"Set topics.create.replication_factor to {brokers} at most.",
        )
    elif facts.cluster.may_create is False:
        yield Finding(
            "warning",
            "topics",
            f"missing, and this principal may not create topics in general: {_named(missing)}",
            "Allow it Create on the cluster or on topics with the prefix, or create them beforehand.",
        )
    else:
        yield Finding("ok", "topics", f"will be created: {_named(missing)}")
    if spec.replication_factor == 1 and spec.enabled and brokers > 1:
        yield Finding(
            "warning",
            "topics.create.replication_factor",
            "1: a created topic is lost with its broker",
            "Set topics.create.replication_factor: 3 and min.insync.replicas: 2 in topics.create.config.",
        )


def check_existing(facts: Facts, wanted: Wanted) -> Iterator[Finding]:
    """Topics that exist: rights, replicas, sizes, cleanup."""
    for name, topic in facts.topics.items():
        if isinstance(topic, CdcdError):
            yield Finding("error", f"topic {name}", topic.message, topic.hint)
        elif topic is not None:
            problems = list(_problems(name, topic, facts, wanted))
            yield from problems
            if not problems:
                replicas = f"{topic.replicas} replicas" if topic.replicas != 1 else "1 replica"
                partitions = f"{topic.partitions} partitions" if topic.partitions != 1 else "1 partition"
                yield Finding("ok", f"topic {name}", f"{partitions}, {replicas}")


def _problems(name: str, topic: TopicInfo, facts: Facts, wanted: Wanted) -> Iterator[Finding]:
    subject, config = f"topic {name}", facts.configs.get(name, {})
    alter = f"kafka-configs --alter --entity-type topics --entity-name {name} --add-config"
    if topic.may_write is False:
        yield Finding(
            "error",
            subject,
            "this principal may not write to it",
            f"kafka-acls --add --operation Write --topic {name} ...",
        )
    if not topic.has_leaders:
        yield Finding(
            "error", subject, "a partition has no leader", "Bring the brokers of its replicas back."
        )
    if name == wanted.checkpoint and facts.checkpoint_problem:
        yield Finding(
            "error",
            subject,
            facts.checkpoint_problem,
            f"{alter} cleanup.policy=compact, or name another topic.",
        )
    in_sync = int(config.get("min.insync.replicas", "1"))
    if in_sync > topic.replicas:
        yield Finding(
            "error",
            subject,
            f"min.insync.replicas is {in_sync}, but it has {topic.replicas} replicas: nothing can be written",
            f"{alter} min.insync.replicas={topic.replicas}",
        )
    elif topic.replicas > 1 and in_sync == 1:
        yield Finding(
            "warning",
            subject,
            "min.insync.replicas is 1: a record counts as delivered when one broker has it, and is lost with that one",
            f"{alter} min.insync.replicas=2",
        )
    limit = int(config.get("max.message.bytes", str(wanted.message_max_bytes)))
    if limit < wanted.message_max_bytes:
        yield Finding(
            "warning",
            subject,
            f"max.message.bytes is {limit}, less than the producer's message.max.bytes of {wanted.message_max_bytes}",
            f"{alter} max.message.bytes={wanted.message_max_bytes}",
        )
    policy = config.get("cleanup.policy", "")
    if name == wanted.schemas and policy not in {"", "compact"}:
        yield Finding(
            "warning",
            subject,
            f"has cleanup.policy={policy}: the description of a form is deleted, while records of it are there",
            f"{alter} cleanup.policy=compact",
        )
    elif name not in {wanted.checkpoint, wanted.schemas} and "compact" in policy:
        yield Finding(
            "warning",
            subject,
            "is compacted: it refuses records without a key, those of tables without one and of TRUNCATE among them;"
            " and who reads it later lacks values that a row's last update did not send (unchanged TOAST)",
            f"{alter} cleanup.policy=delete, or give the table a key and REPLICA IDENTITY FULL, and set"
            " topics.truncate: false.",
        )


def check_names(facts: Facts, wanted: Wanted) -> Iterator[Finding]:
    """Names that Kafka takes for the same."""
    for one, other in colliding(
        [*sorted(facts.names), *(name for name in wanted.topics if name not in facts.names)]
    ):
        if {one, other} & set(wanted.topics):
            yield Finding(
                "error",
                "topic names",
                f"{one} and {other} differ only in '.' and '_', which Kafka refuses",
                "Rename one of the tables, or give the pipeline another topics.prefix.",
            )


CHECKS: Final[tuple[Callable[[Facts, Wanted], Iterator[Finding]], ...]] = (
    check_cluster,
    check_transactions,
    check_missing,
    check_existing,
    check_names,
)


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return ", ".join(names[:NAMED_MAX]) + more
