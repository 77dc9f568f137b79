"""What a topic holds, and what of it a `read_committed` reader may see at a moment."""

from collections.abc import Iterator
from contextlib import closing
from uuid import uuid4

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from cdcd.adapters.kafka.reading import may_change, watermarks
from deploy.demo.topics import Reader
from tests.integration.daemon import WAIT_S, until


def watermark_consumer(servers: str) -> Consumer:
    """A consumer for `stored`; the caller owes `close`."""
    return Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": f"watermarks {uuid4().hex}",
            "isolation.level": "read_uncommitted",
        }
    )


def stored(consumer: Consumer, topic: str) -> int:
    """How many records the topic's partitions hold: those of open and of aborted transactions as well."""
    partitions = consumer.list_topics(topic, WAIT_S).topics[topic].partitions
    return sum(watermarks(consumer, TopicPartition(topic, each), WAIT_S)[1] for each in partitions)


def await_stored(consumer: Consumer, topic: str, least: int, timeout_s: float = WAIT_S) -> None:
    """Until the topic holds at least so many records, whatever becomes of their transactions."""
    until(
        lambda: True if stored(consumer, topic) >= least else None,
        f"{topic} never held {least} records",
        timeout_s,
    )


def await_decided(servers: str, *topics: str, timeout_s: float = WAIT_S) -> None:
    """Until no transaction is open in the topics.

    The coordinator answers a commit, or an abort, when it has decided it, and writes the markers then (KIP-98). So a
    `read_committed` reader may come to the end of a topic before the marker is there, also where another topic has the
    marker of the same transaction already.
    """
    admin = AdminClient({"bootstrap.servers": servers})
    listed = admin.list_topics(timeout=timeout_s).topics
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    asked = {TopicPartition(topic, each): latest for topic in topics for each in listed[topic].partitions}

    def ends(isolation: IsolationLevel) -> list[int]:
        answers = admin.list_offsets(asked, isolation_level=isolation, request_timeout=timeout_s)
        return [answers[each].result(timeout_s).offset for each in asked]

    def is_decided() -> bool | None:
        try:
            stable = ends(IsolationLevel.READ_COMMITTED)
            return stable == ends(IsolationLevel.READ_UNCOMMITTED) or None
        except KafkaException as error:
            if may_change(error.args[0]):  # of a broker that has just come back
                return None
            raise

    until(is_decided, f"a transaction in {' or '.join(topics)} is open", timeout_s)


def visible(servers: str, topic: str) -> int:
    """How many records a `read_committed` consumer gets before it meets an open transaction, or the end."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": f"visible {uuid4().hex}",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    try:
        partitions = consumer.list_topics(topic, WAIT_S).topics[topic].partitions
        consumer.assign([TopicPartition(topic, each, 0) for each in partitions])
        count, ended = 0, 0
        while ended < len(partitions):
            for message in consumer.consume(1000, 0.2):
                error = message.error()
                if error is None:
                    count += 1
                else:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    ended += 1
        return count
    finally:
        consumer.close()


def messages(servers: str, topic: str) -> Iterator[Message]:
    """The messages that a `read_committed` consumer gets of a topic with one partition, from its begin to its end."""
    with closing(
        Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": f"messages {uuid4().hex}",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
            }
        )
    ) as consumer:
        consumer.assign([TopicPartition(topic, 0, 0)])
        while True:
            message = consumer.poll(120)
            assert message is not None, "the broker did not answer"
            if message.error() is not None:
                return
            yield message


def await_readable(servers: str, topic: str, least: int) -> None:
    """Until a `read_committed` reader gets so many records of the topic.

    A commit is answered before every partition has its marker, so a reader may see the rows of a snapshot a moment
    after `table.read`. If nothing is written after them, no position of the slot says that they have arrived.
    """

    def look() -> bool | None:
        with Reader(servers, topic.split(".", maxsplit=1)[0]) as reader:
            return True if sum(raw.topic == topic for raw in reader.read_all()) >= least else None

    until(look, f"{topic} never had {least} records")
