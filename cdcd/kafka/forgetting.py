"""Takes back what a pipeline that is given up or started over has said in Kafka: its checkpoint.

The checkpoint is taken back by a tombstone, as Kafka Connect does with the offsets of a connector (KIP-875). With Kafka
transactions, the tombstone is written under the pipeline's own `transactional.id`: so a daemon that was frozen is shut
out before, and a transaction that a killed daemon left open is ended.
"""

from typing import Any, Final

from confluent_kafka import KafkaException, Producer

from cdcd.errors import TransientError
from cdcd.kafka.checkpoint import PARTITION
from cdcd.kafka.client import Properties, prepare
from cdcd.kafka.errors import map_kafka_error

TRANSACTION_MS: Final = 60_000


def forget_checkpoint(  # noqa: PLR0917  the pipeline, and how to reach it
    client: Properties,
    producer: Properties,
    topic: str,
    key: str,
    transactional_id: str | None,
    timeout_s: float,
) -> None:
    """Write a tombstone over the checkpoint of the pipeline `key`. It blocks.

    Args:
        client, producer: librdkafka's properties, from `client.split`.
        transactional_id: None: the pipeline does not use Kafka transactions.
        timeout_s: how long the broker may take for each answer.

    Raises:
        TransientError: the broker does not answer.
        FatalError: it refuses.
    """
    refused: list[KafkaException] = []
    properties: dict[str, Any] = {
        **client,
        **producer,
        "enable.idempotence": True,
        "acks": "all",
        "linger.ms": 0,
        "on_delivery": lambda error, _: refused.append(KafkaException(error)) if error is not None else None,
    }
    if transactional_id is not None:
        properties |= {"transactional.id": transactional_id, "transaction.timeout.ms": TRANSACTION_MS}
    what = f"Taking back the checkpoint in topic {topic}"
    prepare(properties)
    try:
        sender = Producer(properties)
        if transactional_id is not None:
            sender.init_transactions(timeout_s)
            sender.begin_transaction()
        sender.produce(topic, key=key.encode(), value=None, partition=PARTITION)
        left = sender.flush(timeout_s)
        if refused:
            raise refused[0]
        if left:
            sender.purge()
            raise TransientError(f"{what}: no answer in {timeout_s:g} s")
        if transactional_id is not None:
            sender.commit_transaction(timeout_s)
    except KafkaException as error:
        raise map_kafka_error(error.args[0], what) from error
