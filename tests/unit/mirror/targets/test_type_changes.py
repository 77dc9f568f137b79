import pytest
from pyspark.sql.types import DataType, DecimalType, IntegerType, LongType, StringType, TimestampNTZType

from cdcd.mirror.records.schema import ColumnSchema
from cdcd.mirror.targets.evolution import Add, IncompatibleSchemaError, Widen, plan
from cdcd.mirror.targets.target import Kind
from cdcd.mirror.targets.type_changes import keeps_values
from tests.unit.mirror.targets.test_evolution import ID, table

VARCHAR, TEXT, BPCHAR, NUMERIC, TIMESTAMP, TIME, VARBIT, BIT = 1043, 25, 1042, 1700, 1114, 1083, 1562, 1560


def column(oid: int, modifier: int = -1, kind: DataType | None = None, id_: int = 2) -> ColumnSchema:
    return ColumnSchema("v", id_, f"type {oid}({modifier})", oid, modifier, kind or StringType())


def numeric(precision: int, scale: int) -> int:
    return (precision << 16 | scale) + 4


@pytest.mark.parametrize(
    ("before", "now", "kept"),
    [
        ((VARCHAR, 9), (VARCHAR, 54), True),
        ((VARCHAR, 54), (VARCHAR, 9), False),
        ((VARCHAR, 9), (TEXT, -1), True),
        ((TEXT, -1), (VARCHAR, -1), True),
        ((TEXT, -1), (VARCHAR, 9), False),
        ((1015, 9), (1009, -1), True),  # varchar(5)[] to text[]
        ((BPCHAR, 7), (BPCHAR, 10), False),  # padded
        ((BPCHAR, 7), (TEXT, -1), False),  # without its blanks
        ((VARBIT, 4), (VARBIT, 9), True),
        ((BIT, 4), (BIT, 9), False),
        ((TIMESTAMP, 3), (TIMESTAMP, -1), True),
        ((TIMESTAMP, -1), (TIMESTAMP, 6), True),
        ((TIMESTAMP, -1), (TIMESTAMP, 3), False),
        ((TIME, 6), (TIME, 0), False),
        ((NUMERIC, numeric(50, 2)), (NUMERIC, numeric(60, 2)), True),
        ((NUMERIC, numeric(50, 2)), (NUMERIC, -1), True),
        ((NUMERIC, numeric(50, 2)), (NUMERIC, numeric(50, 4)), False),
        ((NUMERIC, numeric(60, 2)), (NUMERIC, numeric(50, 2)), False),
        ((NUMERIC, -1), (NUMERIC, numeric(50, 2)), False),
        ((1231, numeric(50, 2)), (1231, numeric(50, 4)), False),
        ((114, -1), (3802, -1), False),  # json to jsonb: another text
        ((650, -1), (869, -1), False),  # cidr to inet: without its /32
        ((16400, -1), (16401, -1), False),  # two types of the user
        ((16400, 5), (16400, -1), True),  # no limit any more
    ],
)
def test_a_change_of_a_type_is_followed_only_where_it_keeps_each_value(
    before: tuple[int, int], now: tuple[int, int], kept: bool
):
    old, new = column(*before), column(*now)
    assert keeps_values(old, new) == kept
    if kept:
        assert plan(table(ID, old), table(ID, new)) == ()
    else:
        with pytest.raises(IncompatibleSchemaError, match=r"column v changed from .*--snapshot public\.t"):
            plan(table(ID, old), table(ID, new))
    # A changelog's rows stay as they were.
    assert plan(table(ID, old), table(ID, new), Kind.CHANGELOG) == ()


def test_a_wider_type_of_spark_is_not_enough():
    integer, bigint, oid = (
        column(23, -1, IntegerType()),
        column(20, -1, LongType()),
        column(26, -1, LongType()),
    )
    assert plan(table(ID, integer), table(ID, bigint)) == (Widen("v", LongType()),)
    # -1 becomes 4294967295.
    with pytest.raises(IncompatibleSchemaError, match="may have changed its values"):
        plan(table(ID, integer), table(ID, oid))


def test_decimals_with_a_type_of_their_own_are_compared_by_it():
    # numeric(5, -2) is decimal(7, 0).
    old = column(NUMERIC, numeric(5, 0x7FE), DecimalType(7, 0))
    assert plan(table(ID, old), table(ID, column(NUMERIC, numeric(7, 0), DecimalType(7, 0)))) == ()
    finer = column(TIMESTAMP, 0, TimestampNTZType()), column(TIMESTAMP, -1, TimestampNTZType())
    assert plan(table(ID, finer[0]), table(ID, finer[1])) == ()


def test_a_column_that_was_there_without_being_sent_is_refused_and_a_new_one_is_added():
    last = ColumnSchema("z", 4, "text", TEXT, -1, StringType())
    generated, new = column(TEXT, id_=3), column(TEXT, id_=5)
    with pytest.raises(IncompatibleSchemaError, match=r"column v is sent now.*--snapshot public\.t"):
        plan(table(ID, last), table(ID, generated, last))
    assert plan(table(ID, last), table(ID, last, new)) == (Add(new),)
    assert plan(table(ID, last), table(ID, generated, last), Kind.CHANGELOG) == (Add(generated),)
