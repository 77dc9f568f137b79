"""The .proto of a Connect schema: what protoc makes of it, and which numbers and names fields have."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdcd.core.records.debezium_json.connect_schema import Schema, primitive, struct
from cdcd.core.records.protobuf.schemas import (
    UNKNOWN,
    adjusted_full_name,
    adjusted_name,
    json_name,
    schema_text,
    with_numbers,
)
from tests.unit.core.records.protobuf.reading import compiled

INT = primitive("int32")
TEXT = primitive("string")


def row(columns: dict[str, int | None], kind: Schema = INT) -> Schema:
    return with_numbers(struct(dict.fromkeys(columns, kind), "shop.public.t.Value", optional=False), columns)


def fields(schema: Schema) -> dict[str, Any]:
    """The fields of the message by their names in JSON, as protoc reads the schema."""
    return {field.json_name: field for field in compiled(schema_text(schema)).fields}


def numbers(schema: Schema) -> dict[str, int]:
    return {name: field.number for name, field in fields(schema).items()}


def test_a_column_has_the_number_of_its_attribute_and_the_numbers_between_are_reserved():
    text = schema_text(row({"id": 1, "note": 3, "late": 9}))
    assert numbers(row({"id": 1, "note": 3, "late": 9})) == {"id": 1, "note": 3, "late": 9}
    assert "reserved 2, 4 to 8;" in text
    assert "reserved" not in schema_text(row({"id": 1, "note": 2}))


@pytest.mark.parametrize(
    ("then", "now"),
    [
        ({"id": 1, "a": 2, "b": 3}, {"id": 1, "b": 3}),
        ({"id": 1, "a": 2}, {"id": 1, "a": 2, "b": 3}),
        ({"id": 1, "a": 2}, {"id": 1, "renamed": 2}),
        ({"id": 1, "a": 2}, {"id": 1, "a": 3}),
    ],
    ids=["dropped", "added", "renamed", "dropped and added again"],
)
def test_no_number_ever_means_another_column(then: dict[str, int | None], now: dict[str, int | None]):
    before, after = numbers(row(then)), numbers(row(now))
    assert before == then
    assert after == now


def test_a_column_whose_attribute_number_is_not_known_has_one_of_its_name():
    once = numbers(row({"id": 1, "gone": None, "also gone": None}))
    again = numbers(row({"also gone": None, "more": 2, "gone": None}))
    assert once["gone"] == again["gone"] > UNKNOWN
    assert once["also gone"] == again["also gone"] > UNKNOWN
    assert max(once.values()) < 2**29
    assert "reserved" not in schema_text(row({"id": 1, "gone": None}))


def test_every_column_tells_null_from_zero_also_in_a_key():
    key = with_numbers(struct({"id": primitive("int32", optional=False)}, "t.Key", optional=False), {"id": 1})
    assert "optional int32 id = 1;" in schema_text(key)
    assert fields(key)["id"].has_presence


def test_the_package_is_what_stands_before_the_last_dot():
    message = compiled(schema_text(row({"id": 1})))
    assert (message.full_name, message.file.package) == ("shop.public.t.Value", "shop.public.t")
    assert compiled(schema_text(struct({"a": INT}, "Alone", optional=False))).full_name == "Alone"


@pytest.mark.parametrize(
    "topic", ["google.public.t", "google.protobuf.x", "confluent.type.t", "message.int32.t"]
)
def test_a_package_may_be_called_like_one_that_is_imported(topic: str):
    name = "org.apache.kafka.connect.data."
    logical = {
        "at": primitive("int64", name=f"{name}Timestamp"),
        "on": primitive("int32", name=f"{name}Date"),
        "when": primitive("int32", name=f"{name}Time"),
        "much": primitive("bytes", name=f"{name}Decimal", parameters={"scale": "2"}),
    }
    found = fields(struct(logical, f"{topic}.Value", optional=False))
    assert {name: field.message_type.full_name for name, field in found.items()} == {
        "at": "google.protobuf.Timestamp",
        "on": "google.type.Date",
        "when": "google.type.TimeOfDay",
        "much": "confluent.type.Decimal",
    }


def test_names_are_those_that_protobuf_converter_makes():
    names = ("a", "_id", "1a", "a-b", "a b", "Größe", "", "$", "a.b")
    assert [adjusted_name(name) for name in names] == [
        "a",
        "_id",
        "x1a",
        "a_b",
        "a_b",
        "Gr_C3_B6_C3_9Fe",
        "x",
        "x_24",
        "a_b",
    ]
    assert adjusted_full_name("my-shop.1st.orders.Value") == "my_shop.x1st.orders.Value"


def test_names_in_protobufs_json_are_those_of_the_columns():
    odd = [
        'a"b',
        "a\\b",
        "line\nbreak",
        "größe",
        "a_b",
        "aB",
        "a-b",
        "a b",
        "A_B",
        "message",
        "int32",
        "reserved",
    ]
    columns: dict[str, int | None] = {name: number for number, name in enumerate(odd, start=1)}
    assert numbers(row(columns)) == columns


def test_columns_that_protoc_would_not_tell_apart_have_their_numbers_behind_their_names():
    text = schema_text(row({"a_b": 1, "aB": 2, "a-b": 3, "a_b_3": 4}))
    assert numbers(row({"a_b": 1, "aB": 2, "a-b": 3, "a_b_3": 4})) == {
        "a_b": 1,
        "aB": 2,
        "a-b": 3,
        "a_b_3": 4,
    }
    assert "int32 aB_2 = 2" in text
    assert "int32 a_b_3_3 = 3" in text
    assert [json_name(name) for name in ("a_b", "aB", "_a", "a__b", "a_1")] == ["aB", "aB", "A", "aB", "a1"]


def test_a_name_in_brackets_has_none_in_json_because_protoc_keeps_those_for_extensions():
    assert "json_name" not in schema_text(row({"[a]": 1}))
    assert list(numbers(row({"[a]": 1})).values()) == [1]


def test_types_in_a_key_are_not_called_like_its_columns():
    array = {"type": "array", "items": INT, "optional": True}
    key = struct({"Int32Array": array, "Int32ArrayMessage": INT, "b": array}, "t.Key", optional=False)
    found = fields(key)
    assert found["Int32Array"].message_type is found["b"].message_type
    assert found["b"].message_type.name == "Int32ArrayMessageMessage"


def test_arrays_and_maps_are_messages_so_that_null_is_not_empty():
    def array(items: Schema) -> Schema:
        return {"type": "array", "items": items, "optional": True}

    def of(keys: Schema, values: Schema) -> Schema:
        return {"type": "map", "keys": keys, "values": values, "optional": True}

    text = primitive("string", optional=False)
    found = fields(
        struct(
            {
                "a": array(INT),
                "b": array(primitive("int16", name="x.Short")),
                "c": array(primitive("double", optional=False)),
                "d": of(text, TEXT),
                "e": of(primitive("int16", optional=False), primitive("double", optional=False)),
            },
            "t.Value",
            optional=False,
        )
    )
    names = [field.message_type.name for field in found.values()]
    assert names == ["Int32Array", "Int32Array", "DoubleArray", "StringMap", "DoubleMap"]
    assert found["a"].message_type.fields_by_name["elements"].message_type.fields[0].has_presence
    assert found["c"].message_type.fields_by_name["elements"].message_type is None
    assert found["d"].message_type.fields_by_name["entries"].message_type.fields_by_name["value"].has_presence
    assert found["e"].message_type.fields_by_name["entries"].message_type.GetOptions().map_entry


def test_a_comment_names_the_semantic_type():
    at = primitive("int64", name="io.debezium.time.MicroTimestamp")
    text = schema_text(struct({"at": at, "all": {"type": "array", "items": at, "optional": True}}, "V"))
    assert text.count("// io.debezium.time.MicroTimestamp") == 2


NAMES = st.text(st.sampled_from('aAbB_1-é. "[]'), min_size=1, max_size=4)


@settings(max_examples=60, deadline=None)
@given(st.lists(NAMES, min_size=1, max_size=8, unique=True))
def test_any_names_of_columns_make_a_schema_that_protoc_takes(names):
    columns: dict[str, int | None] = {name: number for number, name in enumerate(names, start=1)}
    found = compiled(schema_text(row(columns)))
    assert [field.number for field in found.fields] == list(columns.values())
