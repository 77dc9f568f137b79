import json

import pytest

from cdcd.core.snapshot.signals import CONTENT_MAX, NAME_MAX, TABLES_MAX, WHERE_MAX, Signal


def test_a_request_is_read_back_as_it_was_written():
    signal = Signal("start", ("public.a", "b.c"), "id > 5", "me", "shop")
    assert Signal.decode(signal.encode().encode()) == signal
    assert Signal.decode(b'{"action": "pause"}') == Signal("pause")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"\xff", "not JSON"),
        (b"{", "not JSON"),
        (b"[]", "not a JSON object"),
        (b"[" * 100_000, "not JSON"),
        (b"[" + b"{}," * CONTENT_MAX, "bytes, and 1048576 are allowed"),
        (b"{}", "action must be one of start, pause, resume, cancel"),
        (b'{"action": "stop"}', "action must be"),
        (b'{"action": ["start"]}', "action must be"),
        (b'{"action": "start"}', "start needs tables"),
        (b'{"action": "start", "tables": "public.a"}', "tables must be a list"),
        (b'{"action": "start", "tables": ["a"]}', "tables must be a list"),
        (b'{"action": "start", "tables": [5]}', "tables must be a list"),
        (b'{"action": "pause", "where": "x"}', "pause takes no where"),
        (b'{"action": "pause", "id": 5}', "id must be a text"),
        (b'{"action": "pause", "table": "a.b"}', "unknown keys: table"),
        (json.dumps({"action": "start", "tables": ["a.b"], "where": "x" * 20_000}).encode(), "where must be"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_reason(content: bytes, says: str):
    with pytest.raises(ValueError, match=says):
        Signal.decode(content)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"tables": ["a.b"] * (TABLES_MAX + 1)}, "at most 1000 names"),
        ({"tables": ["a." + "x" * NAME_MAX]}, "tables must be a list"),
        ({"tables": ["a.b\0"]}, "tables must be a list"),
        ({"tables": ["a.\ud800"]}, "tables must be a list"),
        ({"tables": ["a.b"], "where": "x" * (WHERE_MAX + 1)}, "where must be a text of at most 4000"),
        ({"tables": ["a.b"], "where": "a = '\0'"}, "without NUL"),
        ({"tables": ["a.b"], "where": "\udfff"}, "where must be"),
        ({"tables": ["a.b"], "id": "x" * (NAME_MAX + 1)}, "id must be a text of at most 200"),
        ({"tables": ["a.b"], "pipeline": "x" * (NAME_MAX + 1)}, "pipeline must be"),
    ],
)
def test_what_is_too_long_or_no_text_for_postgresql_is_refused(fields: dict[str, object], says: str):
    content = json.dumps({"action": "start", **fields}).encode()
    with pytest.raises(ValueError, match=says):
        Signal.decode(content)


def test_what_is_just_short_enough_is_taken():
    signal = Signal("start", ("a." + "b" * (NAME_MAX - 2),) * TABLES_MAX, "x" * WHERE_MAX, "i" * NAME_MAX)
    assert Signal.decode(signal.encode().encode()) == signal
