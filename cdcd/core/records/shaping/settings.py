"""What of the configuration decides which events are published, which rows topics have, and where both go."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from cdcd.core.catalog.routing import Table
from cdcd.core.records.shaping.expressions import CelExpression

KEEP: Final = "keep"
LEAVE_OUT: Final = "leave_out"
"""What becomes of a row for which a filter has no answer (`TableFilter.on_error`)."""

OWN_TOPIC: Final = "own_topic"
NEXT_RULE: Final = "next_rule"
"""What becomes of a row for which a rule has no answer (`TableRoutes.on_error`)."""

REQUIRED: Final = "required"
ASSUMED: Final = "assumed"
"""Whether expressions may ask for what PostgreSQL does not send of old rows (`TableFilter.old_row`,
`TableRoutes.old_row`)."""


@dataclass(frozen=True, slots=True)
class OutboxTable:
    """Which columns of an outbox table are which part of an event.

    Attributes:
        topic: the topic of an event; `{value}` in it stands for the value of the column `route_by`.
        route_by, event_id, key, payload: names of columns. An empty `event_id`: events have no header `id`.
        headers: further headers by name, each with the column that its value comes from.
    """

    topic: str
    route_by: str
    event_id: str
    key: str
    payload: str
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column that an event takes a value from, each once."""
        named = (self.route_by, self.event_id, self.key, self.payload, *self.headers.values())
        return tuple(dict.fromkeys([name for name in named if name]))


@dataclass(frozen=True, slots=True)
class Outbox:
    """Which events are published.

    Attributes:
        topics: the topics that events may go to.
        messages: logical messages with the prefix `cdcd.publish` are events.
        message_bytes_max: size of the content of such a message, in bytes; a larger one is refused.
        tables: the outbox tables by schema and name.
    """

    topics: tuple[str, ...] = ()
    messages: bool = False
    message_bytes_max: int = 700_000
    tables: Mapping[Table, OutboxTable] = field(default_factory=dict)

    @property
    def is_on(self) -> bool:
        """Whether anything can be an event."""
        return self.messages or bool(self.tables)


@dataclass(frozen=True, slots=True)
class TableFilter:
    """Which rows of tables the topics have.

    Attributes:
        table: a pattern of tables (`catalog/patterns.py`).
        text: the expression as the configuration has it.
        keep: the same, parsed. The topic has the rows for which it is true.
        on_error: KEEP or LEAVE_OUT: what becomes of a row for which it has no answer.
        old_row: REQUIRED: the expression may only ask for columns of the replica identity, whose old values are known;
            ASSUMED: a row whose old values are not known is taken for one that the topic has.
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
        text: the expression as the configuration has it.
        when: the same, parsed. A row for which it is true goes to the topic.
        topic: its name, or a template of it (`catalog/topic_templates.py`).
    """

    text: str
    when: CelExpression
    topic: str


@dataclass(frozen=True, slots=True)
class TableRoutes:
    """Which topics the rows of tables go to.

    Attributes:
        table: a pattern of tables (`catalog/patterns.py`).
        rules: the first one that is true for a row says where the row goes. If there is none, the row goes to the
            table's own topic.
        on_error: OWN_TOPIC or NEXT_RULE: where a row goes for which a rule has no answer.
        old_row: REQUIRED: the expressions may only ask for columns of the replica identity, whose old values are known;
            ASSUMED: a row whose old values are not known is taken to be in every topic where it may be.
    """

    table: str
    rules: tuple[Route, ...]
    on_error: str = OWN_TOPIC
    old_row: str = REQUIRED
