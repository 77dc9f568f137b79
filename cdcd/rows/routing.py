"""Which topic a table's records go to: `<prefix>.<schema>.<table>`, or the name that the configuration gives it.

Characters that Kafka does not allow become `_` (Debezium's rule, which counts a character outside the basic plane as
two). That can give two tables one topic, and Kafka refuses two topics that differ only in `.` and `_`, whose
metrics have one name. Either would mix or lose changes, so the second user of such a topic is refused. `collisions`
says beforehand whom that would meet.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from cdcd.errors import SinkError

TOPIC_LENGTH_MAX: Final = 249
"""org.apache.kafka.common.internals.Topic: what a file name has room for with a partition's number."""

_FORBIDDEN: Final = re.compile(r"[^A-Za-z0-9._-]")
_LEGAL: Final = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]+", re.ASCII)

_PART: Final = r'(?:"((?:[^"]|"")+)"|([^".]+))'
_TABLE: Final = re.compile(rf"{_PART}\.{_PART}", re.DOTALL)

_TABLE_OWNER: Final = "table "

Table = tuple[str, str]
"""Schema and name."""


def parse_table(text: str) -> Table:
    """Schema and name of `schema.table`, where a part in double quotes may hold points.

    Raises:
        ValueError: the text is not of that form.
    """
    match = _TABLE.fullmatch(text)
    if match is None:
        raise ValueError(
            f"{text} is not <schema>.<table>; a part that holds a point belongs in double quotes"
        )
    schema, table = [
        quoted.replace('""', '"') if quoted else bare
        for quoted, bare in (match.group(1, 2), match.group(3, 4))
    ]
    return schema, table


def unchecked_topic(*parts: str) -> str:
    """The topic of the parts joined by points, however long it is."""
    return _FORBIDDEN.sub(lambda match: "_" if match[0] < "\U00010000" else "__", ".".join(parts))


def topic_name(*parts: str) -> str:
    """The same; SinkError when it is longer than Kafka allows."""
    name = unchecked_topic(*parts)
    _check_length(name)
    return name


def equivalent(topic: str) -> str:
    """The same text for all topics that are one to Kafka."""
    return topic.replace(".", "_")


def _check_length(name: str) -> None:
    if len(name) > TOPIC_LENGTH_MAX:
        raise SinkError(
            f"The topic {name} has {len(name)} characters; Kafka allows {TOPIC_LENGTH_MAX}.",
            hint="Give the table a shorter topic in topics.names, choose a shorter topics.prefix, or leave the table"
            " out of the publication.",
        )


@dataclass(frozen=True, slots=True)
class TopicNames:
    """How the topics of a pipeline are called.

    Attributes:
        prefix: what the topic of a table begins with.
        names: topics of the tables that are not called after the rule.
        message, schemas, checkpoint, dead_letter, transaction, heartbeat: cdcd's own topics; None: there is none.
    """

    prefix: str
    names: Mapping[Table, str] = field(default_factory=dict)
    message: str | None = None
    schemas: str | None = None
    checkpoint: str | None = None
    dead_letter: str | None = None
    transaction: str | None = None
    heartbeat: str | None = None

    def table(self, schema: str, name: str) -> str:
        """The topic of a table. Whether Kafka allows it and nobody else has it, `Routes` says."""
        given = self.names.get((schema, name))
        return unchecked_topic(self.prefix, schema, name) if given is None else given

    def qualified(self, table: str) -> str:
        """The same for `schema.table`, without quotes."""
        for (schema, name), topic in self.names.items():
            if f"{schema}.{name}" == table:
                return topic
        return unchecked_topic(self.prefix, table)

    def own(self) -> list[tuple[str, str]]:
        """cdcd's own topics, each with what it is for."""
        purposes = (
            (self.message, "logical messages"),
            (self.schemas, "descriptions of tables"),
            (self.checkpoint, "the checkpoint"),
            (self.dead_letter, "records that are too large"),
            (self.transaction, "transaction metadata"),
            (self.heartbeat, "heartbeats"),
        )
        return [(topic, purpose) for topic, purpose in purposes if topic is not None]


class Routes:
    """Hands out topics and remembers whose they are. SinkError: two of cdcd's own topics collide."""

    def __init__(self, names: TopicNames) -> None:
        self._names = names
        self._owners: dict[str, str] = {}
        for topic, owner in names.own():
            self.claim(topic, owner)

    def table(self, schema: str, name: str) -> str:
        """The topic of a table; SinkError when Kafka does not allow it, or it collides with another one."""
        topic = self._names.table(schema, name)
        self.claim(topic, f'{_TABLE_OWNER}"{schema}"."{name}"')
        return topic

    def claim(self, topic: str, owner: str) -> None:
        """Say that `topic` is `owner`'s; SinkError when it, or one that Kafka takes for it, is another's."""
        _check_length(topic)
        if _LEGAL.fullmatch(topic) is None:
            raise SinkError(
                f"The topic {topic} of {owner} has characters that Kafka does not allow.",
                hint="Use ASCII letters, digits, '.', '_' and '-'.",
            )
        holder = self._owners.setdefault(equivalent(topic), owner)
        if holder != owner:
            raise SinkError(
                f"The topic {topic} of {owner} collides with that of {holder}: to Kafka names that differ only in"
                " '.' and '_' are the same.",
                hint=f"Give one of them another topic{_example(owner, topic)}, or leave a table out of the"
                " publication.",
            )


def _example(owner: str, topic: str) -> str:
    """The key that gives a table another topic."""
    table = owner.removeprefix(_TABLE_OWNER)
    return f", as topics.names: {{'{table}': {topic}_2}}" if table != owner else ""


def collisions(tables: Iterable[Table], names: TopicNames) -> list[SinkError]:
    """What `Routes` would raise for these tables and cdcd's own topics, all at once; [] if nothing is wrong.

    Of several tables with one topic, each but the first is an error.
    """
    try:
        routes = Routes(names)
    except SinkError as error:
        return [error]
    found: list[SinkError] = []
    for schema, name in tables:
        try:
            routes.table(schema, name)
        except SinkError as error:
            found.append(error)
    return found
