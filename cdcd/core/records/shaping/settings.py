"""The settings that decide which events are published, which rows topics have, and to which topics both go."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from cdcd.core.records.shaping.expressions import CelExpression
from cdcd.core.records.shaping.json_records import JsonRecords
from cdcd.core.table_names import Table, split_table

KEEP: Final = "keep"
LEAVE_OUT: Final = "leave_out"
"""What happens to a row for which a filter has no answer (`TableFilter.on_error`)."""

OWN_TOPIC: Final = "own_topic"
NEXT_RULE: Final = "next_rule"
"""What happens to a row for which a rule has no answer (`TableRoutes.on_error`)."""

REQUIRED: Final = "required"
ASSUMED: Final = "assumed"
"""Two choices: expressions must not (REQUIRED) or may (ASSUMED) use values of old rows that PostgreSQL does not send
(`TableFilter.old_row`, `TableRoutes.old_row`)."""


@dataclass(frozen=True, slots=True)
class TableComputed:
    """Computed fields of the tables that a pattern matches: pairs (name, expression), in the order of the rows."""

    table: str
    fields: tuple[tuple[str, CelExpression], ...]

    def __str__(self) -> str:
        return f"fields.tables ({self.table})"


TEXT: Final = "text"
AVRO: Final = "avro"
AVRO_RECORD: Final = "avro_record"
"""Forms of keys and payloads of events (`OutboxTable`): the text of the column, or the bytes of a bytea; the value of
the column in Avro; the JSON of the column as a record in Avro. The last is for payloads only."""

SCHEMAS_MAX: Final = 100
"""Default of `OutboxTable.schemas_max`: more than one topic has kinds of events, but few for a registry."""


@dataclass(frozen=True, slots=True)
class OutboxTable:
    """Which columns of an outbox table have which part of an event.

    Attributes:
        topic: the topic of an event, in which `{value}` is replaced by the value of the column `route_by`.
        route_by, event_id, key, payload: names of columns. If `event_id` is empty, events have no header `id`.
        headers: the column of each further header, by the header's name.
        envelope: the column of each field that stands beside the payload, by the field's name. If it is empty, the
            value of a record is the payload alone.
        key_form, payload_form: TEXT or AVRO, the latter also AVRO_RECORD.
        json: what a payload of AVRO_RECORD has for values without a type.
        schemas_max: maximum number of schemas of a subject in the registry.
        topics_max: maximum number of topics that values of `route_by` make, besides those of the list.
    """

    topic: str
    route_by: str
    event_id: str
    key: str
    payload: str
    headers: Mapping[str, str] = field(default_factory=dict)
    envelope: Mapping[str, str] = field(default_factory=dict)
    key_form: str = TEXT
    payload_form: str = TEXT
    json: JsonRecords = field(default_factory=JsonRecords)
    schemas_max: int = SCHEMAS_MAX
    topics_max: int = 0

    def makes(self, topic: str) -> bool:
        """Return whether a value of `route_by` can make this topic."""
        before, value, after = self.topic.partition("{value}")
        is_longer = len(topic) > len(before) + len(after)
        return bool(self.topics_max and value and is_longer) and (
            topic.startswith(before) and topic.endswith(after)
        )

    @property
    def has_schemas(self) -> bool:
        """Whether events have schemas in a registry."""
        return not self.key_form == self.payload_form == TEXT

    @property
    def in_avro(self) -> list[str]:
        """The columns whose values are written in Avro as their columns have them."""
        forms = ((self.key, self.key_form), (self.payload, self.payload_form))
        return [column for column, form in forms if form == AVRO]

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column that an event uses, each once."""
        more = (*self.headers.values(), *self.envelope.values())
        named = (self.route_by, self.event_id, self.key, self.payload, *more)
        return tuple(dict.fromkeys([name for name in named if name]))


@dataclass(frozen=True, slots=True)
class Outbox:
    """Which events are published.

    Attributes:
        topics: topics that events may go to.
        messages: whether logical messages with the prefix `cdcd.publish` are events.
        message_bytes_max: maximum of bytes in the content of such a message; a larger one is refused.
        tables: the outbox tables by schema and name.
    """

    topics: tuple[str, ...] = ()
    messages: bool = False
    message_bytes_max: int = 700_000
    tables: Mapping[Table, OutboxTable] = field(default_factory=dict)

    @property
    def is_on(self) -> bool:
        """True if events can be published at all."""
        return self.messages or bool(self.tables)

    def makes(self, topic: str) -> bool:
        """Return whether a row of an outbox table can make this topic."""
        return any(table.makes(topic) for table in self.tables.values())

    def has_events(self, table: str, topic: str) -> bool:
        """Return whether events of an outbox table (`schema.table`) may go to this topic."""
        found = self.tables.get(split_table(table))
        return found is not None and (topic in self.topics_of(table) or found.makes(topic))

    @property
    def in_text(self) -> "Outbox":
        """The same outbox with events whose keys and payloads are text, for people."""
        tables = {
            name: replace(table, key_form=TEXT, payload_form=TEXT) for name, table in self.tables.items()
        }
        return replace(self, tables=tables)

    def topics_of(self, table: str) -> tuple[str, ...]:
        """Return the topics that events of an outbox table (`schema.table`) may go to; () for any other table."""
        found = self.tables.get(split_table(table))
        if found is None:
            return ()
        before, value, after = found.topic.partition("{value}")
        least = len(before) + len(after)
        return tuple(
            [
                topic
                for topic in self.topics
                if topic == before
                or (value and len(topic) >= least and topic.startswith(before) and topic.endswith(after))
            ]
        )


@dataclass(frozen=True, slots=True)
class TableFilter:
    """Which rows of tables are in the topics.

    Attributes:
        table: a pattern of tables (`catalog/patterns.py`).
        text: the expression as it is in the configuration.
        keep: the parsed expression. Rows for which it is true are in the topic.
        on_error: what happens to a row for which it has no answer: KEEP or LEAVE_OUT.
        old_row: REQUIRED means that the expression may only use columns of the replica identity, whose old values
            are known; ASSUMED means that a row whose old values are not known is assumed to be in the topic.
    """

    table: str
    text: str
    keep: CelExpression
    on_error: str = KEEP
    old_row: str = REQUIRED


@dataclass(frozen=True, slots=True)
class Route:
    """A rule that sends rows to a topic.

    Attributes:
        text: the expression as it is in the configuration.
        when: the parsed expression. Rows for which it is true go to the topic.
        topic: name of the topic, or a template for it (`catalog/routing.py`).
    """

    text: str
    when: CelExpression
    topic: str


@dataclass(frozen=True, slots=True)
class TableRoutes:
    """To which topics the rows of tables go.

    Attributes:
        table: a pattern of tables (`catalog/patterns.py`).
        rules: the first rule that is true for a row decides its topic. If none is true, the row goes to the table's
            own topic.
        on_error: where a row goes for which a rule has no answer: OWN_TOPIC or NEXT_RULE.
        old_row: REQUIRED means that the expressions may only use columns of the replica identity, whose old values
            are known; ASSUMED means that a row whose old values are not known is assumed to be in every topic where
            it may be.
    """

    table: str
    rules: tuple[Route, ...]
    on_error: str = OWN_TOPIC
    old_row: str = REQUIRED
