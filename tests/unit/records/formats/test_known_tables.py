from dataclasses import replace

import pytest

from cdcd.errors import SinkError
from cdcd.protocol.messages import Column, Relation
from cdcd.records.envelope import EnvelopeSettings
from cdcd.records.formats.known_tables import KnownTables
from cdcd.records.relations import TableDescription

OID = 16384
ITEM = Relation(None, OID, "public", "item", "d", (Column(1, "id", 23, -1), Column(0, "name", 25, -1)))


def knowing(*relations: Relation, schemas_topic: str | None = None) -> KnownTables:
    tables = KnownTables(EnvelopeSettings("1", "shop", "db", schemas_topic=schemas_topic))
    for relation in relations:
        tables.define(relation, TableDescription(), {})
    return tables


def form_of(tables: KnownTables) -> int:
    return tables._tables[OID].form


def test_what_was_defined_is_known_by_its_oid_and_has_its_topic():
    tables = knowing(ITEM)
    assert tables.knows(OID)
    assert not tables.knows(OID + 1)
    assert tables.topic_of(OID) == "shop.public.item"


def test_a_table_that_was_made_anew_keeps_its_topic():
    tables = knowing(ITEM, replace(ITEM, oid=OID + 1))
    assert tables.topic_of(OID + 1) == tables.topic_of(OID)


def test_two_tables_with_one_topic_are_refused():
    with pytest.raises(SinkError, match="collides"):
        knowing(replace(ITEM, name="a.b"), replace(ITEM, oid=2, name="a_b"))


def test_the_topic_of_the_descriptions_cannot_be_a_tables():
    with pytest.raises(SinkError, match="collides"):
        knowing(replace(ITEM, name="t"), schemas_topic="shop.public_t")


def test_rows_of_one_form_have_one_number_however_often_the_table_is_described():
    tables = knowing(ITEM)
    first = form_of(tables)
    tables.define(replace(ITEM, columns=ITEM.columns[:1]), TableDescription(), {})
    other = form_of(tables)
    tables.define(replace(ITEM, xid=7), TableDescription(), {})
    assert form_of(tables) == first != other


def test_a_description_that_changes_nothing_leaves_the_fragments_alone():
    tables = knowing(ITEM, schemas_topic="shop.schemas")
    before = tables._tables[OID]
    tables.define(replace(ITEM, xid=7), TableDescription(), {})
    assert tables._tables[OID] is before
    tables.define(replace(ITEM, replica_identity="f"), TableDescription(), {})
    assert tables._tables[OID] is not before


def test_nothing_is_counted_before_the_first_record():
    assert knowing(ITEM).counts == {}
