"""librdkafka properties, separated by the kind of client that uses them.

The operator configures one set. Properties of connections and their security apply to every client, the others to
the producer. librdkafka only warns about a property for the wrong kind of client, so the separation just keeps the
log clean.
"""

import logging
from collections.abc import Mapping
from typing import Final

from cdcd.adapters.credentials.providers import KafkaAccess, access
from cdcd.adapters.credentials.tokens import Tokens

Value = str | int | float | bool | logging.Logger | Tokens

Properties = Mapping[str, Value]

CONNECTION: Final = (
    "bootstrap.servers",
    "metadata.broker.list",
    "client.",
    "security.",
    "sasl.",
    "enable.sasl.",
    "ssl.",
    "enable.ssl.",
    "socket.",
    "broker.",
    "api.version.",
    "reconnect.",
    "metadata.",
    "topic.metadata.",
    "connections.",
    "allow.auto.create",
    "log_level",
    "debug",
    "https.",
)
"""Prefixes of the names of properties that every kind of client has."""

CONNECTION_DEFAULTS: Final[Properties] = {
    "socket.keepalive.enable": True,
    "socket.nagle.disable": True,
    # Doubled at each failure. Half of it is also the pause before librdkafka opens a second connection, as each
    # client does that reads the list of brokers (rdkafka_conf.c, sparse_connect_intvl).
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 1000,
    "log.connection.close": False,
    # Otherwise a producer's metadata requests would make the broker create a deleted topic again, with its defaults.
    "allow.auto.create.topics": False,
}

PRODUCER_DEFAULTS: Final[Properties] = {
    "compression.type": "lz4",
    # The default partitioner of the Java client, so that a key stays in the partition that Debezium chose.
    "partitioner": "murmur2_random",
    # A batch is produced at once and then flushed, and the flush does not wait for linger.ms. Before that, a request
    # should fill, and librdkafka polls without a pause in the last millisecond of linger.ms and after it.
    "linger.ms": 1000,
    "queue.buffering.max.messages": 1_000_000,
}


CALLBACK: Final = "oauth_cb"
"""The Python client's name of the property with the token callback. A thread of librdkafka calls the callback for
every kind of client (since confluent-kafka 2.13)."""

LOGGER: Final = logging.getLogger("librdkafka")
"""Log of librdkafka's messages. Important failures are also errors, so this log is for debugging. Without a
configured log, as in `cdcd check`, the messages are dropped."""
LOGGER.addHandler(logging.NullHandler())


def split(given: Properties, tokens: Tokens | None = None) -> tuple[dict[str, Value], dict[str, Value]]:
    """Return the properties for every client, and those for producers only; the operator's values override cdcd's
    defaults.

    Args:
        tokens: tokens for SASL/OAUTHBEARER.
    """
    connection = {name: value for name, value in given.items() if name.startswith(CONNECTION)}
    producer = {name: value for name, value in given.items() if not name.startswith(CONNECTION)}
    own: Properties = {"logger": LOGGER} if tokens is None else {"logger": LOGGER, CALLBACK: tokens}
    return {**CONNECTION_DEFAULTS, **own, **connection}, {**PRODUCER_DEFAULTS, **producer}


def configured(kafka: KafkaAccess) -> tuple[dict[str, Value], dict[str, Value]]:
    """Return the properties of a configuration as `split` does, with its current secrets and tokens."""
    return split(*access(kafka))


def prepare(client: Properties) -> None:
    """Fetch a token before a client is created, if the client needs one. The call blocks.

    Without a token, the constructor would wait ten seconds and then report only that there is no token
    (confluent_kafka.c, wait_for_oauth_token_set).

    Raises ConfigError if the provider can never work, and SinkUnavailableError if it does not work now.
    """
    tokens = client.get(CALLBACK)
    if isinstance(tokens, Tokens):
        tokens.prepare()
