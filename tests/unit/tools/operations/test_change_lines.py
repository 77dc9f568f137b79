import json
from dataclasses import replace
from typing import Any

import pytest

from cdcd.core.catalog.patterns import parse_pattern
from cdcd.core.errors import ConfigError
from cdcd.tools.operations.change_lines import Filter, ReadRecord, as_json, as_line, table_of
from cdcd.tools.operations.conditions import parse_condition

SOURCE = {"schema": "public", "table": "orders", "ts_ms": 1_767_268_800_123}


def seen(op: str = "c", headers: tuple[tuple[str, bytes], ...] = (), **row: Any) -> ReadRecord:
    value = {"before": None, "after": None, "source": SOURCE, "op": op, **row}
    return ReadRecord("shop.public.orders", b'{"id":5}', json.dumps(value).encode(), headers, 0, 7)


def line(record: ReadRecord) -> str:
    envelope = Filter().wanted(record)
    assert envelope is not None
    return as_line(record, envelope)


@pytest.mark.parametrize(
    ("record", "shown"),
    [
        (
            seen(after={"id": 5, "note": "a b", "price": "1.50"}),
            'INSERT   public.orders id=5 note="a b" price="1.50"',
        ),
        (seen("r", after={"id": 5, "x": None}), "READ     public.orders id=5 x=null"),
        (
            seen("u", before={"id": 5, "n": 1}, after={"id": 5, "n": 2}),
            "UPDATE   public.orders id=5 n=1→2",
        ),
        (
            seen("u", (("cdcd.unchanged", b'["big"]'),), after={"id": 5, "big": "placeholder"}),
            "UPDATE   public.orders id=5 big=(unchanged)",
        ),
        (seen("d", before={"id": 5, "note": None}), "DELETE   public.orders id=5"),
        (seen("t"), "TRUNCATE public.orders"),
        (seen(after={"share": 0.1}), "INSERT   public.orders share=0.1"),
    ],
)
def test_a_change_is_a_line(record, shown):
    assert line(record) == f"2026-01-01 12:00:00.123 {shown}"


def test_a_record_with_its_schema_is_shown_without_it():
    plain = seen("d", before={"id": 5, "note": None})
    schema = b'{"schema":{"type":"struct","fields":[]},"payload":%b}'
    found = replace(plain, key=schema % (plain.key or b""), value=schema % (plain.value or b""))
    assert line(found) == line(plain)
    # The columns of a key may be called so.
    assert "schema=1" in line(
        replace(seen("d", before={"schema": 1, "payload": None}), key=b'{"schema":1,"payload":2}')
    )


def test_a_message_of_the_application_is_a_line_too():
    value = {
        "op": "m",
        "source": {**SOURCE, "schema": "", "table": ""},
        "message": {"prefix": "p", "content": "eA=="},
    }
    record = ReadRecord("shop.message", b"{}", json.dumps(value).encode())
    assert line(record).endswith('MESSAGE  prefix=p content="eA=="')


def test_a_long_value_and_a_control_character_do_not_reach_the_terminal():
    shown = line(seen(after={"a\x1b": "x" * 500, "b": "\x1b[2J"}))
    assert len(shown) < 150
    assert "\x1b" not in shown


def test_as_json_the_record_is_whole_and_says_where_it_lies():
    shown = json.loads(as_json(seen(after={"id": 5})))
    assert (shown["topic"], shown["partition"], shown["offset"]) == ("shop.public.orders", 0, 7)
    assert (shown["key"], shown["value"]["after"]) == ({"id": 5}, {"id": 5})
    assert json.loads(as_json(ReadRecord("t", None, b"{}")))["key"] is None


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        (b"4711", b'{\n  "total": 12.50\n}', '"key": 4711, "value": {   "total": 12.50 }}'),
        (b"order 1", b"Gr\xc3\xbc\xc3\x9fe", '"key": "order 1", "value": "Grüße"}'),
        (b"\xff", b"a\x00\xfe", r'"key": "\\xff", "value": "a\u0000\\xfe"}'),
        (b"k", None, '"key": "k", "value": null}'),
    ],
)
def test_as_json_what_is_no_json_is_a_string_in_one_line(key: bytes, value: bytes | None, shown: str):
    line = as_json(ReadRecord("events", key, value))
    assert line.endswith(shown)
    assert "\n" not in line
    json.loads(line)


def test_a_tombstone_is_not_shown():
    assert Filter().wanted(ReadRecord("t", b"{}", None)) is None


def test_a_watermark_is_not_shown_and_not_told_of():
    for flattened in (None, str):
        shown = Filter(flattened=flattened)
        assert shown.wanted(ReadRecord("t", None, None, (("cdcd.watermark", b"4711"),))) is None
        assert shown.notices == []


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        ("public.orders", True),
        ("public.*", True),
        ("*.order?", True),
        ("other.*", False),
        ("public.ord", False),
    ],
)
def test_tables_are_chosen_by_patterns(pattern, wanted):
    chosen = Filter((parse_pattern(pattern, "--table"),))
    assert (chosen.wanted(seen(after={"id": 1})) is not None) == wanted


@pytest.mark.parametrize(
    ("text", "record", "wanted"),
    [
        ("row.id == 5", seen(after={"id": 5}), True),
        ("row.id == 6", seen(after={"id": 5}), False),
        ("row.n == 2", seen("u", before={"id": 5, "n": 1}, after={"id": 5, "n": 2}), True),
        ("row.id == 5", seen("d", before={"id": 5, "note": None}), True),
        ("row.share == 0.1", seen(after={"share": 0.1}), True),
    ],
)
def test_a_condition_is_judged_on_the_row_after_the_change_or_before_a_delete(text, record, wanted):
    chosen = Filter(condition=parse_condition(text))
    assert (chosen.wanted(record) is not None) == wanted
    assert chosen.notices == []


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (seen("d", before={"id": 5, "note": None}), "NULL, or not part of the replica identity"),
        (seen("u", (("cdcd.unchanged", b'["note"]'),), after={"id": 5, "note": "?"}), "large"),
        (seen(after={"id": 5}), "there is no column note"),
        (seen("t"), "TRUNCATE has no row"),
        (ReadRecord("shop.public.orders", None, b"not json"), "records that are not changes"),
        (ReadRecord("shop.public.orders", None, b'{"op":"c","source":7}'), "records that are not changes"),
    ],
)
def test_what_cannot_be_judged_is_not_left_out_in_silence_and_said_once(record, said):
    chosen = Filter(condition=parse_condition("row.note == null || row.note == 'x'"))
    assert chosen.wanted(record) is None
    assert chosen.wanted(record) is None
    (notice,) = chosen.notices
    assert said in notice


def test_a_condition_that_does_not_fit_a_column_names_the_table():
    chosen = Filter(condition=parse_condition("row.id == 'x'"))
    with pytest.raises(ConfigError, match=r"does not compare int with string, in public\.orders\."):
        chosen.wanted(seen(after={"id": 5}))


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ('{"a": [1, "x"]}', 'v={"a": [1, "x"]}'),
        ("[1, 2]", "v=[1, 2]"),
        ("{not json}", 'v="{not json}"'),
        ("[" * 5000 + "]" * 5000, "v="),
        ("plain", 'v="plain"'),
    ],
)
def test_a_json_column_is_shown_as_json(value, shown):
    record = seen(after={"v": value})
    envelope = Filter().wanted(record)
    assert envelope is not None
    assert shown in as_line(record, envelope)


def test_the_table_of_a_message_is_none():
    assert table_of({"source": {}}) == ""


def flattened(record: ReadRecord, **others: Any) -> str | None:
    shown = Filter(flattened=lambda topic: topic.removeprefix("shop."), **others)
    envelope = shown.wanted(record)
    return None if envelope is None else as_line(record, envelope)


@pytest.mark.parametrize("value", [None, b'{"id":5,"__deleted":"true"}'])
def test_a_flattened_delete_is_shown_as_one(value):
    assert flattened(ReadRecord("shop.public.orders", b'{"id":5}', value)) == "DELETE   public.orders id=5"


def test_a_flattened_row_is_shown_with_what_is_added_to_it():
    value = b'{"id":5,"big":"x","__deleted":"false","__op":"u"}'
    record = ReadRecord("shop.public.orders", b'{"id":5}', value, (("cdcd.unchanged", b'["big"]'),))
    assert flattened(record) == 'ROW      public.orders id=5 big=(unchanged) __op="u"'
    assert flattened(record, condition=parse_condition("row.id == 6")) is None
    assert flattened(record, condition=parse_condition("row.id == 5")) is not None
    assert flattened(record, tables=(parse_pattern("public.other", "t"),)) is None
    with_schema = b'{"schema":{"type":"struct"},"payload":{"id":5}}'
    assert flattened(ReadRecord("shop.public.orders", None, with_schema)) == "ROW      public.orders id=5"


def test_among_flattened_records_an_envelope_is_shown_as_one_and_what_is_no_object_is_left_out():
    assert (flattened(seen("c", after={"id": 5})) or "").endswith("INSERT   public.orders id=5")
    for data in (b"[]", b"x", None):
        assert flattened(ReadRecord("shop.public.orders", None, data)) is None
