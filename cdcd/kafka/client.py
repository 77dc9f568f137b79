"""librdkafka properties by the kind of client that understands them.

The operator gives one set. Connections and their security concern every client; the rest is the producer's. A
property given to a client of the wrong kind is only warned about by librdkafka: this keeps the log clean, no more.
"""

import logging
import re
import time
from collections.abc import Callable, Mapping
from typing import Final

Value = str | int | float | bool | logging.Logger

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


REPEATED_S: Final = 60.0
"""Seconds in which a message of librdkafka's is logged once. librdkafka repeats each failed connection several times a
second."""

KINDS_MAX: Final = 1000
"""Kinds of messages that are remembered."""

_VARYING: Final = re.compile(r"\[thrd:[^]]*\]|\(after [^)]*\)|[0-9]+")


class Sparing(logging.Filter):
    """Lets a message pass once in `REPEATED_S`, and then with the number of those that it held back.

    Messages are alike if they differ in numbers, in the thread and in the time that an attempt took. What is logged for
    the property `debug` passes: whoever sets it wants each line.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._passed: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is logged. If others were held back, its message says how many."""
        if record.levelno <= logging.DEBUG:
            return True
        text, now = record.getMessage(), self._clock()
        kind = _VARYING.sub("", text)
        passed_at, held = self._passed.get(kind, (-REPEATED_S, 0))
        if now - passed_at < REPEATED_S:
            self._passed[kind] = (passed_at, held + 1)
            return False
        if len(self._passed) > KINDS_MAX:
            self._passed.clear()
        self._passed[kind] = (now, 0)
        if held:
            record.msg, record.args = f"{text} (and {held} more of this kind since)", ()
        return True


LOGGER: Final = logging.getLogger("librdkafka")
"""What librdkafka logs. What matters of it comes back as errors, so this is for debugging. Without a configured log, as
in `cdcd check`, it goes nowhere."""
LOGGER.addHandler(logging.NullHandler())
LOGGER.addFilter(Sparing())


def split(given: Properties) -> tuple[dict[str, Value], dict[str, Value]]:
    """The properties for every client, and those for the producer only, with our defaults under the operator's."""
    connection = {name: value for name, value in given.items() if name.startswith(CONNECTION)}
    producer = {name: value for name, value in given.items() if not name.startswith(CONNECTION)}
    return {**CONNECTION_DEFAULTS, "logger": LOGGER, **connection}, {**PRODUCER_DEFAULTS, **producer}
