"""Properties of the sink's producer: sizes of requests, and timeouts."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer

from cdcd.adapters.kafka.client import Properties, make_producer, prepare
from cdcd.adapters.kafka.errors import map_kafka_error, property_error
from cdcd.adapters.kafka.shared_id import IdUse
from cdcd.core.engine.checkpoint_record import CheckpointRecords
from cdcd.core.errors import CdcdError
from cdcd.core.retry import Delays

BATCH_SIZE: Final = 1_000_000
"""librdkafka's default `batch.size`, which fits into a topic's default `max.message.bytes`."""

REQUEST_BYTES: Final = 4 * 1024 * 1024
"""Size in bytes of a produce request if a transaction needs several: one is filled while the previous one is in
flight.

A topic accepts 1 MB of compressed records in a request, and this much JSON is usually smaller than that.
"""

MESSAGE_BYTES_MAX: Final = 1_000_000_000
"""The highest value of `message.max.bytes` that librdkafka accepts."""

BATCH_MESSAGES: Final = 1_000_000
"""The highest value of `batch.num.messages` that librdkafka accepts."""

ANSWER_S: Final = 60.0
"""Seconds that Kafka may take for one answer (to init_transactions, a commit, the checkpoint, records).

A broker that does not answer for a minute is unreachable, and a new producer finds its successor. A transaction may
stay open for much longer, because its timeout covers all of its parts.
"""

SOCKET_MARGIN_MS: Final = 100
"""Milliseconds by which a transaction's timeout must exceed `socket.timeout.ms` (rdkafka_conf.c,
rd_kafka_conf_finalize)."""


TIMEOUT_REFUSED_MS: Final = 2**31 - 1
"""A transaction timeout in milliseconds that every broker refuses whose limit, `transaction.max.timeout.ms`, is
lower. The default of the limit is 15 minutes."""

SLICE_S: Final = 0.5
"""Seconds after which a blocking call returns, to check whether the sink is being stopped."""


@dataclass(frozen=True, slots=True)
class SinkSettings:
    """Settings of the sink: the connection to Kafka, and the guarantee.

    Attributes:
        client: librdkafka's connection properties, also for the consumer that reads the checkpoint.
        producer: librdkafka properties that only a producer has.
        records: rules for the checkpoint records of this pipeline.
        batch_bytes_max: approximate size of a batch that small transactions share. A part of a large transaction
            has more.
        timeout_s: seconds after which the broker aborts an open transaction.
        parted: True if columns choose the partitions of some tables' records (`partitions.py`).
        shares: True if tables share topics (`core/catalog/sharing.py`).
        slot: name of the replication slot, which the headers of checkpoint records name.
    """

    client: Properties
    producer: Properties
    exactly_once: bool
    transactional_id: str
    checkpoint_topic: str
    records: CheckpointRecords
    batch_bytes_max: int
    timeout_s: float
    retry: Delays
    parted: bool = False
    slot: str = ""
    shares: bool = False

    @property
    def id_use(self) -> IdUse:
        """Use of the transactional id, for the headers of checkpoint records."""
        return IdUse(self.transactional_id if self.exactly_once else "", self.slot)

    @property
    def answer_s(self) -> float:
        """Seconds that Kafka may take for one answer; see `ANSWER_S`."""
        return min(self.timeout_s, ANSWER_S)

    @property
    def record_bytes_max(self) -> int:
        """Size in bytes above which a record is considered the reason when the broker refuses a
        request for its size.
        """
        return _number(self.producer.get("message.max.bytes")) or BATCH_SIZE

    @property
    def message_bytes_max(self) -> int:
        """Maximum bytes of key and value of a record that librdkafka accepts, before the broker is asked.

        It does not depend on the current size of requests, because a dead letter may be large.
        """
        for properties in (self.producer, self.client):
            given = _number(properties.get("message.max.bytes"))
            if given:
                return given
        return min(max(2 * self.batch_bytes_max, self.batch_size, BATCH_SIZE), MESSAGE_BYTES_MAX)

    @property
    def batch_size(self) -> int:
        """librdkafka's first `batch.size` in bytes: all records of a batch for one partition fit into one request.

        An idempotent producer has one request for each partition in flight. While the producer is flushed and
        another request waits behind the first, librdkafka's thread polls without a pause (rdkafka_broker.c,
        rd_kafka_toppar_producer_serve; rdkafka_msg.c, rd_kafka_msgq_allow_wakeup_at). This doubles librdkafka's use
        of CPU.
        """
        given = _number(self.producer.get("batch.size"))
        if given:
            return given
        if self.batch_bytes_max > REQUEST_BYTES:
            return REQUEST_BYTES
        # A batch may slightly exceed batch_bytes_max, and librdkafka counts about 40 more bytes for each record.
        return max(self.batch_bytes_max * 5 // 4, BATCH_SIZE)


def _number(value: object) -> int:
    """Return the property's value; 0 if it is missing or not a number, which librdkafka refuses
    with its own message.
    """
    text = str(value)
    return int(text) if text.isdecimal() else 0


def construct(properties: dict[str, Any], where: str) -> Producer:
    """Create a producer.

    Raises:
        ConfigError: librdkafka refuses a property.
        SinkError: librdkafka cannot use a file.
        SinkUnavailableError: there is no token for the connection.
    """
    prepare(properties)
    try:
        return make_producer(properties)
    except KafkaException as error:
        raise property_error(error.args[0], where) from error


def try_transactional_id(settings: SinkSettings, timeout_s: float) -> CdcdError | None:
    """Check that this principal may write with the transactional id, without fencing another producer.

    The broker checks the rights first (KafkaApis.scala, handleInitProducerIdRequest), and then the timeout of the
    transaction, before it changes anything (TransactionCoordinator.scala, handleInitProducerId). So if the rights
    are granted, a request with a timeout that no broker allows is refused for its timeout.

    Returns:
        None if the rights are granted; otherwise the error with which `cdcd run` would end.
    """
    where = (
        f"Kafka at {settings.client.get('bootstrap.servers')}, transactional id {settings.transactional_id}"
    )
    properties = {
        **settings.client,
        "transactional.id": settings.transactional_id,
        "transaction.timeout.ms": TIMEOUT_REFUSED_MS,
    }
    producer = construct(properties, where)
    try:
        producer.init_transactions(timeout_s)
    except KafkaException as error:
        cause = error.args[0]
        return (
            None if cause.code() == KafkaError.INVALID_TRANSACTION_TIMEOUT else map_kafka_error(cause, where)
        )
    return None


def producer_properties(
    settings: SinkSettings, client: Properties, batch_size: int, on_delivery: Callable[..., None]
) -> dict[str, Any]:
    """Return all properties of a new producer.

    Args:
        client: properties of the connection, with the current credentials.
        batch_size: librdkafka's `batch.size`; 0: one record for each request.
        on_delivery: called only for records that were not delivered.
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
    properties.setdefault("message.max.bytes", settings.message_bytes_max)
    given = settings.producer.get("batch.size")
    if batch_size and (given is None or _number(given)):
        # A value that is not a number stays unchanged, so that librdkafka refuses it.
        properties["batch.size"] = batch_size
    if not batch_size:
        properties["batch.num.messages"] = 1
    if not settings.exactly_once:
        # A record stays with its producer until the broker has answered. With another producer, it could arrive
        # before an older request that is still in flight.
        properties.setdefault("message.timeout.ms", 0)
        return properties
    timeout_ms, answer_ms = int(settings.timeout_s * 1000), int(settings.answer_s * 1000)
    properties["transactional.id"] = settings.transactional_id
    properties["transaction.timeout.ms"] = timeout_ms
    # librdkafka would make both as long as the transaction's timeout, and would wait that long for a disconnected
    # broker before it connects to the broker's successor.
    properties.setdefault("message.timeout.ms", answer_ms)
    if timeout_ms >= answer_ms + SOCKET_MARGIN_MS:
        properties.setdefault("socket.timeout.ms", answer_ms)
    return properties
