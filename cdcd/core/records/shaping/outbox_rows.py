"""Makes records of events that an application inserts into an outbox table.

The rule: only an INSERT is an event. A DELETE only shows that the application has cleaned up, and an UPDATE has no
meaning for readers who may have read the event already (Debezium's outbox event router decides the same). A row
that cannot be an event goes to the table's own topic like any change, so that it is not lost.

The payload is PostgreSQL's text for the column; for a `bytea` column it is the bytes themselves.
"""

from collections.abc import Collection, Sequence
from typing import Final

from cdcd.core.catalog.protection import ColumnRule
from cdcd.core.catalog.routing import unchecked_topic
from cdcd.core.catalog.types import BYTEA
from cdcd.core.catalog.wiretext import checked
from cdcd.core.errors import ConfigError
from cdcd.core.facts import cut_short
from cdcd.core.protocol.messages import Binary, Relation, TupleData, Unchanged
from cdcd.core.records.encoder import Record
from cdcd.core.records.shaping.settings import OutboxTable

EVENT_ID: Final = "id"
"""Header with the id of an event, with Debezium's name."""

_HEX: Final = b"\\x"
_SHOWN_MAX: Final = 200


class OutboxRows:
    """Makes records of the rows of an outbox table, by the table's latest description.

    Args:
        rules: for each column of the relation, the rule that protects it, or None. Events have the values
            unchanged, so no column that they use may have a rule.

    Raises:
        ConfigError: the table lacks a column, or a column is protected.
    """

    def __init__(
        self,
        relation: Relation,
        table: OutboxTable,
        topics: Collection[str],
        rules: Sequence[ColumnRule | None],
    ) -> None:
        self._table = table
        self._topics = topics
        self._width = len(relation.columns)
        check_columns(relation, table, rules)
        self._at = {column.name: index for index, column in enumerate(relation.columns)}
        self._bytes = {column.name for column in relation.columns if column.type_oid == BYTEA}

    def event(self, row: TupleData) -> Record:
        """Return the record of an inserted row.

        ValueError if the row is not an event; its text explains why to a person, and shows no value except that of
        the topic.
        """
        if len(row) != self._width:
            raise ValueError("the row has another number of columns than the relation")
        table = self._table
        route = self._text(row, table.route_by)
        if route is None:
            raise ValueError(f"{table.route_by} is NULL")
        topic = unchecked_topic(table.topic.replace("{value}", route))
        if topic not in self._topics:
            raise ValueError(f"outbox.topics does not have the topic {cut_short(topic, _SHOWN_MAX)}")
        key = self._value(row, table.key)
        if not key:
            raise ValueError(f"{table.key} is NULL or empty")
        headers: list[tuple[str, bytes]] = []
        named = {EVENT_ID: table.event_id, **table.headers} if table.event_id else table.headers
        for name, column in named.items():
            value = self._value(row, column)
            if value is not None:
                headers.append((name, value))
        return (topic, key, self._value(row, table.payload), headers or None)

    def _text(self, row: TupleData, column: str) -> str | None:
        value = self._value(row, column)
        return None if value is None else value.decode("utf-8")

    def _value(self, row: TupleData, column: str) -> bytes | None:
        value = row[self._at[column]]
        if value is None:
            return None
        if isinstance(value, (Binary, Unchanged)):
            raise ValueError(f"the server did not send {column} as text")  # noqa: TRY004  of the wire, not our call
        if column in self._bytes:
            return _bytes_of(value, column)
        try:
            return checked(value)
        except UnicodeDecodeError:
            raise ValueError(f"{column} is no text in the encoding of the database") from None


def _bytes_of(text: bytes, column: str) -> bytes:
    """Return the bytes of a bytea whose text is hexadecimal, as `bytea_output` is set on cdcd's connections."""
    if not text.startswith(_HEX):
        raise ValueError(f"{column} is not in hexadecimal form")
    return bytes.fromhex(text[len(_HEX) :].decode("ascii"))


def check_columns(relation: Relation, table: OutboxTable, rules: Sequence[ColumnRule | None]) -> None:
    """Raise ConfigError if the relation lacks a column that events need, or if the column is protected."""
    name = f"{relation.schema}.{relation.name}"
    known = {column.name: rule for column, rule in zip(relation.columns, rules, strict=True)}
    for column in table.columns:
        if column not in known:
            raise ConfigError(
                f"The outbox table {name} has no published column {column}.",
                hint=f"Name the table's columns in outbox.tables ({name}), or add the column to the publication.",
            )
        rule = known[column]
        if rule is not None:
            raise ConfigError(
                f"{rule} matches column {name}.{column}, which events of the outbox would show in clear.",
                hint=f"Narrow the pattern, or take {name} out of outbox.tables.",
            )
