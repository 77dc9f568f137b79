"""Findings of `cdcd check` about claims on topics: whether another pipeline has one, and what is not protected."""

from collections.abc import Collection, Iterator
from typing import Final

from cdcd.adapters.kafka.admin import Admin
from cdcd.adapters.kafka.topics import alter_topic, own_topics, refusals
from cdcd.config.loading import Config
from cdcd.core.catalog.claims import Claims, foreign_prefix, under_prefix
from cdcd.core.errors import SinkError
from cdcd.daemon.claiming import claims_topic, own_of
from cdcd.daemon.settings import topic_spec
from cdcd.telemetry.findings import Finding, named, of_error
from cdcd.telemetry.terminal_text import number

ANSWER_S: Final = 10.0
CODE: Final = "topic.claims"

_GRANT: Final = (
    "kafka-acls --bootstrap-server <bootstrap> --add --allow-principal User:<user> --operation Read --operation Write "
    "--operation Create --topic {claims}"
)


def check_claims(admin: Admin, config: Config, topics: Collection[str]) -> Iterator[Finding]:
    """Check the topics of tables against the claims of other pipelines, and that this pipeline can claim its own.

    Args:
        topics: topics of all published tables.
    """
    names, claims = config.topic_names(), config.topics.claims
    outside = sorted([topic for topic in topics if not names.is_under_prefix(topic)])
    existing, subject = admin.names(), f"topic {claims}"
    own = own_of(config)
    for topic in outside:
        if checkpoint := foreign_prefix(topic, existing, own):
            yield of_error("topic.claimed", f"topic {topic}", under_prefix(topic, checkpoint))
    if claims not in existing:
        if outside:
            yield _missing(admin, config, outside)
        return
    reader, found = claims_topic(config, ANSWER_S), Claims()
    try:
        reader.read(found)
    except SinkError as error:
        if outside:
            yield _unprotected(f"it cannot be read: {error.message}", claims, outside)
        return
    for name, refused in found.refused(reader.claimant, topics, claims).items():
        yield of_error("topic.claimed", f"topic {name}", refused)
    if not outside:
        return
    info = admin.topics([claims])[claims]
    if info is not None and info.may_write is False:
        yield _unprotected("this principal may not write to it", claims, outside)
        return
    policy = _policy(admin, claims)
    if policy != "compact":
        yield Finding(
            "warning",
            CODE,
            subject,
            f"has cleanup.policy={policy}, so Kafka deletes claims after some time, and another pipeline may then "
            "write to the same topics",
            alter_topic(claims, "cleanup.policy=compact"),
        )
        return
    mine = [name for name in outside if found.holder(name) == reader.claimant]
    yield Finding(
        "ok",
        CODE,
        subject,
        f"{number(len(mine), 'topic')} of {len(outside)} claimed; the next start claims the others",
    )


def _missing(admin: Admin, config: Config, outside: Collection[str]) -> Finding:
    claims, spec = config.topics.claims, topic_spec(config)
    refused = refusals(admin, [claims], spec, compacted=own_topics("", claims)) if spec.enabled else {}
    if refused:
        return _unprotected(f"it cannot be created: {refused[claims].message}", claims, outside)
    if not spec.enabled:
        return _unprotected("it does not exist, and topics.create is off", claims, outside)
    return Finding(
        "ok", CODE, f"topic {claims}", f"will be created, and {number(len(outside), 'topic')} claimed"
    )


def _unprotected(why: str, claims: str, outside: Collection[str]) -> Finding:
    return Finding(
        "warning",
        CODE,
        f"topic {claims}",
        f"{why}. So nothing keeps another pipeline from writing to the topics of this one whose names do not begin "
        f"with its prefix: {named(list(outside))}",
        _GRANT.replace("{claims}", claims),
    )


def _policy(admin: Admin, claims: str) -> str:
    """Return the topic's cleanup.policy; "compact" also if this principal may not read settings."""
    try:
        return admin.topic_config(claims).get("cleanup.policy", "compact")
    except SinkError:
        return "compact"
