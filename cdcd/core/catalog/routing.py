"""Which topics a table's records go to: by a template (`topic_templates.py`), or the name that the configuration gives.

A table whose rows are routed (`records/shaping/row_routes.py`) has further topics beside its own. They are as fixed
as its own one: by the table's name, whatever its rows are.

Characters that Kafka does not allow become `_` (Debezium's rule, which counts a character outside the basic plane as
two). That can give two tables one topic, and Kafka refuses two topics that differ only in `.` and `_`, whose
metrics have one name. Either would mix or lose changes, so the second user of such a topic is refused. `collisions`
says beforehand whom that would meet.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from cdcd.core.catalog.patterns import PART, parse_pattern, unquoted
from cdcd.core.catalog.topic_templates import DEFAULT, needs_name, rendered, rendered_qualified
from cdcd.core.errors import SinkError

TOPIC_LENGTH_MAX: Final = 249
"""org.apache.kafka.common.internals.Topic: what a file name has room for with a partition's number."""

_FORBIDDEN: Final = re.compile(r"[^A-Za-z0-9._-]")
_LEGAL: Final = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]+", re.ASCII)

_TABLE: Final = re.compile(rf"({PART.pattern})\.({PART.pattern})", re.DOTALL)

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
    return unquoted(match[1]), unquoted(match[2])


def table_named(text: str) -> str:
    """`schema.table`, as cdcd names tables, for what a person wrote: with parts in double quotes, or as it is named."""
    try:
        return ".".join(parse_table(text))
    except ValueError:
        return text


def unchecked_topic(*parts: str) -> str:
    """The topic of the parts joined by points, however long it is."""
    return _allowed(".".join(parts))


def _allowed(name: str) -> str:
    return _FORBIDDEN.sub(lambda match: "_" if match[0] < "\U00010000" else "__", name)


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
class RoutedTopics:
    """The topics beside their own that rows of tables may go to.

    Attributes:
        table: a pattern of tables (`catalog/patterns.py`).
        topics: of the rules, in their order: names, or templates with `{prefix}`, `{schema}` and `{table}`.
    """

    table: str
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TopicNames:
    """How the topics of a pipeline are called.

    Attributes:
        prefix: what the topic of a table begins with.
        names: topics of the tables that are not called after the rule.
        message, schemas, checkpoint, dead_letter, transaction, heartbeat: cdcd's own topics; None: there is none.
        template: the rule for all other tables.
        routes: topics of tables whose rows are routed.
    """

    prefix: str
    names: Mapping[Table, str] = field(default_factory=dict)
    message: str | None = None
    schemas: str | None = None
    checkpoint: str | None = None
    dead_letter: str | None = None
    transaction: str | None = None
    heartbeat: str | None = None
    template: str = DEFAULT
    routes: tuple[RoutedTopics, ...] = ()

    def table(self, schema: str, name: str) -> str:
        """The topic of a table. Whether Kafka allows it and nobody else has it, `ClaimedTopics` says."""
        given = self.names.get((schema, name))
        return _allowed(rendered(self.template, self.prefix, schema, name)) if given is None else given

    def routed(self, schema: str, name: str) -> tuple[str, ...]:
        """The topics of the rules by which rows of a table are routed, in the rules' order; () without rules.

        ConfigError: a pattern is malformed.
        """
        for each in self.routes:
            if parse_pattern(each.table, "routes.tables").matches(schema, name):
                return tuple([_allowed(rendered(topic, self.prefix, schema, name)) for topic in each.topics])
        return ()

    def all_of(self, schema: str, name: str) -> tuple[str, ...]:
        """Every topic that records of a table may go to, each once; the first is the table's own."""
        return tuple(dict.fromkeys([self.table(schema, name), *self.routed(schema, name)]))

    def qualified(self, table: str) -> str:
        """The same for `schema.table`, without quotes."""
        for (schema, name), topic in self.names.items():
            if f"{schema}.{name}" == table:
                return topic
        return _allowed(rendered_qualified(self.template, self.prefix, table))

    def lacks_name(self, schema: str, name: str) -> bool:
        """Whether the rule gives the table no topic, and no other one is given to it."""
        return needs_name(self.template, schema, name) and (schema, name) not in self.names

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


class ClaimedTopics:
    """Hands out topics and remembers whose they are. SinkError: two of cdcd's own topics collide."""

    def __init__(self, names: TopicNames) -> None:
        self._names = names
        self._owners: dict[str, str] = {}
        for topic, owner in names.own():
            self.claim(topic, owner)

    def table(self, schema: str, name: str) -> str:
        """The own topic of a table; SinkError when Kafka does not allow one of its topics, or it collides with another
        one.
        """
        topic = self._names.table(schema, name)
        if self._names.lacks_name(schema, name):
            raise SinkError(
                f'The table "{schema}"."{name}" has a point in its name, which topics.name: {self._names.template} '
                "cannot tell from the one between schema and table.",
                hint="Give it a topic of its own, as topics.names: "
                f"{{'{_quoted(schema)}.{_quoted(name)}': {topic}}}, or leave the table out of the publication.",
            )
        for each in self._names.all_of(schema, name):
            self.claim(each, f'{_TABLE_OWNER}"{schema}"."{name}"')
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


def _quoted(name: str) -> str:
    """A part of a table's name, as `parse_table` reads it."""
    return '"' + name.replace('"', '""') + '"'


def _example(owner: str, topic: str) -> str:
    """The key that gives a table another topic."""
    table = owner.removeprefix(_TABLE_OWNER)
    return f", as topics.names: {{'{table}': {topic}_2}}" if table != owner else ""


def collisions(tables: Iterable[Table], names: TopicNames) -> list[SinkError]:
    """What `ClaimedTopics` would raise for these tables and cdcd's own topics, all at once; [] if nothing is wrong.

    Of several tables with one topic, each but the first is an error.
    """
    try:
        claimed = ClaimedTopics(names)
    except SinkError as error:
        return [error]
    found: list[SinkError] = []
    for schema, name in tables:
        try:
            claimed.table(schema, name)
        except SinkError as error:
            found.append(error)
    return found
