import json
import re
from datetime import datetime
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdcd.adapters.recording.redacted_values import Permutation, RedactedValues
from cdcd.core.catalog.relations import TypeDescription
from cdcd.core.catalog.types import BUILTIN_TYPES

BY_NAME = {each.name: oid for oid, each in BUILTIN_TYPES.items()}
KEY = b"a key of some bytes"


def values() -> RedactedValues:
    return RedactedValues(Permutation(KEY))


@pytest.mark.parametrize(
    ("name", "text", "form"),
    [
        ("int4", "1234567890", r"[12]\d{9}"),
        ("int4", "-42", r"-[1-9]\d"),
        ("int2", "32767", r"[123]\d{4}"),
        ("int8", "9223372036854775807", r"[1-9]\d{18}"),
        ("numeric", "120.50", r"[1-9]\d\d\.\d\d"),
        ("numeric", "NaN", "NaN"),
        ("float8", "1.5e+300", r"\d\.\de\+300"),
        ("float8", "-Infinity", "-Infinity"),
        ("text", "Otto Müller, 42", r"[A-Z][a-z]{3} [A-Z][À-ÿ][a-z]{4}, [1-9]\d"),
        ("uuid", "0b5e8a3c-9e1f-4c8e-8a54-0123456789ab", r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"),
        ("bytea", r"\xdeadbeef", r"\\x[0-9a-f]{8}"),
        (
            "inet",
            "192.168.1.77/24",
            r"1\d\d\.1\d\d\.\d\.\d\d/24|2\d\d\.\d+\.\d\.\d\d/24|\d+\.\d+\.\d\.\d\d/24",
        ),
        ("bit", "10110011100011110000", "[01]{20}"),
        (
            "jsonb",
            '{"a": [1, "x\\n\\u00e9", null, true, -1.5e10]}',
            r'\{"[a-z]": \[\d, ".*", null, true, -\d\.\de10\]\}',
        ),
        ("_text", '{a,NULL,"b,\\"c\\\\",""}', r'\{[a-z],NULL,"[a-z],\\"[a-z]\\\\",""\}'),
        ("_int4", "{12345,NULL}", r"\{[1-9]\d{4},NULL\}"),
        ("int4range", "[1000,2000)", r"\[\d{4},\d{4}\)"),
        ("int4range", "empty", "empty"),
        ("int4multirange", "{[1000,2000),[3000,)}", r"\{\[\d{4},\d{4}\),\[\d{4},\)\}"),
        (
            "interval",
            "1 year 2 mons 3 days 04:05:06.789",
            r"\d year \d mons \d days \d\d:[0-5]\d:[0-5]\d\.\d{3}",
        ),
        ("money", "$1,234.56", r"\$[1-9],\d{3}\.\d\d"),
    ],
)
def test_a_value_becomes_one_of_its_type_and_length(name: str, text: str, form: str):
    found = values().text(BY_NAME[name], text)
    assert re.fullmatch(form, found), found
    assert len(found.encode()) == len(text.encode())


@given(st.datetimes(), st.booleans())
def test_a_time_becomes_another_valid_one(when: datetime, with_zone: bool):
    text = when.isoformat(" ") + ("+00" if with_zone else "")
    found = values().text(BY_NAME["timestamptz" if with_zone else "timestamp"], text)
    assert len(found) == len(text)
    datetime.fromisoformat(found)


def test_a_date_far_away_stays_one():
    for text in ("0044-03-15 BC", "294276-12-31", "infinity"):
        found = values().text(BY_NAME["date"], text)
        assert len(found) == len(text)
        assert found == text or re.fullmatch(r"[12]?\d?\d{4}-(0[1-9]|1[0-2])-([01]\d|2[0-8])( BC)?", found)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_json_stays_json(value):
    found = values().text(BY_NAME["json"], json.dumps(value))
    json.loads(found)


def test_keys_stay_apart_and_the_same_value_becomes_the_same():
    redacted = values()
    for oid, texts in (
        (BY_NAME["int4"], [str(number) for number in range(-120, 2000)]),
        (BY_NAME["text"], [f"k{number:04}" for number in range(2000)]),
        (BY_NAME["uuid"], [f"{number:032x}" for number in range(500)]),
        (BY_NAME["date"], [f"20{year:02}-{month:02}-11" for year in range(90) for month in range(1, 13)]),
    ):
        images = [redacted.text(oid, text) for text in texts]
        assert len(set(images)) == len(texts)
        assert images == [values().text(oid, text) for text in texts]


def test_a_composite_is_redacted_by_the_types_of_its_fields():
    redacted = values()
    parts = (BY_NAME["int4"], BY_NAME["date"], BY_NAME["text"])
    redacted.types[90001] = TypeDescription(90001, "public", "pair", "c", "C", 0, 0, -1, parts=parts)
    redacted.types[90002] = TypeDescription(90002, "public", "_pair", "b", "A", 90001, 0, -1)
    found = redacted.text(90001, '(12345,2020-02-29,"a ""b"" c")')
    assert re.fullmatch(r'\(\d{5},[123]\d{3}-\d\d-\d\d,"[a-z] ""[a-z]"" [a-z]"\)', found), found
    assert redacted.text(90001, "(,,)") == "(,,)"
    array = redacted.text(90002, '{"(12345,2020-02-29,\\"a b\\")",NULL}')
    assert re.fullmatch(r'\{"\(\d{5},[123]\d{3}-\d\d-\d\d,\\"[a-z] [a-z]\\"\)",NULL\}', array), array


def test_another_key_gives_other_values():
    text = "a text that is long enough"
    other = RedactedValues(Permutation(b"another key")).text(25, text)
    assert len({text, other, values().text(25, text)}) == 3


def test_none_of_many_planted_values_is_left():
    rng, redacted = Random(7), values()
    for _ in range(2000):
        word = "".join(rng.choices("abcdefghijklmnopqrstuvwxyz0123456789", k=24))
        for oid, text in (
            (25, word),
            (114, json.dumps({word: [word]})),
            (1009, f'{{{word},"{word}"}}'),
            (3802, f'"{word}"'),
        ):
            assert word not in redacted.text(oid, text)
