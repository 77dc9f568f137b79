import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdcd.core.catalog.wiretext import to_bytes, wire
from cdcd.core.records.debezium_json.literals import (
    array_json,
    array_token,
    flat_array_json,
    hstore_json,
    unescape,
)
from cdcd.core.records.debezium_json.strings import quote

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)

COMMA = array_token(",")


def literal(value: Any, delimiter: str = ",") -> str:
    """As array_out writes it (arrayfuncs.c)."""
    if isinstance(value, list):
        return f"{{{delimiter.join(literal(item, delimiter) for item in value)}}}"
    if value is None:
        return "NULL"
    if value and value.upper() != "NULL" and not re.search(rf'["\\{{}}\s{re.escape(delimiter)}]', value):
        return str(value)
    return '"' + re.sub(r'(["\\])', r"\\\1", value) + '"'


values = texts | st.none()
arrays = st.lists(values) | st.integers(1, 3).flatmap(
    lambda width: st.lists(st.lists(values, min_size=width, max_size=width), min_size=1)
)


@given(arrays, st.sampled_from(",;:"))
def test_an_array_literal_becomes_the_array(array, delimiter):
    made = array_json(wire(literal(array, delimiter)), array_token(delimiter), quote)
    assert json.loads(to_bytes(made)) == array


@given(
    st.lists(st.integers() | st.none())
    | st.lists(st.lists(st.integers(), min_size=2, max_size=2), min_size=1)
)
def test_an_array_of_integers_takes_a_short_way_to_the_same(array):
    text = str(array).replace("[", "{").replace("]", "}").replace("None", "NULL").replace(" ", "")
    assert json.loads(flat_array_json(text)) == array
    assert json.loads(array_json(text, COMMA, str)) == array


@pytest.mark.parametrize("convert", [flat_array_json, lambda text: array_json(text, COMMA, str)])
def test_lower_bounds_are_dropped(convert):
    assert convert("[0:1]={7,8}") == "[7,8]"
    assert convert("[-1:0][2:3]={{1,2},{3,4}}") == "[[1,2],[3,4]]"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "{",
        "}",
        "{1",
        "1}",
        "{1}}",
        "{{1}",
        "{,1}",
        "{1,}",
        "{1,,2}",
        '{"a}',
        "{1}{2}",
        "{1}x",
        '{a"b"}',
        "{{}1}",
    ],
)
def test_a_malformed_array_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        array_json(text, COMMA, quote)


@pytest.mark.parametrize("text", ["", "1", "{1", '{"1"}', "[0:1]{1}"])
def test_a_malformed_array_of_integers_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        flat_array_json(text)


@given(st.dictionaries(texts, texts | st.none()))
def test_an_hstore_becomes_the_object(pairs):
    def quoted(text: str) -> str:
        return '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'

    text = ", ".join(
        f"{quoted(key)}=>{'NULL' if item is None else quoted(item)}" for key, item in pairs.items()
    )
    assert json.loads(to_bytes(hstore_json(wire(text)))) == pairs


@pytest.mark.parametrize("text", ["a=>1", '"a"=>', '"a"=>"b",', '"a"=>"b" "c"=>"d"', '"a"=>null'])
def test_a_malformed_hstore_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        hstore_json(text)


def test_a_backslash_protects_what_follows_also_itself():
    assert unescape(r"a\"b\\c") == r'a"b\c'
