import json

import fastavro
import pytest

from cdcd.core.errors import ConfigError
from cdcd.core.records.avro.schemas import adjusted_full_name, adjusted_name, avro_schema
from cdcd.core.records.debezium_json.connect_schema import Schema, primitive, struct


def of(*fields: tuple[str, Schema], name: str = "shop.public.t.Value") -> dict[str, Schema]:
    record = avro_schema(struct(dict(fields), name, optional=False))
    fastavro.parse_schema(json.loads(json.dumps(record)))
    return {field["name"]: field for field in record["fields"]}


def test_a_field_that_may_be_null_is_a_union_whose_null_comes_first_and_is_the_default():
    assert of(("a", primitive("int64")))["a"] == {"name": "a", "type": ["null", "long"], "default": None}
    assert of(("a", primitive("int64", optional=False)))["a"] == {"name": "a", "type": "long"}


def test_a_field_with_a_default_has_null_last():
    field = of(("a", primitive("string") | {"default": "x"}))["a"]
    assert field == {
        "name": "a",
        "type": [{"type": "string", "connect.default": "x"}, "null"],
        "default": "x",
    }


def test_name_version_and_parameters_stand_beside_the_type():
    named = primitive("string", name="io.debezium.data.Enum", parameters={"allowed": "a,b"}, optional=False)
    assert of(("a", named))["a"]["type"] == {
        "type": "string",
        "connect.version": 1,
        "connect.parameters": {"allowed": "a,b"},
        "connect.name": "io.debezium.data.Enum",
    }
    assert of(("a", primitive("int16", optional=False)))["a"]["type"] == {
        "type": "int",
        "connect.type": "int16",
    }


def test_a_record_that_comes_again_is_named():
    point = struct({"x": primitive("double", optional=False)}, "io.debezium.Point", version=1)
    fields = of(("a", point), ("b", point))
    assert fields["a"]["type"][1]["name"] == "Point"
    assert fields["b"]["type"] == ["null", "io.debezium.Point"]


def test_a_map_whose_keys_are_numbers_is_an_array_of_entries():
    pairs = {
        "type": "map",
        "keys": primitive("int16", optional=False),
        "values": primitive("double", optional=False),
        "optional": False,
    }
    entry = of(("a", pairs))["a"]["type"]["items"]
    assert entry["name"] == "MapEntry"
    assert [field["name"] for field in entry["fields"]] == ["key", "value"]
    assert of(("a", pairs | {"keys": primitive("string", optional=False)}))["a"]["type"]["type"] == "map"


def test_a_decimal_has_avros_logical_type_unless_its_scale_is_none_of_avros():
    def decimal(scale: str) -> Schema:
        name = "org.apache.kafka.connect.data.Decimal"
        return primitive("bytes", name=name, parameters={"scale": scale}, optional=False)

    known = of(("a", decimal("2")))["a"]["type"]
    assert (known["logicalType"], known["scale"], known["precision"]) == ("decimal", 2, 64)
    assert "logicalType" not in of(("a", decimal("-2")))["a"]["type"]


def test_names_are_made_such_that_avro_allows_them():
    assert [adjusted_name(name) for name in ("a", "1a", "a-b", "Größe", "")] == [
        "a",
        "_1a",
        "a_b",
        "Gr__e",
        "_",
    ]
    assert adjusted_full_name("my-shop.1st.orders.Value") == "my_shop._1st.orders.Value"


def test_two_columns_that_avro_would_call_the_same_are_refused_by_their_names():
    with pytest.raises(ConfigError, match=r"'a-b' and 'a\.b'"):
        of(("a-b", primitive("int64")), ("a.b", primitive("int64")))
