"""Rows that no record can hold, by their length."""

from typing import Any

import pytest

from cdcd.core.catalog.relations import TableDescription
from cdcd.core.engine.refused_rows import (
    LOOKED_AT_BYTES,
    RecordLimits,
    least_bytes,
    least_bytes_of_line,
    refuse,
    refuse_lines,
)
from cdcd.core.engine.rendering import SnapshotRows
from cdcd.core.engine.topics import Topics
from cdcd.core.errors import SinkError
from cdcd.core.protocol.frames import XLogData, write_frame
from cdcd.core.protocol.messages import Binary, Column, Delete, Insert, Relation, TupleData, Update
from cdcd.core.protocol.writer import write_message
from cdcd.core.records.available import record_stream
from cdcd.core.records.encoder import Encoder, EncoderSettings
from cdcd.core.snapshot.reading import Rows
from tests.unit.core.engine.test_queue import make

TEXT, BYTEA, DATE, NUMERIC = 25, 17, 1082, 1700


def relation(*types: int) -> Relation:
    columns = tuple([Column(0, f"c{index}", oid, -1) for index, oid in enumerate(types)])
    return Relation(None, 7, "public", "t", "d", columns)


def frame_of(message: Any) -> bytes:
    return write_frame(XLogData(240, 240, 0, write_message(message)))


def least(values: TupleData, *types: int, in_stream: bool = False) -> int:
    message = Insert(5 if in_stream else None, 7, values)
    return least_bytes(frame_of(message), in_stream, relation(*types))


def encoder(described: Relation | None) -> Encoder:
    made = record_stream(EncoderSettings("1", "shop", "db"))
    if described is not None:
        made.define(described, TableDescription(), {})
    return made


@pytest.mark.parametrize("in_stream", [False, True])
def test_texts_count_with_their_size_and_bytes_without_their_hexadecimal_form(in_stream):
    assert least((b"a" * 100, b"\\x" + b"ff" * 50), TEXT, BYTEA, in_stream=in_stream) == 150
    assert least((b"a" * 100, Binary(b"f" * 50)), TEXT, BYTEA, in_stream=in_stream) == 150


def test_values_whose_record_may_be_shorter_do_not_count():
    assert least((b"1970-01-01", b"1" * 100, None), DATE, NUMERIC, TEXT) == 0


def test_of_an_update_the_new_row_counts():
    message = Update(None, 7, "O", (b"a" * 500,), (b"b" * 30,))
    assert least_bytes(frame_of(message), False, relation(TEXT)) == 30


def test_a_malformed_row_is_left_to_the_encoder():
    frame = frame_of(Insert(None, 7, (b"a" * 100,)))
    assert least_bytes(frame[:40], False, relation(TEXT, TEXT)) == 0
    assert least_bytes(frame, False, relation(TEXT, TEXT)) == 0


def test_a_row_that_is_certainly_too_large_is_refused_with_table_position_and_sizes():
    frame = frame_of(Insert(None, 7, (b"a" * 101,)))
    refuse(frame, False, encoder(relation(TEXT)), 101)
    with pytest.raises(SinkError) as raised:
        refuse(frame, False, encoder(relation(TEXT)), 100)
    assert "at least 101 bytes for topic shop.public.t" in raised.value.message
    assert f"the row of public.t at 0/F0 has {len(frame)} bytes" in raised.value.message
    assert "claim_check" in raised.value.hint


def test_deletes_and_tables_that_were_never_described_are_left_to_the_encoder():
    refuse(frame_of(Delete(None, 7, "O", (b"a" * 500,))), False, encoder(relation(TEXT)), 1)
    refuse(frame_of(Insert(None, 7, (b"a" * 500,))), False, encoder(None), 1)


@pytest.mark.parametrize(
    ("line", "types", "least"),
    [
        (b"a" * 100 + b"\t1\n", (TEXT, NUMERIC), 100),
        (rb"\\x" + b"ff" * 50 + b"\t" + b"a" * 10 + b"\n", (BYTEA, TEXT), 60),
        (b"a\\tb\\\\c\\N\n", (TEXT,), 5),
        (b"\\N\t\\N\n", (TEXT, BYTEA), 1),
        (b"a\n", (TEXT, TEXT), 0),
        (b"a\tb\n", (TEXT,), 0),
    ],
)
def test_the_values_of_a_row_of_copy_count_without_their_escapes(line, types, least):
    assert least_bytes_of_line(line, relation(*types)) == least


def test_a_row_of_copy_that_is_certainly_too_large_is_refused_with_table_and_sizes():
    lines = [b"small\n", b"a" * 101 + b"\n"]
    refuse_lines(lines, 7, encoder(relation(TEXT)), 101)
    with pytest.raises(SinkError) as raised:
        refuse_lines(lines, 7, encoder(relation(TEXT)), 100)
    assert "at least 101 bytes for topic shop.public.t: a row of public.t" in raised.value.message
    assert "claim_check" in raised.value.hint
    refuse_lines(lines, 7, encoder(None), 1)


def test_a_row_that_a_change_has_overtaken_is_not_refused():
    settings = EncoderSettings("1", "p", "d")
    large = LOOKED_AT_BYTES + 1
    rows = Rows([b"1\t" + b"a" * large + b"\n"], large + 3)
    found = SnapshotRows(record_stream(settings), make(), Topics(), limits=RecordLimits(1000))
    described = Relation(None, 1, "public", "t", "d", (Column(1, "id", 23, -1), Column(0, "c", TEXT, -1)))
    found.define(described, TableDescription(("id",)), {})
    found.put(1, rows, event_no=0, dropped={b'{"id":1}'}, progress=lambda _: None)
    with pytest.raises(SinkError, match="read for a snapshot"):
        found.put(1, rows, event_no=0, dropped=set(), progress=lambda _: None)
