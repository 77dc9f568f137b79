"""Texts in the encodings of servers: cut into characters, and put together from what the server says of each."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdcd.core.catalog.relations import CatalogColumn, TableDescription, TypeDescription
from cdcd.core.catalog.server_text import KNOWN_MAX, MARK, ServerTexts, characters, require_decoded
from cdcd.core.errors import UndecodableNameError
from cdcd.core.protocol.messages import Column, Relation

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


@pytest.mark.parametrize(
    ("encoding", "text", "name"),
    [
        ("SQL_ASCII", b"b", "b"),
        ("SQL_ASCII", "é".encode(), "é"),
        ("SQL_ASCII", b"\xe9a\xc3\xa9", f"{MARK}e9aé"),
        ("EUC_KR", b"\xb0\xa1", "가"),
        # The form does not depend on which characters are known.
        ("EUC_KR", b"\xb0\xa1a\xc9\xa1", f"{MARK}b0a1a{MARK}c9a1"),
        ("MULE_INTERNAL", b"a\x92", f"a{MARK}92"),
    ],
)
def test_undecodable_bytes_of_a_name_are_digits_behind_a_mark(encoding: str, text: bytes, name: str):
    texts = ServerTexts(encoding)
    texts.learn({b"\xb0\xa1": "가".encode()})
    assert texts.named(text) == name


@given(st.binary(), st.binary())
def test_different_bytes_are_different_names(one: bytes, other: bytes):
    texts = ServerTexts("SQL_ASCII")
    if MARK.encode() not in one + other and one != other:
        assert texts.named(one) != texts.named(other)


ODD = f"b{MARK}e9"
PLAIN = Relation(None, 7, "public", "t", "d", (Column(1, "id", 23, -1), Column(0, "m", 99, -1)))
TABLE = TableDescription(
    columns=(CatalogColumn("id", 1, "int4", 23, 0, None), CatalogColumn("m", 3, "mood", 99, 0, None))
)
MOOD = TypeDescription(99, "public", "mood", "e", "E", 0, 0, -1, labels=((5, "fine"),))


@pytest.mark.parametrize(
    ("relation", "table", "kind", "what", "mend"),
    [
        (replace(PLAIN, name=ODD), TABLE, MOOD, "The name", "RENAME TO new_name', 7::regclass"),
        (replace(PLAIN, namespace=ODD), TABLE, MOOD, "The schema", "ALTER SCHEMA"),
        (
            replace(PLAIN, columns=(PLAIN.columns[0], Column(0, ODD, 99, -1))),
            replace(TABLE, columns=(TABLE.columns[0], replace(TABLE.columns[1], name=ODD))),
            MOOD,
            "A column",
            "attrelid = 7 AND attnum = 3",
        ),
        (
            PLAIN,
            replace(TABLE, columns=(replace(TABLE.columns[0], missing=ODD),)),
            MOOD,
            "The default of a column",
            "VACUUM FULL",
        ),
        (PLAIN, TABLE, replace(MOOD, name=ODD), "A type", "99::regtype"),
        (PLAIN, TABLE, replace(MOOD, namespace=ODD), "The schema of a type", "t.oid = 99"),
        (PLAIN, TABLE, replace(MOOD, labels=((5, ODD),)), "A label of an enum", "pg_enum WHERE oid = 5"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_table_with_an_undecodable_name_is_refused_with_the_command_that_renames_it(
    relation: Relation, table: TableDescription, kind: TypeDescription, what: str, mend: str
):
    with pytest.raises(UndecodableNameError) as refused:
        require_decoded(relation, table, {99: kind})
    assert refused.value.message.startswith(what)
    assert mend in refused.value.hint
    assert "\\gexec" in refused.value.hint


def test_names_that_can_be_decoded_and_names_of_arrays_are_no_reason_to_refuse():
    array = TypeDescription(98, "public", f"_{ODD}", "b", "A", 99, 0, -1)
    relation = replace(PLAIN, columns=(PLAIN.columns[0], Column(0, "m", 98, -1)))
    require_decoded(PLAIN, TABLE, {99: MOOD})
    require_decoded(relation, TABLE, {98: array, 99: MOOD})
