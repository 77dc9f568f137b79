"""Large values have the same JSON as if they were converted as a whole."""

from base64 import b64encode
from random import Random

import pytest
from librt.strings import BytesWriter

from cdcd.formats.debezium_json.converters import Bytea
from cdcd.formats.debezium_json.pieces import PIECE_BYTES
from cdcd.formats.debezium_json.strings import escaped
from cdcd.formats.debezium_json.writing import write_string
from cdcd.rows import wiretext
from cdcd.rows.wiretext import checked

SIZES = [PIECE_BYTES - 3, PIECE_BYTES // 2 - 2, PIECE_BYTES, PIECE_BYTES + 1, 2 * PIECE_BYTES + 5]


@pytest.mark.parametrize("size", SIZES)
def test_bytea_is_base64_without_padding_in_between(size):
    data = Random(size).randbytes(size)
    text = b"\\x" + data.hex().encode()
    json = b'"' + b64encode(data) + b'"'
    assert Bytea().wire(text) == json
    out = BytesWriter()
    Bytea().write(b"before" + text, 6, 6 + len(text), out)
    assert out.getvalue() == json
    out = BytesWriter()
    Bytea().write_binary(data, 0, len(data), out)
    assert out.getvalue() == json


@pytest.mark.parametrize(
    "text", [b"ff" * PIECE_BYTES, b"\\xfg" * PIECE_BYTES, b"\\x" + b"0" * (2 * PIECE_BYTES + 1)]
)
def test_a_large_bytea_that_is_no_hexadecimal_text_is_refused(text):
    with pytest.raises(ValueError, match=r"bytea|hex|digit|length"):
        Bytea().wire(text)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("piece", [b"a", b'a"b\n', "äöü€𝄞".encode()])
def test_a_large_text_is_escaped_as_a_small_one(size, piece):
    text = (piece * size)[:size]
    small = b"".join(escaped(text[at : at + 1000]) for at in range(0, size, 1000))
    assert escaped(text) == small
    out = BytesWriter()
    write_string(text, 0, len(text), out)
    assert out.getvalue() == b'"' + small + b'"'


def test_a_large_text_that_needs_no_escapes_is_not_copied():
    text = b"a" * (3 * PIECE_BYTES)
    assert escaped(text) is text


@pytest.mark.parametrize("cut", [0, 1, 2, 3])
def test_a_large_text_is_checked_also_where_a_piece_ends_within_a_character(cut):
    good = b"a" * (wiretext.PIECE_BYTES - cut) + "𝄞".encode() * 10
    assert checked(good) is good
    for bad in (good[:-1], good + b"\xff", b"\xff" + good):
        with pytest.raises(UnicodeDecodeError):
            checked(bad)


@pytest.mark.parametrize("size", SIZES)
def test_bytea_of_copy_has_the_same_base64(size):
    data = Random(size).randbytes(size)
    assert Bytea().wire_of_copy(b"\\\\x" + data.hex().encode()) == b'"' + b64encode(data) + b'"'
