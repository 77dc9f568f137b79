"""Events in Avro: which schemas they ask for, what their records are, and what a writer of the outbox cannot do."""

import json
from typing import Any

import pytest

from cdcd.core.catalog.relations import TableDescription
from cdcd.core.catalog.types import BUILTIN_TYPES
from cdcd.core.errors import TransientError
from cdcd.core.facts import Fact
from cdcd.core.facts.rules import EventRefused
from cdcd.core.protocol.frames import XLogData, write_frame
from cdcd.core.protocol.messages import Column, Delete, Insert, Message, Relation
from cdcd.core.protocol.writer import write_message
from cdcd.core.records.available import record_stream
from cdcd.core.records.encoder import Record
from cdcd.core.records.schema_registrations import SchemaUse
from cdcd.core.records.shaping.event_forms import REFUSED_S, SCHEMA_BYTES_MAX
from cdcd.core.records.shaping.outbox import shaped
from cdcd.core.records.shaping.settings import AVRO, AVRO_RECORD, TEXT, Outbox, OutboxTable
from tests.unit.core.records.avro.reading import Schemas

OUTBOX = 8
TEXT_OID, JSONB, BYTEA, INT8 = 25, 3802, 17, 20
RELATION = Relation(
    None,
    OUTBOX,
    "public",
    "outbox",
    "d",
    tuple(
        Column(0, name, kind, -1)
        for name, kind in (("to", TEXT_OID), ("key", INT8), ("payload", JSONB), ("raw", BYTEA))
    ),
)


class Encoding:
    """Events of one outbox table, with a registry in memory."""

    def __init__(
        self, payload_form: str, *, payload: str = "payload", key_form: str = AVRO, schemas_max: int = 3
    ) -> None:
        self.facts: list[Fact] = []
        self.registry = Schemas()
        settings = self.registry.settings(schemas_topic="schemas")
        table = OutboxTable(
            "events.{value}",
            "to",
            "",
            "key",
            payload,
            key_form=key_form,
            payload_form=payload_form,
            schemas_max=schemas_max,
        )
        outbox = Outbox(("events.a", "events.b"), tables={("public", "outbox"): table})
        self.encoder = shaped(record_stream(settings), outbox, settings, self.facts.append)
        self.encoder.define(RELATION, TableDescription(("key",)), BUILTIN_TYPES)
        self.registry.register(self.encoder, OUTBOX)
        self.encoder.begin(5, 1000, 0, None)
        self.now_us = 0

    def lacking(self, message: Message) -> list[SchemaUse]:
        return list(self.encoder.shapes.needs(frame(message), False).schemas)

    def register(self, message: Message) -> list[str]:
        """The subjects of the schemas that were lacking."""
        lacking = self.lacking(message)
        for use in lacking:
            number = len(self.registry.texts) + 1
            self.registry.ids.put(use, number)
            self.registry.texts[number], self.registry.uses[number] = use.text, use
        return [use.subject for use in lacking]

    def records(self, message: Message) -> list[Record]:
        out: list[Record] = []
        self.encoder.encode(frame(message), False, self.now_us, out)
        return out

    def read(self, message: Message) -> tuple[Any, Any]:
        """Key and value of the record of an event, whose schemas are registered."""
        *_, (_, key, value, _) = self.records(message)
        return self.registry.read(key or b"")[1], None if value is None else self.registry.read(value)[1]

    @property
    def reason(self) -> str:
        (found,) = [fact.reason for fact in self.facts if isinstance(fact, EventRefused)]
        return found


def frame(message: Message) -> bytes:
    return write_frame(XLogData(500, 500, 0, write_message(message)))


def event(payload: str | None = '{"n": 1}', to: str = "a", raw: bytes | None = None) -> Insert:
    text = None if payload is None else payload.encode()
    return Insert(
        None, OUTBOX, (to.encode(), b"7", text, None if raw is None else b"\\x" + raw.hex().encode())
    )


def test_a_payload_becomes_a_record_whose_schema_is_asked_for_first():
    encoding = Encoding(AVRO_RECORD)
    assert encoding.register(event()) == ["events.a-key", "events.a-value"]
    assert encoding.lacking(event()) == []
    ids = encoding.records(event())[:-1]
    assert [json.loads(key or b"")["subject"] for topic, key, _, _ in ids if topic == "schemas"] == [
        "events.a-key",
        "events.a-value",
    ]
    assert encoding.read(event('{"n": 2}')) == (7, {"n": 2})
    # The schemas topic has each id once in a session.
    assert len(encoding.records(event())) == 1
    (use,) = [use for use in encoding.registry.uses.values() if use.subject == "events.a-value"]
    assert json.loads(use.text) == [
        "null",
        {
            "type": "record",
            "name": "payload",
            "namespace": "",
            "fields": [{"name": "n", "type": ["null", "int"], "default": None}],
            "connect.name": "payload",
        },
    ]


def test_each_form_of_a_payload_asks_for_a_schema_of_its_own():
    encoding = Encoding(AVRO_RECORD)
    assert encoding.register(event()) == ["events.a-key", "events.a-value"]
    assert encoding.register(event('{"n": "x"}')) == ["events.a-value"]
    assert encoding.register(event(to="b")) == ["events.b-key", "events.b-value"]
    assert encoding.read(event('{"n": "x"}')) == (7, {"n": "x"})


def test_without_expansion_the_payload_is_the_value_of_its_column():
    encoding = Encoding(AVRO)
    encoding.register(event())
    assert encoding.read(event('{"n": 1.50}')) == (7, '{"n": 1.50}')
    encoding = Encoding(AVRO, payload="raw", key_form=TEXT)
    assert encoding.register(event(raw=b"\x00\xff")) == ["events.a-value"]
    *_, (_, key, value, _) = encoding.records(event(raw=b"\x00\xff"))
    assert (key, encoding.registry.read(value or b"")[1]) == (b"7", "AP8=")


def test_a_null_payload_is_a_tombstone_with_a_key_in_avro():
    encoding = Encoding(AVRO_RECORD)
    assert encoding.register(event(None)) == ["events.a-key"]
    assert encoding.read(event(None)) == (7, None)


def test_updates_and_rows_that_are_no_events_ask_for_nothing():
    encoding = Encoding(AVRO_RECORD)
    assert encoding.lacking(Delete(None, OUTBOX, "O", (b"a", b"7", None, None))) == []
    assert encoding.lacking(event(to="unknown")) == []
    assert encoding.lacking(event("5")) == []


def test_a_record_is_never_made_before_its_schema_has_an_id():
    encoding = Encoding(AVRO_RECORD)
    encoding.lacking(event())
    with pytest.raises(TransientError, match="not registered yet"):
        encoding.records(event())


def test_a_payload_without_a_schema_is_refused_and_its_row_goes_to_the_tables_topic():
    encoding = Encoding(AVRO_RECORD)
    ((topic, *_),) = [each for each in encoding.records(event('["x", 5]')) if each[0] != "schemas"]
    assert topic == "golden.public.outbox"
    assert (
        encoding.reason
        == "payload is no record in Avro: it has an array whose elements are of different types"
    )


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        ({"a-b": 1, "a_b": 2}, "two of its fields have one name in Avro"),
        ({"a": {"b": {"x": 1}}, "a.b": {"y": 1}}, "two of its fields have one name in Avro"),
        ({f"field_number_{number}": 1 for number in range(2_000)}, f"and {SCHEMA_BYTES_MAX} are allowed"),
    ],
    ids=["fields", "records", "size"],
)
def test_what_avro_cannot_represent_is_refused_without_a_word_of_the_payload(payload: Any, says: str):
    encoding = Encoding(AVRO_RECORD)
    assert encoding.lacking(event(json.dumps(payload))) == []
    encoding.records(event(json.dumps(payload)))
    assert says in encoding.reason
    assert "number_" not in encoding.reason


def test_a_subject_has_no_more_schemas_than_it_may_have_also_after_a_restart():
    encoding = Encoding(AVRO_RECORD, schemas_max=3)
    for number in range(5):
        encoding.register(event(json.dumps({f"f{number}": 1})))
    assert sum(use.subject == "events.a-value" for use in encoding.registry.uses.values()) == 3
    encoding.records(event('{"f4": 1}'))
    assert "events.a-value has 3 schemas, which is outbox.tables' schemas_max" in encoding.reason
    # Schemas that have an id are used on, and other subjects have schemas of their own.
    assert encoding.read(event('{"f0": 1}')) == (7, {"f0": 1})
    assert encoding.register(event('{"f4": 1}', to="b")) == ["events.b-key", "events.b-value"]


def test_schemas_that_are_asked_for_count_before_they_have_ids():
    encoding = Encoding(AVRO_RECORD, schemas_max=3)
    asked = [encoding.lacking(event(json.dumps({f"f{number}": 1}))) for number in range(50)]
    assert sum(use.subject == "events.a-value" for uses in asked for use in uses) == 3


def test_a_refused_schema_makes_its_events_ones_that_cannot_be_published_until_it_is_asked_for_again():
    encoding = Encoding(AVRO_RECORD)
    encoding.register(event())
    (use,) = encoding.lacking(event('{"n": "x"}'))
    assert encoding.encoder.shapes.schema_refused(use, "not compatible")
    assert encoding.lacking(event('{"n": "x"}')) == []
    encoding.records(event('{"n": "x"}'))
    assert encoding.reason == "the registry refuses the schema of subject events.a-value: not compatible"
    assert encoding.read(event()) == (7, {"n": 1})
    encoding.now_us = REFUSED_S * 1_000_000
    encoding.records(event())
    assert encoding.register(event('{"n": "x"}')) == ["events.a-value"]
    assert encoding.read(event('{"n": "x"}')) == (7, {"n": "x"})


def test_a_refused_schema_of_a_table_is_none_of_an_event():
    assert not Encoding(AVRO_RECORD).encoder.shapes.schema_refused(
        SchemaUse("golden.public.t-value", "{}"), "no"
    )
