"""What the sink's producer is told: sizes of requests, and which wait is limited by what."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from cdcd.kafka.client import Properties

BATCH_SIZE: Final = 1_000_000
"""librdkafka's default `batch.size`, which fits into a topic's default `max.message.bytes`."""

REQUEST_BYTES: Final = 4 * 1024 * 1024
"""Bytes in a produce request where a transaction needs several: one is filled while the one before it is under way.

A topic takes 1 MB of compressed records in a request, which so much JSON usually is not.
"""

MESSAGE_BYTES_MAX: Final = 1_000_000_000
"""What librdkafka takes at most for `message.max.bytes`."""

BATCH_MESSAGES: Final = 1_000_000
"""What librdkafka takes at most for `batch.num.messages`."""

ANSWER_S: Final = 60.0
"""Seconds that Kafka may take for one answer (init_transactions, a commit, the checkpoint, progress of records).

A transaction may stay open for much longer than this: its timeout is for the sum of its parts. A broker that says
nothing for a minute is away, and a new producer finds its successor.
"""

SOCKET_MARGIN_MS: Final = 100
"""By so much a transaction's timeout must exceed `socket.timeout.ms` (rdkafka_conf.c, rd_kafka_conf_finalize)."""


@dataclass(frozen=True, slots=True)
class SinkSettings:
    """How to reach Kafka and what to promise.

    `client` holds librdkafka's connection properties (also for the checkpoint's consumer), `producer` those that only
    a producer knows. `key` is the checkpoint record's key, the pipeline's name. `batch_bytes_max`: about the size
    of a batch that small transactions share; a part of a large one has more. `timeout_s`: after so many seconds
    the broker aborts an open transaction.
    """

    client: Properties
    producer: Properties
    exactly_once: bool
    transactional_id: str
    checkpoint_topic: str
    key: str
    batch_bytes_max: int
    timeout_s: float
    backoff_initial_s: float
    backoff_max_s: float

    @property
    def answer_s(self) -> float:
        """Seconds that Kafka may take for one answer; see `ANSWER_S`."""
        return min(self.timeout_s, ANSWER_S)

    @property
    def record_bytes_max(self) -> int:
        """A record larger than this is taken for what the broker refuses, when it refuses something for its size."""
        return int(str(self.producer.get("message.max.bytes", BATCH_SIZE)))

    @property
    def batch_size(self) -> int:
        """librdkafka's `batch.size` to begin with: a batch's records for one partition in one request.

        An idempotent producer has one request for a partition under way, and while it is flushed and another request
        waits behind it, librdkafka's thread polls without a pause (rdkafka_broker.c, rd_kafka_toppar_producer_serve;
        rdkafka_msg.c, rd_kafka_msgq_allow_wakeup_at): as much CPU as all the rest of its work.
        """
        given = self.producer.get("batch.size")
        if given:
            return int(str(given))
        if self.batch_bytes_max > REQUEST_BYTES:
            return REQUEST_BYTES
        # A batch goes a little beyond that, and librdkafka counts some 40 bytes more for a record.
        return max(self.batch_bytes_max * 5 // 4, BATCH_SIZE)


def producer_properties(
    settings: SinkSettings, client: Properties, batch_size: int, on_delivery: Callable[..., None]
) -> dict[str, Any]:
    """All properties of a new producer. `client`: the connection's, with the credentials as they are now.

    `batch_size` is librdkafka's `batch.size`, or 0 for one record in a request. `on_delivery` hears of each record that
    was not delivered, and of no other.
    """
    properties: dict[str, Any] = {
        "batch.num.messages": BATCH_MESSAGES,
        **client,
        **settings.producer,
        "enable.idempotence": True,
        "acks": "all",
        "delivery.report.only.error": True,
        "on_delivery": on_delivery,
    }
    # What a single record may be, however small the requests have become: one for the dead letters is large.
    whole = max(2 * settings.batch_bytes_max, settings.batch_size, BATCH_SIZE)
    properties.setdefault("message.max.bytes", min(whole, MESSAGE_BYTES_MAX))
    if batch_size:
        properties["batch.size"] = batch_size
    else:
        properties["batch.num.messages"] = 1
    if not settings.exactly_once:
        # A record stays with its producer until the broker has answered: given to another one, it could come before an
        # older request that is still under way.
        properties.setdefault("message.timeout.ms", 0)
        return properties
    timeout_ms, answer_ms = int(settings.timeout_s * 1000), int(settings.answer_s * 1000)
    properties["transactional.id"] = settings.transactional_id
    properties["transaction.timeout.ms"] = timeout_ms
    # librdkafka makes both of them as long as the transaction's timeout: it would wait so long for a broker that is cut
    # off before it connects to its successor.
    properties.setdefault("message.timeout.ms", answer_ms)
    if timeout_ms >= answer_ms + SOCKET_MARGIN_MS:
        properties.setdefault("socket.timeout.ms", answer_ms)
    return properties
