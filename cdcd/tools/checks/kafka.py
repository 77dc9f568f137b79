"""Findings of `cdcd check` about Kafka: brokers, limits of transactions, topics to create, and existing topics."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from cdcd.adapters.kafka.admin import Admin, ClusterInfo, TopicInfo
from cdcd.adapters.kafka.errors import rights_hint
from cdcd.adapters.kafka.principal import UNKNOWN, ClientIdentity
from cdcd.adapters.kafka.rights import TopicAcls
from cdcd.adapters.kafka.topics import (
    TopicSpec,
    alter_topic,
    checkpoint_hint,
    checkpoint_problem,
    colliding,
    collision_hint,
    create_hint,
    keyless_hint,
    marker_problem,
    own_topics,
    plain_hint,
    policy_problem,
    refusals,
    takes_compressed,
)
from cdcd.core.errors import CdcdError, SinkError
from cdcd.core.pasted import qualified
from cdcd.telemetry.findings import Finding, named, of_error
from cdcd.telemetry.terminal_text import number

A = TypeVar("A")
T = TypeVar("T")

MESSAGE_MAX_BYTES: Final = 1_000_000
"""librdkafka's message.max.bytes if the configuration sets none."""

OPEN_WITHOUT: Final = "allow.everyone.if.no.acl.found"
AUTHORIZER: Final = "authorizer.class.name"
BUILDER: Final = "principal.builder.class"

AUTHORIZERS: Final = frozenset({"StandardAuthorizer", "AclAuthorizer"})
"""Kafka's own authorizers, with and without KRaft, which decide by ACLs alone."""

BUILDERS: Final = frozenset(
    {"", "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder"}
)
"""Values of the setting for which the principal of a user is `User:NAME`."""

HOSTS: Final = "the ACLs hold for certain hosts, or the broker's settings cannot be read"
"""Why ACLs that were read do not tell a right."""

TIMEOUT_MAX_MS: Final = 900_000
"""Kafka's default of transaction.max.timeout.ms."""


@dataclass(frozen=True, slots=True)
class TableTopic:
    """Records for the topic of a table.

    Attributes:
        table: name as `schema.table`.
        keyless: True if its records have no key.
        repeats: True if rows of several tables may have the same key in the topic.
        truncated: True if a TRUNCATE becomes a record, which has no key.
        whole: True if each record has all values (REPLICA IDENTITY FULL).
        marked: True if the topic gets watermarks, which have no key.
        outdated: True if the next start writes a truncate record, which has no key, to end the former rows of the
            table.
    """

    table: str
    keyless: bool = False
    repeats: bool = False
    truncated: bool = False
    whole: bool = False
    marked: bool = False
    outdated: bool = False


@dataclass(frozen=True, slots=True)
class BrokerWanted:
    """Kafka part of the configuration, as the checks need it.

    Attributes:
        topics: names of the topics to check: cdcd's own, or those of tables.
        tables: table of each of these topics.
        transaction_timeout_s: timeout in seconds; None: the brokers' maximum.
        schemas: topic of descriptions; "": none.
        identity: what this client shows to the broker.
        prefix: prefix of the pipeline's topics, without the point.
        reads: topics that the daemon reads, beside those of tables.
        reads_schemas: True if each start reads the topic of descriptions, which has the ids of a registry's schemas.
    """

    topics: Sequence[str]
    checkpoint: str
    spec: TopicSpec
    tables: Mapping[str, TableTopic] = field(default_factory=dict)
    exactly_once: bool = True
    transaction_timeout_s: float | None = None
    message_max_bytes: int = MESSAGE_MAX_BYTES
    schemas: str = ""
    identity: ClientIdentity = UNKNOWN
    reads_schemas: bool = False
    prefix: str = ""
    reads: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """All facts that the checks examine.

    Attributes:
        broker: the settings of one broker.
        topics: descriptions of the topics; None: the topic does not exist.
        configs: settings of the existing topics, if this principal may read them.
        read_configs: settings of the existing topics that the daemon reads, if this principal may read the settings.
        refused: errors with which the broker would refuse to create missing topics.
        names: all topics that this principal may see.
        acls: ACLs about topics, or the reason why they are unknown; "": nobody asks for them.
    """

    cluster: ClusterInfo
    broker: Mapping[str, str] | CdcdError
    topics: Mapping[str, TopicInfo | CdcdError | None]
    configs: Mapping[str, Mapping[str, str]]
    refused: Mapping[str, CdcdError]
    checkpoint_problem: str
    names: frozenset[str]
    acls: TopicAcls | str = ""
    read_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def timeout_max_ms(self) -> int | None:
        """Longest transaction timeout that the brokers allow, in ms; None: unknown."""
        if isinstance(self.broker, CdcdError):
            return None
        return int(self.broker.get("transaction.max.timeout.ms", TIMEOUT_MAX_MS))


Check = Callable[[BrokerFacts, BrokerWanted], Iterator[Finding]]


def examine(facts: BrokerFacts, wanted: BrokerWanted, checks: Iterable[Check]) -> list[Finding]:
    """Return the findings of the checks, in their order."""
    return [finding for check in checks for finding in check(facts, wanted)]


def read_facts(admin: Admin, wanted: BrokerWanted) -> BrokerFacts:
    """Read all facts from the broker without changing anything. Raises TransientError and SinkError."""
    cluster = admin.cluster()
    topics = admin.each_topic(list(wanted.topics))
    existing = [name for name, topic in topics.items() if isinstance(topic, TopicInfo)]
    missing = [name for name, topic in topics.items() if topic is None]
    configs = _or_error(admin.topic_configs, existing) if existing else {}
    refused: Mapping[str, CdcdError] = {}
    if missing and wanted.spec.enabled:
        refused = refusals(
            admin, missing, wanted.spec, compacted=own_topics(wanted.checkpoint, wanted.schemas)
        )
    broker = _or_error(admin.broker_config, cluster.brokers[0][0])
    return BrokerFacts(
        cluster,
        broker,
        topics,
        {} if isinstance(configs, CdcdError) else configs,
        refused,
        checkpoint_problem(admin, wanted.checkpoint) if wanted.checkpoint in existing else "",
        frozenset(admin.names()),
        _acls(admin, wanted.identity, broker) if missing and not cluster.may_alter else "",
        admin.readable_configs(wanted.reads),
    )


def _acls(admin: Admin, identity: ClientIdentity, broker: Mapping[str, str] | CdcdError) -> TopicAcls | str:
    """Return the ACLs about topics, or the reason why they do not tell the rights of this client."""
    open_without = None
    principal = identity.principal(None if isinstance(broker, CdcdError) else broker)
    if not isinstance(broker, CdcdError):
        open_without = broker.get(OPEN_WITHOUT, "false") == "true"
        if (
            broker.get(AUTHORIZER, "").rpartition(".")[2] not in AUTHORIZERS
            or broker.get(BUILDER, "") not in BUILDERS
        ):
            return "the broker does not decide by ACLs alone"
    if not principal:
        return (
            "only the broker knows the principal of this client's certificate or token, unless this client may read "
            "the broker's settings (DescribeConfigs on the cluster) and they have Kafka's own mapping"
        )
    try:
        return TopicAcls(principal, tuple(admin.topic_acls()), open_without)
    except SinkError:
        return "this principal may not read the ACLs"


def _or_error(ask: Callable[[A], T], about: A) -> T | CdcdError:
    try:
        return ask(about)
    except SinkError as error:
        return error


def check_cluster(facts: BrokerFacts, _: BrokerWanted) -> Iterator[Finding]:
    """Report the cluster that answers."""
    brokers = ", ".join(address for _, address in facts.cluster.brokers)
    version = ""
    if not isinstance(facts.broker, CdcdError):
        version = facts.broker.get("inter.broker.protocol.version", "")
    spoken = f", protocol {version}" if version else ""
    yield Finding("ok", "kafka.cluster", "kafka", f"cluster {facts.cluster.cluster_id}: {brokers}{spoken}")


def check_transactions(facts: BrokerFacts, wanted: BrokerWanted) -> Iterator[Finding]:
    """Check the brokers' limits of transactions, and that their transaction log can exist."""
    if not wanted.exactly_once:
        return
    name = "transaction.max.timeout.ms"
    limit_ms = facts.timeout_max_ms
    if limit_ms is None or isinstance(facts.broker, CdcdError):
        found = (
            "unknown, because this principal may not read the brokers' settings (DescribeConfigs on the cluster); "
            "without kafka.transaction.timeout_s, transactions have 60 s"
        )
        yield Finding("ok", "transaction.timeout", name, found)
        return
    if wanted.transaction_timeout_s is not None and wanted.transaction_timeout_s * 1000 > limit_ms:
        yield Finding(
            "error",
            "transaction.timeout",
            name,
            f"{limit_ms}, less than kafka.transaction.timeout_s of {wanted.transaction_timeout_s:g}",
            f"Set kafka.transaction.timeout_s to {limit_ms // 1000} at most, or raise {name} on the brokers.",
        )
    else:
        yield Finding("ok", "transaction.timeout", name, str(limit_ms))
    count = len(facts.cluster.brokers)
    name = "transaction.state.log.replication.factor"
    replicas = int(facts.broker.get(name, "3"))
    if replicas > count and "__transaction_state" not in facts.names:
        yield Finding(
            "error",
            "transaction.log",
            name,
            f"{replicas}, but there are {count} brokers: no transaction can begin",
            f"Set {name}={count} and transaction.state.log.min.isr={count} on the brokers, or add brokers.",
        )
    elif replicas == 1 and count > 1:
        yield Finding(
            "warning",
            "transaction.log",
            name,
            "1: if its disk is lost, open transactions are lost",
            f"Set {name}=3 on the brokers.",
        )
    else:
        yield Finding("ok", "transaction.log", name, str(replicas))


def check_compressed(facts: BrokerFacts, wanted: BrokerWanted) -> Iterator[Finding]:
    """Find topics that take compressed records, because the daemon could need much memory to read such a record."""
    own = own_topics(wanted.checkpoint, wanted.schemas)
    for name, config in facts.read_configs.items():
        if takes_compressed(config):
            yield Finding(
                "warning",
                "topic.compressed",
                f"topic {name}",
                "takes compressed records. A record of somebody else with 1 MB could need 1 GB of the daemon's memory",
                plain_hint(name, config, own.get(name, {})),
            )


def check_missing(facts: BrokerFacts, wanted: BrokerWanted) -> Iterator[Finding]:
    """Report topics that will be created, and check that the broker would create them."""
    missing = [name for name, topic in facts.topics.items() if topic is None]
    if not missing:
        return
    spec, brokers = wanted.spec, len(facts.cluster.brokers)
    willing = [name for name in missing if name not in facts.refused]
    by_hint: dict[str, list[str]] = {}
    for name, error in facts.refused.items():
        by_hint.setdefault(error.hint, []).append(name)
    for hint, names in by_hint.items():
        others = f"; the same holds for {number(len(names) - 1, 'topic')} more" if len(names) > 1 else ""
        yield Finding("error", "topic.missing", "topics", f"{facts.refused[names[0]].message}{others}", hint)
    if not spec.enabled:
        yield Finding(
            "error",
            "topic.missing",
            "topics",
            f"missing, and topics.create is off: {named(missing)}",
            create_hint(missing, compacted=own_topics(wanted.checkpoint, wanted.schemas)),
        )
    elif willing:
        yield Finding("ok", "topic.missing", "topics", f"will be created: {named(willing)}")
        if not facts.cluster.may_alter:
            yield from _rights_on_missing(
                facts.acls, willing, {wanted.checkpoint, wanted.schemas}, wanted.prefix
            )
        if spec.replication_factor == 1 and brokers > 1:
            yield Finding(
                "warning",
                "topic.replicas",
                "topics.create.replication_factor",
                "1: if a broker's disk is lost, created topics on it are lost",
                "Set topics.create.replication_factor: 3 and min.insync.replicas: 2 in topics.create.config.",
            )


def _rights_on_missing(
    acls: TopicAcls | str, missing: Sequence[str], own: Collection[str], prefix: str
) -> Iterator[Finding]:
    """Check the rights on topics that do not exist yet, by the ACLs.

    Args:
        own: topics that cdcd also reads.
        prefix: as in `BrokerWanted`.
    """
    write = {name: None if isinstance(acls, str) else acls.may_write(name) for name in missing}
    refused = [name for name, may in write.items() if may is False]
    if refused:
        found = f"this principal may not write to topics that do not exist yet: {named(refused)}"
        yield Finding("error", "topic.rights", "topics", found, rights_hint(refused, prefix))
    read = (
        []
        if isinstance(acls, str)
        else [name for name in missing if name in own and acls.may_read(name) is False]
    )
    if read:
        found = f"this principal may not read topics that do not exist yet: {named(read)}"
        yield Finding("error", "topic.rights", "topics", found, rights_hint())
    unknown = [name for name, may in write.items() if may is None]
    if unknown:
        yield Finding(
            "unknown",
            "topic.write",
            "topics",
            "not checked: the right to write to topics that do not exist yet. Kafka reports rights only for topics "
            f"that exist, and {acls if isinstance(acls, str) else HOSTS}: {named(unknown)}",
            rights_hint(unknown, prefix),
        )


def check_names(facts: BrokerFacts, wanted: BrokerWanted) -> Iterator[Finding]:
    """Find topic names that are the same to Kafka."""
    new = [name for name in wanted.topics if name not in facts.names and name not in facts.refused]
    for one, other in colliding([*sorted(facts.names), *new]):
        if {one, other} & set(wanted.topics):
            yield Finding(
                "error",
                "topic.name",
                "topic names",
                f"{one} and {other} differ only in '.' and '_', which Kafka refuses",
                collision_hint(),
            )


BROKER: Final[tuple[Check, ...]] = (check_cluster, check_transactions, check_compressed)
TOPICS: Final[tuple[Check, ...]] = (check_missing, check_names)


def check_existing(facts: BrokerFacts, wanted: BrokerWanted) -> Iterator[Finding]:
    """Check each existing topic."""
    for name, topic in facts.topics.items():
        if isinstance(topic, CdcdError):
            yield of_error("topic.rights", f"topic {name}", topic)
        elif topic is not None:
            problems = list(_problems(name, topic, facts, wanted))
            yield from problems
            if not problems:
                replicas = f"{topic.replicas} replicas" if topic.replicas != 1 else "1 replica"
                partitions = f"{topic.partitions} partitions" if topic.partitions != 1 else "1 partition"
                yield Finding("ok", "topic.state", f"topic {name}", f"{partitions}, {replicas}")


def _problems(name: str, topic: TopicInfo, facts: BrokerFacts, wanted: BrokerWanted) -> Iterator[Finding]:
    subject, config = f"topic {name}", facts.configs.get(name, {})
    if topic.may_write is False:
        cure = rights_hint([name], wanted.prefix)
        yield Finding("error", "topic.rights", subject, "this principal may not write to it", cure)
    if name == wanted.checkpoint and topic.may_read is False:
        yield Finding("error", "topic.rights", subject, "this principal may not read it", rights_hint())
    if name == wanted.schemas and topic.may_read is False:
        yield Finding(
            "error" if wanted.reads_schemas else "warning",
            "topic.rights",
            subject,
            "this principal may not read it. cdcd reads it to decode changes of a table that was altered before they "
            "were delivered, and to get the ids of schemas. Without this right, cdcd stops in these cases",
            rights_hint(),
        )
    if not topic.has_leaders:
        yield Finding(
            "error",
            "topic.leader",
            subject,
            "a partition has no leader",
            "Bring the brokers of its replicas back.",
        )
    if name == wanted.checkpoint and facts.checkpoint_problem:
        yield Finding("error", "topic.checkpoint", subject, facts.checkpoint_problem, checkpoint_hint(name))
    in_sync = int(config.get("min.insync.replicas", "1"))
    if in_sync > topic.replicas:
        yield Finding(
            "error",
            "topic.replicas",
            subject,
            f"min.insync.replicas is {in_sync}, but it has {topic.replicas} replicas: nothing can be written",
            alter_topic(name, f"min.insync.replicas={topic.replicas}"),
        )
    elif topic.replicas > 1 and in_sync == 1:
        yield Finding(
            "warning",
            "topic.replicas",
            subject,
            "min.insync.replicas is 1: a record counts as delivered when one broker has it, and is lost if that "
            "broker's disk is lost",
            alter_topic(name, "min.insync.replicas=2"),
        )
    limit = int(config.get("max.message.bytes", str(wanted.message_max_bytes)))
    if limit < wanted.message_max_bytes:
        yield Finding(
            "warning",
            "topic.size",
            subject,
            f"max.message.bytes is {limit}, less than the producer's message.max.bytes of {wanted.message_max_bytes}",
            alter_topic(name, f"max.message.bytes={wanted.message_max_bytes}"),
        )
    if wanted.exactly_once and (unfit := marker_problem(name, config)) is not None:
        yield of_error("topic.markers", subject, unfit)
    policy = config.get("cleanup.policy", "")
    if name == wanted.schemas and policy not in {"", "compact"}:
        yield Finding(
            "warning",
            "topic.compacted",
            subject,
            f"has cleanup.policy={policy}: Kafka deletes descriptions of tables whose records are still there",
            alter_topic(name, "cleanup.policy=compact"),
        )
    elif name in wanted.tables and "compact" in policy:
        yield from _compacted(name, config, wanted.tables[name])


def _compacted(name: str, config: Mapping[str, str], table: TableTopic) -> Iterator[Finding]:
    """Check a table's topic that has `cleanup.policy=compact`, so that Kafka keeps the last record of each key."""
    subject = f"topic {name}"
    if table.keyless or table.repeats or table.marked:
        marked = not table.keyless and not table.repeats
        yield Finding(
            "error",
            "topic.keyless",
            subject,
            policy_problem(config, has_key=False, marked=marked, repeats=table.repeats),
            keyless_hint(name, marked=marked, repeats=table.repeats),
        )
        return
    loses = []
    if table.outdated:
        loses.append(
            "the slot was lost, and the next start will end, because the topic refuses the truncate record of the table"
        )
    if table.truncated:
        loses.append("the topic refuses the record of a TRUNCATE, which has no key, and cdcd then ends")
    if not table.whole:
        loses.append(
            "after compaction, a reader lacks values that the last update did not send (unchanged TOAST)"
        )
    if loses:
        cures = ["topics.truncate: false"] * table.truncated
        cures += [f"ALTER TABLE {qualified(table.table)} REPLICA IDENTITY FULL;"] * (not table.whole)
        yield Finding(
            "error" if table.outdated else "warning",
            "topic.compacted",
            subject,
            f"is compacted: {'; '.join(loses)}",
            f"{alter_topic(name, 'cleanup.policy=delete')}; or {' and '.join(cures)}",
        )
