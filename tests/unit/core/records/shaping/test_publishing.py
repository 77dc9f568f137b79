"""From the content of a logical message to a record, and why there is none."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdcd.core.records.shaping.publishing import read_event

TOPICS = frozenset({"orders.events"})


def content(**fields: object) -> bytes:
    return json.dumps({"topic": "orders.events", "key": "k", "payload": "p", **fields}).encode()


def test_a_payload_keeps_its_bytes():
    raw = '{"topic": "orders.events", "key": "4711", "payload": {"total": 12.50, "n": 1e400, "a":[ 1,2 ]}}'
    assert read_event(raw.encode(), TOPICS) == (
        "orders.events",
        b"4711",
        b'{"total": 12.50, "n": 1e400, "a":[ 1,2 ]}',
        None,
    )


def test_a_text_is_the_text_and_headers_are_texts():
    given = content(payload="Grüße\n", headers={"type": "OrderPlaced", "id": "é"}, key="schlüssel")
    assert read_event(given, TOPICS) == (
        "orders.events",
        "schlüssel".encode(),
        "Grüße\n".encode(),
        [("type", b"OrderPlaced"), ("id", "é".encode())],
    )


def test_null_is_a_tombstone():
    assert read_event(content(payload=None, headers=None), TOPICS)[2] is None


def test_a_number_of_many_digits_is_a_payload_like_any_other():
    digits = "9" * 10_000
    raw = f'{{"topic":"orders.events","key":"k","payload":{digits}}}'
    assert read_event(raw.encode(), TOPICS)[2] == digits.encode()


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        (b"", "not a JSON object"),
        (b"[]", "not a JSON object"),
        (b"{}", "topic is missing"),
        (b"{", "a name is missing"),
        (b'{"topic"', "a colon is missing"),
        (b'{"topic": "a" "key"', "a comma is missing"),
        (b'{"topic": NaN}', "NaN is not JSON"),
        (b'{"topic": }', "Expecting value"),
        (b"\xff", "can't decode"),
        (b'{"a":' + b"[" * 100_000, "nested too deeply"),
        (content() + b"x", "something follows"),
        (content(topic="shop.public.orders"), "does not have the topic shop.public.orders"),
        (content(topic="\ud800"), r"does not have the topic \ud800"),
        (content(topic=7), "topic must be a text"),
        (content(key=None), "key must be a text"),
        (content(key=""), "key must not be empty"),
        (content(key="\ud800"), "surrogates not allowed"),
        (content(payload="\ud800"), "surrogates not allowed"),
        (content(headers={"\ud800": "a"}), "surrogates not allowed"),
        (content(headers=[]), "headers must be an object"),
        (content(headers={"a": 1}), "the header a must be a text"),
        (content(headers={"cdcd.partition": "abcd"}), "the header cdcd.partition is cdcd's own"),
        (content(headers={str(number): "" for number in range(101)}), "at most 100"),
        (content(partition=1), "unknown field partition"),
        (b'{"key": "a", "key": "b"}', "the field key twice"),
        (b'{"topic": "orders.events", "key": "k"}', "payload is missing"),
    ],
)
def test_what_is_wrong_is_said(sent: bytes, says: str):
    with pytest.raises(ValueError, match=re.escape(says)) as caught:
        read_event(sent, TOPICS)
    str(caught.value).encode()


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=10,
    ),
    st.sampled_from([None, 1]),
)
def test_any_json_is_a_payload(payload: object, indent: int | None):
    given = {"topic": "orders.events", "key": "k", "payload": payload}
    _, _, value, _ = read_event(json.dumps(given, indent=indent).encode(), TOPICS)
    if isinstance(payload, str):
        assert value == payload.encode()
    else:
        assert value is None if payload is None else json.loads(value or b"") == payload


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_bytes_give_a_record_or_a_reason(sent: bytes):
    try:
        read_event(sent, TOPICS)
    except ValueError:
        return
    raise AssertionError(f"{sent!r} was published")
