"""From a row of an outbox table to a record, and why there is none."""

from typing import Any

import pytest

from cdcd.core.catalog.patterns import parse_column_pattern
from cdcd.core.catalog.protection import MASK, ColumnRule, Protections
from cdcd.core.catalog.relations import TableDescription
from cdcd.core.errors import ConfigError
from cdcd.core.protocol.messages import Binary, Column, Relation
from cdcd.core.records.encoder import EncoderSettings, Record
from cdcd.core.records.shaping.event_forms import EventSchemas
from cdcd.core.records.shaping.event_topics import EventTopics
from cdcd.core.records.shaping.outbox import OutboxRows
from cdcd.core.records.shaping.settings import Outbox, OutboxTable

UUID, TEXT, JSONB, BYTEA, TIMESTAMPTZ = 2950, 25, 3802, 17, 1184

TABLE = OutboxTable(
    "outbox.event.{value}", "aggregatetype", "id", "aggregateid", "payload", {"eventType": "type"}
)
COLUMNS = (("id", UUID), ("aggregatetype", TEXT), ("aggregateid", TEXT), ("type", TEXT), ("payload", JSONB))
TOPICS = ("outbox.event.Order", "outbox.event.a_b")
ROW = (b"u-1", b"Order", b"4711", b"OrderPlaced", b'{"total": 12.50}')


def relation(*columns: tuple[str, int]) -> Relation:
    return Relation(
        None,
        5,
        "public",
        "outbox",
        "d",
        tuple(Column(0, name, kind, -1) for name, kind in columns or COLUMNS),
    )


SETTINGS = EncoderSettings("1", "shop", "db")


class Rows:
    """Records of the rows of an outbox table."""

    def __init__(self, table: OutboxTable, *columns: tuple[str, int], rules: Any = ()) -> None:
        found = relation(*columns)
        in_force = Protections(rules).in_force(found, TableDescription())
        self._schemas = EventSchemas(SETTINGS)
        self._rows = OutboxRows(
            found, table, EventTopics(Outbox(TOPICS), SETTINGS), in_force, SETTINGS, self._schemas
        )

    def event(self, row: Any) -> Record:
        return self._schemas.record(self._rows.prepared(row, 0))


def rows(table: OutboxTable = TABLE, *columns: tuple[str, int], rules: Any = ()) -> Rows:
    return Rows(table, *columns, rules=rules)


def rule(pattern: str) -> ColumnRule:
    return ColumnRule(parse_column_pattern(pattern, "columns"), MASK, mask="x")


def test_a_row_is_an_event_as_debezium_routes_it():
    assert rows().event(ROW) == (
        "outbox.event.Order",
        b"4711",
        b'{"total": 12.50}',
        [("id", b"u-1"), ("eventType", b"OrderPlaced")],
    )


def test_fields_beside_the_payload_make_an_object_as_debezium_writes_it():
    table = OutboxTable(
        "outbox.event.{value}",
        "aggregatetype",
        "",
        "aggregateid",
        "payload",
        {},
        {"eventType": "type", "at": "at"},
    )
    columns = (*COLUMNS, ("at", TIMESTAMPTZ))
    found = rows(table, *columns)
    row = (*ROW, b"2024-01-01 10:00:00.5+00")
    assert found.event(row)[2] == (
        b'{"payload":"{\\"total\\": 12.50}","eventType":"OrderPlaced","at":"2024-01-01T10:00:00.500000Z"}'
    )
    assert found.event((*ROW[:-2], None, None, None))[2] == b'{"payload":null,"eventType":null,"at":null}'
    with pytest.raises(ConfigError, match="no published column at"):
        rows(table)


def test_a_null_payload_is_a_tombstone_and_a_null_header_is_not_there():
    assert rows().event((None, b"Order", b"1", None, None)) == ("outbox.event.Order", b"1", None, None)


def test_characters_that_kafka_does_not_allow_become_underscores():
    assert rows().event((b"1", b"a/b", b"1", None, b"{}"))[0] == "outbox.event.a_b"


def test_a_bytea_is_its_bytes():
    kinds = (*COLUMNS[:-1], ("payload", BYTEA))
    assert rows(TABLE, *kinds).event((*ROW[:-1], b"\\x00ff41"))[2] == b"\x00\xffA"
    with pytest.raises(ValueError, match="payload is not in hexadecimal form"):
        rows(TABLE, *kinds).event((*ROW[:-1], b"abc"))


def test_columns_have_the_names_of_the_configuration():
    table = OutboxTable("outbox.event.Order", "to", "", "who", "what")
    found = rows(table, ("what", TEXT), ("to", TEXT), ("who", TEXT)).event((b"w", b"x", b"y"))
    assert found == ("outbox.event.Order", b"y", b"w", None)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ((b"1", None, b"1", None, b"{}"), "aggregatetype is NULL"),
        ((b"1", b"Other", b"1", None, b"{}"), "does not have the topic outbox.event.Other"),
        ((b"1", b"\xff", b"1", None, b"{}"), "no text in the encoding"),
        ((b"1", b"Order", None, None, b"s3cr3t"), "aggregateid is NULL or empty"),
        ((b"1", b"Order", b"", None, b"s3cr3t"), "aggregateid is NULL or empty"),
        ((b"1", b"Order", b"1", None), "another number of columns"),
        ((b"1", b"Order", b"1", None, Binary(b"s3cr3t")), "did not send payload as text"),
    ],
)
def test_what_is_wrong_is_said_without_the_payload(row: Any, says: str):
    with pytest.raises(ValueError, match=says) as caught:
        rows().event(row)
    assert "s3cr3t" not in str(caught.value)


def test_a_table_without_a_column_that_events_need_is_refused():
    with pytest.raises(ConfigError, match=r"public\.outbox has no published column payload"):
        rows(TABLE, *COLUMNS[:-1])


@pytest.mark.parametrize("column", ["id", "aggregatetype", "aggregateid", "type", "payload"])
def test_a_protected_column_is_refused_because_events_would_show_it(column: str):
    with pytest.raises(ConfigError, match=f"public.outbox.{column}, which events of the outbox would show"):
        rows(rules=(rule(f"*.outbox.{column}"),))


def test_a_protected_column_that_events_do_not_take_is_no_obstacle():
    assert rows(TABLE, *COLUMNS, ("note", TEXT), rules=(rule("*.*.note"),)).event((*ROW, b"n"))[1] == b"4711"
