"""librdkafka's clients: their properties, separated by the kind of client that uses them, and their construction. No
other module of cdcd constructs clients of confluent_kafka.

The operator configures one set. Properties of connections and their security apply to every client, the others to
the producer. librdkafka only warns about a property for the wrong kind of client, so the separation just keeps the
log clean.

A constructor of confluent_kafka reads the properties in C, and answers each exception that is raised meanwhile with a
TypeError about the properties (confluent_kafka.c, common_conf_setup). Ctrl-C in that moment would end a command with
that traceback. So the handlers of SIGINT and SIGTERM are called when the constructor has returned.

The calls of a producer raise the fatal error that ended it, and never a SystemError in its place.

A producer meets a fatal error, for example, if another producer uses its transactional id. confluent_kafka then sets a
Python exception, which the call raises when it returns (confluent_kafka.c, error_cb). Before the call returns,
confluent_kafka calls `on_delivery` for the failed records while that exception is set (Producer.c, dr_msg_cb). Python
then raises a SystemError whose cause is the exception. If `on_delivery` raises and catches an exception of its own, the
first exception is lost, and the SystemError has no cause. If the handler of that caught exception is still under way,
the call even raises the KafkaError itself, which is no exception: no `except` with a class catches it, so it would end
the process without an error.
"""

import logging
import signal
import sys
import threading
from asyncio import _get_running_loop
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, libversion
from confluent_kafka.admin import AdminClient

from cdcd.adapters.credentials.tokens import KafkaAccess, Tokens, access

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


R = TypeVar("R")


class TellingProducer(Producer):
    """A `Producer` whose blocking calls raise KafkaException where confluent_kafka lost it."""

    def poll(self, timeout: float = -1) -> int:
        """See `Producer.poll`."""
        return self._telling(super().poll, timeout)

    def flush(self, timeout: float = -1) -> int:
        """See `Producer.flush`."""
        return self._telling(super().flush, timeout)

    def init_transactions(self, timeout: float = -1) -> None:
        """See `Producer.init_transactions`."""
        self._telling(super().init_transactions, timeout)

    def commit_transaction(self, timeout: float = -1) -> None:
        """See `Producer.commit_transaction`."""
        self._telling(super().commit_transaction, timeout)

    def abort_transaction(self, timeout: float = -1) -> None:
        """See `Producer.abort_transaction`."""
        self._telling(super().abort_transaction, timeout)

    def _telling(self, call: Callable[[float], R], timeout: float) -> R:
        try:
            return call(timeout)
        except SystemError as error:
            raise self._fatal_error(error) from None
        except BaseException:
            raise
        except:  # noqa: E722  the only way to catch what is no exception
            raise KafkaException(sys.exc_info()[1]) from None

    def _fatal_error(self, error: SystemError) -> KafkaException:
        if isinstance(error.__cause__, KafkaException):
            return error.__cause__
        try:
            # After a fatal error, `begin_transaction` only raises that error (rdkafka_txnmgr.c,
            # rd_kafka_txn_require_states0). A producer without transactions has no call that names its fatal error.
            self.begin_transaction()
        except KafkaException as told:
            if told.args[0].fatal():
                return told
        return KafkaException(KafkaError(KafkaError._FATAL, "librdkafka ended the producer", True))


_WAITING: Final = (signal.SIGINT, signal.SIGTERM)

C = TypeVar("C")


def make_consumer(properties: Mapping[str, Any]) -> Consumer:
    """Return a consumer. KafkaException: librdkafka refuses a property."""
    return _constructed(Consumer, properties)


def make_producer(properties: Mapping[str, Any]) -> Producer:
    """Return a producer. KafkaException: librdkafka refuses a property."""
    return _constructed(TellingProducer, properties)


def make_admin(properties: Mapping[str, Any]) -> AdminClient:
    """Return a client for topics and their settings. KafkaException: librdkafka refuses a property."""
    return _constructed(AdminClient, properties)


def _constructed(kind: Callable[[dict[str, Any]], C], properties: Mapping[str, Any]) -> C:
    with _uninterrupted():
        return kind(dict(properties))


@contextmanager
def _uninterrupted() -> Iterator[None]:
    # Python calls signal handlers in the main thread only. Blocking the signal is not enough, because another thread
    # could receive it, and Python would still call the handler. asyncio's handlers raise nothing in the middle of a
    # call.
    if threading.current_thread() is not threading.main_thread() or _get_running_loop() is not None:
        yield
        return
    heard: list[int] = []
    handlers = {number: handler for number in _WAITING if callable(handler := signal.getsignal(number))}
    try:
        for number in handlers:
            signal.signal(number, lambda number, _frame: heard.append(number))
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for taken in heard:
            handlers[signal.Signals(taken)](taken, None)


def librdkafka_version() -> str:
    return str(libversion()[0])
