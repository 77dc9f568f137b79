import json

import pytest

from cdcd.core.catalog.logical import extension_type
from cdcd.core.catalog.relations import TypeDescription
from cdcd.core.catalog.types import EXTENSIONS
from cdcd.core.records.debezium_json.converters import converter_for, converter_of


def made(name: str, text: str) -> object:
    return json.loads(converter_of(extension_type(name)).json(text))


def test_they_are_found_by_name_in_any_schema_also_in_arrays():
    types = {
        70_000: TypeDescription(70_000, "extra", "hstore", "b", "U", 0, 0, -1),
        70_001: TypeDescription(70_001, "extra", "_geometry", "b", "A", 70_002, 0, -1, ":"),
        70_002: TypeDescription(70_002, "postgis", "geometry", "b", "U", 0, 0, -1, ":"),
    }
    assert converter_for(70_000, -1, types).json('"a"=>"1"') == r'"{\"a\":\"1\"}"'
    point = "0101000000000000000000F03F000000000000F03F"
    made = json.loads(converter_for(70_001, -1, types).json(f"{{{point}:NULL}}"))
    assert made == [{"wkb": "AQEAAAAAAAAAAADwPwAAAAAAAPA/", "srid": None}, None]


def test_an_hstore_is_an_object_in_a_string():
    assert made("hstore", '"key"=>"v\\"al", "none"=>NULL') == '{"key":"v\\"al","none":null}'
    assert json.loads(converter_of(extension_type("hstore")).unchanged("x")) == '{"x":"x"}'


@pytest.mark.parametrize("name", ["vector", "halfvec"])
def test_a_vector_is_an_array_of_numbers(name):
    assert made(name, "[1,2.5,-3e-05]") == [1.0, 2.5, -3e-05]
    assert json.loads(converter_of(extension_type(name)).unchanged("AB")) == [65.0, 66.0]


def test_a_sparse_vector_has_its_dimensions_and_pairs():
    assert made("sparsevec", "{1:1.5,3:2}/5") == {"dimensions": 5, "vector": [[1, 1.5], [3, 2.0]]}
    assert made("sparsevec", "{}/5") == {"dimensions": 5, "vector": []}


@pytest.mark.parametrize(
    ("ewkb", "srid"),
    [
        ("0101000000000000000000F03F000000000000F03F", None),
        ("0101000020730C00001C7C613255DE6540787AA52C435C42C0", 3187),
        ("00200000010000 10E63FF00000000000003FF0000000000000".replace(" ", ""), 4326),
    ],
)
def test_a_geometry_is_its_bytes_and_srid_in_either_byte_order(ewkb, srid):
    value = made("geometry", ewkb)
    assert isinstance(value, dict)
    assert value["srid"] == srid
    assert made("geography", ewkb) == value


@pytest.mark.parametrize(
    ("name", "text"), [("vector", "1,2"), ("vector", "[a]"), ("sparsevec", "{1:1}"), ("geometry", "xyz")]
)
def test_a_text_that_is_not_of_the_types_form_is_refused(name, text):
    with pytest.raises(ValueError, match=r"."):
        made(name, text)


@pytest.mark.parametrize("name", [name for name in EXTENSIONS if EXTENSIONS[name].read is None])
def test_their_binary_form_is_not_known(name):
    assert not extension_type(name).reads_binary
    with pytest.raises(ValueError, match="no reader"):
        converter_of(extension_type(name)).binary(b"")
