"""What PostgreSQL 13 to 18 really sent: read, written back, and everything seen that a version can send."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest

from cdcd.core.protocol.frames import Keepalive, XLogData, read_frame, write_frame
from cdcd.core.protocol.messages import (
    UNCHANGED,
    Begin,
    BeginPrepare,
    Binary,
    Commit,
    CommitPrepared,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    Origin,
    Prepare,
    Relation,
    RollbackPrepared,
    StreamAbort,
    StreamCommit,
    StreamPrepare,
    StreamStart,
    StreamStop,
    Truncate,
    TupleData,
    Type,
    Update,
)
from cdcd.core.protocol.writer import write_message
from tests.golden.capture import MODES
from tests.golden.streams import Golden, captured, value_streams

GOLDENS = captured()
every_golden = pytest.mark.parametrize("golden", GOLDENS, ids=str)
streamed_goldens = pytest.mark.parametrize(
    "golden", [golden for golden in GOLDENS if "streaming" in golden.description().options], ids=str
)

FIRST_NORMAL_OID = 16384
"""The first oid of objects that users create (access/transam.h)."""

PLAIN = "BCORYIUDT"
TAGS = {
    "13-v1": PLAIN,
    "14-v1": PLAIN + "M",
    "14-v1-binary": PLAIN + "M",
    "14-v2-streaming": PLAIN + "M" + "SEcA",
    "15-v1": PLAIN + "M",
    "15-v1-binary": PLAIN + "M",
    "15-v2-streaming": PLAIN + "M" + "SEcA",
    "15-v3-two-phase": PLAIN + "M" + "bPKr",
    "15-v3-two-phase-streaming": PLAIN + "M" + "SEcA" + "bPKr" + "p",
    "16-v1": PLAIN + "M",
    "16-v1-binary": PLAIN + "M",
    "16-v2-streaming": PLAIN + "M" + "SEcA",
    "16-v3-two-phase": PLAIN + "M" + "bPKr",
    "16-v3-two-phase-streaming": PLAIN + "M" + "SEcA" + "bPKr" + "p",
    "16-v4-parallel": PLAIN + "M" + "SEcA",
    "16-v4-parallel-two-phase": PLAIN + "M" + "SEcA" + "bPKr" + "p",
    "17-v1": PLAIN + "M",
    "17-v1-binary": PLAIN + "M",
    "17-v2-streaming": PLAIN + "M" + "SEcA",
    "17-v3-two-phase": PLAIN + "M" + "bPKr",
    "17-v3-two-phase-streaming": PLAIN + "M" + "SEcA" + "bPKr" + "p",
    "17-v4-parallel": PLAIN + "M" + "SEcA",
    "17-v4-parallel-two-phase": PLAIN + "M" + "SEcA" + "bPKr" + "p",
    "18-v1": PLAIN + "M",
    "18-v1-binary": PLAIN + "M",
    "18-v2-streaming": PLAIN + "M" + "SEcA",
    "18-v3-two-phase": PLAIN + "M" + "bPKr",
    "18-v3-two-phase-streaming": PLAIN + "M" + "SEcA" + "bPKr" + "p",
    "18-v4-parallel": PLAIN + "M" + "SEcA",
    "18-v4-parallel-two-phase": PLAIN + "M" + "SEcA" + "bPKr" + "p",
}

FORMS = {
    "update with new row only",
    "update with key",
    "update with old row",
    "delete with key",
    "delete with old row",
    "value null",
    "value text",
    "value unchanged",
    "replica identity d",
    "replica identity f",
    "replica identity i",
    "replica identity n",
    "no columns",
    "type of a domain",
    "type of an enum",
    "truncate",
    "truncate several",
    "truncate cascade",
    "truncate restart identity",
    "truncate cascade restart identity",
}
MESSAGE_FORMS = {"message transactional", "message not transactional", "message empty"}
STREAM_FORMS = {
    "stream first block",
    "stream later block",
    "stream empty block",
    "stream origin",
    "abort of all",
    "abort of a subtransaction",
    *[f"{kind} in a stream" for kind in ("R", "Y", "I", "U", "D", "T", "M")],
}
TWO_PHASE_FORMS = {"prepared nothing"}


def rows_of(golden: Golden) -> set[tuple[str, Message]]:
    """The distinct relations and changes of a stream, without the numbers that a server gives by itself."""

    def own(oid: int) -> int:
        return 0 if oid >= FIRST_NORMAL_OID else oid

    names: dict[int, str] = {}
    found: set[tuple[str, Message]] = set()
    for _, message in golden.messages():
        if isinstance(message, Relation):
            names[message.oid] = message.name
            columns = tuple(replace(each, type_oid=own(each.type_oid)) for each in message.columns)
            found.add((message.name, replace(message, oid=0, columns=columns)))
        elif isinstance(message, Insert | Update | Delete):
            found.add((names[message.relation_oid], replace(message, relation_oid=0)))
    return found


@pytest.mark.parametrize("last", value_streams(), ids=str)
def test_every_version_sends_the_same_rows_so_that_a_test_of_values_needs_one_of_them(last):
    others = [golden for golden in GOLDENS if golden.mode == last.mode]
    assert len(others) >= 5
    rows = rows_of(last)
    assert len(rows) > 100
    for golden in others:
        assert rows_of(golden) == rows, golden


def test_every_version_and_mode_is_captured():
    assert {str(golden) for golden in GOLDENS} == set(TAGS)
    expected = {(version, mode.name) for version in range(13, 19) for mode in MODES if mode.since <= version}
    assert {(golden.version, golden.mode) for golden in GOLDENS} == expected


@every_golden
def test_a_stream_has_every_tag_that_its_version_and_mode_can_send(golden):
    tags = {chr(message.tag) for _, message in golden.messages()}
    assert tags == set(TAGS[str(golden)])


@every_golden
def test_a_stream_has_every_form_of_every_message(golden):
    expected = set(FORMS)
    tags = TAGS[str(golden)]
    if "M" in tags:
        expected |= MESSAGE_FORMS
    if "S" in tags:
        expected |= STREAM_FORMS
    if "b" in tags:
        expected |= TWO_PHASE_FORMS
    if golden.mode == "v1-binary":
        expected |= {"value binary"}
    if golden.version < 15:
        expected |= {"nothing committed"}
    assert set(forms(golden)) == expected


def forms(golden: Golden) -> Iterator[str]:
    in_stream = False
    before: Message = StreamStop()
    for _, message in golden.messages():
        yield from row_forms(message)
        yield from other_forms(message)
        if succession := SUCCESSIONS.get((type(before), type(message))):
            yield succession
        if in_stream and not isinstance(message, StreamStop | Origin):
            yield f"{chr(message.tag)} in a stream"
        in_stream = isinstance(message, StreamStart) or (in_stream and not isinstance(message, StreamStop))
        before = message


SUCCESSIONS: dict[tuple[type[Message], type[Message]], str] = {
    (StreamStart, Origin): "stream origin",
    (StreamStart, StreamStop): "stream empty block",
    (Begin, Commit): "nothing committed",
    (BeginPrepare, Prepare): "prepared nothing",
}


def row_forms(message: Message) -> Iterator[str]:
    match message:
        case Insert(new=new):
            yield from value_forms(new)
        case Update(old_kind=kind, old=old, new=new):
            yield {"": "update with new row only", "K": "update with key", "O": "update with old row"}[kind]
            yield from value_forms(new + (old or ()))
        case Delete(old_kind=kind, old=row):
            yield {"K": "delete with key", "O": "delete with old row"}[kind]
            yield from value_forms(row)


def other_forms(message: Message) -> Iterator[str]:
    match message:
        case Relation(replica_identity=identity, columns=columns):
            yield f"replica identity {identity}"
            if not columns:
                yield "no columns"
        case Type(namespace=namespace):
            yield "type of an enum" if namespace else "type of a domain"
        case Truncate(cascade=cascade, restart_identity=restart, relation_oids=oids):
            yield "truncate" + " cascade" * cascade + " restart identity" * restart
            if len(oids) > 1:
                yield "truncate several"
        case LogicalMessage(transactional=transactional, content=content):
            yield "message transactional" if transactional else "message not transactional"
            if not content:
                yield "message empty"
        case StreamStart(first_segment=first):
            yield "stream first block" if first else "stream later block"
        case StreamAbort(xid=xid, subxid=subxid):
            yield "abort of all" if xid == subxid else "abort of a subtransaction"


def value_forms(row: TupleData) -> Iterator[str]:
    for value in row:
        if value is None:
            yield "value null"
        elif value is UNCHANGED:
            yield "value unchanged"
        else:
            yield "value binary" if isinstance(value, Binary) else "value text"


@every_golden
def test_every_frame_is_written_back_byte_for_byte(golden):
    kinds = set()
    for data in golden.frames():
        frame = read_frame(data)
        kinds.add(type(frame))
        assert write_frame(frame) == data
    assert kinds == {XLogData, Keepalive}


@every_golden
def test_every_message_is_written_back_byte_for_byte(golden):
    for data, message in golden.messages():
        assert write_message(message) == data


@every_golden
def test_the_options_are_those_that_the_daemon_would_send_today(golden):
    description = golden.description()
    (mode,) = [mode for mode in MODES if mode.name == golden.mode]
    options = mode.options(description.server_version_num)
    assert description.server_version_num // 10000 == golden.version
    assert description.options == dict(options.options)
    assert description.abort_info == options.abort_info


# What the docstrings of cdcd.core.protocol say of the server beyond the manual.


@every_golden
def test_a_frame_stands_where_its_message_ends_or_nowhere_when_another_follows_at_once(golden):
    frames = [frame for frame in map(read_frame, golden.frames()) if isinstance(frame, XLogData)]
    pairs = list(zip(frames, [message for _, message in golden.messages()], strict=True))
    for (frame, message), (_, after) in pairwise(pairs):
        assert frame.wal_start == frame.wal_end
        ahead = isinstance(message, Relation | Type) or isinstance(after, Origin)
        assert (frame.wal_start == 0) == ahead
        match message:
            case (
                Commit(end_lsn=end)
                | StreamCommit(end_lsn=end)
                | Prepare(end_lsn=end)
                | StreamPrepare(end_lsn=end)
                | CommitPrepared(end_lsn=end)
                | RollbackPrepared(rollback_end_lsn=end)
                | LogicalMessage(transactional=False, lsn=end)
            ):
                assert frame.wal_start == end


@every_golden
def test_begin_names_the_lsn_that_its_commit_has(golden):
    begin: Begin | BeginPrepare | None = None
    for _, message in golden.messages():
        match message:
            case Begin() | BeginPrepare():
                assert begin is None
                begin = message
            case Commit(commit_lsn=lsn, commit_time=time):
                assert isinstance(begin, Begin)
                assert (begin.final_lsn, begin.commit_time) == (lsn, time)
                begin = None
            case Prepare(prepare_lsn=lsn, end_lsn=end, prepare_time=time, xid=xid, gid=gid):
                assert begin == BeginPrepare(lsn, end, time, xid, gid)
                begin = None


@every_golden
def test_a_message_that_is_not_transactional_stands_alone(golden):
    open_ = False
    for _, message in golden.messages():
        match message:
            case Begin() | BeginPrepare() | StreamStart():
                open_ = True
            case Commit() | Prepare() | StreamStop():
                open_ = False
            case LogicalMessage(transactional=transactional):
                assert transactional == open_


@streamed_goldens
def test_an_origin_in_a_stream_comes_first_and_knows_no_commit(golden):
    origins = 0
    before: Message | None = None
    in_stream = False
    for _, message in golden.messages():
        if in_stream and isinstance(message, Origin):
            assert isinstance(before, StreamStart)
            assert before.first_segment
            assert message == Origin(0, "upstream")
            origins += 1
        in_stream = isinstance(message, StreamStart) or (in_stream and not isinstance(message, StreamStop))
        before = message
    assert origins == 1


@streamed_goldens
def test_a_message_in_a_stream_has_the_xid_of_the_whole_even_when_a_rolled_back_subtransaction_wrote_it(
    golden,
):
    top = 0
    xids: dict[bytes, set[int]] = defaultdict(set)
    tops: dict[bytes, set[int]] = defaultdict(set)
    for _, message in golden.messages():
        if isinstance(message, StreamStart):
            top = message.xid
        elif isinstance(message, LogicalMessage) and message.xid is not None:
            xids[message.content].add(message.xid)
            tops[message.content].add(top)
    rolled_back = b"in a subtransaction, rolled back"
    assert rolled_back in xids
    assert xids == tops


@streamed_goldens
def test_after_an_abort_the_definition_of_a_table_is_sent_again(golden):
    """Once per streamed transaction, and again in it after each abort in it."""
    known: dict[int, set[int]] = defaultdict(set)
    top = 0
    for _, message in golden.messages():
        match message:
            case StreamStart(xid=xid):
                top = xid
            case StreamStop():
                top = 0
            case StreamAbort(xid=xid):
                known[xid].clear()
            case Relation(oid=oid):
                known[top].add(oid)
            case Insert(relation_oid=oid) | Update(relation_oid=oid) | Delete(relation_oid=oid) if top:
                assert oid in known[top]
