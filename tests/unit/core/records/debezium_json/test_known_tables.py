from dataclasses import replace

import pytest

from cdcd.core.catalog.relations import CatalogColumn, TableDescription
from cdcd.core.catalog.table_rules import KeyRule
from cdcd.core.errors import WithoutBinaryError
from cdcd.core.protocol.messages import Column, Relation
from cdcd.core.records.debezium_json.known_tables import KnownTables
from cdcd.core.records.encoder import EncoderSettings, Record
from cdcd.core.records.schemas import read_form

OID = 16384
ITEM = Relation(None, OID, "public", "item", "d", (Column(1, "id", 23, -1), Column(0, "name", 25, -1)))


def knowing(*relations: Relation, schemas_topic: str | None = None) -> KnownTables:
    tables = KnownTables(EncoderSettings("1", "shop", "db", schemas_topic=schemas_topic))
    for relation in relations:
        tables.define(relation, TableDescription(), {})
    return tables


def form_of(tables: KnownTables) -> int:
    return tables.fragments[OID].form


def test_what_was_defined_is_known_by_its_oid_and_has_its_topic():
    tables = knowing(ITEM)
    assert tables.knows(OID)
    assert not tables.knows(OID + 1)
    assert tables.topic_of(OID) == "shop.public.item"


def test_a_description_names_the_pipeline_that_writes_the_records():
    tables = KnownTables(EncoderSettings("1", "shop", "db", schemas_topic="shop.schemas", pipeline="shop"))
    tables.define(ITEM, TableDescription(), {})
    announcement = tables.fragments[OID].announcement
    assert announcement is not None
    assert announcement[3] == [("cdcd.pipeline", b"shop")]


def test_a_table_that_was_made_anew_keeps_its_topic():
    tables = knowing(ITEM, replace(ITEM, oid=OID + 1))
    assert tables.topic_of(OID + 1) == tables.topic_of(OID)


def test_a_table_that_the_configuration_names_has_that_topic():
    tables = KnownTables(EncoderSettings("1", "shop", "db", names={("public", "item"): "shop.public.things"}))
    tables.define(ITEM, TableDescription(), {})
    assert tables.topic_of(OID) == "shop.public.things"


def test_where_the_key_stands_is_known():
    tables = knowing(
        ITEM, replace(ITEM, oid=2, columns=ITEM.columns[::-1]), replace(ITEM, oid=3, replica_identity="n")
    )
    assert [tables.key_indexes(oid) for oid in (OID, 2, 3)] == [(0,), (1,), ()]
    assert [tables.key_column_names(oid) for oid in (OID, 2, 3)] == [("id",), ("id",), ()]


def test_the_key_of_a_table_that_was_dropped_meanwhile_is_that_of_its_last_description():
    tables = knowing()
    whole = replace(ITEM, replica_identity="f")
    tables.define(whole, TableDescription(primary_key=("id",)), {})
    altered = replace(whole, columns=(*ITEM.columns, Column(1, "late", 25, -1)))
    tables.define(altered, TableDescription(), {})
    assert tables.key_column_names(OID) == ("id",)
    tables.define(replace(whole, columns=ITEM.columns[1:]), TableDescription(), {})
    assert tables.key_column_names(OID) == ()


def test_rows_that_share_a_chosen_key_are_described_so_also_when_the_table_was_dropped_meanwhile():
    rules = (KeyRule("public.item", ("name",)),)
    tables = KnownTables(EncoderSettings("1", "shop", "db", schemas_topic="s", key_rules=rules))
    whole = replace(ITEM, replica_identity="f")
    for table in (TableDescription(primary_key=("id",)), TableDescription()):
        tables.define(whole, table, {})
        announcement = tables.fragments[OID].announcement
        assert announcement is not None
        _, form = read_form(announcement[2] or b"")
        assert (form.key, form.repeats) == (("name",), True)
        whole = replace(whole, columns=(*ITEM.columns, Column(1, "late", 25, -1)))
    telling = KnownTables(replace(tables._settings, key_rules=(KeyRule("public.item", ("id",)),)))
    telling.define(whole, TableDescription(primary_key=("id",)), {})
    announcement = telling.fragments[OID].announcement
    assert announcement is not None
    assert b"repeats" not in (announcement[2] or b"")


def test_a_table_that_has_lost_its_key_has_none():
    tables = knowing()
    whole = replace(ITEM, replica_identity="f")
    column = CatalogColumn("id", 1, "integer", 23, 0, None)
    tables.define(whole, TableDescription(("id",), (), (column,)), {})
    tables.define(replace(whole, columns=ITEM.columns[:1]), TableDescription((), (), (column,)), {})
    assert tables.key_column_names(OID) == ()


def test_a_column_without_a_binary_reader_is_refused_when_it_is_described_and_only_then():
    bad = replace(ITEM, columns=(*ITEM.columns, Column(0, "kind", 2205, -1)))
    knowing(bad)
    tables = KnownTables(EncoderSettings("1", "shop", "db"), binary=True)
    tables.define(ITEM, TableDescription(), {})
    with pytest.raises(WithoutBinaryError, match=r"'kind' of public\.item has the type regclass"):
        tables.define(bad, TableDescription(), {})
    assert tables.key_indexes(OID) == (0,)


def test_rows_of_one_form_have_one_number_however_often_the_table_is_described():
    tables = knowing(ITEM)
    first = form_of(tables)
    tables.define(replace(ITEM, columns=ITEM.columns[:1]), TableDescription(), {})
    other = form_of(tables)
    tables.define(replace(ITEM, xid=7), TableDescription(), {})
    assert form_of(tables) == first != other


def test_a_description_that_changes_nothing_leaves_the_fragments_alone():
    tables = knowing(ITEM, schemas_topic="shop.schemas")
    before = tables.fragments[OID]
    tables.define(replace(ITEM, xid=7), TableDescription(), {})
    assert tables.fragments[OID] is before
    tables.define(replace(ITEM, replica_identity="f"), TableDescription(), {})
    assert tables.fragments[OID] is not before


def test_nothing_is_counted_before_the_first_record():
    assert knowing(ITEM).counts == {}


def test_a_table_that_was_written_anew_is_described_again_before_its_next_record():
    tables = knowing(schemas_topic="s")
    columns = (CatalogColumn("id", 1, "integer", 23, 0, None), CatalogColumn("name", 2, "text", 25, 0, None))
    told: list[tuple[int | None, int | None]] = []

    def define(last_id: int, rewritten: int, relation: Relation = ITEM, known: bool = True) -> None:
        table = TableDescription(("id",), columns=columns, last_id=last_id, rewritten=rewritten)
        tables.define(relation, table if known else TableDescription(), {})
        fragments = tables.fragments[OID]
        out: list[Record] = []
        if fragments.is_new:
            tables.introduce(fragments, out)
        told.extend((form.last_id, form.rewritten) for form in [read_form(each[2] or b"")[1] for each in out])

    define(2, 0)
    define(2, 0)
    assert told == [(2, 0)]
    # WHEN the catalog has a column already that the stream has not, nothing is said
    define(3, 0)
    assert told == [(2, 0)]
    # AND a rewrite is told, once
    define(3, 88)
    define(4, 88)
    assert told == [(2, 0), (3, 88)]
    # AND another form of the same file tells from which column on its defaults are known
    define(5, 88, replace(ITEM, columns=(*ITEM.columns, Column(0, "late", 25, -1))))
    assert told == [(2, 0), (3, 88), (3, 88)]
    # AND a table that was dropped meanwhile says nothing of its file
    define(0, 0, replace(ITEM, columns=(*ITEM.columns, Column(0, "late", 25, -1))), known=False)
    assert told[3:] in ([], [(None, None)])


def test_a_table_without_descriptions_is_not_described_for_a_rewrite():
    tables = knowing()
    columns = (CatalogColumn("id", 1, "integer", 23, 0, None), CatalogColumn("name", 2, "text", 25, 0, None))
    for rewritten in (0, 88):
        tables.define(ITEM, TableDescription(("id",), columns=columns, last_id=2, rewritten=rewritten), {})
    assert tables.fragments[OID].announcement is None
