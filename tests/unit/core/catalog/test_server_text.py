"""Texts in the encodings of servers: cut into characters, and put together from what the server says of each."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdcd.core.catalog.server_text import KNOWN_MAX, ServerTexts, characters

ENCODINGS = ("LATIN1", "EUC_CN", "EUC_JP", "EUC_JIS_2004", "EUC_KR", "EUC_TW")


@given(st.binary(), st.sampled_from(ENCODINGS))
def test_the_characters_of_a_text_are_the_text(text: bytes, encoding: str):
    assert b"".join(characters(text, encoding)) == text


@pytest.mark.parametrize(
    ("encoding", "found"),
    [
        ("LATIN1", [b"a", b"\x8e", b"\xa1", b"\xa2", b"\xa3", b"\x8f", b"\xa4", b"\xa5", b"\xa6", b"b"]),
        ("EUC_CN", [b"a", b"\x8e\xa1", b"\xa2\xa3", b"\x8f\xa4", b"\xa5\xa6", b"b"]),
        ("EUC_JP", [b"a", b"\x8e\xa1", b"\xa2\xa3", b"\x8f\xa4\xa5", b"\xa6b"]),
        ("EUC_KR", [b"a", b"\x8e\xa1", b"\xa2\xa3", b"\x8f\xa4\xa5", b"\xa6b"]),
        ("EUC_TW", [b"a", b"\x8e\xa1\xa2\xa3", b"\x8f\xa4\xa5", b"\xa6b"]),
    ],
)
def test_characters_have_the_sizes_of_wchar_c(encoding: str, found: list[bytes]):
    assert characters(b"a\x8e\xa1\xa2\xa3\x8f\xa4\xa5\xa6b", encoding) == found


def test_each_character_is_asked_for_once_and_a_text_with_one_that_has_no_form_is_none():
    texts = ServerTexts("LATIN2")
    assert texts.unknown([b"abc", b"\xb1\xb1", b"\xe9a\xb1"]) == [b"\xb1", b"\xe9"]
    texts.learn({b"\xb1": "ą".encode()})
    assert texts.unknown([b"\xb1\xe9"]) == [b"\xe9"]
    assert texts.decoded(b"a\xb1b") == "aąb".encode()
    assert texts.decoded(b"a\xe9") is None
    assert texts.decoded(b"abc") == b"abc"


@given(st.binary())
def test_without_a_conversion_a_text_is_utf_8_or_cannot_be_decoded(text: bytes):
    texts = ServerTexts("SQL_ASCII")
    assert texts.unknown([text]) == []
    try:
        text.decode()
    except UnicodeDecodeError:
        assert texts.decoded(text) is None
    else:
        assert texts.decoded(text) == text


def test_what_is_known_is_bounded():
    texts = ServerTexts("EUC_TW")
    invented = [b"\x8e" + number.to_bytes(3, "big") for number in range(KNOWN_MAX)]
    texts.learn(dict.fromkeys(invented, b"x"))
    assert texts.unknown([b"\x8e\x00\xa1\xa1"]) == []
    texts.learn({b"\xa1\xa1": b"y"})
    assert texts.unknown([b"\x8e\x00\xa1\xa1", b"\xa1\xa1"]) == [b"\x8e\x00\xa1\xa1"]
