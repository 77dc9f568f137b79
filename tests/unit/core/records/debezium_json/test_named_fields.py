"""Fields with names of their own, and constant ones, in every format and on every way of a row."""

import json
from dataclasses import replace
from typing import Any

import pytest

from cdcd.core.catalog.field_names import FieldRule
from cdcd.core.catalog.modes import Modes
from cdcd.core.catalog.patterns import parse_column_pattern
from cdcd.core.catalog.protection import ColumnRule
from cdcd.core.catalog.relations import CatalogColumn, TableDescription
from cdcd.core.catalog.table_rules import PartitionRule
from cdcd.core.catalog.types import BUILTIN_TYPES
from cdcd.core.errors import ConfigError
from cdcd.core.protocol.frames import XLogData, write_frame
from cdcd.core.protocol.messages import UNCHANGED, Column, Delete, Insert, Message, Relation, Update
from cdcd.core.protocol.writer import write_message
from cdcd.core.records.available import record_stream
from cdcd.core.records.encoder import EncoderSettings, Record, SnapshotPosition
from cdcd.core.records.flattening import AddedField, Flattening
from cdcd.core.records.schemas import read_form
from cdcd.core.records.shaping.partitioning import partitioned, taken_out
from tests.unit.core.records.avro.reading import Schemas
from tests.unit.core.records.formats import json_of

ORDERS = 7
RULES = (
    FieldRule(
        "public.orders", (("id", "number"), ("cust", 'cus"tomer')), (("region", "eu"), ("100%", "x%y"))
    ),
)
SETTINGS = EncoderSettings("1", "shop", "db", field_rules=RULES)
COLUMNS = (Column(1, "id", 23, -1), Column(1, "cust", 25, -1), Column(1, "note", 25, -1))
RELATION = Relation(None, ORDERS, "public", "orders", "f", COLUMNS)
TABLE = TableDescription(
    ("id",),
    columns=tuple(
        CatalogColumn(name, number, kind, oid, 0, None)
        for number, (name, kind, oid) in enumerate(
            [("id", "integer", 23), ("cust", "text", 25), ("note", "text", 25)], 1
        )
    ),
)
POSITION = SnapshotPosition(lsn=1000, commit_lsn=999, first="first", last="last", others="true")
ROW = {"region": "eu", "100%": "x%y", "number": 1, 'cus"tomer': "a%", "note": "n"}
INSERT = Insert(None, ORDERS, (b"1", b"a%", b"n"))


def frame(message: Message) -> bytes:
    return write_frame(XLogData(500, 500, 0, write_message(message)))


def encoded(encoder: Any, *messages: Message, relation: Relation = RELATION) -> list[Record]:
    encoder.define(relation, TABLE, BUILTIN_TYPES)
    encoder.begin(5, 1000, 0, None)
    out: list[Record] = []
    encoder.encode_all([frame(each) for each in messages], False, 0, out)
    return out


def value(record: Record) -> Any:
    return json.loads(record[2] or b"null")


@pytest.mark.parametrize("writes", [False, True])
def test_rows_before_and_after_and_keys_have_the_fields(writes: bool):
    encoder = record_stream(SETTINGS)
    json_of(encoder).writes = writes
    changed = (b"1", b"b", None)
    found = encoded(
        encoder, INSERT, Update(None, ORDERS, "O", INSERT.new, changed), Delete(None, ORDERS, "O", changed)
    )
    assert value(found[0])["after"] == ROW
    assert list(value(found[0])["after"]) == list(ROW)
    assert value(found[1])["before"] == ROW
    after = ROW | {'cus"tomer': "b", "note": None}
    assert value(found[1])["after"] == value(found[2])["before"] == after
    assert {each[1] for each in found} == {b'{"number":1}'}
    assert value(found[0])["source"]["table"] == "orders"


def test_an_update_of_the_key_and_values_that_were_not_sent_have_the_fields():
    found = encoded(
        record_stream(SETTINGS),
        Update(None, ORDERS, "O", INSERT.new, (b"2", b"a%", b"n")),
        Update(None, ORDERS, "", None, (b"2", UNCHANGED, b"n")),
    )
    assert (found[0][3], found[2][3]) == (
        [("__debezium.newkey", b'{"number":2}')],
        [("__debezium.oldkey", b'{"number":1}')],
    )
    assert found[3][3] == [("cdcd.unchanged", rb'["cus\"tomer"]')]


def test_drafts_and_rows_of_snapshots_have_the_fields():
    encoder = record_stream(SETTINGS)
    encoder.define(RELATION, TABLE, BUILTIN_TYPES)
    streamed = write_frame(XLogData(5, 5, 0, write_message(replace(INSERT, xid=9))))
    drafts = encoder.draft_all([streamed], {ORDERS: (9, RELATION)})
    assert not isinstance(drafts[0], bytes)
    encoder.begin(5, 1000, 0, None)
    out: list[Record] = []
    encoder.encode_all(drafts, True, 0, out)
    encoder.encode_rows(ORDERS, [b"1\ta%\tn\n", b"1\ta%\tn\n"], POSITION, 0, out, set())
    assert [value(each)["after"] for each in out] == [ROW] * 3
    assert [each[1] for each in out] == [b'{"number":1}'] * 3


def test_a_row_without_a_column_has_its_constants():
    rules = (ColumnRule(parse_column_pattern("*.*.*", "columns.exclude"), "exclude"),)
    constants = (FieldRule("*.*", (), (("region", "eu"),)),)
    settings = replace(SETTINGS, field_rules=constants, column_rules=rules)
    table = TableDescription()
    for encoder in (record_stream(settings), record_stream(settings)):
        json_of(encoder).writes = not json_of(encoder).writes
        encoder.define(RELATION, table, BUILTIN_TYPES)
        encoder.begin(5, 1000, 0, None)
        out: list[Record] = []
        encoder.encode_all([frame(INSERT)], False, 0, out)
        encoder.encode_rows(ORDERS, [b"1\ta\tn\n"], POSITION, 0, out, set())
        assert [value(each)["after"] for each in out] == [{"region": "eu"}] * 2


def test_schemas_describe_the_fields():
    settings = replace(SETTINGS, key_format="json_schema", value_format="json_schema")
    (record,) = encoded(record_stream(settings), INSERT)
    after = value(record)["schema"]["fields"][1]
    assert [(each["field"], each["type"], each["optional"]) for each in after["fields"]] == [
        ("region", "string", False), ("100%", "string", False), ("number", "int32", False),
        ('cus"tomer', "string", True), ("note", "string", True),
    ]  # fmt: skip
    assert [each["field"] for each in json.loads(record[1] or b"")["schema"]["fields"]] == ["number"]
    assert value(record)["payload"]["after"] == ROW


def test_avro_has_the_fields():
    schemas = Schemas()
    encoder = record_stream(schemas.settings(field_rules=RULES))
    encoder.define(RELATION, TABLE, BUILTIN_TYPES)
    schemas.register(encoder, ORDERS)
    found = encoded(encoder, INSERT, Update(None, ORDERS, "O", INSERT.new, (b"1", UNCHANGED, b"m")))
    encoder.encode_rows(ORDERS, [b"1\ta%\tn\n"], POSITION, 0, found, set())
    row = {"region": "eu", "_100_": "x%y", "number": 1, "cus_tomer": "a%", "note": "n"}
    values = [schemas.read(each[2] or b"")[1] for each in found]
    assert [each["after"] for each in values] == [row, row | {"note": "m"}, row]
    assert values[1]["before"] == row
    assert [schemas.read(each[1] or b"")[1] for each in found] == [{"number": 1}] * 3


def test_flattened_records_and_events_have_the_fields():
    flat = replace(
        SETTINGS, flattening=Flattening(fields=(AddedField("__op", "op"), AddedField("region", "source.lsn")))
    )
    (record,) = encoded(record_stream(flat), INSERT)
    assert value(record) == ROW | {"__op": "c"}
    encoder = record_stream(flat)
    encoder.define(RELATION, TABLE, BUILTIN_TYPES)
    out: list[Record] = []
    encoder.encode_rows(ORDERS, [b"1\ta%\tn\n"], POSITION, 0, out, set())
    assert value(out[0]) == ROW | {"__op": "r"}
    (record,) = encoded(record_stream(replace(SETTINGS, value_format="cloudevents")), INSERT)
    assert value(record)["data"]["after"] == ROW


def test_a_value_without_a_form_is_named_by_its_field_in_the_record_and_by_its_column_to_the_operator():
    rules = (FieldRule("*.*", (("note", "total"),)),)
    facts: list[Any] = []
    settings = replace(SETTINGS, field_rules=rules, modes=Modes(decimal="precise"))
    relation = replace(RELATION, columns=(*COLUMNS[:2], Column(1, "note", 1700, -1)))
    message = Insert(None, ORDERS, (b"1", b"a", b"NaN"))
    (record,) = encoded(record_stream(settings, observe=facts.append), message, relation=relation)
    assert record[3] == [("cdcd.unwritable", b'["total"]')]
    assert facts[0].column == "note"


def test_the_description_has_fields_columns_and_constants():
    settings = replace(SETTINGS, schemas_topic="s")
    described, _ = encoded(record_stream(settings), INSERT)
    _, form = read_form(described[2] or b"")
    assert form.key == ("number",)
    assert [(each.name, each.column, each.id) for each in form.columns] == [
        ("number", "id", 1), ('cus"tomer', "cust", 2), ("note", None, 3)
    ]  # fmt: skip
    assert [each.name for each in form.source_columns] == ["id", "cust", "note"]
    assert form.constants == RULES[0].constants


def test_all_else_goes_by_columns():
    encoder = record_stream(SETTINGS)
    encoder.define(RELATION, TABLE, BUILTIN_TYPES)
    assert encoder.tables.key_column_names(ORDERS) == ("id",)
    assert encoder.tables.relation(ORDERS) is RELATION
    described = encoder.tables.description(ORDERS)
    assert described is not None
    assert [each.name for each in described.columns] == ["id", "cust", "note"]
    settings = replace(SETTINGS, partition_rules=(PartitionRule("*.*", ("cust",)),))
    (record,) = encoded(partitioned(record_stream(settings), settings), INSERT)
    assert taken_out(record[3])[0] is not None


def test_a_column_that_is_added_under_the_name_of_a_field_ends_the_session():
    encoder = record_stream(SETTINGS)
    encoder.define(RELATION, TABLE, BUILTIN_TYPES)
    with pytest.raises(ConfigError, match="two fields region"):
        encoder.define(
            replace(RELATION, columns=(*COLUMNS, Column(1, "region", 25, -1))), TABLE, BUILTIN_TYPES
        )
