"""Records of tables that share a topic, in every format: keys that differ by table, and names of schemas."""

import json
from dataclasses import replace
from typing import Any

import pytest

from cdcd.core.catalog.patterns import parse_pattern
from cdcd.core.catalog.relations import TableDescription
from cdcd.core.catalog.sharing import SharedTopic, share_of
from cdcd.core.errors import ConfigError
from cdcd.core.protocol.frames import XLogData, write_frame
from cdcd.core.protocol.messages import Column, Insert, Relation
from cdcd.core.protocol.writer import write_message
from cdcd.core.records.available import record_stream
from cdcd.core.records.encoder import Encoder, EncoderSettings, Record, SnapshotPosition
from tests.unit.core.records.avro.reading import Schemas as AvroSchemas
from tests.unit.core.records.json_registry.reading import Schemas as JsonSchemas
from tests.unit.core.records.protobuf.reading import Schemas as ProtobufSchemas

FIELD = "__dbz__physicalTableIdentifier"
SHARED = SharedTopic("shop.all", (parse_pattern("public.*", "topics.shared"),))
INT, TEXT = 23, 25


def table(oid: int, name: str, **columns: int) -> Relation:
    described = [Column(each == "id", each, type_oid, -1) for each, type_oid in columns.items()]
    return Relation(None, oid, "public", name, "d", tuple(described))


EU, US = table(1, "eu", id=INT, note=TEXT), table(2, "us", id=INT, amount=INT)


def readers(name: str, subjects: str = "topic") -> tuple[EncoderSettings, Any]:
    if name == "json":
        settings = EncoderSettings("1", "shop", "db", value_format="json_schema", key_format="json_schema")
        return replace(settings, shared=(SHARED,)), None
    # The catalog tells no numbers of columns here, so that fields are not in the order of their numbers.
    schemas: Any = (
        ProtobufSchemas(in_order=False)
        if name == "protobuf"
        else JsonSchemas()
        if name == "json_registry"
        else AvroSchemas()
    )
    settings = schemas.settings(value_format=name, key_format=name, subjects=subjects)
    return replace(settings, shared=(SHARED,), schemas_topic=None), schemas


def inserted(encoder: Encoder, relation: Relation, schemas: Any) -> Record:
    encoder.define(relation, TableDescription(), {})
    if schemas is not None:
        schemas.register(encoder, relation.oid)
    out: list[Record] = []
    encoder.begin(1, 100, 0, None)
    frame = write_frame(XLogData(100, 100, 0, write_message(Insert(None, relation.oid, (b"1", b"2")))))
    encoder.encode(frame, False, 0, out)
    # The ids of schemas come before it.
    return out[-1]


def key_of(record: Record, schemas: Any) -> dict[str, Any]:
    key = record[1]
    assert key is not None
    if schemas is None:
        found = json.loads(key)
        assert [each["field"] for each in found["schema"]["fields"]] == ["id", FIELD]
        return dict(found["payload"])
    return dict(schemas.read(key)[1])


@pytest.mark.parametrize("name", ["json", "avro", "json_registry", "protobuf"])
def test_keys_of_two_tables_with_the_same_id_differ_by_the_field(name: str) -> None:
    settings, schemas = readers(name, "topic_record")
    encoder = record_stream(settings, False, lambda _: None)
    records = [inserted(encoder, each, schemas) for each in (EU, US)]
    assert [key_of(each, schemas) for each in records] == [
        {"id": 1, FIELD: f"{settings.prefix}.public.eu"},
        {"id": 1, FIELD: f"{settings.prefix}.public.us"},
    ]
    assert [each[0] for each in records] == [share_of("shop.all", f"public.{each}") for each in ("eu", "us")]
    # A row that a snapshot reads has the same key, by which it is left out if it was changed.
    out: list[Record] = []
    position = SnapshotPosition(100, 100, "true", "last", "true")
    key = records[0][1]
    assert key is not None
    encoded = encoder.encode_rows(EU.oid, [b"1\t2\n", b"3\t4\n"], position, 0, out, {key})
    assert (encoded.left_out, len(out)) == ([0], 1)
    assert key_of(out[0], schemas) == {"id": 3, FIELD: f"{settings.prefix}.public.eu"}


@pytest.mark.parametrize(
    ("subjects", "found"),
    [
        ("topic", {"shop.all-key", "shop.all-value"}),
        (
            "record",
            {"{}.public.eu.Key", "{}.public.eu.Envelope", "{}.public.us.Key", "{}.public.us.Envelope"},
        ),
        (
            "topic_record",
            {f"shop.all-{{}}.public.{each}" for each in ("eu.Key", "eu.Envelope", "us.Key", "us.Envelope")},
        ),
    ],
)
def test_tables_with_other_columns_have_subjects_of_their_own_if_subjects_name_records(
    subjects: str, found: set[str]
) -> None:
    settings, _ = readers("avro", subjects)
    encoder = record_stream(settings, False, lambda _: None)
    uses = set()
    for relation in (EU, US):
        encoder.define(relation, TableDescription(), {})
        uses |= {use.subject for use in encoder.unregistered(relation.oid)}
    assert uses == {each.format(settings.prefix) for each in found}


def test_a_column_of_the_key_cannot_have_the_fields_name() -> None:
    settings, _ = readers("json")
    settings = replace(settings, shared=(replace(SHARED, key_field="id"),))
    encoder = record_stream(settings, False, lambda _: None)
    with pytest.raises(ConfigError, match=r"key_field of topics\.shared\.shop\.all"):
        encoder.define(EU, TableDescription(), {})


def test_without_a_field_keys_are_those_of_the_table_alone_and_compaction_may_remove_rows() -> None:
    settings, _ = readers("json")
    settings = replace(settings, key_format="json", shared=(replace(SHARED, key_field=""),))
    encoder = record_stream(settings, False, lambda _: None)
    assert inserted(encoder, EU, None)[1] == b'{"id":1}'
    assert not encoder.tables.may_be_compacted(EU.oid)
