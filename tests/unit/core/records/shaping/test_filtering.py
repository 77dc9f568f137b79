"""The encoder that leaves out rows: each event counts once, and no row stays with consumers that should be gone."""

import json
from typing import Any

import pytest

from cdcd.config.expressions import parse_expression
from cdcd.core.catalog.relations import TableDescription
from cdcd.core.catalog.types import BUILTIN_TYPES
from cdcd.core.errors import ConfigError, ProtocolError
from cdcd.core.facts import Fact
from cdcd.core.facts.rules import FilterFailed
from cdcd.core.protocol.frames import XLogData, write_frame
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
    Update,
)
from cdcd.core.protocol.writer import write_message
from cdcd.core.records.available import record_stream
from cdcd.core.records.encoder import EncoderSettings, Record, SnapshotPosition
from cdcd.core.records.shaping.filtering import filtered
from cdcd.core.records.shaping.row_values import REPORT_S
from cdcd.core.records.shaping.settings import ASSUMED, LEAVE_OUT, TableFilter

ORDERS, OTHERS = 7, 8
INT4, TEXT = 23, 25
SETTINGS = EncoderSettings("1", "shop", "db")
TOPIC, OTHER_TOPIC = "shop.public.orders", "shop.public.others"
POSITION = SnapshotPosition(lsn=1000, commit_lsn=999, first="first", last="last", others="true", event_no=5)


def relation(oid: int, name: str, identity: str) -> Relation:
    columns = (("id", INT4), ("status", TEXT), ("note", TEXT))
    return Relation(
        None,
        oid,
        "public",
        name,
        identity,
        tuple(Column(int(identity == "f" or each == "id"), each, kind, -1) for each, kind in columns),
    )


def chosen(text: str = "row.status == 'open'", **rest: str) -> tuple[TableFilter, ...]:
    return (TableFilter("public.orders", text, parse_expression(text), **rest),)


class Encoding:
    """The records of messages in one transaction."""

    def __init__(self, filters: tuple[TableFilter, ...], identity: str = "f", streamed: bool = False) -> None:
        self.facts: list[Fact] = []
        self.now_us = 0
        self.streamed = streamed
        self.encoder = filtered(record_stream(SETTINGS), filters, SETTINGS, self.facts.append)
        for each in (relation(ORDERS, "orders", identity), relation(OTHERS, "others", identity)):
            self.encoder.define(each, TableDescription(("id",)), BUILTIN_TYPES)
        self.encoder.begin(5, 1000, 0, None)

    def records(self, *messages: Message) -> list[Record]:
        out: list[Record] = []
        self.encoder.encode_all([frame(each) for each in messages], self.streamed, self.now_us, out)
        return out


def frame(message: Message) -> bytes:
    return write_frame(XLogData(500, 500, 0, write_message(message)))


def row(number: int, status: str | None = "open", note: Any = b"n") -> TupleData:
    return (b"%d" % number, None if status is None else status.encode(), note)


def key(number: int) -> TupleData:
    return (b"%d" % number, None, None)


def insert(number: int, status: str | None = "open", oid: int = ORDERS) -> Insert:
    return Insert(None, oid, row(number, status))


def update(number: int, before: str, after: str) -> Update:
    return Update(None, ORDERS, "O", row(number, before), row(number, after))


def told(records: list[Record]) -> list[tuple[str, int, int]]:
    """Op, key and number of each record; "" for a tombstone."""
    found = []
    for _, one, value, _ in records:
        number = json.loads(one or b"{}").get("id", 0)
        if value is None:
            found.append(("", number, 0))
        else:
            envelope = json.loads(value)
            found.append((envelope["op"], number, envelope["source"]["event_serial_no"]))
    return found


def test_without_a_filter_the_encoders_are_the_formats_own():
    inner, rows = record_stream(SETTINGS), record_stream(SETTINGS)
    assert filtered(inner, (), SETTINGS, lambda _: None) is inner
    assert filtered(rows, (), SETTINGS, lambda _: None) is rows


def test_consumers_have_the_rows_that_match_and_every_event_counts_once():
    encoding = Encoding(chosen())
    found = encoding.records(
        insert(1),
        insert(2, "draft"),
        update(1, "open", "open"),
        update(1, "open", "draft"),
        update(1, "draft", "draft"),
        update(2, "draft", "open"),
        Delete(None, ORDERS, "O", row(1, "draft")),
        Delete(None, ORDERS, "O", row(2, "open")),
        insert(3, "draft", OTHERS),
        Truncate(None, False, False, (ORDERS,)),
    )
    assert told(found) == [
        ("c", 1, 1),
        ("u", 1, 3),
        ("d", 1, 4),
        ("", 1, 0),
        ("c", 2, 6),
        ("d", 2, 8),
        ("", 2, 0),
        ("c", 3, 9),
        ("t", 0, 10),
    ]
    assert encoding.encoder.counts == {
        ("public.orders", "c"): 2,
        ("public.orders", "u"): 1,
        ("public.orders", "d"): 2,
        ("public.orders", "t"): 1,
        ("public.others", "c"): 1,
        ("public.orders", "filtered"): 3,
    }
    assert not encoding.facts


def test_a_row_that_leaves_is_deleted_as_it_was_and_one_that_enters_is_whole():
    encoding = Encoding(chosen())
    gone = json.loads(encoding.records(update(1, "open", "draft"))[0][2] or b"")
    assert gone["before"] == {"id": 1, "status": "open", "note": "n"}
    assert gone["after"] is None
    new: TupleData = (b"1", b"open", UNCHANGED)
    come = encoding.records(Update(None, ORDERS, "O", row(1, "draft", b"large"), new))[0]
    assert json.loads(come[2] or b"")["after"] == {"id": 1, "status": "open", "note": "large"}
    assert come[3] is None, "no value is missing"


def test_a_key_may_change_with_the_filters_answer():
    encoding = Encoding(chosen("row.id < 10"), "d")
    found = encoding.records(
        Update(None, ORDERS, "K", key(1), row(2)),
        Update(None, ORDERS, "K", key(2), row(12)),
        Update(None, ORDERS, "K", key(12), row(13)),
        Update(None, ORDERS, "K", key(13), row(3)),
        Update(None, ORDERS, "", None, row(3)),
        Update(None, ORDERS, "", None, row(13)),
        Delete(None, ORDERS, "K", key(13)),
        Delete(None, ORDERS, "K", key(3)),
    )
    assert told(found) == [
        ("d", 1, 1),
        ("", 1, 0),
        ("c", 2, 1),
        ("d", 2, 2),
        ("", 2, 0),
        ("c", 3, 4),
        ("u", 3, 5),
        ("d", 3, 8),
        ("", 3, 0),
    ]


def test_an_old_row_that_is_assumed_is_taken_for_one_that_the_topic_has():
    encoding = Encoding(chosen(old_row=ASSUMED), "d")
    found = encoding.records(
        insert(1, "draft"),
        Update(None, ORDERS, "", None, row(1, "draft")),
        Update(None, ORDERS, "", None, row(1, "open")),
        Update(None, ORDERS, "K", key(1), row(2, "draft")),
        Delete(None, ORDERS, "K", key(2)),
    )
    assert told(found) == [
        ("d", 1, 2),
        ("", 1, 0),
        ("u", 1, 3),
        ("d", 1, 4),
        ("", 1, 0),
        ("d", 2, 5),
        ("", 2, 0),
    ]
    assert not encoding.facts


@pytest.mark.parametrize(("on_error", "ops"), [("keep", ["c", "d", ""]), (LEAVE_OUT, ["d", ""])])
def test_a_row_without_an_answer_is_told_and_ends_nothing(on_error: str, ops: list[str]):
    encoding = Encoding(chosen("row.status > 'a'", on_error=on_error))
    found = encoding.records(insert(1, None), Delete(None, ORDERS, "O", row(1, None)))
    assert [op for op, _, _ in told(found)] == ops
    assert encoding.encoder.counts["public.orders", "filter_failed"] == 2
    (fact,) = encoding.facts
    assert fact == FilterFailed("public.orders", "> of null", "0/1F4", 0)
    encoding.now_us = REPORT_S * 1_000_000
    encoding.records(insert(2, None))
    assert encoding.facts[1] == FilterFailed("public.orders", "> of null", "0/1F4", 1)


@pytest.mark.parametrize(
    ("text", "identity", "said"),
    [
        ("row.nobody == 1", "f", "does not fit the table public.orders"),
        ("row.status == 'open'", "d", "asks for status of public.orders"),
    ],
)
def test_a_filter_that_does_not_fit_is_an_error_of_its_table_if_tables_are_set_aside(
    text: str, identity: str, said: str
):
    facts: list[Fact] = []
    encoder = filtered(record_stream(SETTINGS), chosen(text), SETTINGS, facts.append, refuses=True)
    encoder.define(relation(OTHERS, "others", identity), TableDescription(("id",)), BUILTIN_TYPES)
    with pytest.raises(ConfigError, match=said):
        encoder.define(relation(ORDERS, "orders", identity), TableDescription(("id",)), BUILTIN_TYPES)


def test_a_table_that_no_longer_fits_its_filter_ends_nothing():
    encoding = Encoding(chosen())
    altered = relation(ORDERS, "orders", "f")
    columns = (altered.columns[0], Column(1, "state", TEXT, -1), altered.columns[2])
    encoding.encoder.define(
        Relation(None, ORDERS, "public", "orders", "f", columns), TableDescription(("id",)), BUILTIN_TYPES
    )
    assert told(encoding.records(insert(1, "draft"))) == [("c", 1, 1)]
    (fact,) = encoding.facts
    assert isinstance(fact, FilterFailed)
    assert fact.reason == "there is no published column status"


def test_a_table_under_another_name_has_another_filter_or_none():
    encoding = Encoding(chosen())
    encoding.encoder.define(relation(ORDERS, "former", "f"), TableDescription(("id",)), BUILTIN_TYPES)
    assert len(encoding.records(insert(1, "draft"))) == 1


def test_rows_of_a_streamed_transaction_are_filtered_at_its_commit():
    encoding = Encoding(chosen(), streamed=True)
    frames = [
        frame(Insert(9, oid, row(1, status))) for oid in (ORDERS, OTHERS) for status in ("open", "draft")
    ]
    frames.append(frame(Update(9, ORDERS, "O", row(1, "open"), row(1, "draft"))))
    relations = {oid: (0, relation(oid, name, "f")) for oid, name in ((ORDERS, "orders"), (OTHERS, "others"))}
    drafted = encoding.encoder.draft_all([*frames], relations)
    assert [each for each in drafted if isinstance(each, bytes)] == [frames[0], frames[1], frames[4]]
    out: list[Record] = []
    encoding.encoder.encode_all(drafted, True, 0, out)
    assert [(topic, op, number) for (topic, *_), (op, _, number) in zip(out, told(out), strict=True)] == [
        (TOPIC, "c", 1),
        (OTHER_TOPIC, "c", 3),
        (OTHER_TOPIC, "c", 4),
        (TOPIC, "d", 5),
        (TOPIC, "", 0),
    ]


def test_messages_go_through():
    encoding = Encoding(chosen())
    out: list[Record] = []
    message = frame(LogicalMessage(None, True, 500, "app", b"x"))
    encoding.encoder.encode(message, False, 0, out)
    encoding.encoder.encode(frame(insert(1, "draft")), False, 0, out)
    encoding.encoder.encode_message(message, False, None, 0, out)
    assert [topic for topic, *_ in out] == ["shop.message", "shop.message"]


def test_rows_of_a_snapshot_that_do_not_match_have_no_record():
    facts: list[Fact] = []
    encoder = filtered(record_stream(SETTINGS), chosen(), SETTINGS, facts.append)
    for each in (relation(ORDERS, "orders", "f"), relation(OTHERS, "others", "f")):
        encoder.define(each, TableDescription(("id",)), BUILTIN_TYPES)
    out: list[Record] = []
    lines = [b"1\tdraft\tn\n", b"2\topen\tn\n", b"3\topen\tn\n", b"4\topen\tn\n", b"5\t\\N\tn\n"]
    encoded = encoder.encode_rows(ORDERS, lines, POSITION, 0, out, {b'{"id":3}'})
    assert (encoded.rows, encoded.keys) == (2, [b'{"id":2}', b'{"id":4}'])
    assert told(out) == [("r", 2, 6), ("r", 4, 7)]
    nothing = encoder.encode_rows(ORDERS, lines[:1], POSITION, 0, out, set())
    assert (nothing.rows, nothing.bytes, nothing.keys) == (0, 0, [])
    assert encoder.encode_rows(OTHERS, lines, POSITION, 0, out, set()).rows == 5
    assert encoder.counts["public.orders", "filtered"] == 3
    assert not facts


def test_a_row_of_a_snapshot_without_an_answer_is_told():
    facts: list[Fact] = []
    encoder = filtered(
        record_stream(SETTINGS), chosen("row.status > 'a'", on_error=LEAVE_OUT), SETTINGS, facts.append
    )
    encoder.define(relation(ORDERS, "orders", "d"), TableDescription(("id",)), BUILTIN_TYPES)
    out: list[Record] = []
    assert encoder.encode_rows(ORDERS, [b"5\t\\N\tn\n"], POSITION, 0, out, set()).rows == 0
    assert facts == [FilterFailed("public.orders", "> of null", "0/3E8", 0)]


@pytest.mark.parametrize("broken", [b"\x4e\x00\x02", b"\x4b\x00\x03"], ids=["too few columns", "an old row"])
def test_a_malformed_row_is_refused_as_without_a_filter(broken: bytes):
    whole = frame(insert(1, "draft"))
    row_at = whole.index(b"N\x00\x03")
    for each in (whole[:row_at] + broken + whole[row_at + 3 :], whole + b"x", whole[:-1]):
        encoding = Encoding(chosen())
        with pytest.raises(ProtocolError):
            encoding.encoder.encode(each, False, 0, [])
