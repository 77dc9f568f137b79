"""librdkafka properties by the kind of client that understands them.

The operator gives one set. Connections and their security concern every client; the rest is the producer's. A
property given to a client of the wrong kind is only warned about by librdkafka: this keeps the log clean, no more.
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
"""Beginnings of the names of properties that every kind of client has."""

CONNECTION_DEFAULTS: Final[Properties] = {
    "socket.keepalive.enable": True,
    "socket.nagle.disable": True,
    # Doubled at each failure. Half of it is also the pause before librdkafka opens a second connection, as each client
    # does that learns which brokers there are (rdkafka_conf.c, sparse_connect_intvl).
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 1000,
    "log.connection.close": False,
    # A producer's metadata requests would make the broker create a deleted topic again, with its defaults.
    "allow.auto.create.topics": False,
}

PRODUCER_DEFAULTS: Final[Properties] = {
    "compression.type": "lz4",
    # The Java client's default partitioner, so that a key stays in the partition where Debezium put it.
    "partitioner": "murmur2_random",
    # A batch is handed over at once and then flushed, which waits for nothing. Until then a request is to fill, and
    # librdkafka polls without a pause for the last millisecond of this, and when it is over.
    "linger.ms": 1000,
    "queue.buffering.max.messages": 1_000_000,
}


CALLBACK: Final = "oauth_cb"
"""The Python client's name for what librdkafka asks for tokens. A thread of librdkafka's calls it for every kind of
client (since confluent-kafka 2.13)."""

LOGGER: Final = logging.getLogger("librdkafka")
"""What librdkafka logs. What matters of it comes back as errors, so this is for debugging. Without a configured log, as
in `cdcd check`, it goes nowhere."""
LOGGER.addHandler(logging.NullHandler())


def split(given: Properties, tokens: Tokens | None = None) -> tuple[dict[str, Value], dict[str, Value]]:
    """The properties for every client, and those for the producer only, with our defaults under the operator's.

    Args:
        tokens: for SASL/OAUTHBEARER.
    """
    connection = {name: value for name, value in given.items() if name.startswith(CONNECTION)}
    producer = {name: value for name, value in given.items() if not name.startswith(CONNECTION)}
    own: Properties = {"logger": LOGGER} if tokens is None else {"logger": LOGGER, CALLBACK: tokens}
    return {**CONNECTION_DEFAULTS, **own, **connection}, {**PRODUCER_DEFAULTS, **producer}


def configured(kafka: KafkaAccess) -> tuple[dict[str, Value], dict[str, Value]]:
    """As `split`, of a configuration, with its secrets and tokens as they are now."""
    return split(*access(kafka))


def prepare(client: Properties) -> None:
    """Call this before a client is made: it has a token fetched, if the client needs one. It blocks.

    Without a token, the constructor would wait ten seconds and say only that there is none (confluent_kafka.c,
    wait_for_oauth_token_set).

    Raises ConfigError: the provider can never work; SinkUnavailableError: it does not work now.
    """
    tokens = client.get(CALLBACK)
    if isinstance(tokens, Tokens):
        tokens.prepare()
