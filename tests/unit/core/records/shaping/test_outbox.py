"""The encoder in front of a format's: each event counts once, and what cannot be published is not lost."""

import json
from dataclasses import replace
from typing import Any

import pytest

from cdcd.core.catalog.relations import TableDescription
from cdcd.core.catalog.types import BUILTIN_TYPES
from cdcd.core.errors import ConfigError
from cdcd.core.facts import Fact
from cdcd.core.facts.rules import EventRefused
from cdcd.core.protocol.frames import XLogData, write_frame
from cdcd.core.protocol.messages import (
    Column,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    Relation,
    Truncate,
    Update,
)
from cdcd.core.protocol.writer import write_message
from cdcd.core.records.available import record_stream
from cdcd.core.records.encoder import EncoderSettings, Record
from cdcd.core.records.shaping.outbox import REPORT_S, shaped
from cdcd.core.records.shaping.settings import Outbox, OutboxTable
from cdcd.core.transactions.drafts import SpoolItem
from tests.unit.core.records.cloudevents.reading import read_event

ORDERS, OUTBOX = 7, 8
TEXT = 25
TABLE = OutboxTable("events.{value}", "to", "", "key", "payload")
SETTINGS = EncoderSettings("1", "shop", "db")


def relation(oid: int, name: str, *columns: str) -> Relation:
    return Relation(None, oid, "public", name, "d", tuple(Column(0, each, TEXT, -1) for each in columns))


DESCRIBED = (relation(ORDERS, "orders", "key", "note"), relation(OUTBOX, "outbox", "to", "key", "payload"))


class Encoding:
    """The records of messages in one transaction."""

    def __init__(self, outbox: Outbox, settings: EncoderSettings = SETTINGS) -> None:
        self.facts: list[Fact] = []
        self.now_us = 0
        self.encoder = shaped(record_stream(settings), outbox, settings, self.facts.append)
        for each in DESCRIBED:
            self.encoder.define(each, TableDescription(("key",)), BUILTIN_TYPES)
        self.encoder.begin(5, 1000, 0, None)

    def records(self, *messages: Message) -> list[Record]:
        out: list[Record] = []
        for message in messages:
            if isinstance(message, LogicalMessage):
                self.encoder.encode(frame(message), False, self.now_us, out)
            else:
                self.encoder.encode_all([frame(message)], False, self.now_us, out)
        return out


def unheard(fact: Fact) -> None:
    raise AssertionError(f"nothing is refused: {fact}")


def frame(message: Message) -> bytes:
    return write_frame(XLogData(500, 500, 0, write_message(message)))


def publish(
    topic: str = "events.a", prefix: str = "cdcd.publish", transactional: bool = True
) -> LogicalMessage:
    content = json.dumps({"topic": topic, "key": "k", "payload": "p"}).encode()
    return LogicalMessage(None, transactional, 500, prefix, content)


def order(key: bytes = b"1") -> Insert:
    return Insert(None, ORDERS, (key, b"n"))


def event(to: bytes = b"a") -> Insert:
    return Insert(None, OUTBOX, (to, b"k", b"p"))


BOTH = Outbox(("events.a", "events.b"), messages=True, tables={("public", "outbox"): TABLE})
PUBLISHED: Record = ("events.a", b"k", b"p", None)


def numbers(records: list[Record]) -> list[int]:
    return [json.loads(each[2] or b"")["source"]["event_serial_no"] for each in records]


def test_without_an_outbox_the_encoder_is_the_formats_own():
    inner = record_stream(SETTINGS)
    assert shaped(inner, Outbox(("events.a",)), SETTINGS, unheard) is inner


def test_every_event_counts_once_whatever_becomes_of_it():
    encoding = Encoding(BOTH)
    row = (b"a", b"k", b"p")
    found = encoding.records(
        order(),
        publish(),
        order(b"2"),
        publish("events.unknown"),
        event(),
        order(b"3"),
        event(b"unknown"),
        Update(None, OUTBOX, "", None, row),
        order(b"4"),
        Delete(None, OUTBOX, "K", row),
        order(b"5"),
    )
    published = [each for each in found if each[0] == "events.a"]
    assert published == [PUBLISHED, PUBLISHED]
    others = [each for each in found if each[0] != "events.a"]
    assert numbers(others) == [1, 3, 4, 6, 7, 9, 11]
    assert [each[0] for each in others] == [
        "shop.public.orders",
        "shop.public.orders",
        "shop.message",
        "shop.public.orders",
        "shop.public.outbox",
        "shop.public.orders",
        "shop.public.orders",
    ]


def test_headers_count_in_the_size_of_an_event():
    """The bytes of a batch are bounded by the sizes, and an application may put most of an event into headers."""
    encoding, out = Encoding(BOTH), list[Record]()
    content = {"topic": "events.a", "key": "k", "payload": "p", "headers": {"body": "x" * 1000}}
    message = LogicalMessage(None, True, 500, "cdcd.publish", json.dumps(content).encode())
    assert encoding.encoder.encode(frame(message), False, 0, out) == 1006
    assert out[0][3] == [("body", b"x" * 1000)]


def test_counts_name_each_event_once():
    encoding = Encoding(BOTH)
    encoding.records(publish(), publish("x"), publish("x", prefix="mine"), event(), event(b"x"), order())
    encoding.records(Delete(None, OUTBOX, "K", (b"a", b"k", b"p")))
    assert encoding.encoder.counts == {
        ("", "m"): 1,
        ("", "published"): 1,
        ("", "refused"): 1,
        ("public.outbox", "published"): 1,
        ("public.outbox", "refused"): 1,
        ("public.outbox", "ignored"): 1,
        ("public.orders", "c"): 1,
    }


@pytest.mark.parametrize("prefix", ["cdcd.publish2", "cdcd", "p", "cdcd.Publish"])
def test_other_messages_stay_messages(prefix: str):
    ((topic, *_),) = Encoding(BOTH).records(publish(prefix=prefix))
    assert topic == "shop.message"


def test_messages_are_published_only_if_they_are_switched_on():
    only_tables = Outbox(("events.a",), tables={("public", "outbox"): TABLE})
    encoding = Encoding(only_tables)
    assert [topic for topic, *_ in encoding.records(publish(), event())] == ["shop.message", "events.a"]
    assert not encoding.facts


def test_a_message_outside_of_transactions_is_published_too():
    encoding = Encoding(BOTH)
    out: list[Record] = []
    assert encoding.encoder.encode_message(frame(publish(transactional=False)), False, None, 0, out) == 2
    encoding.encoder.encode_message(frame(publish("x", transactional=False)), False, None, 0, out)
    assert out[0] == PUBLISHED
    assert out[1][0] == "shop.message"


def test_a_message_that_is_too_large_for_its_topic_has_no_record_and_is_told():
    encoding = Encoding(Outbox(("events.a",), messages=True, message_bytes_max=40))
    found = encoding.records(publish(), order())
    assert numbers(found) == [2]
    (fact,) = encoding.facts
    assert isinstance(fact, EventRefused)
    assert "40 are allowed" in fact.reason
    assert encoding.encoder.counts == {("", "refused"): 1, ("public.orders", "c"): 1}


def test_many_refused_events_are_one_report_in_a_while():
    encoding = Encoding(BOTH)
    encoding.records(*[publish("x")] * 100, event(b"y"))
    encoding.now_us = REPORT_S * 1_000_000 - 1
    encoding.records(publish("x"))
    encoding.now_us += 1
    encoding.records(event(b"z"))
    first, second = encoding.facts
    assert isinstance(first, EventRefused)
    assert isinstance(second, EventRefused)
    assert (first.table, first.left_out, first.lsn) == ("", 0, "0/1F4")
    assert "does not have the topic x" in first.reason
    assert (second.table, second.left_out) == ("public.outbox", 101)


def test_rows_between_events_keep_their_order_and_are_encoded_together():
    frames: list[SpoolItem] = [
        frame(each) for each in (order(), order(b"2"), event(), order(b"3"), event(b"b"))
    ]
    shaping, plain = Encoding(BOTH), Encoding(Outbox())
    out: list[Record] = []
    expected: list[Record] = []
    size = shaping.encoder.encode_all(frames, False, 0, out)
    plain.encoder.encode_all(frames, False, 0, expected)
    assert [topic for topic, *_ in out] == [
        "shop.public.orders", "shop.public.orders", "events.a", "shop.public.orders", "events.b",
    ]  # fmt: skip
    assert [out[0], out[1], out[3]] == [expected[0], expected[1], expected[3]]
    assert size == sum(len(key or b"") + len(value or b"") for _, key, value, _ in out)


def test_rows_of_an_outbox_table_are_not_drafted():
    encoding = Encoding(BOTH)

    def streamed(message: Any) -> bytes:
        return write_frame(XLogData(500, 500, 0, write_message(message)))

    frames: list[SpoolItem] = [
        streamed(Insert(9, ORDERS, (b"1", b"n"))),
        streamed(Insert(9, OUTBOX, (b"a", b"k", b"p"))),
        streamed(Insert(9, ORDERS, (b"2", b"n"))),
    ]
    relations = {each.oid: (1, each) for each in DESCRIBED}
    drafts = encoding.encoder.draft_all(frames, relations)
    assert [isinstance(each, bytes) for each in drafts] == [False, True, False]
    out: list[Record] = []
    encoding.encoder.encode_all(drafts, True, 0, out)
    assert [topic for topic, *_ in out] == ["shop.public.orders", "events.a", "shop.public.orders"]
    assert numbers([out[0], out[2]]) == [1, 3]


def test_a_truncate_is_one_event_and_goes_to_the_tables_topics():
    found = Encoding(BOTH).records(Truncate(None, False, False, (ORDERS, OUTBOX)), order())
    assert [topic for topic, *_ in found] == [
        "shop.public.orders",
        "shop.public.outbox",
        "shop.public.orders",
    ]
    assert numbers(found) == [1, 1, 2]


def test_a_table_that_loses_a_column_of_events_is_refused_when_it_is_described():
    encoding = Encoding(BOTH)
    with pytest.raises(ConfigError, match="no published column payload"):
        encoding.encoder.define(
            relation(OUTBOX, "outbox", "to", "key"), TableDescription(("key",)), BUILTIN_TYPES
        )


def test_a_table_that_is_renamed_is_an_outbox_table_no_more():
    encoding = Encoding(BOTH)
    renamed = relation(OUTBOX, "outbox_old", "to", "key", "payload")
    encoding.encoder.define(renamed, TableDescription(("key",)), BUILTIN_TYPES)
    assert [topic for topic, *_ in encoding.records(event())] == ["shop.public.outbox_old"]


def test_all_that_the_engine_asks_of_a_relation_is_the_formats_answer():
    inner = record_stream(SETTINGS)
    encoder = shaped(inner, BOTH, SETTINGS, unheard)
    encoder.define(DESCRIBED[1], TableDescription(("key",)), BUILTIN_TYPES)
    assert encoder.tables.knows(OUTBOX)
    assert encoder.tables.relation(OUTBOX) == inner.tables.relation(OUTBOX)
    assert encoder.tables.description(OUTBOX) == inner.tables.description(OUTBOX)
    assert encoder.tables.topic_of(OUTBOX) == encoder.tables.claim(OUTBOX) == "shop.public.outbox"
    assert encoder.tables.topic_named("public.outbox") == "shop.public.outbox"
    assert encoder.tables.key_indexes(OUTBOX) == inner.tables.key_indexes(OUTBOX)
    assert encoder.tables.key_column_names(OUTBOX) == inner.tables.key_column_names(OUTBOX)
    assert not encoder.tables.has_protected_key(OUTBOX)
    out: list[Record] = []
    assert encoder.tables.announce(OUTBOX, out) == 0
    assert encoder.encode_end_of_rows(OUTBOX, (2000, 1), 0, out) > 0
    assert out[0][0] == "shop.public.outbox"


def test_what_an_application_publishes_stays_as_it_is_beside_cloudevents():
    settings = replace(SETTINGS, value_format="cloudevents")
    encoder = shaped(record_stream(settings), BOTH, settings, unheard)
    for each in DESCRIBED:
        encoder.define(each, TableDescription(("key",)), BUILTIN_TYPES)
    encoder.begin(5, 1000, 0, None)
    out: list[Record] = []
    event = Insert(None, OUTBOX, (b"a", b"k", b'{"specversion": "1.0"}'))
    encoder.encode_all([frame(event), frame(order())], False, 0, out)
    (_, _, published, _), record = out
    assert published == b'{"specversion": "1.0"}'
    assert read_event(record).get_id() == "commit_lsn:1000;event:2;table:7;op:c"
