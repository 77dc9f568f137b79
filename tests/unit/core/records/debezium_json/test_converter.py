import json

import pytest

from cdcd.core.records.debezium_json.converter import Converter, Number, Opaque, Text, base64_json, float_json


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("1", "1.0"),
        ("-0", "-0.0"),
        ("1.5", "1.5"),
        ("1e+20", "1e+20"),
        ("1.5e-07", "1.5e-07"),
        ("NaN", '"NaN"'),
        ("Infinity", '"Infinity"'),
        ("-Infinity", '"-Infinity"'),
    ],
)
def test_a_float_is_a_json_number_that_is_seen_to_be_one_or_a_string(text, made):
    assert float_json(text) == made
    json.loads(made)


@pytest.mark.parametrize("text", ["", "nan", "inf", "1.", "x", "1 "])
def test_what_is_no_float_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        float_json(text)


def test_bytes_are_base64_in_a_string():
    assert base64_json(b"") == '""'
    assert json.loads(base64_json(bytes(600))) == "A" * 800
    assert base64_json(b"\xff\xfe") == '"//4="'


def test_the_ground_rules_for_what_was_not_sent():
    for converter in (Converter(), Text(), Opaque(), Number()):
        assert converter.unchanged('a"b') == '"a\\"b"'
    assert Converter().unchanged_element("ab") == ['"ab"']
    assert Number().unchanged_element("ab") == ["97", "98"]


def test_a_type_without_a_reader_says_so():
    with pytest.raises(ValueError, match="no reader"):
        Opaque().binary(b"x")
