"""Findings of `cdcd check` about existing topics: rights, replicas, sizes, cleanup."""

from collections.abc import Iterator, Mapping

from cdcd.adapters.kafka.admin import TopicInfo
from cdcd.adapters.kafka.errors import rights_hint
from cdcd.adapters.kafka.topics import alter_topic, checkpoint_hint, keyless_hint, policy_problem
from cdcd.core.errors import CdcdError
from cdcd.core.pasted import qualified
from cdcd.telemetry.findings import Finding, of_error
from cdcd.tools.checks.kafka import Facts, TableTopic, Wanted


def check_existing(facts: Facts, wanted: Wanted) -> Iterator[Finding]:
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


def _problems(name: str, topic: TopicInfo, facts: Facts, wanted: Wanted) -> Iterator[Finding]:
    subject, config = f"topic {name}", facts.configs.get(name, {})
    if topic.may_write is False:
        yield Finding("error", "topic.rights", subject, "this principal may not write to it", rights_hint())
    if name == wanted.checkpoint and topic.may_read is False:
        yield Finding("error", "topic.rights", subject, "this principal may not read it", rights_hint())
    if name == wanted.schemas and topic.may_read is False:
        yield Finding(
            "error" if wanted.reads_schemas else "warning",
            "topic.rights",
            subject,
            "this principal may not read it. cdcd reads it to decode changes of a table that was altered before they "
            "were delivered, and to take the ids of schemas from it; it stops there otherwise",
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
            "min.insync.replicas is 1: a record counts as delivered when one broker has it, and is lost with that one",
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
    if table.keyless or table.marked:
        marked = not table.keyless
        yield Finding(
            "error",
            "topic.keyless",
            subject,
            policy_problem(config, has_key=False, marked=marked),
            keyless_hint(name, marked=marked),
        )
        return
    loses = []
    if table.outdated:
        loses.append(
            "the slot was lost, and the next start will end, because the topic refuses the truncate record of the table"
        )
    if table.truncated:
        loses.append("it refuses the record of a TRUNCATE, which has no key, and cdcd ends then")
    if not table.whole:
        loses.append("a later reader lacks values that the last update did not send (unchanged TOAST)")
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
