"""The schemas beside those that a real Debezium wrote (`tests/debezium/capture.py`), for every type."""

import json
import re
from typing import Any

import pytest

from cdcd.core.catalog.logical import logical_type
from cdcd.core.catalog.modes import Modes
from cdcd.core.catalog.relations import TypeDescription
from cdcd.core.catalog.types import BUILTIN_TYPES
from cdcd.core.protocol.messages import Column, Relation
from cdcd.core.records.debezium_json.connect_schema import envelope_schema, schema_of, schema_of_key
from cdcd.core.records.debezium_json.event_schemas import MESSAGE_KEY
from cdcd.core.records.debezium_json.messages import message_schema
from tests.debezium.capture import GOLDEN, TYPES

RECORDS: dict[str, list[dict[str, Any]]] = json.loads(GOLDEN.read_text())["records"]

DIFFERENT = {
    "mood[]": "Debezium says that elements of an enum's array are never NULL, and then fails on one that is.",
    "bit(3)[]": "Debezium describes an array of bit strings as one bit string, and writes null for it.",
    **dict.fromkeys(
        ("money[]", "interval[]", "xml[]", "point[]"), "Debezium leaves arrays of these types out of the record."
    ),
    **dict.fromkeys(
        ("box", "circle", "line", "lseg", "path", "polygon", "pg_lsn", "tsquery", "xid"),
        "To Debezium the type is unknown: base64 of its text, where cdcd has the text.",
    ),
    **dict.fromkeys(
        ("integer NOT NULL", "text NOT NULL"),
        "A `before` that has only the key has null in such columns, where Debezium writes 0 and empty texts.",
    ),
}  # fmt: skip
"""Types whose schema is another one here, each with the reason."""

NAMES = {
    "smallint": "int2", "integer": "int4", "bigint": "int8", "real": "float4", "double precision": "float8",
    "char": "bpchar", "bit varying": "varbit", "boolean": "bool",
}  # fmt: skip
OIDS = {kind.name: oid for oid, kind in BUILTIN_TYPES.items()}


def user_type(oid: int, name: str, kind: str = "b", **more: Any) -> list[TypeDescription]:
    array = TypeDescription(oid + 1000, "public", f"_{name}", "b", "A", oid, 0, -1)
    fields = {"element_oid": 0, "base_oid": 0, "base_modifier": -1, **more}
    return [TypeDescription(oid, "public", name, kind, "U", **fields), array]


OWN = {
    kind.oid: kind
    for kind in (
        *user_type(70_000, "hstore"),
        *user_type(70_001, "citext"),
        *user_type(70_002, "ltree"),
        *user_type(70_003, "mood", "e", labels=((1, "sad"), (2, "happy"))),
        *user_type(70_004, "price", "d", base_oid=OIDS["numeric"], base_modifier=(8 << 16 | 2) + 4),
        *user_type(70_005, "amount", "d", base_oid=OIDS["int4"]),
    )
}
OIDS |= {kind.name: oid for oid, kind in OWN.items()}


def column(name: str, declared: str) -> Column:
    """A column as a Relation message has it, of a type as SQL has it."""
    match = re.fullmatch(r"([a-z0-9_ ]+?)(?:\((\d+)(?:,(-?\d+))?\))?(\[\])?( NOT NULL)?", declared)
    assert match is not None
    kind = NAMES.get(match[1], match[1])
    modifier = -1
    if match[2]:
        modifier = int(match[2])
        if kind == "numeric":
            modifier = (modifier << 16 | int(match[3] or 0) & 0x7FF) + 4
        elif kind in ("varchar", "bpchar"):
            modifier += 4
    return Column(int(name == "id"), name, OIDS[f"_{kind}" if match[4] else kind], modifier)


def relation(table: str, *columns: Column) -> Relation:
    return Relation(None, 16_384, "public", table, "d", columns)


def field(schema: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any]
    (found,) = [each for each in schema["fields"] if each["field"] == name]
    return found


CAPTURED = {
    each["field"]: each
    for each in field(RECORDS["shop.public.types"][0]["value"]["schema"], "after")["fields"]
}


@pytest.mark.parametrize(
    ("name", "declared"), [(f"c{number}", kind) for number, (kind, _) in enumerate(TYPES)]
)
def test_a_column_has_debeziums_schema_unless_the_list_says_why_not(name, declared):
    made = column(name, declared)
    ours = {**schema_of(logical_type(made.type_oid, made.type_modifier, OWN)), "field": name}
    theirs = CAPTURED.get(name)
    assert (ours == theirs) == (declared not in DIFFERENT)
    if theirs is not None and declared not in DIFFERENT:
        # Also in the order of its parts, as JsonConverter writes them.
        assert json.dumps(ours) == json.dumps(theirs)


def test_the_list_of_differences_has_no_more_than_it_needs():
    assert DIFFERENT.keys() <= {kind for kind, _ in TYPES}


ORDERS = relation(
    "orders", Column(1, "Order no", 23, -1), Column(1, "line", 21, -1), Column(0, "note", 25, -1)
)


def test_key_and_envelope_are_debeziums_with_three_more_fields_in_the_source():
    captured = RECORDS["shop.public.orders"][0]
    assert json.dumps(schema_of_key(ORDERS, [0, 1], {}, "shop.public.orders")) == json.dumps(
        captured["key"]["schema"]
    )
    ours = without_own_fields(envelope_schema(ORDERS, [0, 1], {}, "shop.public.orders"))
    assert json.dumps(ours) == json.dumps(captured["value"]["schema"])


def without_own_fields(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of an envelope without what only cdcd has in `source`."""
    copy: dict[str, Any] = json.loads(json.dumps(schema))
    source = field(copy, "source")
    own = ["commit_lsn", "event_serial_no", "schema_id"]
    assert [each["field"] for each in source["fields"][-3:]] == own
    del source["fields"][-3:]
    return copy


def test_every_record_of_a_table_has_the_same_schema_and_tombstones_have_none():
    assert [record["value"] is None for record in RECORDS["shop.public.orders"]].count(True) == 2
    schemas = {
        json.dumps(record["value"]["schema"]) for record in RECORDS["shop.public.orders"] if record["value"]
    }
    assert len(schemas) == 1


def test_a_table_without_a_key_has_records_without_one():
    assert all(record["key"] is None for record in RECORDS["shop.public.log"])
    ours = envelope_schema(relation("log", Column(0, "entry", 25, -1)), [], {}, "shop.public.log")
    assert without_own_fields(ours) == RECORDS["shop.public.log"][0]["value"]["schema"]


def test_a_logical_message_has_debeziums_schemas():
    (captured,) = RECORDS["shop.message"]
    assert json.dumps(MESSAGE_KEY) == json.dumps(captured["key"]["schema"])
    assert json.dumps(without_own_fields(message_schema(Modes()))) == json.dumps(captured["value"]["schema"])
