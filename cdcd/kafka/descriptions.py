"""What former runs said of tables: the schemas topic, read where the catalog alone does not number a table's columns.

It is read at most once in a session, when a table's columns were renamed while the daemon was behind. What this session
itself describes, its encoder knows.
"""

import threading
import time
import zlib
from collections.abc import Iterator
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from cdcd.kafka.checkpoint import NO_TOPIC
from cdcd.kafka.client import Properties
from cdcd.kafka.errors import map_kafka_error
from cdcd.records.relations import ColumnForm
from cdcd.records.schemas import read_form

POLL_S: Final = 0.5

FORMS_MAX: Final = 16
"""So many of a table's last forms are kept. Rows that are still to come are of one of the last."""


class FormerDescriptions:
    """The last forms of each table by its oid. They are kept packed: ten thousand tables have some 20 MB of them."""

    def __init__(self) -> None:
        self._forms: dict[int, list[bytes]] = {}

    def take(self, value: bytes) -> None:
        """A record of the topic, in the topic's order. What is no description, or has no oid, is passed over."""
        try:
            _, form = read_form(value)
        except ValueError:
            return
        if form.oid is not None:
            forms = self._forms.setdefault(form.oid, [])
            forms.append(zlib.compress(value, 1))
            del forms[:-FORMS_MAX]

    def columns(self, oid: int) -> tuple[tuple[ColumnForm, ...], ...]:
        """The columns of a table's former descriptions, the newest first."""
        return tuple([read_form(zlib.decompress(each))[1].columns for each in self._forms.get(oid, [])[::-1]])


def read_descriptions(
    client: Properties, topic: str, group: str, timeout_s: float, stopping: threading.Event
) -> FormerDescriptions:
    """Everything in the topic that is committed.

    Args:
        client: librdkafka properties for the connection.
        timeout_s: how long the broker may take for each answer.
        stopping: set from outside to make it give up soon.

    Raises:
        TransientError: the broker does not answer, or `stopping` was set.
        SinkError: it refuses.
    """
    found = FormerDescriptions()
    consumer = Consumer(
        {
            **client,
            "group.id": group,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    try:
        for message in _messages(consumer, topic, timeout_s, stopping):
            found.take(message.value() or b"")
    except KafkaException as error:
        if error.args[0].code() not in NO_TOPIC:
            raise map_kafka_error(
                error.args[0], f"Reading the descriptions of tables from topic {topic}"
            ) from error
    finally:
        consumer.close()
    return found


def _messages(
    consumer: Consumer, topic: str, timeout_s: float, stopping: threading.Event
) -> Iterator[Message]:
    known = consumer.list_topics(topic, timeout=timeout_s).topics[topic]
    if known.error is not None:
        raise KafkaException(known.error)
    left = set(known.partitions)
    consumer.assign([TopicPartition(topic, partition, 0) for partition in left])
    deadline = time.monotonic() + timeout_s
    while left:
        message = consumer.poll(POLL_S)
        if message is None:
            if stopping.is_set() or time.monotonic() > deadline:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer"))
            continue
        deadline = time.monotonic() + timeout_s
        error = message.error()
        if error is None:
            yield message
        elif error.code() == KafkaError._PARTITION_EOF:
            left.discard(message.partition())
        # librdkafka looks for the group's coordinator, of which we want nothing.
        elif error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED and not error.retriable():
            raise KafkaException(error)
