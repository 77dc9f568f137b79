"""Schemas of a registry before the records that use them: rows, messages and snapshots wait, and nothing else does."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from cdcd.core.engine.actions import EnsureSchemas, EnsureTopics, Ship, Wait
from cdcd.core.engine.topics import Topics
from cdcd.core.errors import SinkError
from cdcd.core.facts.rules import EventRefused
from cdcd.core.protocol.messages import Column, LogicalMessage, Relation
from cdcd.core.records.encoder import EncoderSettings
from cdcd.core.records.schema_registrations import SchemaIds, SchemaUse
from cdcd.core.records.shaping.settings import AVRO_RECORD, Outbox, OutboxTable
from cdcd.core.snapshot.beginning import initial
from cdcd.core.snapshot.progress import Progress
from cdcd.core.transactions.position import Position
from tests.unit.core.engine.tables import table
from tests.unit.core.engine.test_engine import (
    ENVELOPE,
    OID,
    PUBLISHED,
    START,
    Daemon,
    described,
    row,
    transaction,
)
from tests.unit.core.transactions import wire

VALUE, KEY = "p.public.t-value", "p.public.t-key"


class RegisteredDaemon(Daemon):
    """A daemon that writes a format with schemas in a registry. `known` are those that the registry has given."""

    def __init__(
        self,
        directory: Path,
        ids: SchemaIds | None = None,
        *,
        written: str = "avro",
        transaction_topic: str | None = None,
        **more: object,
    ) -> None:
        self.known = SchemaIds() if ids is None else ids
        encoding = EncoderSettings(
            version="1",
            prefix="p",
            database="d",
            schemas_topic="schemas",
            key_format=written,
            value_format=written,
            transaction_topic=transaction_topic,
            schema_ids=self.known,
        )
        super().__init__(directory, encoding=encoding, **more)  # type: ignore[arg-type]

    def register(self, action: EnsureSchemas) -> None:
        for number, use in enumerate(action.schemas, (self.known.newest() or 0) + 1):
            self.known.put(use, number)
        self.engine.schemas_ready(action.schemas, self.now)

    @property
    def topics_written(self) -> list[str]:
        return [topic for ship in self.shipped for topic, *_ in ship.batch.records]


@pytest.fixture(params=["avro", "protobuf"])
def daemon(tmp_path: Path, request: pytest.FixtureRequest) -> RegisteredDaemon:
    found = RegisteredDaemon(tmp_path, written=request.param)
    found.idle()
    return found


def subjects(action: EnsureSchemas) -> list[str]:
    return [use.subject for use in action.schemas]


def test_rows_wait_for_their_schemas_which_are_asked_for_once(daemon: RegisteredDaemon):
    daemon.feed(transaction(5, 100, described(), row(1)))
    asked = daemon.until(EnsureSchemas)
    assert subjects(asked) == [KEY, VALUE]
    daemon.idle()
    assert daemon.topics_written == []
    assert not daemon.wants_frames()
    daemon.register(asked)
    daemon.idle()
    assert daemon.topics_written == ["schemas", "schemas", "schemas", "p.public.t"]


def test_the_ids_are_shipped_before_the_first_record_in_the_same_batch(daemon: RegisteredDaemon):
    daemon.feed(transaction(5, 100, described(), row(1)))
    daemon.register(daemon.until(EnsureSchemas))
    ship = daemon.until(Ship)
    named = [json.loads(key)["subject"] for _, key, _, _ in ship.batch.records[1:3]]
    assert named == [KEY, VALUE]


def test_a_relation_without_rows_needs_no_schemas(daemon: RegisteredDaemon):
    daemon.take(
        transaction(
            5, 100, described(), described("leaf", 8), wire.frame(LogicalMessage(None, True, 1, "cdcd", b""))
        )
    )
    assert daemon.topics == []


@pytest.mark.parametrize("written", ["avro", "protobuf"])
def test_known_schemas_are_not_asked_for_and_a_new_form_is(tmp_path: Path, written: str):
    first = RegisteredDaemon(tmp_path, written=written)
    first.idle()
    first.feed(transaction(5, 100, described(), row(1)))
    first.register(first.until(EnsureSchemas))
    # GIVEN a session that knows the ids
    again = RegisteredDaemon(tmp_path, first.known, written=written)
    again.idle()
    again.take(transaction(5, 100, described(), row(1)))
    assert again.topics_written[-1] == "p.public.t"
    # WHEN the table is altered
    altered = Relation(
        None,
        OID,
        "public",
        "t",
        "d",
        (Column(1, "id", 23, -1), Column(0, "note", 25, -1), Column(0, "more", 25, -1)),
    )
    shipped = len(again.shipped)
    more = wire.frame(altered)
    again.feed([*transaction(6, 200, row(2)), wire.begin(7, 300), more, row(3)])
    asked = again.until(EnsureSchemas)
    # THEN the changes before go on, and the schema of the values alone is asked for
    assert subjects(asked) == [VALUE]
    again.idle()
    assert len(again.shipped) > shipped


def test_a_logical_message_waits_for_its_schemas(daemon: RegisteredDaemon):
    message = wire.frame(LogicalMessage(None, True, 90, "app", b"hello"))
    daemon.feed(transaction(5, 100, message))
    asked = daemon.until(EnsureSchemas)
    assert subjects(asked) == ["p.message-key", "p.message-value"]
    assert daemon.topics_written == []
    daemon.register(asked)
    daemon.idle()
    assert daemon.topics_written == ["schemas", "schemas", "p.message"]


def test_the_end_of_a_transaction_waits_for_its_schema_if_a_former_session_sent_the_rows(tmp_path: Path):
    # GIVEN a session that goes on within a transaction, behind its only row, and knows no ids
    position = Position(100, 60, 1, (("public.t", 1),))
    daemon = RegisteredDaemon(
        tmp_path, start=replace(START, position=position), transaction_topic="p.transaction"
    )
    daemon.idle()
    message = wire.frame(LogicalMessage(None, True, 90, "app", b"hello"))
    daemon.feed(transaction(5, 100, described(), row(1), message))
    daemon.register(daemon.until(EnsureSchemas))
    asked = daemon.until(EnsureSchemas)
    assert subjects(asked) == ["p.transaction-key", "p.transaction-value"]
    daemon.idle()
    assert "p.transaction" not in daemon.topics_written
    # WHEN the registry has given them, THEN END is there, and what follows goes on
    daemon.register(asked)
    daemon.idle()
    assert daemon.topics_written == ["schemas", "schemas", "p.message", "p.transaction"]
    daemon.feed(transaction(6, 200, row(2)))
    daemon.register(daemon.until(EnsureSchemas))
    daemon.idle()
    written = [topic for topic in daemon.topics_written[4:] if topic != "schemas"]
    assert written == ["p.transaction", "p.public.t", "p.transaction"]


def test_a_message_outside_of_transactions_waits_for_its_schemas(daemon: RegisteredDaemon):
    daemon.feed(wire.frame(LogicalMessage(None, False, 100, "app", b"hello"), 100))
    asked = daemon.until(EnsureSchemas)
    assert daemon.topics_written == []
    daemon.register(asked)
    daemon.idle()
    assert daemon.topics_written == ["schemas", "schemas", "p.message"]


def test_rows_that_are_read_beside_the_stream_wait_for_their_schemas(tmp_path: Path):
    progress = initial(Progress(), PUBLISHED, (), exported=False)
    daemon = RegisteredDaemon(tmp_path, start=replace(START, snapshot=progress))
    daemon.tables = {OID: table(OID, "t")}
    asked = daemon.until(EnsureSchemas)
    assert subjects(asked) == [KEY, VALUE]
    daemon.idle()
    assert "p.public.t" not in daemon.topics_written
    daemon.register(asked)
    daemon.idle()
    assert "p.public.t" in daemon.topics_written


def test_rows_at_the_slots_snapshot_wait_for_their_schemas(tmp_path: Path):
    progress = initial(Progress(), PUBLISHED, (), exported=True)
    daemon = RegisteredDaemon(tmp_path, start=replace(START, snapshot=progress), exported=[table(OID, "t")])
    asked = daemon.until(EnsureSchemas)
    daemon.until(Wait)
    assert daemon.topics_written == []
    daemon.register(asked)
    daemon.idle()
    assert "p.public.t" in daemon.topics_written


OUTBOX = Outbox(
    ("events",),
    tables={("public", "t"): OutboxTable("events", "note", "", "id", "note", payload_form=AVRO_RECORD)},
)


def test_an_event_waits_for_the_schema_of_its_payload_and_what_follows_waits_behind_it(tmp_path: Path):
    daemon = RegisteredDaemon(tmp_path, outbox=OUTBOX)
    daemon.idle()
    daemon.feed(transaction(5, 100, described(), row(1, '{"a": 1}'), row(2, '{"b": 1}'), row(3, '{"a": 2}')))
    asked = daemon.until(EnsureSchemas)
    assert subjects(asked) == ["events-value", KEY, VALUE, "events-value"]
    daemon.idle()
    assert daemon.topics_written == []
    daemon.register(asked)
    daemon.idle()
    assert daemon.topics_written == ["schemas", "events", "schemas", "events", "events"]


def test_a_refused_schema_of_a_payload_ends_nothing_and_its_row_goes_to_the_tables_topic(tmp_path: Path):
    daemon = RegisteredDaemon(tmp_path, outbox=OUTBOX)
    daemon.idle()
    daemon.feed(transaction(5, 100, described(), row(1, '{"a": 1}')))
    daemon.register(daemon.until(EnsureSchemas))
    daemon.idle()
    daemon.feed(transaction(6, 200, row(2, '{"a": "x"}'), row(3, '{"a": 3}')))
    refused, *_ = daemon.until(EnsureSchemas).schemas
    daemon.engine.schemas_refused({refused: SinkError("not compatible")}, daemon.now)
    daemon.idle()
    written = [topic for topic in daemon.topics_written if topic != "schemas"]
    assert written == ["events", "p.public.t", "events"]
    (told,) = daemon.facts.of(EventRefused)
    assert told.reason == "the registry refuses the schema of subject events-value: not compatible"


MAKING = Outbox(
    (), tables={("public", "t"): OutboxTable("events.{value}", "note", "", "id", "note", topics_max=2)}
)


def test_topics_that_rows_make_are_ready_before_their_events_and_are_in_the_checkpoint(tmp_path: Path):
    daemon = Daemon(tmp_path, outbox=MAKING)
    daemon.idle()
    daemon.take(transaction(5, 100, described(), row(1, "a"), row(2, "b"), row(3, "a"), row(4, "c")))
    written = [topic for ship in daemon.shipped for topic, *_ in ship.batch.records]
    assert written == ["events.a", "events.b", "events.a", "p.public.t"]
    assert daemon.shipped[-1].checkpoint.topics == ("events.a", "events.b")
    (told,) = daemon.facts.of(EventRefused)
    assert told.reason == "the topic events.c would be one more than outbox.tables' topics_max, 2"


def test_topics_that_the_checkpoint_names_count_after_a_restart(tmp_path: Path):
    daemon = Daemon(tmp_path, replace(START, topics=("events.a", "events.b", "other.c")), outbox=MAKING)
    daemon.idle()
    daemon.take(transaction(5, 100, described(), row(1, "c"), row(2, "b")))
    written = [topic for ship in daemon.shipped for topic, *_ in ship.batch.records]
    assert written == ["p.public.t", "events.b"]
    assert daemon.shipped[-1].checkpoint.topics == ("events.a", "events.b")


def test_a_refused_topic_ends_nothing_and_leaves_room_for_another_one(tmp_path: Path):
    daemon = Daemon(tmp_path, outbox=MAKING)
    daemon.idle()
    daemon.feed(transaction(5, 100, described(), row(1, "a"), row(2, "b")))
    asked = daemon.until(EnsureTopics)
    assert "events.a" in asked.topics
    daemon.engine.topics_refused({"events.a": SinkError("not authorized")}, daemon.now)
    daemon.engine.topics_ready([topic for topic in asked.topics if topic != "events.a"], daemon.now)
    daemon.idle()
    written = [topic for ship in daemon.shipped for topic, *_ in ship.batch.records]
    assert written == ["p.public.t", "events.b"]
    assert daemon.shipped[-1].checkpoint.topics == ("events.b",)
    (told,) = daemon.facts.of(EventRefused)
    assert told.reason == "the topic events.a is refused: not authorized"


def test_rows_make_no_topic_that_a_table_has(tmp_path: Path):
    daemon = Daemon(
        tmp_path, outbox=MAKING, encoding=replace(ENVELOPE, names={("public", "leaf"): "events.leaf"})
    )
    daemon.idle()
    daemon.take(transaction(5, 100, described("leaf", 8), row(1, oid=8)))
    daemon.take(transaction(6, 200, described(), row(2, "leaf")))
    written = [topic for ship in daemon.shipped for topic, *_ in ship.batch.records]
    assert written == ["events.leaf", "p.public.t"]


def waits(topics: Topics) -> bool:
    """Asked by a call, whose answer a type checker does not take for lasting."""
    return topics.awaits_schemas


def test_what_was_asked_for_is_awaited_until_it_is_there():
    topics, use = Topics(), SchemaUse("s", "text")
    assert topics.are_registered(())
    assert waits(topics) is False
    assert not topics.are_registered((use,))
    assert waits(topics) is True
    assert topics.wanted_schemas() == EnsureSchemas((use,))
    assert not topics.are_registered((use,))
    assert topics.wanted_schemas() is None
    assert waits(topics) is True
    topics.registered((use,))
    assert waits(topics) is False
