"""Large values have the records of small ones, and need few copies of themselves while a record is made."""

import re
import tracemalloc
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from librt.strings import BytesWriter

from cdcd.build import is_compiled
from cdcd.core.catalog import copytext
from cdcd.core.catalog.binary import bits_text
from cdcd.core.catalog.modes import DEFAULTS, Modes, logical_type_under
from cdcd.core.pauses import PAUSE_BYTES
from cdcd.core.protocol.frames import XLogData, write_frame
from cdcd.core.protocol.messages import UNCHANGED, Binary, Insert, Message, Update, Value
from cdcd.core.protocol.writer import write_message
from cdcd.core.records.avro.converters import AnyValue, ArrayItems
from cdcd.core.records.avro.form import AvroForm
from cdcd.core.records.debezium_json import literals
from cdcd.core.records.debezium_json.arrays import Array
from cdcd.core.records.debezium_json.connect_schema import schema_of
from cdcd.core.records.debezium_json.converter import base64_json
from cdcd.core.records.debezium_json.converters import converter_of
from cdcd.core.records.debezium_json.literals import (
    ARRAY_BYTES_MAX,
    ArraySink,
    write_array,
    write_binary_array,
)
from cdcd.core.records.encoder import Record
from cdcd.core.records.protobuf.form import ProtobufForm
from cdcd.core.records.unwritable import UnwritableError
from tests.unit.core.records.avro.test_encoder import Harness as AvroHarness
from tests.unit.core.records.debezium_json.test_encoder import (
    LSN,
    NOW_US,
    OID,
    TEXT,
    column,
    relation,
)
from tests.unit.core.records.debezium_json.test_encoder import Harness as JsonHarness
from tests.unit.core.records.debezium_json.test_literals import literal
from tests.unit.core.records.protobuf.test_encoder import Harness as ProtobufHarness

MIB = 1 << 20
FEW = ARRAY_BYTES_MAX // 8
"""Number of elements of an array that is just large enough."""

MANY = 40_000
"""Number of elements for which a value for each of them would need more memory than the rule allows."""

TEXTS, BOOLS, FLOATS, NUMERICS, BYTEAS, STAMPS = 1009, 1000, 1022, 1231, 1001, 1185


def many(*elements: str | None) -> str:
    """An array of these elements, again and again, that is converted element by element."""
    return again(elements, 2 * ARRAY_BYTES_MAX // sum(len(each or "NULL") + 1 for each in elements))


def again(elements: Sequence[str | None], times: int) -> str:
    """The literal of `list(elements) * times`: each element is quoted once."""
    return f"{{{','.join([','.join(map(literal, elements))] * times)}}}"


ODD = ['a"b', "back\\slash", "", "NULL", "null", None, "{x}", "a,b", " ", "\n", "ü€𝄞", "plain"]
LITERALS: dict[str, tuple[int, str]] = {
    "texts of all kinds": (TEXTS, many(*ODD)),
    "one letter": (TEXTS, many("a")),
    "one large text": (TEXTS, literal(["small", "x" * MIB, None])),
    "one large text full of escapes": (TEXTS, literal(['"\\\n' * ARRAY_BYTES_MAX, "small"])),
    "lower bounds": (TEXTS, "[7:9999999]=" + many("a", "b c")),
    "booleans": (BOOLS, many("t", "f", None)),
    "floats": (FLOATS, many("1.5", "1", "-0", "1e+20", "NaN", None)),
    "numerics": (NUMERICS, many("1.50", "-3", None)),
    "bytea": (BYTEAS, many("\\x", "\\x00ff", None)),
    "times": (STAMPS, many("2024-01-31 12:34:56.789+00", None)),
    "nulls": (TEXTS, many(None)),
}


def array_of(oid: int) -> tuple[Array, Any]:
    logical = logical_type_under(DEFAULTS, oid, -1, {})
    array = converter_of(logical)
    assert isinstance(array, Array)
    return array, schema_of(logical)


def written(write: Callable[[BytesWriter], None]) -> bytes:
    out = BytesWriter()
    write(out)
    return out.getvalue()


@pytest.mark.parametrize("name", LITERALS)
def test_a_large_array_has_the_json_of_the_array_that_is_read_as_a_whole(name):
    oid, text = LITERALS[name]
    data = text.encode()
    array, _ = array_of(oid)
    whole = array.json(data.decode("latin-1")).encode("latin-1")
    assert array.wire(data) == whole
    assert written(lambda out: array.write(b"12" + data + b"3", 2, len(data) + 2, out)) == whole


def test_a_large_array_of_several_dimensions_has_the_json_of_the_array_that_is_read_as_a_whole():
    array, _ = array_of(TEXTS)
    for text in (
        literal([["a b", None], ["c", "d"]] * FEW),
        literal([[["x"]]] * 2 * FEW),
    ):
        assert array.wire(text.encode()) == array.json(text).encode()


@pytest.mark.parametrize("name", LITERALS)
@pytest.mark.parametrize("form", [AvroForm(), ProtobufForm()], ids=["avro", "protobuf"])
def test_a_large_array_in_a_binary_format_is_the_array_that_is_read_as_a_whole(form, name):
    oid, text = LITERALS[name]
    data = text.encode()
    array, schema = array_of(oid)
    converter = form.converter(array, schema)
    assert isinstance(converter, ArrayItems)
    whole = written(lambda out: AnyValue(array, schema, form).append_json(array.wire(data), out))
    assert written(lambda out: converter.write(b"12" + data + b"3", 2, len(data) + 2, out)) == whole


BINARY = {
    "texts": (TEXTS, [b"a", None, "ü€𝄞".encode(), b'"\\\n', b""]),
    "booleans": (BOOLS, [b"\x00", b"\x01", None]),
    "floats": (FLOATS, [b"\x3f\xf8" + bytes(6), None, b"\x7f\xf8" + bytes(6)]),
    "bytea": (BYTEAS, [b"", b"\x00\xff", None]),
}


def array_send(oid: int, elements: Sequence[bytes | None], *lengths: int) -> bytes:
    """As array_send writes it (arrayfuncs.c)."""
    head = [len(lengths), int(None in elements), oid, *[part for each in lengths for part in (each, 1)]]
    parts = [number.to_bytes(4, "big") for number in head]
    for element in elements:
        size = -1 if element is None else len(element)
        parts += [size.to_bytes(4, "big", signed=True), element or b""]
    return b"".join(parts)


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("form", [AvroForm(), ProtobufForm()], ids=["avro", "protobuf"])
def test_a_large_array_in_binary_form_is_the_array_that_is_read_as_a_whole(form, name):
    oid, elements = BINARY[name]
    elements = elements * FEW
    data = array_send(25, elements, len(elements))
    array, schema = array_of(oid)
    whole = array.binary(data).encode("latin-1")
    assert array.wire_of_binary(data) == whole
    assert written(lambda out: array.write_binary(b"1" + data + b"2", 1, len(data) + 1, out)) == whole
    converter = form.converter(array, schema)
    assert written(lambda out: converter.write_binary(b"1" + data, 1, len(data) + 1, out)) == written(
        lambda out: AnyValue(array, schema, form).append_json(whole, out)
    )


@pytest.mark.parametrize("lengths", [(2, 2 * FEW), (2 * FEW, 1, 2), (1, 1, 1, 4 * FEW)])
def test_a_large_array_in_binary_form_keeps_its_dimensions(lengths):
    array, _ = array_of(TEXTS)
    random = Random(7)
    data = array_send(25, [random.choice([b"a", b"bc", None]) for _ in range(4 * FEW)], *lengths)
    assert array.wire_of_binary(data) == array.binary(data).encode("latin-1")


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: data[:12] + (7).to_bytes(4, "big") + data[16:],
        lambda data: b"\0\0\0\7" + data[4:],
        lambda data: b"\xff" * 4 + data[4:],
        lambda data: data[:20] + b"\xff\xff\xff\xf0" + data[24:],
        lambda data: data[:20] + b"\x7f" + data[21:],
    ],
)
def test_a_malformed_large_array_in_binary_form_is_refused(change):
    array, _ = array_of(TEXTS)
    data = array_send(25, [b"a"] * 2 * FEW, 2 * FEW)
    assert array.wire_of_binary(data).startswith(b'["a",')
    with pytest.raises(ValueError, match=r"array|bytes|value"):
        array.wire_of_binary(change(data))


@pytest.mark.parametrize(
    "text",
    ["{%s", "%s}", "{%s}}", "{{%s}", "{,%s}", "{%s,}", "{%s,,a}", '{%s,"a}', "{%s}{a}", "{%s}x", '{%s,a"b"}'],
)
def test_a_malformed_large_array_is_refused(text):
    array, _ = array_of(TEXTS)
    inner = ",".join(["a", '"b c"'] * FEW * 2)
    assert array.wire(b"{%b}" % inner.encode()).endswith(b'"b c"]')
    with pytest.raises(ValueError, match="malformed array literal"):
        array.wire((text % inner).encode())


@pytest.mark.parametrize("form", [AvroForm(), ProtobufForm()], ids=["avro", "protobuf"])
def test_a_large_array_of_several_dimensions_has_no_place_in_a_binary_format(form):
    array, schema = array_of(TEXTS)
    data = literal([["a", "b"]] * 2 * FEW).encode()
    with pytest.raises(UnwritableError, match="arrays with one dimension"):
        form.converter(array, schema).write(data, 0, len(data), BytesWriter())
    number, numbers = array_of(NUMERICS)
    nan = b"{%b}" % b",".join([b"1.5"] * ARRAY_BYTES_MAX + [b"nonsense"])
    with pytest.raises(ValueError, match=re.escape("not a number")):
        form.converter(number, numbers).write(nan, 0, len(nan), BytesWriter())


# Pauses, in which other threads run. Their number depends on the value alone, and so do the records.


class Paused(ArraySink):
    """Counts the elements between two pauses."""

    def __init__(self) -> None:
        self.elements = self.most = self.pauses = 0

    def value(self, data: bytes, at: int, end: int) -> None:
        self.elements += 1
        self.most = max(self.most, self.elements)

    def binary_value(self, data: bytes, at: int, end: int) -> None:
        self.value(data, at, end)

    def pause(self) -> None:
        self.pauses += 1
        self.elements = 0


@pytest.mark.skipif(is_compiled(), reason="a compiled class has compiled subclasses only")
@given(st.lists(st.text(max_size=200) | st.none(), min_size=1, max_size=20), st.booleans())
def test_large_arrays_pause_after_so_many_bytes_and_have_the_records_of_small_ones(elements, is_binary):
    times = 1 + 4 * PAUSE_BYTES // sum(len(each or "NULL") + 1 for each in elements)
    array = list(elements) * times
    sink = Paused()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(literals, "pause", sink.pause)
        if is_binary:
            data = array_send(25, [None if each is None else each.encode() for each in array], len(array))
            write_binary_array(data, 0, len(data), sink)
        else:
            data = again(elements, times).encode()
            write_array(data, 0, len(data), ord(","), sink)
    assert (
        sink.pauses
        >= len(data) // (PAUSE_BYTES + max(map(len, [each or "" for each in elements])) * 8 + 8) - 1
    )
    assert sink.most <= PAUSE_BYTES
    # THEN the JSON is that of an array that is converted without a pause
    converter, _ = array_of(TEXTS)
    of = converter.wire_of_binary if is_binary else converter.wire
    whole = converter.binary(data) if is_binary else converter.json(data.decode("latin-1"))
    assert of(data) == whole.encode("latin-1")


# Memory. By the rule of docs/sizing.md, a value has two copies of its record beside the frame; libpq's second copy is
# gone by then, which leaves a third one.

COPIES = {"json": 3, "avro": 2, "protobuf": 2}
"""In JSON, uncompiled code slices an array from the frame."""

SLACK = 10 * MIB
"""What pieces and the growth of buffers need besides copies."""

SMALL_SLACK = 2 * MIB
"""Likewise for `MANY` elements: a value for each of them takes 56 bytes, which is more than this and the copies."""

LARGE = relation(column("id", TEXT, key=True), column("body", TEXT), column("tags", TEXTS), identity="f")
SIZE = 12 * MIB
VALUES: dict[str, tuple[Value, Value]] = {
    "text": (b"x" * SIZE, b"{}"),
    "an array with a large element": (b"", b"{small,%b}" % (b"x" * SIZE)),
    "an array with a large element in quotes": (b"", b'{"%b"}' % (b"x " * (SIZE // 2))),
    "an array with a large element of escapes": (b"", b'{"%b"}' % (b'\\"' * (SIZE // 2))),
}
HARNESSES = {"json": JsonHarness, "avro": AvroHarness, "protobuf": ProtobufHarness}


def peak_of(harness: Any, message: Message) -> tuple[int, list[Record]]:
    """Bytes that the encoder needs beside the frame at most, and the records."""
    frame = write_frame(XLogData(LSN, LSN, 0, write_message(message)))
    out: list[Record] = []
    tracemalloc.start()
    try:
        harness.encoder.encode(frame, False, NOW_US, out)
        return tracemalloc.get_traced_memory()[1], out
    finally:
        tracemalloc.stop()


def size_of(records: list[Record]) -> int:
    return sum(len(value or b"") for _, _, value, _ in records)


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("format_name", HARNESSES)
def test_a_large_value_is_encoded_with_few_copies(format_name, name):
    peak, records = peak_of(HARNESSES[format_name](LARGE), Insert(None, OID, (b"1", *VALUES[name])))
    assert size_of(records) > SIZE / 2
    assert peak < COPIES[format_name] * max(size_of(records), SIZE) + SLACK


@pytest.mark.parametrize("format_name", HARNESSES)
def test_many_elements_are_encoded_with_few_copies(format_name):
    elements = b"{%b}" % b",".join([b"a"] * MANY)
    peak, records = peak_of(HARNESSES[format_name](LARGE), Insert(None, OID, (b"1", b"", elements)))
    assert peak < COPIES[format_name] * size_of(records) + SMALL_SLACK


@pytest.mark.parametrize("format_name", HARNESSES)
def test_many_elements_in_binary_form_are_encoded_with_few_copies(format_name):
    elements = Binary(array_send(25, [b"a"] * MANY, MANY))
    peak, records = peak_of(HARNESSES[format_name](LARGE), Insert(None, OID, (b"1", b"", elements)))
    assert peak < COPIES[format_name] * size_of(records) + SMALL_SLACK


@pytest.mark.parametrize("new_key", [b"1", b"2"])
@pytest.mark.parametrize("format_name", HARNESSES)
def test_old_and_new_row_are_encoded_with_few_copies(format_name, new_key):
    old, new = (b"1", b"x" * SIZE, b"{}"), (new_key, b"y" * SIZE, b"{}")
    peak, records = peak_of(HARNESSES[format_name](LARGE), Update(None, OID, "O", old, new))
    assert size_of(records) > 2 * SIZE
    assert peak < COPIES[format_name] * size_of(records) + SLACK


@pytest.mark.parametrize("format_name", HARNESSES)
def test_a_large_value_that_was_not_sent_is_copied_from_the_old_row(format_name):
    old, new = (b"1", b"x" * SIZE, b"{}"), (b"1", UNCHANGED, b"{a}")
    peak, records = peak_of(HARNESSES[format_name](LARGE), Update(None, OID, "O", old, new))
    assert size_of(records) > 2 * SIZE
    assert peak < COPIES[format_name] * size_of(records) + SLACK


@pytest.mark.parametrize("format_name", HARNESSES)
def test_many_elements_beside_a_value_without_a_form_are_encoded_with_few_copies(format_name):
    # GIVEN a row that the format refuses at first, because NaN has no form as a decimal
    number = column("body", 1700)
    described = relation(column("id", TEXT, key=True), number, column("tags", TEXTS), identity="f")
    harness = HARNESSES[format_name](described, modes=Modes(decimal="precise"))
    elements = b"{%b}" % b",".join([b"a"] * MANY)
    peak, records = peak_of(harness, Insert(None, OID, (b"1", b"NaN", elements)))
    assert "cdcd.unwritable" in dict(records[-1][3] or ())
    assert peak < COPIES[format_name] * size_of(records) + SMALL_SLACK + 2 * len(elements)


@given(
    st.lists(st.sampled_from([b"\n", b"\t", b"\\", b"a", "ü€".encode(), b"\r\b\f\v", b"n"]), max_size=40),
    st.integers(0, 3),
)
def test_a_large_field_of_copy_is_unescaped_as_a_small_one(parts, offset):
    value = b"x" * offset + b"".join(parts) * 10_000
    assert copytext.unescape(copytext.escape(value)) == value


def test_the_escapes_of_a_large_field_of_copy_need_no_memory_for_each():
    field = rb"\n" * MIB
    tracemalloc.start()
    try:
        assert copytext.unescape(field) == b"\n" * MIB
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * MIB


@given(st.integers(0, 2**70), st.integers(0, 80))
def test_bits_of_any_length_have_the_bytes_of_their_number(number, zeros):
    text = "0" * zeros + f"{number:b}"
    (bits,) = (converter_of(logical_type_under(DEFAULTS, 1562, -1, {})),)
    least = number.to_bytes((number.bit_length() + 7) // 8, "little")
    assert bits.json(text) == base64_json(least)
    many = text * 2000
    whole = int(many, 2)
    assert bits.json(many) == base64_json(whole.to_bytes((whole.bit_length() + 7) // 8, "little"))
    padded = int(text.ljust(-(-len(text) // 8) * 8, "0"), 2).to_bytes(-(-len(text) // 8), "big")
    assert bits_text(len(text).to_bytes(4, "big") + padded) == text
