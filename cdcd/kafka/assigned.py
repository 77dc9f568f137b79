"""Reads partitions that are assigned by hand: those of the checkpoint and of the schemas topic.

librdkafka wants a group all the same, and looks for its coordinator. What it says of the group is passed over.
"""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message

from cdcd.kafka.client import Properties

POLL_S: Final = 0.5
"""Blocking calls return after so long to see whether the reader is being stopped."""


def consumer_properties(client: Properties, group: str, *, committed: bool = True) -> dict[str, Any]:
    """librdkafka's properties for such a consumer. Each partition's end is told.

    Args:
        client: those for the connection.
        committed: what is not committed is not read.
    """
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
    """Records (their `error()` is None), and ends of partitions, as they come. It never ends by itself.

    Args:
        timeout_s: how long the broker may take for each record.
        stopping: set from outside to make it give up soon.
        why: what is said when nothing came in time.

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
