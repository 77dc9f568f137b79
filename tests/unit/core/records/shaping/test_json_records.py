"""The schema of a JSON text, as Debezium derives it, and the texts that have none."""

import json
from typing import Any

import pytest

from cdcd.core.records.shaping.json_records import FIELDS_MAX, PAYLOAD_BYTES_MAX, JsonRecords


def shown(schema: Any) -> Any:
    """A schema in short: ? behind what is optional, the name in front of a struct."""
    mark = "?" if schema["optional"] else ""
    if schema["type"] == "struct":
        return {schema["name"] + mark: {each["field"]: shown(each) for each in schema["fields"]}}
    if schema["type"] == "array":
        return [shown(schema["items"])]
    return schema["type"] + mark


DEFAULTS = JsonRecords()


def derived(value: Any, records: JsonRecords = DEFAULTS) -> Any:
    text = value if isinstance(value, str) else json.dumps(value)
    return shown(records.read(text.encode(), "payload")[0])


def test_each_value_has_debeziums_type_and_each_object_the_name_of_its_path():
    assert derived(
        {
            "s": "x",
            "b": True,
            "i": -(2**31),
            "l": 2**31,
            "d": 1.5,
            "e": 1.0,
            "o": {"in": {"n": 1}},
            "a": ["x"],
        }
    ) == {
        "payload?": {
            "s": "string?",
            "b": "boolean?",
            "i": "int32?",
            "l": "int64?",
            "d": "double?",
            "e": "double?",
            "o": {"payload.o?": {"in": {"payload.o.in?": {"n": "int32?"}}}},
            "a": ["string?"],
        }
    }


def test_null_and_empty_arrays_are_left_out_or_have_the_types_that_debezium_can_give_them():
    given: dict[str, Any] = {"n": None, "a": [], "o": {}}
    assert derived(given) == {"payload?": {"o": {"payload.o?": {}}}}
    every = JsonRecords(null_fields=True, empty_arrays=True)
    assert derived(given, every) == {"payload?": {"n": "bytes?", "a": ["string?"], "o": {"payload.o?": {}}}}
    assert derived({"a": [None, None]}, every) == {"payload?": {"a": ["bytes?"]}}


def test_objects_in_an_array_share_a_struct_which_is_not_optional_if_they_differ():
    assert derived({"a": [{"x": 1}, {"x": 2}]}) == {"payload?": {"a": [{"payload.a?": {"x": "int32?"}}]}}
    assert derived({"a": [{"x": 1}, {"y": "z"}, {"x": 3}]}) == {
        "payload?": {"a": [{"payload.a": {"x": "int32?", "y": "string?"}}]}
    }
    # Debezium's task fails at null beside objects that differ.
    assert derived({"a": [{"x": 1}, None, {"y": 1}]}) == {
        "payload?": {"a": [{"payload.a?": {"x": "int32?", "y": "int32?"}}]}
    }


def test_the_wider_type_of_numbers_holds_an_arrays_elements():
    assert derived({"a": [1, 2**40], "b": [1, 2.5], "c": [{"n": 2.5}, {"n": 1}]}) == {
        "payload?": {"a": ["int64?"], "b": ["double?"], "c": [{"payload.c": {"n": "double?"}}]}
    }


def test_arrays_of_arrays_and_an_array_as_the_whole_payload_have_schemas():
    assert derived([[1], [2**40]]) == [["int64?"]]
    assert derived([{"x": 1}]) == [{"payload?": {"x": "int32?"}}]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "Expecting value"),
        ("5", "neither an object nor an array"),
        ('"x"', "neither an object nor an array"),
        ("null", "neither an object nor an array"),
        ("[]", "an empty array, which has no type"),
        ('{"a": [1, "x"]}', "elements are of different types"),
        ('{"a": [{"b": 1}, {"b": "x"}]}', "elements are of different types"),
        ('{"a": [true, 1]}', "elements are of different types"),
        ('{"a": [null]}', "no other elements than null"),
        ('{"a": [[]]}', "an empty array in an array"),
        ('{"a": [[{"b": 1}]]}', "no name in Avro"),
        ('{"a": 9223372036854775808}', "64 bits do not hold"),
        ('{"a": -9223372036854775809}', "64 bits do not hold"),
        ('{"a": 1, "a": 2}', "a key twice"),
        ('{"a": NaN}', "NaN"),
        ('{"a": "\\ud800"}', "half of a character"),
        ("[" * 33 + "]" * 33, "more than 32 are within one another"),
        (json.dumps({f"f{number}": 1 for number in range(FIELDS_MAX + 1)}), f"more than {FIELDS_MAX} fields"),
        (json.dumps([{f"f{each % 4_000}": 1} for each in range(10_000)]), "more than 1000000 fields"),
        ('{"a": "' + "x" * PAYLOAD_BYTES_MAX + '"}', f"and {PAYLOAD_BYTES_MAX} are allowed"),
    ],
    ids=str,
)
def test_a_text_without_a_schema_is_refused_with_the_reason(text: str, says: str):
    with pytest.raises(ValueError, match=says):
        derived(text)
    assert "secret" not in says


def test_a_text_takes_memory_and_time_in_proportion_to_its_length_whatever_its_objects_are():
    # Each of the objects differs from the former one; all of them together have few fields.
    objects = [{f"f{number % 50}": number} for number in range(20_000)]
    (schema,) = derived(objects)
    assert len(schema["payload"]) == 50
