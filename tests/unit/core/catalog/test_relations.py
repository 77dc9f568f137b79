from dataclasses import replace

import pytest

from cdcd.core.catalog.relations import (
    ColumnForm,
    DescribedRelation,
    RelationDifferences,
    TableDescription,
    differences,
    key_columns,
)
from cdcd.core.catalog.types import BUILTIN_TYPES
from cdcd.core.protocol.messages import Column, Relation


def relation(identity: str, **columns: bool) -> Relation:
    """`name=True`: the column is flagged."""
    described = tuple([Column(int(flagged), name, 23, -1) for name, flagged in columns.items()])
    return Relation(None, 16384, "public", "t", identity, described)


KEYS = TableDescription(primary_key=("b", "a"), unique_key=("c",))


@pytest.mark.parametrize("identity", ["d", "i"])
def test_with_an_index_as_identity_the_key_is_what_the_server_flags(identity):
    assert key_columns(relation(identity, a=True, b=False, c=True), KEYS) == ("a", "c")
    assert key_columns(relation(identity, a=False, b=False), KEYS) == ()


@pytest.mark.parametrize("identity", ["f", "n"])
def test_without_one_the_key_is_the_primary_key_in_the_order_of_the_columns(identity):
    assert key_columns(relation(identity, a=True, b=True, c=True), KEYS) == ("a", "b")


def test_the_key_is_the_same_whatever_the_replica_identity():
    flagged = relation("d", a=True, b=True, c=False)
    assert (
        key_columns(flagged, KEYS) == key_columns(relation("f", a=True, b=True, c=True), KEYS) == ("a", "b")
    )


@pytest.mark.parametrize("identity", ["f", "n"])
def test_without_a_primary_key_it_is_the_unique_key(identity):
    table = TableDescription(unique_key=("c",))
    assert key_columns(relation(identity, a=True, c=True), table) == ("c",)


def test_a_key_that_is_not_published_whole_is_none():
    assert key_columns(relation("f", a=True, c=True), KEYS) == ("c",)
    assert key_columns(relation("f", a=True), KEYS) == ()
    assert key_columns(relation("f", a=True), TableDescription()) == ()


def test_names_that_differ_only_in_case_are_two():
    table = TableDescription(primary_key=("ID",))
    assert key_columns(relation("f", id=True, ID=True), table) == ("ID",)


def test_every_built_in_array_has_an_element_with_its_delimiter():
    arrays = [kind for kind in BUILTIN_TYPES.values() if kind.is_array]
    assert len(arrays) > 70
    for kind in arrays:
        element = BUILTIN_TYPES[kind.element_oid]
        assert kind.name == f"_{element.name}"
        assert kind.delimiter == element.delimiter


def test_vectors_are_no_arrays_though_pg_type_says_so():
    assert not BUILTIN_TYPES[22].is_array
    assert not BUILTIN_TYPES[30].is_array
    assert BUILTIN_TYPES[1006].is_array


TYPES = {"integer": 23, "bigint": 20, "text": 25, "numeric(10,2)": 1700, "numeric(12,2)": 1700}
MODIFIERS = {"numeric(10,2)": 655366, "numeric(12,2)": 786438}


def column(name: str, number: int | None, kind: str = "text") -> ColumnForm:
    return ColumnForm(name, number, kind, TYPES[kind], MODIFIERS.get(kind, -1), kind)


def table(
    *columns: ColumnForm,
    key: tuple[str, ...] = ("id",),
    identity: str = "d",
    name: str = "orders",
    xid: int | None = None,
) -> DescribedRelation:
    message = tuple([Column(0, each.name, each.type_oid, each.modifier) for each in columns])
    return DescribedRelation(Relation(xid, 7, "public", name, identity, message), columns, key)


ID = column("id", 1, "integer")
NOTE = column("note", 2)
BEFORE = table(ID, NOTE)


def test_a_table_as_it_was_has_no_differences_whatever_transaction_described_it():
    assert differences(BEFORE, table(ID, NOTE, xid=77)).is_empty


def test_columns_that_came_and_went_are_named_with_their_types():
    found = differences(BEFORE, table(ID, column("price", 3, "numeric(10,2)")))
    assert found == RelationDifferences(added=["price numeric(10,2)"], dropped=["note text"])
    assert not found.is_empty


def test_a_column_with_the_same_number_and_another_name_was_renamed():
    assert differences(BEFORE, table(ID, column("remark", 2))) == RelationDifferences(
        renamed={"note": "remark"}
    )


def test_a_column_that_was_dropped_and_added_under_its_name_is_another_one():
    found = differences(BEFORE, table(ID, column("note", 3)))
    assert found == RelationDifferences(added=["note text"], dropped=["note text"])


def test_another_type_or_precision_is_told_with_the_former_one():
    before = table(ID, column("price", 2, "numeric(10,2)"))
    after = table(column("id", 1, "bigint"), column("price", 2, "numeric(12,2)"))
    assert differences(before, after) == RelationDifferences(
        retyped={"id": "integer -> bigint", "price": "numeric(10,2) -> numeric(12,2)"}
    )


def test_a_column_that_was_renamed_and_retyped_is_both_under_its_new_name():
    found = differences(BEFORE, table(ID, column("number", 2, "integer")))
    assert found == RelationDifferences(renamed={"note": "number"}, retyped={"number": "text -> integer"})


def test_without_numbers_the_name_counts():
    before = table(column("id", None, "integer"), column("note", None))
    after = table(ID, column("remark", 2))
    assert differences(before, after) == RelationDifferences(added=["remark text"], dropped=["note text"])


def test_another_key_identity_or_name_is_told():
    after = table(ID, NOTE, key=("id", "note"), identity="f", name="purchases")
    assert differences(BEFORE, after) == RelationDifferences(
        key=["id", "note"], former_name="public.orders", replica_identity="full"
    )


def test_a_key_that_was_lost_is_told_as_empty():
    assert differences(BEFORE, table(ID, NOTE, key=())) == RelationDifferences(key=[])
    assert not differences(BEFORE, table(ID, NOTE, key=())).is_empty


def test_a_key_whose_column_was_renamed_is_the_same_key():
    after = table(replace(ID, name="number"), NOTE, key=("number",))
    assert differences(BEFORE, after) == RelationDifferences(renamed={"id": "number"})
