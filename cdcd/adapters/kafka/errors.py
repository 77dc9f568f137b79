"""Conversion of errors of Kafka or librdkafka to errors of cdcd with hints.

One literal table decides by librdkafka's names of the errors (rdkafka.h; `KafkaError.name()`). A leading underscore
marks errors that librdkafka raises itself. An error outside of the table is transient if Kafka calls it retriable,
if librdkafka calls it abortable or fatal for the producer only (the sink then uses a new producer), or if
librdkafka raised it itself. A broker's refusal for an unknown reason is a `SinkError`.

Hints contain placeholders such as `<user>`. A caller that knows the configuration fills them in (`fill_names`).
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from confluent_kafka import KafkaError

from cdcd.core.errors import (
    FILES_HINT,
    OUT_OF_FILES,
    CdcdError,
    ConfigError,
    FencedError,
    LimitError,
    SinkError,
    SinkUnavailableError,
    TransientError,
)
from cdcd.core.pasted import shell

Partition = tuple[str, int]
"""(topic, number of the partition)."""


@dataclass(frozen=True, slots=True)
class _Row:
    names: str
    """Names of errors, separated by blanks."""
    kind: type[CdcdError]
    hint: str


_AWAY: Final = (
    "Check that the broker runs, that kafka.bootstrap_servers names an address that this machine can reach, and that "
    "security.protocol in kafka.properties is what the broker's listener expects."
)
_ACLS: Final = "kafka-acls --bootstrap-server <bootstrap> --add --allow-principal User:<user>"
_TOPIC_RIGHTS: Final = (
    f"{_ACLS} --operation Write --operation Create --topic <prefix>. --resource-pattern-type prefixed; "
    f"{_ACLS} --operation Read --topic <checkpoint>; "
    f"{_ACLS} --operation Read --topic <schemas>"
)
_CREDENTIALS: Final = (
    "Check sasl.mechanism, sasl.username, sasl.password and security.protocol in kafka.properties, and kafka.oauth if "
    "it gives tokens."
)

_TABLE: Final[tuple[_Row, ...]] = (
    _Row(
        "_FENCED PRODUCER_FENCED FENCED_INSTANCE_ID",
        FencedError,
        "Another producer has this transactional.id: a second instance, or another pipeline of the same name (give it "
        "a name of its own). Or this process hung for longer than the transaction's timeout: start it again.",
    ),
    # Refusals by the broker for lack of rights.
    _Row(
        "TOPIC_AUTHORIZATION_FAILED",
        SinkError,
        _TOPIC_RIGHTS,
    ),
    _Row(
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
        SinkError,
        f"{_ACLS} --operation Write --transactional-id <transactional.id>",
    ),
    _Row(
        "CLUSTER_AUTHORIZATION_FAILED",
        SinkError,
        "Grant this principal IdempotentWrite (brokers before 2.8) and, if cdcd creates topics, Create on the cluster.",
    ),
    _Row(
        "GROUP_AUTHORIZATION_FAILED", SinkError, "Allow this principal Read on the group <name>-checkpoint."
    ),
    _Row("_AUTHENTICATION SASL_AUTHENTICATION_FAILED ILLEGAL_SASL_STATE", SinkError, _CREDENTIALS),
    _Row("UNSUPPORTED_SASL_MECHANISM SECURITY_DISABLED UNACCEPTABLE_CREDENTIAL", SinkError, _CREDENTIALS),
    # Topics and the records that they accept.
    _Row(
        "UNKNOWN_TOPIC_OR_PART _UNKNOWN_TOPIC _UNKNOWN_PARTITION UNKNOWN_TOPIC_ID",
        SinkError,
        "Create the topic that the error names, or set topics.create.enabled: true, so that cdcd creates it.",
    ),
    _Row("TOPIC_EXCEPTION", SinkError, "The broker does not accept that topic's name: change topics.prefix."),
    _Row(
        "INVALID_REPLICATION_FACTOR INVALID_PARTITIONS INVALID_REPLICA_ASSIGNMENT",
        SinkError,
        "Correct topics.create: no more replicas than there are brokers, and at least one partition.",
    ),
    _Row(
        "INVALID_CONFIG", SinkError, "Correct topics.create.config: the broker refuses one of its settings."
    ),
    _Row(
        "POLICY_VIOLATION",
        SinkError,
        "The broker's policy refuses the topic: correct topics.create, or create it.",
    ),
    _Row(
        "MSG_SIZE_TOO_LARGE RECORD_LIST_TOO_LARGE INVALID_MSG_SIZE",
        SinkError,
        "Raise max.message.bytes of the topic (message.max.bytes of the broker) and message.max.bytes in "
        "kafka.properties, or choose another policy for records of that size.",
    ),
    _Row(
        "INVALID_RECORD INVALID_MSG INVALID_TIMESTAMP",
        SinkError,
        "The topic's settings refuse the record. A compacted topic (cleanup.policy) takes only records with a key: set "
        "cleanup.policy=delete on the topic; or topics.truncate: false, if the record is a truncate record. "
        "message.timestamp.* limits the times of records.",
    ),
    _Row(
        "_BAD_COMPRESSION",
        SinkError,
        "The record at this offset is too large when it is decompressed, so cdcd did not write it. Let only cdcd "
        "write to the topic.",
    ),
    _Row("UNSUPPORTED_COMPRESSION_TYPE", SinkError, "Choose another compression.type in kafka.properties."),
    _Row(
        "INVALID_REQUIRED_ACKS", SinkError, "Remove acks from kafka.properties, because cdcd needs acks=all."
    ),
    _Row(
        "INVALID_TRANSACTION_TIMEOUT",
        SinkError,
        "Lower the transaction's timeout, or raise transaction.max.timeout.ms of the broker.",
    ),
    _Row(
        "UNSUPPORTED_VERSION _UNSUPPORTED_FEATURE UNSUPPORTED_FOR_MESSAGE_FORMAT",
        SinkError,
        "Kafka transactions need brokers of version 0.11 or newer (2.5 and up recommended).",
    ),
    _Row("_INVALID_ARG _NOT_CONFIGURED _CONFLICT", SinkError, "Check kafka.properties."),
    # Failures that pass by themselves.
    _Row(
        "_TRANSPORT _ALL_BROKERS_DOWN _DESTROY_BROKER _RESOLVE _SSL BROKER_NOT_AVAILABLE NETWORK_EXCEPTION",
        TransientError,
        _AWAY,
    ),
    _Row("_TIMED_OUT _TIMED_OUT_QUEUE _MSG_TIMED_OUT _WAIT_COORD REQUEST_TIMED_OUT", TransientError, _AWAY),
    _Row(
        "NOT_ENOUGH_REPLICAS NOT_ENOUGH_REPLICAS_AFTER_APPEND _ISR_INSUFF",
        TransientError,
        "Fewer replicas are in sync than min.insync.replicas asks for: bring the brokers back, or correct the setting.",
    ),
    _Row(
        "LEADER_NOT_AVAILABLE NOT_LEADER_FOR_PARTITION REPLICA_NOT_AVAILABLE FENCED_LEADER_EPOCH UNKNOWN_LEADER_EPOCH "
        "OFFSET_NOT_AVAILABLE COORDINATOR_LOAD_IN_PROGRESS COORDINATOR_NOT_AVAILABLE NOT_COORDINATOR NOT_CONTROLLER",
        TransientError,
        "Another broker takes over, or the only broker restarts. cdcd tries again.",
    ),
    _Row(
        "KAFKA_STORAGE_ERROR LOG_DIR_NOT_FOUND",
        TransientError,
        "A broker has a disk error. See its log.",
    ),
    _Row(
        "THROTTLING_QUOTA_EXCEEDED", TransientError, "A quota of the broker delays cdcd, which tries again."
    ),
    _Row(
        "CONCURRENT_TRANSACTIONS",
        TransientError,
        "Kafka has not yet ended a former transaction of this transactional.id. cdcd tries again. If this lasts for "
        "minutes, a topic refuses the marker that ends the transaction: docs/troubleshooting.md shows how to end it.",
    ),
    _Row(
        "INVALID_PRODUCER_EPOCH INVALID_PRODUCER_ID_MAPPING UNKNOWN_PRODUCER_ID OUT_OF_ORDER_SEQUENCE_NUMBER "
        "DUPLICATE_SEQUENCE_NUMBER INVALID_TXN_STATE TRANSACTION_ABORTABLE "
        "TRANSACTION_COORDINATOR_FENCED _GAPLESS_GUARANTEE _PURGE_QUEUE _PURGE_INFLIGHT _STATE",
        TransientError,
        "The broker ended the transaction; cdcd starts over with a new producer.",
    ),
)

_TLS_FILE: Final = re.compile(r"\bssl\.[a-z.]+ failed")

_PROPERTIES: Final = frozenset({"_INVALID_ARG", "_CONFLICT", "_NOT_CONFIGURED"})

_OUR_TRUST: Final = (
    "The broker's certificate is not signed by a CA in ssl.ca.location of kafka.properties, has expired, or has "
    "another name than kafka.bootstrap_servers and the brokers' advertised.listeners."
)
_OUR_CERTIFICATE: Final = (
    "The broker refuses cdcd's certificate, or requires one: check ssl.certificate.location and ssl.key.location in "
    "kafka.properties; it must not have expired, and a CA that the broker trusts must have signed it."
)

_AGAIN: Final = (
    "The service or the command that gives tokens failed: see the event kafka.token, or the keys sasl.oauthbearer.* in "
    "kafka.properties. librdkafka asks again after ten seconds."
)

_POSTGRES: Final = (
    "PostgreSQL listens there, not Kafka: correct the host or port in kafka.bootstrap_servers (postgres.dsn has "
    "PostgreSQL's)."
)
_HTTP: Final = (
    "An HTTP server listens there, not a Kafka broker: correct the port in kafka.bootstrap_servers. REST proxies, "
    "Kafka Connect and consoles have other ports than brokers."
)
_TLS_LISTENER: Final = (
    "The listener there speaks TLS: set security.protocol in kafka.properties to SSL or SASL_SSL, or take the port of "
    "another listener."
)

_BY_TEXT: Final = (
    # The address of the broker is not wrong: this process cannot open another connection.
    (f"Failed to create socket: {OUT_OF_FILES}", LimitError, FILES_HINT),
    # The first bytes of the answer, which librdkafka reads as its length: an ErrorResponse, "HTTP", or a TLS alert.
    (f"Invalid response size {0x45000000}", SinkError, _POSTGRES),
    (f"Invalid response size {int.from_bytes(b'HTTP')}", SinkError, _HTTP),
    (f"Invalid response size {0x150301 << 8}"[:-3], SinkError, _TLS_LISTENER),
    ("certificate verify failed", SinkError, _OUR_TRUST),
    ("SSL alert number", SinkError, _OUR_CERTIFICATE),
    ("Failed to acquire SASL OAUTHBEARER token", TransientError, _AGAIN),
)
"""(part of OpenSSL's or librdkafka's message, kind, hint), where librdkafka's error code is misleading: it reports a
lost connection although waiting does not help, or a refusal although waiting helps."""

_ADVERTISED: Final = re.compile(
    r"(?P<address>\S+:\d+)/(?P<broker>\d+): (?:Connect to |Connection setup timed out|Failed to resolve )"
)
"""librdkafka's messages about a connection to a broker by the address that the cluster gave. For a connection to a
configured address, the message has `bootstrap` in place of the broker's id."""

_BY_NAME: Final[Mapping[str, _Row]] = {name: row for row in _TABLE for name in row.names.split()}


UNANSWERED: Final = frozenset(
    {
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._DESTROY_BROKER,
    }
)
"""Codes of librdkafka's errors for a missing answer of a broker or a lost connection. If the time is over before any
connection was made, librdkafka reports that all connections are down (`_ALL_BROKERS_DOWN`). If the other brokers no
longer list a broker, librdkafka forgets this broker and fails its requests (`_DESTROY_BROKER`)."""

RETRIABLE: Final = UNANSWERED | frozenset(
    {
        KafkaError._WAIT_COORD,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        KafkaError.NOT_CONTROLLER,
        KafkaError.CONCURRENT_TRANSACTIONS,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.FETCH_SESSION_ID_NOT_FOUND,
        KafkaError.INVALID_FETCH_SESSION_EPOCH,
        KafkaError.LISTENER_NOT_FOUND,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.PREFERRED_LEADER_NOT_AVAILABLE,
        KafkaError.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
        KafkaError.THROTTLING_QUOTA_EXCEEDED,
    }
)
"""Codes of errors that pass by themselves: the subclasses of Kafka's RetriableException (Errors.java), and
librdkafka's own for missing answers. A corrupt record is not among them, because a reader would wait for it without
end. Topics and partitions that are not listed (`assigned.NO_TOPIC`) are not among them either, because they may be
missing for good."""


def passes(error: KafkaError) -> bool:
    """Return True if the error passes by itself when the call is repeated.

    confluent_kafka's `KafkaError.retriable()` is right for errors of transactional calls only. It is False for
    every error that has a message, is passed to a callback, or is raised by another call, because confluent_kafka
    creates these errors from a code.
    """
    return error.retriable() or error.code() in RETRIABLE


_NAMES: Final = re.compile(r"<(bootstrap|user|prefix|checkpoint|schemas|transactional\.id)>")


NAMED_MAX: Final = 5
"""Maximum number of topics that a hint names."""


def rights_hint(topics: Collection[str] = (), prefix: str = "") -> str:
    """Return the hint with the commands that grant the rights on topics.

    Args:
        topics: the topics that are meant, of which those that do not begin with the prefix are named.
        prefix: prefix of the pipeline's topics, without the point; "": unknown, so no topic is named.
    """
    named = [topic for topic in topics if prefix and not topic.startswith(f"{prefix}.")]
    if not named:
        return _TOPIC_RIGHTS
    flags = " ".join(f"--topic {topic}" for topic in named[:NAMED_MAX])
    more = f" (and {len(named) - NAMED_MAX} more topics)" if len(named) > NAMED_MAX else ""
    return f"{_ACLS} --operation Write --operation Create {flags}{more}; {_TOPIC_RIGHTS}"


def filled(hint: str, names: Mapping[str, str]) -> str:
    """Return the hint with each `<name>` replaced by its value, quoted for a shell.

    A placeholder without a known value stays.
    """
    return _NAMES.sub(lambda match: shell(names[match[1]]) if match[1] in names else match[0], hint)


def fill_names(error: CdcdError, names: Mapping[str, str]) -> None:
    """Fill the placeholders in the hint of an error, as `filled` does."""
    error.hint = filled(error.hint, names)


def unavailable(error: TransientError, hint: str | None = None) -> SinkUnavailableError:
    """Return the error as a SinkUnavailableError, when Kafka is known to be the side that does not answer.

    Args:
        hint: hint in place of the error's own.
    """
    return SinkUnavailableError(error.message, hint=error.hint if hint is None else hint)


def property_error(error: KafkaError, where: str) -> CdcdError:
    """Return the error for librdkafka's refusal to create a client.

    ConfigError: a name or a value is wrong. SinkError: a TLS file cannot be used, which may be different at the
    next start, for example after a mounted secret was replaced.
    """
    said = map_kafka_error(error, where)
    if error.name() not in _PROPERTIES or _TLS_FILE.search(error.str()):
        return said
    return ConfigError(
        f"{where}: librdkafka refuses kafka.properties: {error.str()}",
        hint="Correct the name or the value in kafka.properties. The names are those of librdkafka's CONFIGURATION.md.",
    )


def map_kafka_error(error: KafkaError, context: str) -> CdcdError:
    """Return cdcd's error for `error` during `context`: TransientError, SinkError, FencedError or LimitError."""
    name = error.name()
    for fragment, kind, hint in _BY_TEXT:
        if fragment in error.str():
            return kind(f"{context}: {error.str()} [{name}]", hint=hint)
    advertised = _ADVERTISED.search(error.str())
    if advertised is not None and name in _AWAY_NAMES:
        return TransientError(
            f"{context}: {error.str()} [{name}]", hint=_unreachable(**advertised.groupdict())
        )
    row = _BY_NAME.get(name)
    if row is None:
        is_over = passes(error) or error.txn_requires_abort() or error.fatal() or name.startswith("_")
        row = (
            _Row(name, TransientError, "cdcd tries again.")
            if is_over
            else _Row(name, SinkError, "See the broker's log.")
        )
    return row.kind(f"{context}: {error.str()} [{name}]", hint=row.hint)


_AWAY_NAMES: Final = frozenset({"_TRANSPORT", "_RESOLVE", "_TIMED_OUT", "_ALL_BROKERS_DOWN"})


def _unreachable(address: str, broker: str) -> str:
    return (
        f"kafka.bootstrap_servers answered, and gave {address} as the address of broker {broker} (its "
        "advertised.listeners). This machine cannot connect to it. Check that the broker runs, and that this address "
        "leads to it from here; otherwise correct advertised.listeners, or use the port of another listener."
    )


def silent_leader(where: str, leader: int, partition: Partition) -> TransientError:
    """Return the error for a broker that leads a needed partition and does not answer."""
    return TransientError(
        f"{where}: broker {leader}, which leads partition {partition[1]} of topic {partition[0]}, does not answer",
        hint="Find out whether that broker is frozen or cut off from this machine. cdcd continues by itself when the "
        "broker is back, or when another broker leads the partition.",
    )


def no_leader(where: str, partition: Partition) -> TransientError:
    """Return the error for a needed partition that has no leader."""
    return TransientError(
        f"{where}: partition {partition[1]} of topic {partition[0]} has no leader",
        hint="Bring back a broker that has a replica of the partition. cdcd then continues by itself.",
    )
