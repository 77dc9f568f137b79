"""Rows that were drafted before their commit are the records that they would have been without."""

import marshal
from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest

from cdcd.core.catalog.relations import CatalogColumn, TableDescription
from cdcd.core.errors import ProtocolError, WithoutStreamingError
from cdcd.core.protocol.frames import XLOG_HEADER, XLogData, write_frame
from cdcd.core.protocol.messages import (
    UNCHANGED,
    Column,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    Relation,
    Truncate,
    TupleData,
    Unchanged,
    Update,
)
from cdcd.core.protocol.writer import write_message
from cdcd.core.records.available import record_stream
from cdcd.core.records.encoder import EncoderSettings, Record
from cdcd.core.records.stream import RecordStream
from cdcd.core.transactions.assembler import Assembler
from cdcd.core.transactions.drafts import SpoolItem, events, without_first
from cdcd.core.transactions.ledger import Ledger
from cdcd.core.transactions.position import Position
from cdcd.core.transactions.spool import Spool
from cdcd.core.transactions.steps import Changes, Described, Opened, OriginChanged, RelationPreview
from tests.golden.streams import Golden, captured
from tests.unit.core.records.debezium_json.test_golden_records import KEYS, types_of
from tests.unit.core.records.formats import json_of

INT, TEXT = 23, 25
XID = 7
OID = 16384
NOW_US = 1_700_000_000_123_456

COLUMNS = (Column(1, "id", INT, -1), Column(0, "name", TEXT, -1), Column(0, "note", TEXT, -1))
ITEM = Relation(None, OID, "public", "item", "d", COLUMNS)
WHOLE = Relation(None, OID + 1, "public", "whole", "f", tuple(replace(one, flags=1) for one in COLUMNS))
KEYLESS = Relation(None, OID + 2, "public", "keyless", "n", tuple(replace(one, flags=0) for one in COLUMNS))
RELATIONS = (ITEM, WHOLE, KEYLESS)
DESCRIPTIONS = {WHOLE.oid: TableDescription(("id",))}

STREAMED = [golden for golden in captured() if "streaming" in golden.mode or "parallel" in golden.mode]


def encoder_of(relations: Iterable[Relation] = RELATIONS, *, tombstones: bool = True) -> RecordStream:
    made = record_stream(EncoderSettings("1", "shop", "db", tombstones=tombstones))
    for one in relations:
        made.define(one, DESCRIPTIONS.get(one.oid, TableDescription()), {})
    return made


def framed(*messages: Message) -> list[SpoolItem]:
    return [
        write_frame(XLogData(500 + number // 2, 0, 0, write_message(message)))
        for number, message in enumerate(messages)
    ]


def drafted(encoder: RecordStream, kept: list[SpoolItem], *relations: Relation) -> list[SpoolItem]:
    return encoder.draft_all(kept, {one.oid: (1, one) for one in relations or RELATIONS})


def records_of(encoder: RecordStream, kept: list[SpoolItem], skip: int = 0) -> list[Record]:
    out: list[Record] = []
    encoder.begin(XID, 1000, 0, 900)
    encoder.skip(skip)
    size = encoder.encode_all(kept, True, NOW_US, out)
    assert size == sum(len(key or b"") + len(value or b"") for _, key, value, _ in out)
    return out


def row(*values: str | Unchanged | None) -> TupleData:
    return tuple([value.encode() if isinstance(value, str) else value for value in values])


def every_change() -> list[SpoolItem]:
    """Runs of all kinds of rows, in three tables, by two subtransactions."""
    one, two, other = row("1", "a", "x"), row("1", 'b "quoted"', "hä"), row("2", "c", None)
    old = row("1", None, None)
    toasted = row("1", "b", UNCHANGED)
    messages: list[Message] = []
    for oid, kind, before in ((ITEM.oid, "K", old), (WHOLE.oid, "O", one)):
        messages += [
            Insert(XID, oid, one),
            Insert(XID, oid, other),
            Update(XID, oid, "", None, two),
            Update(XID + 1, oid, "", None, toasted),
            Update(XID + 1, oid, kind, before, two),
            Update(XID + 1, oid, kind, before, other),
            Delete(XID + 1, oid, kind, before),
            Delete(XID, oid, kind, before),
        ]
    messages += [Insert(XID, KEYLESS.oid, one), Insert(XID, KEYLESS.oid, two)]
    messages += [Truncate(XID, False, False, (ITEM.oid,)), LogicalMessage(XID, True, 1, "p", b"content")]
    messages += [Insert(XID, ITEM.oid, one)]
    return framed(*messages)


@pytest.mark.parametrize("tombstones", [True, False])
def test_what_was_drafted_gives_the_records_that_its_frames_give(tombstones):
    frames = every_change()
    plain = encoder_of(tombstones=tombstones)
    encoder = encoder_of(tombstones=tombstones)
    kept = drafted(encoder, frames)
    assert events(kept) == len(frames)
    assert sum(isinstance(one, tuple) for one in kept) > 8
    assert records_of(encoder, kept) == records_of(plain, frames)
    assert encoder.counts == plain.counts


def late_records_of(encoder: RecordStream, kept: list[SpoolItem]) -> list[Record]:
    """As `records_of`, but each draft's records are made late where the encoder has such."""
    out: list[Record] = []
    encoder.begin(XID, 1000, 0, 900)
    for one in kept:
        late = None if isinstance(one, bytes) else encoder.late_records(one, NOW_US, out)
        if late is None:
            encoder.encode_all([one], True, NOW_US, out)
            continue
        made = late.records()
        sizes = [len(key or b"") + len(value or b"") for _, key, value, _ in made]
        assert (late.count, late.size, late.largest) == (len(made), sum(sizes), max(sizes))
        assert {topic for topic, *_ in made} == {late.topic}
        out += made
    return out


@pytest.mark.parametrize("tombstones", [True, False])
def test_records_that_are_made_late_are_the_same(tombstones):
    frames = every_change()
    plain = encoder_of(tombstones=tombstones)
    encoder = encoder_of(tombstones=tombstones)
    assert late_records_of(encoder, drafted(encoder, frames)) == records_of(plain, frames)
    assert encoder.counts == plain.counts


def test_records_that_are_made_late_are_numbered_across_powers_of_ten():
    frames = framed(*[Insert(XID, OID, row(str(number), "a", "x")) for number in range(1, 1102)])
    encoder = encoder_of()
    assert late_records_of(encoder, drafted(encoder, frames)) == records_of(encoder_of(), frames)


def test_records_behind_what_was_delivered_are_made_late():
    frames = framed(*[Insert(XID, OID, row(str(number), "a", "x")) for number in range(1, 6)])
    encoder = encoder_of()
    (draft,) = drafted(encoder, frames)
    assert isinstance(draft, tuple)
    encoder.begin(XID, 1000, 0, 900)
    encoder.skip(2)
    late = encoder.late_records(without_first(draft, 2), NOW_US, [])
    assert late is not None
    assert late.records() == records_of(encoder_of(), frames)[2:]


@pytest.mark.parametrize("oid", [ITEM.oid, KEYLESS.oid])
def test_late_records_are_handed_over_from_the_one_that_was_refused_on(oid):
    encoder = encoder_of()
    (draft,) = drafted(encoder, framed(*[Insert(XID, oid, row(str(n), "a", "x")) for n in range(1, 6)]))
    assert isinstance(draft, tuple)
    encoder.begin(XID, 1000, 0, 900)
    late = encoder.late_records(draft, NOW_US, [])
    assert late is not None
    taken: list[Record] = []
    full = [True]

    def produce(topic: str, value: bytes, key: bytes | None) -> None:
        if len(taken) == 3 and full:
            full.clear()
            raise BufferError
        taken.append((topic, key, value, None))

    with pytest.raises(BufferError):
        late.hand_over(produce, 0)
    assert late.handed_over == 3
    late.hand_over(produce, 3)
    assert (late.handed_over, taken) == (5, late.records())


def test_deletes_with_tombstones_are_not_made_late():
    encoder = encoder_of()
    (draft,) = drafted(encoder, framed(Delete(XID, OID, "K", row("1", None, None))))
    assert isinstance(draft, tuple)
    encoder.begin(XID, 1000, 0, 900)
    assert encoder.late_records(draft, NOW_US, []) is None
    assert encoder.counts == {}


def test_drafts_are_the_same_after_the_spool():
    kept = drafted(encoder_of(), every_change())
    assert marshal.loads(marshal.dumps(kept, 2)) == kept


def test_a_change_of_the_key_a_truncate_and_a_message_stay_frames():
    frames = framed(
        Update(XID, OID, "K", row("1", None, None), row("2", "b", "y")),
        Truncate(XID, False, False, (OID,)),
        LogicalMessage(XID, True, 1, "p", b"content"),
    )
    assert drafted(encoder_of(), frames) == frames


@pytest.mark.parametrize("writes", [True, False])
def test_a_row_of_which_the_server_left_a_value_out_stays_a_frame(writes):
    # Whoever reads the table beside the stream must see it, to read the row again by key.
    toasted = row("1", "b", UNCHANGED)
    frames = framed(
        Insert(XID, OID, row("1", "a", "x")),
        Update(XID, OID, "", None, toasted),
        Update(XID, WHOLE.oid, "O", toasted, toasted),
        Update(XID, OID, "", None, row("1", "c", None)),
    )
    encoder = encoder_of()
    json_of(encoder).writes = writes
    kept = drafted(encoder, frames)
    assert [one for one in kept if isinstance(one, bytes)] == frames[1:3]
    assert events(kept) == 4
    assert records_of(encoder, kept) == records_of(encoder_of(), frames)


def test_a_value_that_the_old_row_has_is_not_left_out():
    frames = framed(Update(XID, WHOLE.oid, "O", row("1", "a", "long"), row("1", "b", UNCHANGED)))
    assert [type(one) for one in drafted(encoder_of(), frames)] == [tuple]


def test_requests_to_the_daemon_are_counted_without_a_record():
    frames = framed(Insert(XID, OID, row("1", "a", "x")), Insert(XID, OID, row("2", "a", "x")))
    message = framed(LogicalMessage(XID, True, 1, "p", b"content"))
    plain, encoder = encoder_of(), encoder_of()
    expected = records_of(plain, [frames[0], *message, frames[1]])
    out: list[Record] = []
    encoder.begin(XID, 1000, 0, 900)
    encoder.encode_all(frames[:1], True, NOW_US, out)
    encoder.skip(1)
    encoder.encode_all(frames[1:], True, NOW_US, out)
    assert out == [expected[0], expected[2]]


def test_rows_of_a_relation_that_is_not_known_as_it_is_in_the_stream_stay_frames():
    frames = framed(Insert(XID, OID, row("1", "a", "x")))
    altered = replace(ITEM, columns=(*COLUMNS[:2], Column(0, "remark", TEXT, -1)))
    assert drafted(encoder_of([]), frames) == frames
    assert drafted(encoder_of(), frames, WHOLE) == frames
    assert drafted(encoder_of(), frames, altered) == frames
    assert drafted(encoder_of(), frames, ITEM) != frames


def test_a_malformed_row_is_nobodys_concern_before_its_commit():
    (frame,) = framed(Insert(XID, OID, row("one", "a", "x")))
    assert isinstance(frame, bytes)
    short: list[SpoolItem] = [frame[:-1], frame[:31]]
    encoder = encoder_of()
    assert drafted(encoder, short) == short
    with pytest.raises(ProtocolError):
        records_of(encoder, short)


def test_events_that_are_delivered_already_are_left_out_of_a_draft():
    frames = framed(*[Insert(XID, OID, row(str(number), "a", "x")) for number in range(5)])
    encoder = encoder_of()
    (draft,) = drafted(encoder, frames)
    assert isinstance(draft, tuple)
    assert records_of(encoder, [without_first(draft, 3)], skip=3) == records_of(encoder_of(), frames)[3:]


@pytest.mark.parametrize("before", [0, 7, 95, 997, 999, 1_997, 9_997, 99_997, 999_997, 12_345_678])
def test_events_of_a_draft_are_numbered_as_their_frames_are(before):
    frames = framed(*[Insert(XID, OID, row(str(number), "a", "x")) for number in range(5)])
    encoder = encoder_of()
    records = records_of(encoder, drafted(encoder, frames), skip=before)
    assert records == records_of(encoder_of(), frames, skip=before)
    for number, (_, _, value, _) in enumerate(records, before + 1):
        assert value is not None
        assert b'"event_serial_no":%d}' % number in value


def test_rows_of_other_transactions_stand_between_a_draft_and_its_end():
    encoder, plain = encoder_of(), encoder_of()
    frames = every_change()
    others = framed(Insert(XID, OID, row("8", "between", "x")))
    kept = drafted(encoder, frames)
    assert records_of(encoder, others) == records_of(plain, others)
    assert records_of(encoder, kept) == records_of(plain, frames)


def test_a_description_that_makes_other_rows_asks_for_the_transaction_without_streaming():
    encoder = encoder_of()
    kept = drafted(encoder, framed(Insert(XID, WHOLE.oid, row("1", "a", "x"))))
    encoder.define(WHOLE, TableDescription(("id", "name")), {})
    with pytest.raises(WithoutStreamingError, match=r"public\.whole") as caught:
        records_of(encoder, kept)
    assert caught.value.commit_lsn == 1000


def test_a_description_that_makes_the_same_rows_does_not():
    encoder = encoder_of()
    frames = framed(Insert(XID, OID, row("1", "a", "x")))
    kept = drafted(encoder, frames)
    columns = (CatalogColumn("id", 9, "integer", INT, 0, None),)
    encoder.define(ITEM, TableDescription(columns=columns), {})
    assert records_of(encoder, kept) == records_of(encoder_of(), frames)


def replayed(golden: Golden, directory: str, *, drafts: bool) -> tuple[list[Record], int]:
    """All records of a captured stream, but logical messages, and how many events were drafted."""
    relations: list[Relation] = []
    description = golden.description()
    # After the abort of a savepoint the server would have to be asked about these.
    frames = [frame for frame in golden.frames() if frame[XLOG_HEADER : XLOG_HEADER + 1] != b"M"]
    encoder = record_stream(EncoderSettings("1", "golden", "db"))
    out: list[Record] = []
    count = 0

    def define(relation: Relation) -> None:
        relations.append(relation)
        encoder.define(relation, TableDescription(KEYS.get(relation.name, ())), types_of(relations))

    def draft(items: list[SpoolItem], described: Mapping[int, tuple[int, Relation]]) -> list[SpoolItem]:
        nonlocal count
        made = encoder.draft_all(items, described) if drafts else items
        count += events([one for one in made if isinstance(one, tuple)])
        return made

    assembler = Assembler(
        Ledger(), Spool(directory, 20_000), Position(), draft, abort_info=description.abort_info
    )
    for step in assembler.assemble(frames):
        match step:
            case RelationPreview() if not encoder.tables.knows(step.message.oid):
                define(step.message)
            case Described(message=Relation() as message):
                define(message)
            case Opened():
                encoder.begin(step.xid, step.commit_lsn, step.commit_time, step.last_commit_lsn)
            case OriginChanged():
                encoder.set_origin(step.name, step.lsn)
            case Changes():
                encoder.encode_all(step.items, step.in_stream, NOW_US, out)
    return out, count


@pytest.mark.parametrize("golden", STREAMED, ids=str)
def test_captured_streams_give_the_same_records_with_drafts(golden, tmp_path):
    plain, _ = replayed(golden, str(tmp_path), drafts=False)
    records, count = replayed(golden, str(tmp_path), drafts=True)
    assert count > 100
    assert len(plain) > 100
    assert records == plain
