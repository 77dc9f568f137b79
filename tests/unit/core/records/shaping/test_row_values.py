"""What expressions are given of rows, and what an update is divided into."""

import pytest

from cdcd.core.catalog.patterns import parse_column_pattern
from cdcd.core.catalog.protection import HASH, ColumnRule, Protections
from cdcd.core.catalog.relations import TableDescription
from cdcd.core.catalog.types import BUILTIN_TYPES
from cdcd.core.protocol.frames import XLOG_HEADER, XLogData, write_frame
from cdcd.core.protocol.messages import (
    UNCHANGED,
    Column,
    Delete,
    Insert,
    Message,
    Relation,
    TupleData,
    Update,
)
from cdcd.core.protocol.reader import read_message
from cdcd.core.protocol.writer import write_message
from cdcd.core.records.shaping.compiling import ExpressionError
from cdcd.core.records.shaping.evaluation import Missing
from cdcd.core.records.shaping.row_values import (
    RowValues,
    delete_of,
    insert_of,
    old_and_new,
    unknown_columns,
    used_columns,
)

INT4, TEXT, BYTEA = 23, 25, 17


def relation(identity: str = "d") -> Relation:
    columns = (("id", INT4), ("status", TEXT), ("blob", BYTEA))
    return Relation(
        None,
        7,
        "public",
        "orders",
        identity,
        tuple(Column(int(identity == "f" or name == "id"), name, oid, -1) for name, oid in columns),
    )


def made(identity: str = "d", *names: str) -> RowValues:
    found = RowValues(relation(identity), "")
    found._use(
        used_columns(
            relation(identity), names, BUILTIN_TYPES, Protections(), table=TableDescription(), shown="it"
        )
    )
    return found


def frame(message: Message) -> bytes:
    return write_frame(XLogData(500, 500, 0, write_message(message)))


def row(number: int, status: object = b"open", blob: object = b"b") -> TupleData:
    return (b"%d" % number, status, blob)  # type: ignore[return-value]


def test_values_are_picked_of_both_rows():
    found = made("f", "status", "id")
    event = frame(Update(None, 7, "O", row(1), row(2, b"draft")))
    assert old_and_new(found, event, False) == ([b"1", b"open"], [b"2", b"draft"], True)
    assert old_and_new(found, frame(Insert(None, 7, row(3))), False) == ([b"3", b"open"],) * 2 + (False,)
    assert old_and_new(found, frame(Delete(None, 7, "O", row(3))), False) == ([b"3", b"open"],) * 2 + (True,)


def test_a_value_that_was_not_sent_is_that_of_the_old_row_if_that_was_sent():
    event = frame(Update(None, 7, "O", row(1), row(1, UNCHANGED)))
    assert old_and_new(made("f", "status"), event, False) == ([b"open"], [b"open"], True)
    event = frame(Update(None, 7, "", None, row(1, UNCHANGED)))
    assert old_and_new(made("d", "status"), event, False) == ([UNCHANGED], [UNCHANGED], False)


@pytest.mark.parametrize(
    "message", [Insert(None, 7, row(1)), Delete(None, 7, "K", row(1)), Update(None, 7, "K", row(1), row(2))]
)
def test_what_is_malformed_is_refused(message: Message):
    with pytest.raises((ValueError, IndexError)):
        old_and_new(made("d", "id"), frame(message) + b"x", False)
    with pytest.raises((ValueError, IndexError)):
        old_and_new(made("d", "id"), frame(message)[:-1], False)


def test_an_update_is_divided_into_a_delete_and_an_insert():
    found = made("d", "id")
    event = frame(Update(None, 7, "K", row(1, None, None), row(2, b"x", UNCHANGED)))
    gone = read_message(delete_of(found, event, False), XLOG_HEADER)
    assert gone == Delete(None, 7, "K", row(1, None, None))
    assert read_message(insert_of(found, event, False, whole=False), XLOG_HEADER) == Insert(
        None, 7, row(2, b"x", UNCHANGED)
    )
    event = frame(Update(None, 7, "", None, row(2, b"x", UNCHANGED)))
    assert read_message(delete_of(found, event, False), XLOG_HEADER) == Delete(
        None, 7, "K", row(2, None, None)
    )
    whole = frame(Update(9, 7, "O", row(1), row(2, b"x", UNCHANGED)))
    assert read_message(insert_of(made("f", "id"), whole, True, whole=True), XLOG_HEADER, in_stream=True) == (
        Insert(9, 7, row(2, b"x"))
    )


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("absent", "there is no published column absent"),
        ("blob", "the type of column blob has no value in an expression"),
        ("status", "protects column status, and where it goes would show its values"),
    ],
)
def test_which_columns_can_not_be_asked_for(name: str, says: str):
    rule = ColumnRule(parse_column_pattern("public.orders.status", "columns"), HASH)
    with pytest.raises(ExpressionError, match=says):
        used_columns(
            relation(),
            (name,),
            BUILTIN_TYPES,
            Protections((rule,)),
            table=TableDescription(),
            shown="where it goes",
        )


PARTITIONED = TableDescription(("id",), is_partitioned=True, unsent=(("status", "public.orders_1"),))


def test_of_an_old_row_of_a_partition_null_is_not_known_where_it_was_not_sent():
    found = RowValues(relation("f"), "", PARTITIONED)
    found._use(
        used_columns(
            relation("f"),
            ("id", "status"),
            BUILTIN_TYPES,
            Protections(),
            table=TableDescription(),
            shown="it",
        )
    )
    # PostgreSQL says that the row is whole, and has left out what the partition's identity has not.
    event = frame(Update(None, 7, "O", row(1, None, None), row(1, UNCHANGED, UNCHANGED)))
    assert old_and_new(found, event, False) == ([b"1", None], [b"1", UNCHANGED], True)
    assert read_message(insert_of(found, event, False, whole=True), XLOG_HEADER) == Insert(
        None, 7, row(1, UNCHANGED, UNCHANGED)
    )
    number, status = found._old_values([b"1", None], True)
    assert number == 1
    assert isinstance(status, Missing)
    # AND what was sent is known
    assert found._old_values([b"1", b"open"], True) == [1, "open"]


def test_columns_that_are_not_known_are_told_with_the_reason_and_what_to_do():
    columns = used_columns(
        relation("f"), ("id", "status"), BUILTIN_TYPES, Protections(), table=TableDescription(), shown="it"
    )
    assert unknown_columns(relation("f"), TableDescription(("id",)), columns) is None
    unknown = unknown_columns(relation("f"), PARTITIONED, columns)
    assert unknown is not None
    assert unknown.columns == "status"
    assert "Of rows of partition public.orders_1" in unknown.reason
    assert "ALTER TABLE public.orders_1 REPLICA IDENTITY FULL;" in unknown.remedy
    # With another identity, PostgreSQL sends what that has.
    columns = used_columns(
        relation("d"), ("id", "status"), BUILTIN_TYPES, Protections(), table=TableDescription(), shown="it"
    )
    unknown = unknown_columns(relation("d"), TableDescription(("id",)), columns)
    assert unknown is not None
    assert unknown.columns == "status"
    assert "ALTER TABLE public.orders REPLICA IDENTITY FULL;" in unknown.remedy
