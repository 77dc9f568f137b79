"""What is said of a table that changed."""

from dataclasses import replace

from cdcd.core.catalog.relation_changes import Described, Differences, differences
from cdcd.core.catalog.relations import ColumnForm
from cdcd.core.protocol.messages import Column, Relation

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
) -> Described:
    message = tuple([Column(0, each.name, each.type_oid, each.modifier) for each in columns])
    return Described(Relation(xid, 7, "public", name, identity, message), columns, key)


ID = column("id", 1, "integer")
NOTE = column("note", 2)
BEFORE = table(ID, NOTE)


def test_a_table_as_it_was_has_no_differences_whatever_transaction_described_it():
    assert differences(BEFORE, table(ID, NOTE, xid=77)).is_empty


def test_columns_that_came_and_went_are_named_with_their_types():
    found = differences(BEFORE, table(ID, column("price", 3, "numeric(10,2)")))
    assert found == Differences(added=["price numeric(10,2)"], dropped=["note text"])
    assert not found.is_empty


def test_a_column_with_the_same_number_and_another_name_was_renamed():
    assert differences(BEFORE, table(ID, column("remark", 2))) == Differences(renamed={"note": "remark"})


def test_a_column_that_was_dropped_and_added_under_its_name_is_another_one():
    found = differences(BEFORE, table(ID, column("note", 3)))
    assert found == Differences(added=["note text"], dropped=["note text"])


def test_another_type_or_precision_is_told_with_the_former_one():
    before = table(ID, column("price", 2, "numeric(10,2)"))
    after = table(column("id", 1, "bigint"), column("price", 2, "numeric(12,2)"))
    assert differences(before, after) == Differences(
        retyped={"id": "integer -> bigint", "price": "numeric(10,2) -> numeric(12,2)"}
    )


def test_a_column_that_was_renamed_and_retyped_is_both_under_its_new_name():
    found = differences(BEFORE, table(ID, column("number", 2, "integer")))
    assert found == Differences(renamed={"note": "number"}, retyped={"number": "text -> integer"})


def test_without_numbers_the_name_counts():
    before = table(column("id", None, "integer"), column("note", None))
    after = table(ID, column("remark", 2))
    assert differences(before, after) == Differences(added=["remark text"], dropped=["note text"])


def test_another_key_identity_or_name_is_told():
    after = table(ID, NOTE, key=("id", "note"), identity="f", name="purchases")
    assert differences(BEFORE, after) == Differences(
        key=["id", "note"], former_name="public.orders", replica_identity="full"
    )


def test_a_key_that_was_lost_is_told_as_empty():
    assert differences(BEFORE, table(ID, NOTE, key=())) == Differences(key=[])
    assert not differences(BEFORE, table(ID, NOTE, key=())).is_empty


def test_a_key_whose_column_was_renamed_is_the_same_key():
    after = table(replace(ID, name="number"), NOTE, key=("number",))
    assert differences(BEFORE, after) == Differences(renamed={"id": "number"})
