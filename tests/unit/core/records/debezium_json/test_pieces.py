"""Large values have the same JSON as if they were converted as a whole."""

from base64 import b64encode
from random import Random

import pytest
from librt.strings import BytesWriter

from cdcd.core.catalog import wiretext
from cdcd.core.catalog.wiretext import checked
from cdcd.core.records.avro.converters import RawBytes
from cdcd.core.records.avro.form import AvroForm
from cdcd.core.records.debezium_json.arrays import Array
from cdcd.core.records.debezium_json.converter import Text
from cdcd.core.records.debezium_json.converters import Bytea
from cdcd.core.records.debezium_json.pieces import PIECE_BYTES, checked_parts, part_of
from cdcd.core.records.debezium_json.strings import escaped, has_escaped
from cdcd.core.records.debezium_json.writing import write_string

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


@pytest.mark.parametrize("size", SIZES)
def test_bytea_in_binary_form_has_the_same_base64(size):
    data = Random(size).randbytes(size)
    assert Bytea().wire_of_binary(data) == b'"' + b64encode(data) + b'"'


@pytest.mark.parametrize("size", SIZES)
def test_bytea_has_the_same_bytes_in_a_binary_format(size):
    data = Random(size).randbytes(size)
    text, binary = BytesWriter(), BytesWriter()
    converter = RawBytes(AvroForm())
    converter.write(b"before\\x" + data.hex().encode(), 6, 8 + 2 * size, text)
    converter.write_binary(data, 0, size, binary)
    assert text.getvalue() == binary.getvalue()


@pytest.mark.parametrize("byte", [b'"', b"\\", b"\n", b"\x00", b"\x1f"])
@pytest.mark.parametrize("at", [0, PIECE_BYTES - 1, PIECE_BYTES, 2 * PIECE_BYTES])
def test_a_byte_that_needs_an_escape_is_found_wherever_it_is(byte, at):
    clean = "ä ~".encode() * PIECE_BYTES
    assert not has_escaped(clean)
    assert has_escaped(clean[:at] + byte + clean[at:])


LARGE_PLAIN = b"a;b" * (PIECE_BYTES // 2)
LARGE_QUOTED = b'"x, \\"y\\" \\\\ {z}\n' + b"q" * (2 * PIECE_BYTES) + b'"'


@pytest.mark.parametrize(
    "literal",
    [
        b"{%b}" % LARGE_PLAIN,
        b"{NULL,small,%b}" % LARGE_PLAIN,
        b"{%b,%b}" % (LARGE_QUOTED, LARGE_QUOTED),
        b'[0:1]={%b,"NULL"}' % LARGE_QUOTED,
        b"{{%b,b},{c,%b}}" % (LARGE_PLAIN, LARGE_QUOTED),
        b"{%b}" % b",".join([b"a"] * PIECE_BYTES),
    ],
)
def test_an_array_with_large_elements_is_the_array_that_is_read_as_a_whole(literal):
    array = Array(Text(), ",")
    assert array.wire(literal) == array.json(literal.decode("latin-1")).encode("latin-1")


@pytest.mark.parametrize(
    "literal",
    [
        b"{%b" % LARGE_PLAIN,
        b"%b}" % LARGE_PLAIN,
        b"{%b%b}" % (LARGE_QUOTED, LARGE_QUOTED),
        b"{%b}{%b}" % (LARGE_PLAIN, LARGE_PLAIN),
        b"{a%b}" % LARGE_QUOTED,
    ],
)
def test_a_malformed_array_with_large_elements_is_refused(literal):
    with pytest.raises(ValueError, match="malformed"):
        Array(Text(), ",").wire(literal)


def test_the_parts_of_a_large_value_are_checked_one_by_one():
    large = b"a" * (2 * PIECE_BYTES)
    assert checked_parts([b'{"a":', b"1", b"}"]) == [b'{"a":1}']
    assert checked_parts([b'"', large, b'"']) == [b'"', large, b'"']
    for parts in ([b"\xff"], [b'"', large, b"\xff"]):
        with pytest.raises(UnicodeDecodeError):
            checked_parts(parts)


def test_a_part_of_a_large_value_is_not_copied():
    large = b"a" * (2 * PIECE_BYTES)
    assert isinstance(part_of(large, 1, len(large)), memoryview)
    assert part_of(large, 1, 4) == b"aaa"
