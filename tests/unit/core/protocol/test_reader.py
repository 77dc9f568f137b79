from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdcd.core.errors import ProtocolError
from cdcd.core.protocol.messages import (
    UNCHANGED,
    Begin,
    Binary,
    Column,
    Insert,
    LogicalMessage,
    Relation,
    StreamAbort,
    StreamStop,
    Truncate,
    Update,
)
from cdcd.core.protocol.reader import RULES, MessagePlace, read_message, read_message_head
from cdcd.core.protocol.writer import write_message
from tests.unit.core.protocol.strategies import by_class, messages

MODES = [(False, False), (False, True), (True, False), (True, True)]
in_every_mode = pytest.mark.parametrize(("in_stream", "abort_info"), MODES)


def refusal(data: bytes, **mode: Any) -> str:
    with pytest.raises(ProtocolError) as caught:
        read_message(data, **mode)
    return caught.value.message


@pytest.mark.again
@in_every_mode
@given(data=st.data())
def test_every_prefix_of_every_message_is_refused(in_stream, abort_info, data):
    message = data.draw(messages(in_stream=in_stream, abort_info=abort_info))
    written = write_message(message)
    for size in range(len(written)):
        refusal(written[:size], in_stream=in_stream, abort_info=abort_info)


@pytest.mark.again
@in_every_mode
@settings(max_examples=40)
@given(data=st.data())
def test_every_single_byte_after_every_message_is_refused(in_stream, abort_info, data):
    message = data.draw(messages(in_stream=in_stream, abort_info=abort_info))
    written = write_message(message)
    for byte in range(256):
        text = refusal(written + bytes((byte,)), in_stream=in_stream, abort_info=abort_info)
        assert text == f"{type(message).__name__}: field end at offset {len(written)}: 1 bytes left over."


@in_every_mode
@given(tag=st.sampled_from(sorted(RULES)), rest=st.binary(max_size=80))
def test_random_bytes_raise_nothing_but_protocol_errors(in_stream, abort_info, tag, rest):
    check_whatever_is_accepted_is_understood(bytes((tag,)) + rest, in_stream, abort_info)


@pytest.mark.again
@in_every_mode
@given(data=st.data())
def test_a_changed_byte_is_refused_or_changes_the_message(in_stream, abort_info, data):
    message = data.draw(messages(in_stream=in_stream, abort_info=abort_info))
    written = bytearray(write_message(message))
    at = data.draw(st.integers(0, len(written) - 1))
    written[at] ^= data.draw(st.integers(1, 255))
    check_whatever_is_accepted_is_understood(bytes(written), in_stream, abort_info)


def check_whatever_is_accepted_is_understood(data: bytes, in_stream: bool, abort_info: bool) -> None:
    """Nothing but ProtocolError comes, and what is read is all that the bytes say."""
    try:
        message = read_message(data, in_stream=in_stream, abort_info=abort_info)
    except ProtocolError:
        return
    assert write_message(message) == data


def test_an_unknown_tag_is_refused():
    for tag in sorted(set(range(256)) - set(RULES)):
        assert (
            refusal(bytes((tag,)) + bytes(8)) == f"message: field tag at offset 0: unknown tag {chr(tag)!r}."
        )


def test_an_empty_message_is_refused():
    assert refusal(b"") == "message: field tag at offset 0: 1 bytes expected, 0 left."


@pytest.mark.parametrize("tag", [tag for tag, rule in RULES.items() if rule.place is MessagePlace.OUTSIDE])
def test_what_belongs_outside_a_stream_is_refused_inside(tag):
    assert refusal(bytes((tag,)) + bytes(40), in_stream=True).endswith("not allowed inside a stream.")


def test_what_belongs_inside_a_stream_is_refused_outside():
    assert read_message(b"E", in_stream=True) == StreamStop()
    assert refusal(b"E") == "StreamStop: field tag at offset 0: not allowed outside a stream."


@in_every_mode
def test_the_strategies_know_every_message_that_is_allowed(in_stream, abort_info):
    refused_here = MessagePlace.OUTSIDE if in_stream else MessagePlace.INSIDE
    allowed = {rule.message for rule in RULES.values() if rule.place is not refused_here}
    assert set(by_class(in_stream=in_stream, abort_info=abort_info)) == allowed


def test_a_message_starts_where_the_caller_says():
    message = Begin(1, 2, 3)
    assert read_message(b"header" + write_message(message), 6) == message
    assert "offset 7" in refusal(b"headerB", at=6)


def test_a_relation_as_the_manual_writes_it():
    data = b"R" + b"\0\0\x40\x01" + b"public\0" + b"t\0" + b"d" + b"\0\x02"
    data += b"\x01" + b"id\0" + b"\0\0\0\x17" + b"\xff\xff\xff\xff"
    data += b"\x00" + b"name\0" + b"\0\0\x04\x13" + b"\0\0\0\x24"
    columns = (Column(1, "id", 23, -1), Column(0, "name", 1043, 36))
    assert read_message(data) == Relation(None, 16385, "public", "t", "d", columns)


def test_an_update_as_the_manual_writes_it():
    data = b"U" + b"\0\0\x40\x01" + b"K" + b"\0\x02" + b"t\0\0\0\x011" + b"n"
    data += b"N" + b"\0\x03" + b"t\0\0\0\x00" + b"u" + b"b\0\0\0\x02\0\x01"
    new = (b"", UNCHANGED, Binary(b"\0\x01"))
    assert read_message(data) == Update(None, 16385, "K", (b"1", None), new)


def test_in_a_stream_the_xid_comes_first():
    data = b"I" + b"\0\0\0\x05" + b"\0\0\x40\x01" + b"N" + b"\0\0"
    assert read_message(data, in_stream=True) == Insert(5, 16385, ())
    assert "left over" in refusal(data) or "tuple kind" in refusal(data)


def test_both_flags_of_a_truncate():
    data = b"T" + b"\0\0\0\x02" + b"\x03" + b"\0\0\0\x07" + b"\0\0\0\x08"
    assert read_message(data) == Truncate(None, cascade=True, restart_identity=True, relation_oids=(7, 8))


def test_an_abort_has_lsn_and_time_only_when_the_options_say_so():
    short = b"A" + b"\0\0\0\x05" + b"\0\0\0\x06"
    long = short + bytes(7) + b"\x07" + bytes(7) + b"\x08"
    assert read_message(short) == StreamAbort(5, 6, None, None)
    assert read_message(long, abort_info=True) == StreamAbort(5, 6, 7, 8)
    assert "left over" in refusal(long)
    assert "abort_lsn" in refusal(short, abort_info=True)


XID = b"\0\0\0\x05"
OID = b"\0\0\x40\x01"


@pytest.mark.parametrize(
    ("data", "mode", "text"),
    [
        (b"B" + bytes(20), {}, "Begin: field final_lsn at offset 1: the LSN is not set."),
        (b"B" + bytes(7) + b"\x01" + bytes(12), {}, "Begin: field xid at offset 17: 0 is no transaction id."),
        (b"C\x01" + bytes(24), {}, "Commit: field flags at offset 1: unrecognized flags 0x01."),
        (b"P\x80" + bytes(29), {}, "Prepare: field flags at offset 1: unrecognized flags 0x80."),
        (b"K\x02" + bytes(29), {}, "CommitPrepared: field flags at offset 1: unrecognized flags 0x02."),
        (b"r\x02" + bytes(37), {}, "RollbackPrepared: field flags at offset 1: unrecognized flags 0x02."),
        (b"p\x02" + bytes(29), {}, "StreamPrepare: field flags at offset 1: unrecognized flags 0x02."),
        (b"c" + XID + b"\x01", {}, "StreamCommit: field flags at offset 5: unrecognized flags 0x01."),
        (b"M\x02" + bytes(14), {}, "LogicalMessage: field flags at offset 1: unrecognized flags 0x02."),
        (b"T" + XID + b"\x04", {}, "Truncate: field flags at offset 5: unrecognized flags 0x04."),
        (b"S" + XID + b"\x02", {}, "StreamStart: field first_segment at offset 5: 2 is neither 0 nor 1."),
        (b"S" + bytes(5), {}, "StreamStart: field xid at offset 1: 0 is no transaction id."),
        (b"A" + XID + bytes(4), {}, "StreamAbort: field subxid at offset 5: 0 is no transaction id."),
        (
            b"I" + bytes(4) + OID,
            {"in_stream": True},
            "Insert: field xid at offset 1: 0 is no transaction id.",
        ),
        (
            b"M" + XID + b"\0" + bytes(13),
            {"in_stream": True},
            "LogicalMessage: field flags at offset 5: a non-transactional message inside a stream.",
        ),
        (
            b"M\0" + bytes(8) + b"p\0" + b"\xff\xff\xff\xfe",
            {},
            "LogicalMessage: field content at offset 12: the length -2 is negative.",
        ),
        (
            b"R" + OID + b"s\0t\0" + b"x\0\0",
            {},
            "Relation: field replica_identity at offset 9: unknown replica identity 'x'.",
        ),
        (
            b"R" + OID + b"s\0t\0" + b"d\0\x01" + b"\x02c\0" + bytes(8),
            {},
            "Relation: field columns[0].flags at offset 12: unrecognized flags 0x02.",
        ),
        (b"I" + OID + b"K\0\0", {}, "Insert: field tuple kind at offset 5: 'N' expected, not 'K'."),
        (
            b"U" + OID + b"X\0\0",
            {},
            "Update: field tuple kind at offset 5: 'K' or 'O' or 'N' expected, not 'X'.",
        ),
        (
            b"U" + OID + b"K\0\0" + b"O\0\0",
            {},
            "Update: field tuple kind at offset 8: 'N' expected, not 'O'.",
        ),
        (b"D" + OID + b"N\0\0", {}, "Delete: field tuple kind at offset 5: 'K' or 'O' expected, not 'N'."),
        (b"I" + OID + b"N\0\x01x", {}, "Insert: field new[0] at offset 8: unknown kind of value 'x'."),
        (
            b"I" + OID + b"N\0\x02n" + b"t\0\0\0\x05abcd",
            {},
            "Insert: field new[1] at offset 14: 5 bytes expected, 4 left.",
        ),
        (
            b"T\xff\xff\xff\xff\0" + OID,
            {},
            "Truncate: field relation_oids at offset 10: 4 bytes expected, 0 left.",
        ),
        (b"O" + bytes(8) + b"name", {}, "Origin: field name at offset 9: the string has no end."),
    ],
)
def test_an_error_names_message_field_and_offset(data, mode, text):
    assert refusal(data, **mode) == text


@pytest.mark.parametrize("in_stream", [False, True])
def test_a_logical_message_is_read_without_a_copy_of_its_content(in_stream):
    whole = LogicalMessage(5 if in_stream else None, True, 240, "x", b"content")
    data = write_message(whole)
    head, content = read_message_head(data, in_stream=in_stream)
    assert replace(head, content=bytes(content)) == read_message(data, in_stream=in_stream) == whole
    assert content.obj is data


@settings(max_examples=200)
@given(data=st.binary(max_size=40), in_stream=st.booleans())
def test_a_logical_message_without_its_content_is_read_as_strictly(data, in_stream):
    def problem(read: Any) -> str:
        try:
            read(b"M" + data, in_stream=in_stream)
        except ProtocolError as error:
            return error.message
        return ""

    assert problem(read_message_head) == problem(read_message)
