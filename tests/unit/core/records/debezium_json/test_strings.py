import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdcd.core.catalog.wiretext import to_bytes, wire
from cdcd.core.records.debezium_json.strings import SHORT, quote

texts = st.text(st.characters(exclude_categories=["Cs"]))
long_texts = st.builds(
    lambda text, filler: text + filler * (SHORT // len(filler) + 1), texts, texts.filter(len)
)


@given(texts | long_texts)
def test_a_quoted_text_is_json_for_the_same_text_and_stays_utf8(text):
    quoted = to_bytes(quote(wire(text)))
    assert json.loads(quoted) == text


@given(texts)
def test_wire_text_has_one_character_for_each_byte(text):
    assert len(wire(text)) == len(text.encode())
    assert to_bytes(wire(text)) == text.encode()


@pytest.mark.parametrize("size", [1, SHORT + 1])
def test_only_what_json_forbids_is_escaped(size):
    for code in range(256):
        character = chr(code)
        escaped = quote(character * size) != f'"{character * size}"'
        assert escaped == (code < 0x20 or character in '"\\')


def test_control_characters_have_their_short_escapes():
    assert quote('\b\f\n\r\t\x01"\\/\x7f') == '"\\b\\f\\n\\r\\t\\u0001\\"\\\\/\x7f"'


@pytest.mark.parametrize("data", [b"\xff", b"\xc3", b"\xed\xa0\x80", b"abc\x80"])
def test_bytes_that_are_not_utf8_are_refused(data):
    with pytest.raises(UnicodeDecodeError):
        to_bytes(data.decode("latin-1"))
