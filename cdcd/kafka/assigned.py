"""Reads partitions that are assigned by hand: those of the checkpoint and of the schemas topic.

librdkafka needs the name of a group all the same, and looks for the group's coordinator. Its errors about the group are
ignored, because an assigned partition needs no group.
"""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message

from cdcd.kafka.client import Properties, prepare

POLL_S: Final = 0.5
"""Maximum seconds of one blocking call. Between two calls, the reader checks whether it is to stop."""


def consumer_properties(client: Properties, group: str, *, committed: bool = True) -> dict[str, Any]:
    """librdkafka's properties for a consumer that reads assigned partitions and reports the end of each.

    Args:
        client: the properties for the connection.
        committed: True if the consumer reads only records of committed transactions.

    Raises as `client.prepare`.
    """
    prepare(client)
    return {
        **client,
        "group.id": group,
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "fetch.wait.max.ms": 10,
        "isolation.level": "read_committed" if committed else "read_uncommitted",
    }


def answers(
    consumer: Consumer, timeout_s: float, stopping: threading.Event, why: Callable[[], str]
) -> Iterator[Message]:
    """Give records and ends of partitions in the order of their arrival. The `error()` of a record is None.

    The iterator never ends by itself. The caller leaves it after the last end that it waits for.

    Args:
        timeout_s: maximum seconds between two records.
        stopping: another thread sets it to make the iterator raise soon.
        why: gives the reason that the timeout's exception names.

    Raises:
        KafkaException: the broker does not answer in time, or refuses; or `stopping` was set.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        message = consumer.poll(POLL_S)
        if message is None:
            if stopping.is_set() or time.monotonic() > deadline:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, why()))
            continue
        error = message.error()
        if error is None:
            deadline = time.monotonic() + timeout_s
            yield message
        elif error.code() == KafkaError._PARTITION_EOF:
            yield message
        elif error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED and not error.retriable():
            raise KafkaException(error)
