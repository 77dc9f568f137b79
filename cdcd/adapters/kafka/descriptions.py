"""Table descriptions of former runs: the schemas topic, read where the catalog alone does not number a table's columns.

The topic is read at most once in a session, if a table's columns were renamed while the daemon was behind. The
encoder knows the descriptions that this session writes.
"""

import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from cdcd.adapters.kafka.client import Properties, make_consumer
from cdcd.adapters.kafka.errors import map_kafka_error
from cdcd.adapters.kafka.reading import answers, consumer_properties, partitions_of
from cdcd.core.catalog.relations import ColumnForm
from cdcd.core.errors import SinkError
from cdcd.core.records.encoder import HEADER_PIPELINE
from cdcd.core.records.schemas import read_form
from cdcd.core.table_names import table_text

FORMS_MAX: Final = 16
"""Maximum number of a table's last forms that are kept. Rows that are still to come have one of the last forms."""


class FormerDescriptions:
    """The last forms of each table by its oid.

    They are kept compressed: ten thousand tables have about 20 MB of them.
    """

    def __init__(self) -> None:
        self._forms: dict[int, list[bytes]] = {}

    def take(self, value: bytes) -> None:
        """Add a record of the topic, in the topic's order.

        A record that is no description, or has no oid, is skipped.
        """
        try:
            _, form = read_form(value)
        except ValueError:
            return
        if form.oid is not None:
            forms = self._forms.setdefault(form.oid, [])
            forms.append(zlib.compress(value, 1))
            del forms[:-FORMS_MAX]

    def columns(self, oid: int) -> tuple[tuple[ColumnForm, ...], ...]:
        """Return the columns of a table's former descriptions, the newest first."""
        return tuple(
            [read_form(zlib.decompress(each))[1].source_columns for each in self._forms.get(oid, [])[::-1]]
        )


@dataclass(frozen=True, slots=True)
class SchemasTopic:
    """The existing topic with the descriptions of tables. Each method reads all committed records of the topic.

    The methods raise TransientError if the broker does not answer or `stopping` was set, and SinkError if the
    broker refuses.

    Attributes:
        client: librdkafka properties for the connection.
        pipeline: the pipeline's name. The consumer group is called `<pipeline>-schemas`.
        timeout_s: seconds that the broker may take for each answer.
        stopping: another thread sets it to end a method soon.
    """

    name: str
    client: Properties
    pipeline: str
    timeout_s: float
    stopping: threading.Event = field(default_factory=threading.Event)

    def described_topics(self) -> dict[str, str]:
        """Return every topic that the descriptions name, with the table whose records it received."""
        found: dict[str, str] = {}

        def take(value: bytes) -> None:
            with suppress(ValueError):
                _, form = read_form(value)
                for each in (form.topic, *form.routes):
                    found[each] = table_text(form.schema, form.table)

        self.read(take)
        return found

    def former_descriptions(self) -> FormerDescriptions:
        """Return the table descriptions of former runs."""
        found = FormerDescriptions()
        self.read(found.take)
        return found

    def others(self) -> dict[str, frozenset[str]]:
        """Return the topics that descriptions of other pipelines name, with the names of these pipelines.

        Descriptions of older versions have no pipeline name and count as this pipeline's.
        """
        found: dict[str, frozenset[str]] = {}

        def take(message: Message) -> None:
            owner = _owner(message)
            if owner in ("", self.pipeline):
                return
            with suppress(ValueError):
                _, form = read_form(message.value() or b"")
                for topic in (form.topic, *form.routes):
                    found[topic] = found.get(topic, frozenset()) | {owner}

        self._read(take)
        return found

    def refuse_others(self) -> None:
        """Raise SinkError if another pipeline writes to the topics.

        Returns without a check if this principal may not read the schemas topic.
        """
        try:
            found = self.others()
        except SinkError:
            return
        for topic, owners in found.items():
            owner = min(owners)
            raise SinkError(
                f"Pipeline {owner} writes to topic {topic}, as its description in topic {self.name} says. A second "
                f"pipeline in the same topics would mix the rows of two databases.",
                hint=f"Give pipeline {self.pipeline} a topics.prefix of its own. If pipeline {owner} no longer "
                f"exists, delete its objects, also topic {self.name}: `cdcd drop --topics` with its configuration.",
            )

    def read(self, take: Callable[[bytes], object]) -> None:
        """Call `take` with the value of each record."""
        self._read(lambda message: take(message.value() or b""))

    def _read(self, take: Callable[[Message], object]) -> None:
        consumer = make_consumer(consumer_properties(self.client, f"{self.pipeline}-schemas"))
        try:
            for message in _messages(consumer, self.name, self.timeout_s, self.stopping):
                take(message)
        except KafkaException as error:
            what = f"Reading the descriptions of tables from topic {self.name}"
            raise map_kafka_error(error.args[0], what) from error
        finally:
            consumer.close()


def _owner(message: Message) -> str:
    """Return the pipeline that wrote a description; "" if its header is missing or no text."""
    given = message.headers() or ()
    for name, value in given.items() if isinstance(given, dict) else given:
        if name == HEADER_PIPELINE and isinstance(value, bytes):
            return value.decode("utf-8", "replace")
    return ""


def _messages(
    consumer: Consumer, topic: str, timeout_s: float, stopping: threading.Event
) -> Iterator[Message]:
    left = set(partitions_of(consumer, topic, timeout_s, stopping))
    consumer.assign([TopicPartition(topic, partition, 0) for partition in left])
    for message in answers(consumer, timeout_s, stopping, lambda: "no answer"):
        if message.error() is None:
            yield message
            continue
        left.discard(message.partition())
        if not left:
            return
