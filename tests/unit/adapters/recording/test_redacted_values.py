import json
import re
from datetime import datetime
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdcd.adapters.recording.events import Frames
from cdcd.adapters.recording.redacted_values import ColumnModes, Permutation, RedactedValues, parse_mode
from cdcd.adapters.recording.redaction import Redaction
from cdcd.core.catalog.relations import TypeDescription
from cdcd.core.catalog.types import BUILTIN_TYPES
from cdcd.core.errors import ConfigError
from cdcd.core.protocol.frames import XLogData, write_frame
from cdcd.core.protocol.messages import UNCHANGED, Binary, Column, Delete, Insert, Message, Relation, Update
from cdcd.core.protocol.reader import read_message
from cdcd.core.protocol.writer import write_message

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


REDACTION_KEY = b"0123456789abcdef"
COLUMNS = (("id", 20), ("mail", 25), ("note", 1043), ("total", 1700))
RELATION = Relation(
    None, 7, "public", "t", "d", tuple([Column(name == "id", name, oid, -1) for name, oid in COLUMNS])
)
ROW = (b"1000", b"me@example.com", b"plain text", b"12.50")


def modes(*texts: str) -> ColumnModes:
    return ColumnModes([parse_mode(each) for each in texts])


def redacted(found: ColumnModes, *messages: Message) -> list[Message]:
    """What becomes of messages behind the table's description."""
    redaction = Redaction(REDACTION_KEY, found)
    frames = [write_frame(XLogData(1, 1, 0, write_message(each))) for each in (RELATION, *messages)]
    event = redaction.event(Frames(0.0, frames))
    assert isinstance(event, Frames)
    return [read_message(frame, 25) for frame in event.frames[1:]]


def row(found: ColumnModes) -> tuple[object, ...]:
    (insert,) = redacted(found, Insert(None, 7, ROW))
    assert isinstance(insert, Insert)
    return insert.new


def test_each_column_has_the_mode_of_the_last_option_that_matches() -> None:
    found = row(modes("public.t=null", "*.*.id=replace", "public.t.note=hash", "public.*.total=keep"))
    assert found[0] not in {ROW[0], None}
    assert found[1] is None
    assert isinstance(found[2], bytes)
    assert len(found[2]) == 32
    assert found[3] == ROW[3]


def test_without_options_every_value_is_replaced_by_one_of_its_length() -> None:
    found = row(modes())
    assert not set(found) & set(ROW)
    assert [len(each) for each in found if isinstance(each, bytes)] == [len(each) for each in ROW]


def test_equal_values_have_equal_hashes_in_one_copy_and_others_in_another() -> None:
    found = modes("public.t.mail=hash", "public.t.note=hash")
    same = Insert(None, 7, (b"1", b"one", b"one", b"2"))
    (insert,) = redacted(found, same)
    assert isinstance(insert, Insert)
    assert (
        insert.new[1] == insert.new[2] != Redaction(b"another key of 16", found)._by_mode(25, b"one", "hash")
    )


def test_former_rows_and_values_that_were_not_sent_follow_the_mode() -> None:
    found = modes("public.t.mail=null", "public.t.total=keep")
    update, delete = redacted(
        found,
        Update(None, 7, "O", ROW, (b"1000", UNCHANGED, b"x", Binary(b"\0\1\0\0\0\0\0\0\0\7"))),
        Delete(None, 7, "O", ROW),
    )
    assert isinstance(update, Update)
    assert isinstance(delete, Delete)
    assert update.old is not None
    assert update.old[1] is delete.old[1] is None
    assert update.old[3] == delete.old[3] == b"12.50"
    assert update.new[1] is UNCHANGED
    assert update.new[3] == b"7"
    assert update.old[0] == delete.old[0] == update.new[0]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("public.t.id=null", "public.t.id is part of a key"),
        ("public.t=null", "public.t.id is part of a key"),
        ("public.t.total=hash", "public.t.total is not text"),
    ],
)
def test_a_mode_that_does_not_fit_its_column_is_refused(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        modes(text).of(RELATION, BUILTIN_TYPES)


def test_a_domain_over_text_has_hashes() -> None:
    domain = TypeDescription(90001, "public", "mail", "d", "S", 0, 25, -1)
    relation = Relation(None, 7, "public", "t", "f", (Column(1, "mail", 90001, -1),))
    assert modes("public.t.mail=hash").of(relation, {90001: domain, **BUILTIN_TYPES}) == ("hash",)
    # Under REPLICA IDENTITY FULL, each column is flagged.
    assert modes("public.t.mail=null").of(relation, {90001: domain, **BUILTIN_TYPES}) == ("null",)


@pytest.mark.parametrize(
    "text", ["public.t.mail", "public.t.mail=", "public.t.mail=sha", "=null", "t=null", "a.b.c.d=keep"]
)
def test_an_option_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--column"):
        parse_mode(text)


def test_quoted_names_are_patterns_as_everywhere() -> None:
    rule = parse_mode('public."odd.name"."a=b"=keep')
    assert rule.pattern.matches("public", "odd.name", "a=b")
    assert parse_mode('public."odd.name"=keep').pattern.matches("public", "odd.name", "any")
