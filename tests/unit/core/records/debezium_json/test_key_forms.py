"""Keys that are bare values or have constant fields (`key.forms`), in every format and on every way of a row."""

import json
from dataclasses import replace
from typing import Any

import pytest

from cdcd.core.catalog.field_names import FieldRule
from cdcd.core.catalog.relations import TableDescription
from cdcd.core.catalog.table_rules import KeyFormRule
from cdcd.core.catalog.types import BUILTIN_TYPES
from cdcd.core.errors import ConfigError
from cdcd.core.protocol.frames import XLogData, write_frame
from cdcd.core.protocol.messages import Column, Delete, Insert, Message, Relation, Update
from cdcd.core.protocol.writer import write_message
from cdcd.core.records.available import record_stream
from cdcd.core.records.encoder import EncoderSettings, Record, SnapshotPosition
from cdcd.core.records.schemas import read_form
from tests.unit.core.records.avro.reading import Schemas
from tests.unit.core.records.formats import json_of

OID = 7
BARE = (KeyFormRule("public.*", bare=True),)
CONSTANT = (KeyFormRule("public.t", constants=(("from", "50% of shop.public.t"),)),)
SETTINGS = EncoderSettings("1", "shop", "db", key_forms=BARE)
NUMBERED = Relation(None, OID, "public", "t", "f", (Column(1, "id", 23, -1), Column(1, "note", 25, -1)))
NAMED = replace(NUMBERED, columns=(Column(1, "id", 25, -1), Column(1, "note", 25, -1)))
TABLE = TableDescription(("id",))
POSITION = SnapshotPosition(lsn=1000, commit_lsn=999, first="first", last="last", others="true")
TEXT = b'a"b\n'


def frame(message: Message) -> bytes:
    return write_frame(XLogData(500, 500, 0, write_message(message)))


def records(encoder: Any, relation: Relation, first: bytes, second: bytes) -> list[Record]:
    """An insert, an update of the key and a delete, and a row that was read."""
    encoder.define(relation, TABLE, BUILTIN_TYPES)
    encoder.begin(5, 1000, 0, None)
    out: list[Record] = []
    changes = (
        Insert(None, OID, (first, b"n")),
        Update(None, OID, "O", (first, b"n"), (second, b"n")),
        Delete(None, OID, "O", (second, b"n")),
    )
    encoder.encode_all([frame(each) for each in changes], False, 0, out)
    copied = first.replace(b"\n", rb"\n")
    encoder.encode_rows(OID, [copied + b"\tn\n"] * 2, POSITION, 0, out, set())
    return out


def keys_of(first: bytes | None, second: bytes | None) -> list[bytes | None]:
    """Keys of `records`: insert, delete, tombstone, insert, delete, tombstone, two rows that were read."""
    return [first, first, first, second, second, second, first, first]


@pytest.mark.parametrize("writes", [False, True])
@pytest.mark.parametrize(
    ("key_format", "relation", "values", "keys"),
    [
        ("json", NUMBERED, (b"1", b"2"), (b"1", b"2")),
        ("text", NUMBERED, (b"1", b"2"), (b"1", b"2")),
        ("json", NAMED, (TEXT, b""), (rb'"a\"b\n"', b'""')),
        ("text", NAMED, (TEXT, b""), (TEXT, b"")),
    ],
)
def test_a_bare_key_is_the_value_of_its_column(writes, key_format, relation, values, keys):
    encoder = record_stream(replace(SETTINGS, key_format=key_format))
    json_of(encoder).writes = writes
    found = records(encoder, relation, *values)
    assert [each[1] for each in found] == keys_of(*keys)
    assert (found[1][3], found[3][3]) == ([("__debezium.newkey", keys[1])], [("__debezium.oldkey", keys[0])])
    assert found[2][2] is None
    assert json.loads(found[0][2] or b"")["after"]["id"] in (1, 'a"b\n')


def test_drafts_have_bare_keys():
    encoder = record_stream(replace(SETTINGS, key_format="text"))
    encoder.define(NAMED, TABLE, BUILTIN_TYPES)
    streamed = write_frame(XLogData(5, 5, 0, write_message(Insert(9, OID, (b"", b"n")))))
    drafts = encoder.draft_all([streamed], {OID: (9, NAMED)})
    assert not isinstance(drafts[0], bytes)
    encoder.begin(5, 1000, 0, None)
    out: list[Record] = []
    encoder.encode_all(drafts, True, 0, out)
    assert out[0][1] == b""


def test_differences_that_are_healed_have_bare_keys():
    encoder = record_stream(replace(SETTINGS, key_format="text"))
    encoder.define(NAMED, TABLE, BUILTIN_TYPES)
    out: list[Record] = []
    encoder.encode_deletes(OID, [(b'"x"',)], replace(POSITION, op="d"), 0, out)
    assert out[0][1] == b"x"


def test_a_bare_key_has_the_schema_of_its_value():
    settings = replace(SETTINGS, key_format="json_schema", value_format="json_schema")
    keys = {each[1] for each in records(record_stream(settings), NUMBERED, b"1", b"1")}
    assert keys == {b'{"schema":{"type":"int32","optional":false},"payload":1}'}


@pytest.mark.parametrize(
    ("format_", "text", "rest"), [("avro", '"int"', b"\x02"), ("json_registry", '{"type":"integer"', b"1")]
)
def test_a_registry_has_the_schema_of_bare_keys(format_: str, text: str, rest: bytes):
    schemas = Schemas()
    encoder = record_stream(schemas.settings(key_forms=BARE, key_format=format_, value_format=format_))
    encoder.define(NUMBERED, TABLE, BUILTIN_TYPES)
    schemas.register(encoder, OID)
    found = records(encoder, NUMBERED, b"1", b"1")
    (key,) = {each[1] for each in found if each[1] is not None}
    assert key[5:] == rest
    number = int.from_bytes(key[1:5], "big")
    assert schemas.uses[number].subject == "golden.public.t-key"
    assert schemas.texts[number].startswith(text)


def test_constant_fields_follow_the_columns_of_a_key():
    settings = replace(SETTINGS, key_forms=CONSTANT)
    key = b'{"id":1,"from":"50% of shop.public.t"}'
    found = records(record_stream(settings), NUMBERED, b"1", b"2")
    assert [each[1] for each in found] == keys_of(key, key.replace(b"1", b"2"))
    schemas = Schemas()
    encoder = record_stream(schemas.settings(key_forms=CONSTANT))
    encoder.define(NUMBERED, TABLE, BUILTIN_TYPES)
    schemas.register(encoder, OID)
    found = records(encoder, NUMBERED, b"1", b"2")
    assert schemas.read(found[0][1] or b"")[1] == json.loads(key)


def test_a_constant_with_the_name_of_a_field_of_the_key_is_refused():
    rename = (FieldRule("public.t", (("id", "from"),)),)
    encoder = record_stream(replace(SETTINGS, key_forms=CONSTANT, field_rules=rename))
    with pytest.raises(ConfigError, match="two fields from"):
        encoder.define(NUMBERED, TABLE, BUILTIN_TYPES)


def test_the_description_tells_the_form_of_keys():
    for rules, expected in ((BARE, (True, ())), (CONSTANT, (False, CONSTANT[0].constants))):
        encoder = record_stream(replace(SETTINGS, key_forms=rules, schemas_topic="s"))
        described, *_ = records(encoder, NUMBERED, b"1", b"2")
        _, form = read_form(described[2] or b"")
        assert (form.bare_key, form.key_constants) == expected


def test_a_table_without_a_key_has_records_without_one():
    encoder = record_stream(SETTINGS)
    encoder.define(replace(NUMBERED, replica_identity="n"), TableDescription(), BUILTIN_TYPES)
    encoder.begin(5, 1000, 0, None)
    out: list[Record] = []
    encoder.encode_all([frame(Insert(None, OID, (b"1", b"n")))], False, 0, out)
    assert out[0][1] is None
