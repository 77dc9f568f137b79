"""Writer of a pipeline's checkpoint without a daemon: removes or replaces the checkpoint.

The checkpoint is removed by a tombstone, as Kafka Connect does with the offsets of a connector (KIP-875). With
Kafka transactions, the record is written under the pipeline's own `transactional.id`, which fences a frozen daemon
and ends the open transaction of a killed daemon.
"""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from confluent_kafka import KafkaException

from cdcd.adapters.kafka.checkpoint import PARTITION, read_checkpoint
from cdcd.adapters.kafka.client import Properties, prepare
from cdcd.adapters.kafka.client_factory import make_producer
from cdcd.adapters.kafka.errors import map_kafka_error
from cdcd.core.engine.checkpoint import FORMER_FORMAT, Checkpoint
from cdcd.core.engine.checkpoint_record import CheckpointRecords
from cdcd.core.errors import TransientError

TRANSACTION_MS: Final = 60_000


def forget_checkpoint(  # noqa: PLR0917  the pipeline, and how to reach it
    client: Properties,
    producer: Properties,
    topic: str,
    records: CheckpointRecords,
    transactional_id: str | None,
    timeout_s: float,
) -> None:
    """Write a tombstone over the pipeline's checkpoint. The call blocks.

    Args:
        client, producer: librdkafka's properties, from `client.split`.
        transactional_id: transactional id of the pipeline; None: the pipeline does not use Kafka transactions.
        timeout_s: seconds that the broker may take for each answer.

    Raises:
        TransientError: the broker does not answer.
        FatalError: the broker refuses.
    """
    what = f"Taking back the checkpoint in topic {topic}"
    _write(client, producer, topic, records, transactional_id, timeout_s, what, lambda: [None])


def replace_checkpoint(  # noqa: PLR0917  the pipeline, and how to reach it
    client: Properties,
    producer: Properties,
    topic: str,
    records: CheckpointRecords,
    transactional_id: str | None,
    timeout_s: float,
    change: Callable[[Checkpoint | None], Checkpoint],
) -> Checkpoint:
    """Write another checkpoint in place of the pipeline's newest one, and return it. The call blocks.

    Args:
        client, producer, transactional_id, timeout_s: as `forget_checkpoint`.
        change: gets the checkpoint that was read after every other writer was fenced, and returns the new one. Its
            exceptions are passed on.

    Raises:
        TransientError: the broker does not answer.
        FatalError: the broker refuses, or cdcd did not write the checkpoint record.
    """
    made: list[Checkpoint] = []

    def values() -> list[bytes | None]:
        made.append(change(read_checkpoint(client, topic, records, timeout_s, threading.Event())))
        return [records.encode(made[0], int(time.time() * 1000))]

    what = f"Writing the checkpoint in topic {topic}"
    _write(client, producer, topic, records, transactional_id, timeout_s, what, values)
    return made[0]


def downgrade_checkpoint(  # noqa: PLR0917  the pipeline, and how to reach it
    client: Properties,
    producer: Properties,
    topic: str,
    records: CheckpointRecords,
    transactional_id: str | None,
    timeout_s: float,
    change: Callable[[Checkpoint | None], Checkpoint],
) -> None:
    """Write the checkpoint that `change` returns, and after it the same checkpoint in the former format.

    The call blocks.

    Arguments and errors are those of `replace_checkpoint`.
    """

    def values() -> list[bytes | None]:
        made = change(read_checkpoint(client, topic, records, timeout_s, threading.Event()))
        return [records.encode(made, int(time.time() * 1000)), made.encode(version=FORMER_FORMAT)]

    what = f"Writing the checkpoint in topic {topic}"
    _write(client, producer, topic, records, transactional_id, timeout_s, what, values)


def _write(  # noqa: PLR0917  as its callers
    client: Properties,
    producer: Properties,
    topic: str,
    records: CheckpointRecords,
    transactional_id: str | None,
    timeout_s: float,
    what: str,
    values: Callable[[], Sequence[bytes | None]],
) -> None:
    """Write the records that `values` returns, after every other writer was fenced."""
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
    prepare(properties)
    try:
        sender = make_producer(properties)
        if transactional_id is not None:
            sender.init_transactions(timeout_s)
        written = values()
        if transactional_id is not None:
            sender.begin_transaction()
        for data in written:
            sender.produce(topic, key=records.key, value=data, partition=PARTITION)
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
