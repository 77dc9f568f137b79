"""Records that their table's topic cannot have: which go to the dead letters, in which form, and until when."""

import json
from dataclasses import replace
from typing import Any

import pytest

from cdcd.core.catalog.modes import Modes
from cdcd.core.catalog.relations import TableDescription
from cdcd.core.catalog.sharing import share_of
from cdcd.core.protocol.frames import XLogData, write_frame
from cdcd.core.protocol.messages import Column, Delete, Insert, Message, Relation, Truncate
from cdcd.core.protocol.writer import write_message
from cdcd.core.records.available import record_stream
from cdcd.core.records.encoder import Encoder, EncoderSettings, Record, SnapshotPosition
from tests.unit.core.records.avro.reading import Schemas

TABLE = Relation(
    None,
    1,
    "public",
    "t",
    "d",
    (Column(True, "id", 23, -1), Column(False, "price", 1700, (6 << 16 | 2) + 4)),
)
DEAD = share_of("dead", "public.t")


def settings_of(*letters: str, **more: Any) -> EncoderSettings:
    made = EncoderSettings(
        "1",
        "shop",
        "db",
        dead_letter_topic="dead",
        dead_letters=letters,
        modes=Modes(decimal="precise"),
    )
    return replace(made, **more)


def encode(encoder: Encoder, *messages: Message) -> list[Record]:
    out: list[Record] = []
    encoder.begin(1, 100, 0, None)
    for each in messages:
        encoder.encode(write_frame(XLogData(100, 100, 0, write_message(each))), False, 0, out)
    return out


def insert(number: int, price: bytes) -> Insert:
    return Insert(None, 1, (b"%d" % number, price))


def test_a_record_with_a_value_without_a_form_is_a_dead_letter_and_others_are_not() -> None:
    encoder = record_stream(settings_of("values"), False, lambda _: None)
    encoder.define(TABLE, TableDescription(), {})
    good, bad = encode(encoder, insert(1, b"1.00"), insert(2, b"NaN"))
    assert (good[0], good[3]) == ("shop.public.t", None)
    topic, key, value, headers = bad
    assert (topic, key) == (DEAD, b'{"id":2}')
    assert json.loads(value or b"")["after"] == {"id": 2, "price": None}
    named = dict(headers or ())
    assert named["cdcd.topic"] == b"shop.public.t"
    assert named["cdcd.unwritable"] == b'["price"]'
    assert named["cdcd.reason"].startswith(b"values: ")
    assert encoder.counts == {("public.t", "c"): 2, ("public.t", "dead_letter"): 1}
    # A change in the dead letters counts as one of the table, where the table is read beside the stream.
    assert encoder.tables.topics_of(1) == ("shop.public.t", DEAD)


def test_rows_of_a_snapshot_are_dead_letters_in_the_same_way_and_keep_their_keys() -> None:
    encoder = record_stream(settings_of("values"), False, lambda _: None)
    encoder.define(TABLE, TableDescription(), {})
    out: list[Record] = []
    position = SnapshotPosition(100, 100, "true", "last", "true")
    encoded = encoder.encode_rows(1, [b"1\t1.00\n", b"2\tNaN\n"], position, 0, out, set())
    assert [each[0] for each in out] == ["shop.public.t", DEAD]
    assert (encoded.rows, encoded.keys) == (2, [b'{"id":1}', b'{"id":2}'])


@pytest.mark.parametrize("letters", [(), ("schemas",)])
def test_without_the_choice_a_value_without_a_form_is_null_in_the_tables_topic(
    letters: tuple[str, ...],
) -> None:
    encoder = record_stream(settings_of(*letters), False, lambda _: None)
    encoder.define(TABLE, TableDescription(), {})
    (record,) = encode(encoder, insert(2, b"NaN"))
    assert record[0] == "shop.public.t"


def in_avro(*letters: str) -> tuple[Encoder, Schemas]:
    schemas = Schemas()
    settings = schemas.settings(value_format="avro", key_format="avro")
    settings = replace(
        settings, dead_letter_topic="dead", dead_letters=letters, prefix="shop", schemas_topic=None
    )
    encoder = record_stream(settings, False, lambda _: None)
    encoder.define(TABLE, TableDescription(), {})
    return encoder, schemas


def test_a_refused_schema_sends_records_in_json_until_the_table_is_described_again() -> None:
    encoder, schemas = in_avro("schemas")
    assert encoder.unregistered(1)
    assert encoder.send_to_dead_letters(1, "it is incompatible")
    assert encoder.unregistered(1) == ()
    out = encode(
        encoder, insert(1, b"1.00"), Delete(None, 1, "K", (b"1", None)), Truncate(None, False, False, (1,))
    )
    assert {each[0] for each in out} == {DEAD}
    assert [value and json.loads(value)["op"] for _, _, value, _ in out] == ["c", "d", None, "t"]
    assert [key for _, key, _, _ in out] == [b'{"id":1}'] * 3 + [None]
    assert {dict(headers or ())["cdcd.reason"] for *_, headers in out} == {b"schemas: it is incompatible"}
    rows: list[Record] = []
    encoder.encode_rows(1, [b"3\t1.00\n"], SnapshotPosition(100, 100, "true", "last", "true"), 0, rows, set())
    assert [(topic, key) for topic, key, _, _ in rows] == [(DEAD, b'{"id":3}')]
    # WHEN the table is altered, the registry is asked again, and records go to its topic.
    altered = replace(TABLE, columns=(*TABLE.columns, Column(False, "more", 23, -1)))
    encoder.define(altered, TableDescription(), {})
    assert encoder.unregistered(1)
    schemas.register(encoder, 1)
    (record,) = encode(encoder, Insert(None, 1, (b"4", b"1.00", b"5")))
    assert record[0] == "shop.public.t"


def test_a_table_that_an_encoder_does_not_know_yet_is_asked_for_when_it_is_described() -> None:
    encoder, _ = in_avro("schemas")
    assert encoder.send_to_dead_letters(2, "it is incompatible")
    encoder.define(replace(TABLE, oid=2, name="later"), TableDescription(), {})
    assert encoder.unregistered(2)


def test_a_refused_schema_is_a_fault_of_the_table_without_the_choice() -> None:
    encoder, _ = in_avro("values")
    assert not encoder.send_to_dead_letters(1, "it is incompatible")
    assert encoder.unregistered(1)


def test_schemas_for_dead_letters_are_not_registered() -> None:
    encoder, _ = in_avro("values", "schemas")
    assert {use.subject for use in encoder.unregistered(1)} == {"shop.public.t-key", "shop.public.t-value"}
