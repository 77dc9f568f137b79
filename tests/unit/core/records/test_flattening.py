import pytest

from cdcd.core.protocol.messages import Column, Relation
from cdcd.core.records.debezium_json.connect_schema import flat_schema
from cdcd.core.records.flattening import SOURCE_FIELDS, AddedField, Flattening, read_added


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("op", AddedField("__op", "op")),
        ("ts_ms", AddedField("__ts_ms", "ts_ms")),
        ("source.ts_ms", AddedField("__source_ts_ms", "source.ts_ms")),
        ("table", AddedField("__table", "source.table")),
        (" lsn ", AddedField("__lsn", "source.lsn")),
        ("source.lsn:pos", AddedField("__pos", "source.lsn")),
    ],
)
def test_a_field_is_called_as_debezium_calls_it(text, expected):
    assert read_added(text, "__") == expected


@pytest.mark.parametrize("text", ["", "before.id", "op:", "op:a:b", "source.op", "source.", "foo"])
def test_a_field_that_is_none_is_refused(text):
    with pytest.raises(ValueError, match=r"no such field|write a field"):
        read_added(text, "__")


@pytest.mark.parametrize("text", ["transaction.id", "id", "total_order", "data_collection_order:x"])
def test_transaction_metadata_is_refused_with_what_says_the_same(text):
    with pytest.raises(ValueError, match="commit_lsn"):
        read_added(text, "")


def test_every_field_of_the_source_has_a_schema():
    relation = Relation(None, 1, "s", "t", "d", (Column(1, "id", 23, -1),))
    fields = [read_added(f"source.{name}", "") for name in SOURCE_FIELDS]
    schema = flat_schema(relation, [0], {}, "p", added=fields)
    assert [(each["field"], each["optional"]) for each in schema["fields"]] == [
        ("id", False),
        *[(f"source_{name}", True) for name in SOURCE_FIELDS],
    ]


@pytest.mark.parametrize(
    ("mode", "rewrites", "with_tombstones", "without"),
    [
        ("drop", False, False, False),
        ("tombstone", False, True, False),
        ("rewrite", True, False, False),
        ("rewrite-with-tombstone", True, True, False),
        ("delete-to-tombstone", False, True, True),
    ],
)
def test_what_a_delete_has_is_its_modes(mode, rewrites, with_tombstones, without):
    flattening = Flattening(mode)
    assert flattening.rewrites is rewrites
    assert flattening.has_tombstones(True) is with_tombstones
    assert flattening.has_tombstones(False) is without
