"""The quick walk of stage 4 and stage 2's strict reader must accept the same frames, and see the same in them."""

import json
from dataclasses import replace
from struct import pack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdcd.core.catalog.relations import TableDescription, TypeDescription
from cdcd.core.errors import ProtocolError, WithoutBinaryError
from cdcd.core.protocol.frames import XLOG_HEADER, XLogData, write_frame
from cdcd.core.protocol.messages import UNCHANGED, Binary, Column, Delete, Insert, Relation, Update
from cdcd.core.protocol.reader import read_message
from cdcd.core.protocol.writer import write_message
from cdcd.core.records.available import record_stream
from cdcd.core.records.encoder import EncoderSettings, Record
from cdcd.core.records.stream import RecordStream

OID = 16384
COLUMNS = (
    Column(1, "id", 23, -1),
    Column(0, "name", 25, -1),
    Column(0, "price", 1700, -1),
    Column(0, "day", 1082, -1),
    Column(0, "weight", 701, -1),
    Column(0, "paid", 16, -1),
)
RELATION = Relation(None, OID, "public", "orders", "d", COLUMNS)
ROW = (b"1", "größe".encode(), b"1.50", b"2024-02-29", b"2.5", b"t")
XID = 777


def frame_of(message: Insert | Update | Delete) -> bytes:
    return write_frame(XLogData(100, 100, 0, write_message(message)))


def encoder() -> RecordStream:
    made = record_stream(EncoderSettings("test", "p", "d"))
    made.define(RELATION, TableDescription(("id",)), {})
    made.begin(5, 1000, 0, None)
    return made


def encode(frame: bytes, in_stream: bool = False, made: RecordStream | None = None) -> list[Record]:
    out: list[Record] = []
    (made or encoder()).encode(frame, in_stream, 0, out)
    return out


def after(frame: bytes, in_stream: bool = False) -> Any:
    _topic, _key, value, _headers = encode(frame, in_stream)[-1]
    assert value is not None
    return json.loads(value)["after"]


def refusal(frame: bytes, in_stream: bool = False, made: RecordStream | None = None) -> ProtocolError:
    with pytest.raises(ProtocolError) as caught:
        encode(frame, in_stream, made)
    return caught.value


sizes = st.sampled_from([0, 1, 2, 127, 128, 129, 255, 256, 257, 511, 512, 65_535, 65_536, 70_000])
texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
names = texts | sizes.map(lambda size: "x" * size) | sizes.map(lambda size: "é" * (size // 2))
rows = st.tuples(
    st.integers(0, 2**31 - 1).map(lambda number: str(number).encode()),
    names.map(str.encode) | st.none() | st.just(UNCHANGED),
    st.decimals(allow_nan=False, allow_infinity=False, places=2, min_value=0, max_value=10**20).map(
        lambda value: f"{value:f}".encode()
    )
    | st.none(),
    st.dates().map(lambda day: day.isoformat().encode()) | st.none(),
    st.integers(-(10**6), 10**6).map(lambda number: str(number).encode()),
    st.sampled_from([b"t", b"f", None, Binary(b"\1")]),
)


@given(rows, st.booleans())
def test_every_value_arrives_whatever_its_length(row, in_stream):
    frame = frame_of(Insert(XID if in_stream else None, OID, row))
    made = after(frame, in_stream)
    assert made["id"] == int(row[0])
    if row[1] is not UNCHANGED:
        assert made["name"] == (None if row[1] is None else row[1].decode())
    assert made["price"] == (None if row[2] is None else row[2].decode())
    assert made["weight"] == float(row[4])
    assert made["paid"] == {b"t": True, b"f": False, None: None}.get(row[5], True)


messages = st.one_of(
    rows.map(lambda row: Insert(None, OID, row)),
    st.builds(lambda row: Update(None, OID, "", None, row), rows),
    st.builds(lambda kind, old, new: Update(None, OID, kind, old, new), st.sampled_from("KO"), rows, rows),
    st.builds(lambda kind, old: Delete(None, OID, kind, old), st.sampled_from("KO"), rows),
)


def accepted(frame: bytes, in_stream: bool = False) -> bool:
    """Whether the strict reader takes the frame, and for what it is a row of the right width."""
    try:
        message = read_message(frame, XLOG_HEADER, in_stream=in_stream)
    except ProtocolError:
        return False
    if not isinstance(message, Insert | Update | Delete) or message.relation_oid != OID:
        return False
    given_rows = [
        row for row in (getattr(message, "old", None), getattr(message, "new", None)) if row is not None
    ]
    return all(len(row) == len(COLUMNS) for row in given_rows)


@given(messages, st.data())
def test_a_byte_changed_anywhere_is_refused_by_both_or_by_none(message, data):
    frame = bytearray(frame_of(message))
    at = data.draw(st.integers(XLOG_HEADER, min(len(frame) - 1, XLOG_HEADER + 200)))
    frame[at] = data.draw(st.integers(0, 255))
    changed = bytes(frame)
    if changed[XLOG_HEADER] not in b"IUD":
        return
    try:
        encode(changed)
    except ProtocolError as error:
        refused = error.message
    else:
        refused = ""
    # Refused by the walk only: a value that is not of its type's form, and text that is not UTF-8.
    assert accepted(changed) == (
        not refused or "is not of its type's form" in refused or "not UTF-8" in refused
    )


@pytest.mark.again
@given(messages)
def test_every_prefix_is_refused_and_so_is_a_byte_too_many(message):
    frame, made = frame_of(message), encoder()
    for size in range(XLOG_HEADER, min(len(frame), XLOG_HEADER + 300)):
        assert refusal(frame[:size], made=made).hint
    assert "left over" in refusal(frame + b"\0", made=made).message


@pytest.mark.parametrize("size", [0, 1, 9, 24])
def test_a_frame_that_ends_in_its_header_is_refused(size):
    refusal(frame_of(Insert(None, OID, ROW))[:size])


def test_a_wrong_value_is_named_with_table_column_type_and_offset_but_not_shown():
    frame = frame_of(Insert(None, OID, (*ROW[:3], b"a secret", *ROW[4:])))
    error = refusal(frame)
    offset = frame.index(b"t\0\0\0\x08a secret")
    assert error.message == (
        f"Insert of public.orders: field new[3], column 'day' of type 1082, at offset {offset}: "
        "a text of 8 bytes is not of its type's form."
    )


@pytest.mark.parametrize("in_stream", [False, True])
def test_the_offset_of_a_wrong_value_is_right_in_each_row_of_an_update(in_stream):
    xid = XID if in_stream else None
    wrong = (*ROW[:3], b"no date", *ROW[4:])
    for old, new, field in ((wrong, ROW, "old[3]"), (ROW, wrong, "new[3]")):
        frame = frame_of(Update(xid, OID, "O", old, new))
        offset = frame.index(b"t\0\0\0\x07no date")
        assert f"Update of public.orders: field {field}, column 'day' of type 1082, at offset {offset}: " in (
            refusal(frame, in_stream).message
        )


def test_a_number_with_a_byte_that_is_not_ascii_was_damaged_and_is_no_unwritable_text():
    error = refusal(frame_of(Insert(None, OID, (b"\xff1", *ROW[1:]))))
    assert "a text of 2 bytes is not of its type's form" in error.message


def test_another_number_of_columns_than_in_the_relation_is_refused():
    for row in (ROW[:-1], (*ROW, b"1"), ()):
        assert (
            f"{len(row)} columns, but 6 in the Relation" in refusal(frame_of(Insert(None, OID, row))).message
        )
    message = refusal(frame_of(Update(None, OID, "O", ROW, ROW[:-1]))).message
    assert "field new at offset" in message


def test_a_binary_value_of_a_type_without_reader_is_refused():
    made = record_stream(EncoderSettings("test", "p", "d"))
    made.define(replace(RELATION, columns=(Column(1, "v", 2205, -1),)), TableDescription(), {})
    made.begin(5, 1000, 0, None)
    with pytest.raises(WithoutBinaryError, match=r"column 'v' of type 2205.* without a binary reader"):
        made.encode(frame_of(Insert(None, OID, (Binary(b"\0\0\0\1"),))), False, 0, [])


def test_an_attribute_that_was_added_to_a_composite_ends_the_binary_form_too():
    made = record_stream(EncoderSettings("test", "p", "d"), binary=True)
    types = {70_000: TypeDescription(70_000, "public", "address", "c", "C", 0, 0, -1, ",", (25,))}
    made.define(replace(RELATION, columns=(Column(1, "v", 70_000, -1),)), TableDescription(), types)
    made.begin(5, 1000, 0, None)
    for oid, error in ((16, ProtocolError), (70_001, WithoutBinaryError)):
        value = Binary(pack("!iIi2s", 1, oid, 2, b"ab"))
        with pytest.raises(error, match="column 'v' of type 70000"):
            made.encode(frame_of(Insert(None, OID, (value,))), False, 0, [])


def test_a_row_of_an_undefined_relation_is_refused():
    assert "oid 99" in refusal(frame_of(Insert(None, 99, ROW))).message


@pytest.mark.parametrize("kind", [b"K", b"O", b"X"])
def test_a_row_of_a_wrong_kind_is_refused(kind):
    frame = bytearray(frame_of(Insert(None, OID, ROW)))
    frame[30:31] = kind
    assert "tuple kind" in refusal(bytes(frame)).message
    frame = bytearray(frame_of(Delete(None, OID, "K", ROW)))
    frame[30:31] = b"N"
    assert "tuple kind" in refusal(bytes(frame)).message
