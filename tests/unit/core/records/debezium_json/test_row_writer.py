"""Rows that are written and rows put together from fragments are the same records."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdcd.core.catalog.relations import TableDescription
from cdcd.core.errors import CdcdError
from cdcd.core.protocol.frames import XLogData, write_frame
from cdcd.core.protocol.messages import Column, Delete, Insert, Relation, Update
from cdcd.core.protocol.writer import write_message
from cdcd.core.records.available import record_stream
from cdcd.core.records.encoder import EncoderSettings, Record
from cdcd.core.records.stream import RecordStream
from tests.golden.streams import Golden, value_streams
from tests.unit.core.records.debezium_json.test_changes import OID, RELATION, frame_of, messages, rows
from tests.unit.core.records.debezium_json.test_golden_records import encoded
from tests.unit.core.records.formats import json_of

STREAMS = value_streams()


def encoder(relation: Relation, key: tuple[str, ...], *, writes: bool) -> RecordStream:
    made = record_stream(EncoderSettings("test", "p", "d"))
    json_of(made).writes = writes
    made.define(relation, TableDescription(key), {})
    made.begin(5, 1000, 0, None)
    return made


def both(
    frames: list[bytes], relation: Relation = RELATION, key: tuple[str, ...] = ("id",)
) -> list[list[Record] | str]:
    """What either way makes of the same frames: records, or why not."""
    outcomes: list[list[Record] | str] = []
    for writes in (True, False):
        made = encoder(relation, key, writes=writes)
        out: list[Record] = []
        try:
            for frame in frames:
                before = len(out)
                size = made.encode(frame, False, 7_000_000, out)
                assert size == sum(len(key or b"") + len(value or b"") for _, key, value, _ in out[before:])
            outcomes.append([*out, ("counts", None, repr(made.counts).encode(), None)])
        except CdcdError as error:
            outcomes.append(error.message)
    return outcomes


@given(st.lists(messages, min_size=1, max_size=3))
def test_the_records_are_the_same_either_way(events):
    written, joined = both([frame_of(event) for event in events])
    assert written == joined


@given(messages, st.data())
def test_a_byte_changed_anywhere_has_the_same_consequence(message, data):
    frame = bytearray(frame_of(message))
    at = data.draw(st.integers(26, len(frame) - 1))
    frame[at] = data.draw(st.integers(0, 255))
    if frame[25] not in b"IUD":
        return
    written, joined = both([bytes(frame)])
    assert written == joined


@given(rows, rows, st.sampled_from([(), ("price", "id"), ("name",), ("day", "weight", "paid")]))
def test_whatever_the_key_is(old, new, key):
    frames = [
        frame_of(event)
        for event in (Insert(None, OID, new), Update(None, OID, "O", old, new), Delete(None, OID, "O", old))
    ]
    written, joined = both(frames, key=key)
    assert written == joined


@pytest.mark.parametrize("golden", STREAMS, ids=str)
def test_what_real_servers_send_is_the_same_either_way(golden: Golden):
    assert encoded(golden, writes=True) == encoded(golden, writes=False)


@pytest.mark.parametrize("lsn", [0, 2**31, 2**63 - 1, 2**63, 2**64 - 1])
def test_an_lsn_may_have_all_of_its_bits(lsn):
    message = write_message(Insert(None, OID, (b"1", b"x", None, None, None, None)))
    written, joined = both([write_frame(XLogData(lsn, lsn, 0, message))])
    assert written == joined


def test_a_table_without_columns_has_rows():
    relation = Relation(None, OID, "public", "empty", "f", ())
    written, joined = both([frame_of(Insert(None, OID, ()))], relation, ())
    assert written == joined


def test_a_row_after_a_large_one_is_by_itself():
    relation = Relation(None, OID, "public", "t", "d", (Column(1, "id", 23, -1), Column(0, "x", 25, -1)))
    large = b'"' * 3_000_000
    frames = [frame_of(Insert(None, OID, (b"1", value))) for value in (large, b"y", large)]
    written, joined = both(frames, relation)
    assert written == joined
