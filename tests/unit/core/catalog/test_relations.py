import pytest

from cdcd.core.catalog.relations import TableDescription, key_columns
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
