"""Frames -> typed changes."""

import pytest

from cdcd.core.catalog.relations import CatalogColumn, TableDescription
from cdcd.core.catalog.types import BUILTIN_TYPES
from cdcd.core.errors import ProtocolError
from cdcd.core.protocol.lsn import Lsn
from cdcd.core.protocol.messages import UNCHANGED, Column, Delete, Insert, Relation, TupleData, Update
from cdcd.stream import changes
from cdcd.stream.decoding import ChangeDecoder
from tests.unit.core.transactions.wire import frame

OID = 16_400
INT4, TEXT = 23, 25


def relation(identity: str, *keys: str) -> Relation:
    columns = (("id", INT4), ("note", TEXT), ("big", TEXT))
    return Relation(
        None,
        OID,
        "public",
        "t",
        identity,
        tuple(Column(int(name in keys or identity == "f"), name, oid, -1) for name, oid in columns),
    )


CATALOG = TableDescription(
    ("id",),
    (),
    (CatalogColumn("id", 1, "integer", INT4, 0, None), CatalogColumn("note", 2, "text", TEXT, 0, None)),
)


def decoder(identity: str = "d", *keys: str, catalog: TableDescription = CATALOG) -> ChangeDecoder:
    made = ChangeDecoder()
    made.define(relation(identity, *(keys or ("id",))), catalog, BUILTIN_TYPES)
    return made


def update(new: TupleData, old: TupleData | None = None, kind: str = "") -> bytes:
    return frame(Update(None, OID, kind, old, new), 77)


def test_a_table_has_its_columns_types_and_key():
    (change,) = decoder().decode(frame(Insert(None, OID, (b"1", None, b"x")), 77), False)
    assert isinstance(change, changes.Insert)
    table = change.table
    assert (str(table), table.oid, table.key, table.replica_identity) == ("public.t", OID, ("id",), "default")
    assert [(each.name, each.type, each.is_key) for each in table.columns] == [
        ("id", "integer", True),
        ("note", "text", False),
        ("big", "text", False),
    ]
    assert (change.lsn, change.new, change.key) == (Lsn(77), {"id": 1, "note": None, "big": "x"}, {"id": 1})


def test_a_value_that_was_not_sent_is_neither_null_nor_absent():
    (change,) = decoder().decode(update((b"1", None, UNCHANGED)), False)
    assert isinstance(change, changes.Update)
    assert change.old is None
    assert change.new == {"id": 1, "note": None, "big": UNCHANGED}
    assert change.new["big"] is UNCHANGED


def test_a_value_that_was_not_sent_is_taken_from_a_whole_old_row():
    (change,) = decoder("f").decode(update((b"1", b"b", UNCHANGED), (b"1", b"a", b"large"), "O"), False)
    assert isinstance(change, changes.Update)
    assert change.new == {"id": 1, "note": "b", "big": "large"}
    assert change.old == {"id": 1, "note": "a", "big": "large"}
    assert change.key == {"id": 1}
    # PostgreSQL sends old rows by the replica identity of the partition, with NULL for all other columns.
    (change,) = decoder("f").decode(update((b"2", b"b", UNCHANGED), (b"1", None, None), "O"), False)
    assert isinstance(change, changes.Update)
    assert change.new["big"] is UNCHANGED


def test_an_old_key_has_the_columns_of_the_replica_identity_only():
    (change,) = decoder().decode(update((b"2", b"b", UNCHANGED), (b"1", None, None), "K"), False)
    assert isinstance(change, changes.Update)
    assert change.old == {"id": 1}
    assert change.new["big"] is UNCHANGED
    (deleted,) = decoder().decode(frame(Delete(None, OID, "K", (b"1", None, None))), False)
    assert isinstance(deleted, changes.Delete)
    assert (deleted.old, deleted.key) == ({"id": 1}, {"id": 1})


def test_a_table_without_any_key_has_none():
    (change,) = decoder("n", "none", catalog=TableDescription()).decode(
        frame(Insert(None, OID, (b"1", None, None))), False
    )
    assert isinstance(change, changes.Insert)
    assert (change.table.key, change.key, change.table.replica_identity) == ((), {}, "nothing")
    assert change.table.columns[0].type == "int4"


def test_in_a_stream_an_xid_follows_the_tag():
    (change,) = decoder().decode(frame(Insert(9, OID, (b"1", None, None))), True)
    assert isinstance(change, changes.Insert)
    assert change.new["id"] == 1


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ((b"1", b"a"), "has 2 values, but the table has 3 columns"),
        ((b"secret", None, None), r"A value of public\.t\.id, of 6 bytes, is not of its type's form"),
    ],
)
def test_a_malformed_row_is_refused_without_its_values(row, said):
    with pytest.raises(ProtocolError, match=said) as caught:
        decoder().decode(frame(Insert(None, OID, row)), False)
    assert caught.value.hint
    assert "secret" not in str(caught.value)


def test_a_value_that_cannot_be_decoded_is_null_and_named():
    (inserted,) = decoder().decode(frame(Insert(None, OID, (b"1", b"\xff", b"sound"))), False)
    assert isinstance(inserted, changes.Insert)
    assert inserted.new == {"id": 1, "note": None, "big": "sound"}
    assert inserted.unwritable == ("note",)
    (updated,) = decoder("f").decode(update((b"1", b"\xff", UNCHANGED), (b"1", b"\xff", b"\xff"), "O"), False)
    assert isinstance(updated, changes.Update)
    assert updated.old == {"id": 1, "note": None, "big": None}
    assert updated.new == {"id": 1, "note": None, "big": UNCHANGED}
    assert updated.unwritable == ("note", "big")
    (deleted,) = decoder("f").decode(frame(Delete(None, OID, "O", (b"1", b"a", b"\xff"))), False)
    assert isinstance(deleted, changes.Delete)
    assert (deleted.old["big"], deleted.unwritable) == (None, ("big",))
    (sound,) = decoder().decode(update((b"1", None, UNCHANGED)), False)
    assert isinstance(sound, changes.Update)
    assert sound.unwritable == ()


def test_a_relation_that_was_not_described_is_refused():
    with pytest.raises(ProtocolError, match="relation 5, which was not described"):
        decoder().decode(frame(Insert(None, 5, ())), False)


def test_changes_cannot_be_altered():
    (change,) = decoder().decode(frame(Insert(None, OID, (b"1", None, None))), False)
    with pytest.raises(AttributeError):
        change.lsn = Lsn(1)  # type: ignore[misc]
