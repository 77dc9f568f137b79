"""Fields that expressions make of a row's columns, in every format and on every way of a row."""

import json
from dataclasses import replace
from typing import Any

import pytest

from cdcd.config.expressions import parse_expression
from cdcd.core.catalog.field_names import FieldRule
from cdcd.core.catalog.patterns import parse_column_pattern
from cdcd.core.catalog.protection import ColumnRule
from cdcd.core.catalog.relations import TableDescription
from cdcd.core.catalog.types import BUILTIN_TYPES
from cdcd.core.errors import ConfigError
from cdcd.core.facts.rules import FieldFailed
from cdcd.core.protocol.frames import XLogData, write_frame
from cdcd.core.protocol.messages import UNCHANGED, Column, Delete, Insert, Message, Relation, Update
from cdcd.core.protocol.writer import write_message
from cdcd.core.records.available import record_stream
from cdcd.core.records.encoder import EncoderSettings, Record, SnapshotPosition
from cdcd.core.records.flattening import Flattening
from cdcd.core.records.schemas import read_form
from cdcd.core.records.shaping.computing import BYTES_MAX
from cdcd.core.records.shaping.settings import TableComputed
from tests.unit.core.records.avro.reading import Schemas
from tests.unit.core.records.formats import json_of

OID = 7
COLUMNS = (
    Column(1, "id", 23, -1),
    Column(1, "first", 25, -1),
    Column(1, "last", 25, -1),
    Column(1, "total", 1700, -1),
)
FULL = Relation(None, OID, "public", "t", "f", COLUMNS)
DEFAULT = replace(
    FULL,
    replica_identity="d",
    columns=tuple([replace(each, flags=int(each.name == "id")) for each in COLUMNS]),
)
TABLE = TableDescription(("id",))
POSITION = SnapshotPosition(lsn=1000, commit_lsn=999, first="first", last="last", others="true")
ROW = (b"1", b"Ada", b'"L"\t', b"2.50")


def rules(**fields: str) -> tuple[TableComputed, ...]:
    return (
        TableComputed("public.t", tuple([(name, parse_expression(text)) for name, text in fields.items()])),
    )


NAMED = rules(
    name='row.first + " " + row.last', total="row.total == null ? null : double(row.total)", big="row.id > 1"
)
MADE = {"id": 1, "first": "Ada", "last": '"L"\t', "total": 2.5, "name": 'Ada "L"\t', "big": False}
SETTINGS = EncoderSettings("1", "shop", "db", computed_rules=NAMED)


def frame(message: Message) -> bytes:
    return write_frame(XLogData(500, 500, 0, write_message(message)))


def encoded(encoder: Any, *messages: Message, relation: Relation = FULL) -> list[Record]:
    encoder.define(relation, TABLE, BUILTIN_TYPES)
    encoder.begin(5, 1000, 0, None)
    out: list[Record] = []
    encoder.encode_all([frame(each) for each in messages], False, 0, out)
    return out


def values(found: list[Record]) -> list[Any]:
    return [json.loads(each[2]) for each in found if each[2] is not None]


@pytest.mark.parametrize("writes", [False, True])
def test_rows_have_the_fields_before_and_after_and_where_they_are_read(writes: bool):
    encoder = record_stream(SETTINGS)
    json_of(encoder).writes = writes
    changed = (b"2", b"Ada", None, None)
    found = encoded(
        encoder,
        Insert(None, OID, ROW),
        Update(None, OID, "O", ROW, (b"1", b"Ada", b"M", b"1e400")),
        Delete(None, OID, "O", (b"1", b"Ada", b"M", b"NaN")),
        Insert(None, OID, (b"2", b"Ada", b"M", None)),
    )
    encoder.encode_rows(OID, [b'1\tAda\t"L"\\t\t2.50\n', b"2\tAda\t\\N\t\\N\n"], POSITION, 0, found, set())
    inserted, updated, deleted, other, read, failed = values(found)
    assert list(inserted["after"].items()) == list(MADE.items())
    assert updated["before"] == MADE
    assert updated["after"] == MADE | {"last": "M", "name": "Ada M", "total": "Infinity"}
    assert deleted["before"]["total"] is None
    assert (other["after"]["total"], other["after"]["big"]) == (None, True)
    assert read["after"] == MADE
    assert (failed["after"]["name"], failed["after"]["last"]) == (None, None)
    assert {each[1] for each in found} == {b'{"id":1}', b'{"id":2}'}
    assert encoder.tables.relation(OID) is FULL
    assert changed


def test_a_row_for_which_an_expression_has_no_value_has_null_and_is_told_without_a_value_of_the_row():
    facts: list[Any] = []
    encoder = record_stream(SETTINGS, observe=facts.append)
    found = encoded(encoder, *[Insert(None, OID, (b"1", b"secret", None, None))] * 2)
    assert [each["after"]["name"] for each in values(found)] == [None, None]
    assert [each for each in facts if isinstance(each, FieldFailed)] == [
        FieldFailed("public.t", "+ of null", "0/1F4", 0)
    ]
    assert encoder.counts["public.t", "field_failed"] == 2


def test_a_text_that_grows_beyond_the_limit_is_null():
    facts: list[Any] = []
    rows = [Insert(None, OID, ROW), Insert(None, OID, (b"1", b"A" * BYTES_MAX, b"", b"1"))]
    fits, grown = values(encoded(record_stream(SETTINGS, observe=facts.append), *rows))
    assert (fits["after"]["name"], grown["after"]["name"]) == (MADE["name"], None)
    assert f"more than {BYTES_MAX} bytes" in facts[-1].reason


def test_a_field_of_a_value_that_was_not_sent_is_not_sent_either():
    update = Update(None, OID, "", None, (b"1", b"Ada", UNCHANGED, b"2.50"))
    (found,) = encoded(record_stream(SETTINGS), update, relation=DEFAULT)
    assert values([found])[0]["after"]["name"] == "__debezium_unavailable_value"
    assert found[3] == [("cdcd.unchanged", b'["last","name"]')]
    whole = Update(None, OID, "O", ROW, update.new)
    assert values(encoded(record_stream(SETTINGS), whole))[0]["after"] == MADE


def test_an_old_row_of_the_replica_identity_alone_has_null():
    messages = (
        Update(None, OID, "K", (b"1", None, None, None), (b"2", *ROW[1:])),
        Delete(None, OID, "K", (b"2", None, None, None)),
    )
    deleted, created, gone = values(encoded(record_stream(SETTINGS), *messages, relation=DEFAULT))
    nothing = dict.fromkeys(MADE)
    # An expression over the replica identity alone has its value.
    assert deleted["before"] == nothing | {"id": 1, "big": False}
    assert gone["before"] == nothing | {"id": 2, "big": True}
    assert created["after"] == MADE | {"id": 2, "big": True}


def test_a_number_in_the_key_may_be_a_text_in_key_and_row():
    settings = replace(SETTINGS, computed_rules=rules(id="string(row.id)"), tombstones=False)
    messages = Update(None, OID, "K", (b"1", None, None, None), (b"2", *ROW[1:])), Insert(None, OID, ROW)
    found = encoded(record_stream(settings), *messages, relation=DEFAULT)
    assert [each[1] for each in found] == [b'{"id":"1"}', b'{"id":"2"}', b'{"id":"1"}']
    assert [(each["before"] or each["after"])["id"] for each in values(found)] == ["1", "2", "1"]


def test_rows_of_an_open_transaction_wait_as_frames():
    encoder = record_stream(SETTINGS)
    encoder.define(FULL, TABLE, BUILTIN_TYPES)
    streamed = write_frame(XLogData(5, 5, 0, write_message(Insert(9, OID, ROW))))
    assert encoder.draft_all([streamed], {OID: (9, FULL)}) == [streamed]
    encoder.begin(5, 1000, 0, None)
    out: list[Record] = []
    encoder.encode_all([streamed], True, 0, out)
    assert values(out)[0]["after"] == MADE


def test_every_format_has_the_fields_and_their_types():
    settings = replace(SETTINGS, value_format="json_schema")
    (made,) = values(encoded(record_stream(settings), Insert(None, OID, ROW)))
    fields = {each["field"]: each["type"] for each in made["schema"]["fields"][1]["fields"]}
    assert fields == {
        "id": "int32", "first": "string", "last": "string", "total": "double", "name": "string", "big": "boolean",
    }  # fmt: skip
    assert made["payload"]["after"] == MADE
    for flattening in (None, Flattening()):
        schemas = Schemas()
        encoder = record_stream(schemas.settings(computed_rules=NAMED, flattening=flattening))
        encoder.define(FULL, TABLE, BUILTIN_TYPES)
        schemas.register(encoder, OID)
        found = encoded(encoder, Insert(None, OID, ROW))
        encoder.encode_rows(OID, [b'1\tAda\t"L"\\t\t2.50\n'], POSITION, 0, found, set())
        for each in found:
            read = schemas.read(each[2] or b"")[1]
            assert (read if flattening else read["after"]) == MADE
    (event,) = values(
        encoded(record_stream(replace(SETTINGS, value_format="cloudevents")), Insert(None, OID, ROW))
    )
    assert event["data"]["after"] == MADE


def test_the_description_names_the_computed_fields():
    described, *_ = encoded(record_stream(replace(SETTINGS, schemas_topic="s")), Insert(None, OID, ROW))
    _, form = read_form(described[2] or b"")
    assert form.computed == ("name", "total", "big")
    assert [(each.name, each.form) for each in form.columns[3:]] == [
        ("total", "float64"), ("name", "text"), ("big", "boolean")
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"x": "row.none"}, "there is no published column none"),
        ({"x": "row.total"}, "the type numeric; write string"),
        ({"id": "row.id + 1"}, "computed.id does not fit the table public.t: the column is in the key"),
        ({"x": "row.id + row.first"}, r"\+ does not take int and string"),
        ({"x": "row.last"}, "protects column last, and a computed field would show its values"),
    ],
)
def test_an_expression_that_does_not_fit_is_refused_at_the_description(fields: dict[str, str], says: str):
    hidden = (ColumnRule(parse_column_pattern("public.t.last", "columns.mask"), "mask", "*"),)
    encoder = record_stream(replace(SETTINGS, computed_rules=rules(**fields), column_rules=hidden))
    with pytest.raises(ConfigError, match=says) as refused:
        encoder.define(FULL, TABLE, BUILTIN_TYPES)
    assert refused.value.hint


def test_names_of_columns_and_of_fields_stay_apart():
    renamed = (FieldRule("public.t", (("first", "name"),)),)
    encoder = record_stream(replace(SETTINGS, field_rules=renamed))
    with pytest.raises(ConfigError, match="two fields name: column first and the computed field name"):
        encoder.define(FULL, TABLE, BUILTIN_TYPES)
    renamed = (FieldRule("public.t", (("total", "sum"),), (("region", "eu"),)),)
    (made,) = values(encoded(record_stream(replace(SETTINGS, field_rules=renamed)), Insert(None, OID, ROW)))
    row = {"region": "eu", **MADE, "sum": 2.5}
    del row["total"]
    assert made["after"] == row


@pytest.mark.parametrize(
    ("expression", "column", "text", "value"),
    [
        ("string(row.x)", 1700, b"12345678901234567890.10", "12345678901234567890.10"),
        ("string(row.x)", 701, b"2.5", "2.5"),
        ("string(row.x)", 1082, b"2026-01-31", "2026-01-31T00:00:00Z"),
        ("string(row.x)", 1184, b"2026-01-31 10:00:00.5+00", "2026-01-31T10:00:00.500000Z"),
        ("int(row.x)", 1700, b"2.9", 2),
        ("double(row.x)", 20, b"7", 7.0),
        ("row.x == null ? '' : row.x", 25, None, ""),
    ],
)
def test_a_column_is_cast_in_its_place(expression: str, column: int, text: bytes | None, value: object):
    relation = replace(FULL, columns=(COLUMNS[0], Column(1, "x", column, -1)))
    settings = replace(SETTINGS, computed_rules=rules(x=expression))
    (made,) = values(encoded(record_stream(settings), Insert(None, OID, (b"1", text)), relation=relation))
    assert made["after"] == {"id": 1, "x": value}
