from dataclasses import replace

import pytest
from pyspark.sql.types import ArrayType, DecimalType, IntegerType, LongType, StringType

from cdcd.mirror.records.schema import RESERVED, ColumnSchema, TableSchema, mirrored_names

TABLE = TableSchema(
    topic="shop.public.orders",
    namespace="public",
    name="orders",
    schema_id="5f1d",
    key=("line", "id"),
    columns=(
        ColumnSchema("id", 1, "bigint", 20, -1, LongType()),
        ColumnSchema("line", 3, "integer", 23, -1, IntegerType()),
        ColumnSchema("note", 4, "text", 25, -1, StringType(), missing="näh"),
        ColumnSchema("prices", None, "numeric(9,2)[]", 1231, 589830, ArrayType(DecimalType(9, 2))),
    ),
)


def test_a_table_is_called_by_its_namespace_and_name():
    assert TABLE.table == "public.orders"


def test_a_row_has_the_columns_in_the_order_of_the_table():
    assert (
        TABLE.row_type.simpleString() == "struct<id:bigint,line:int,note:string,prices:array<decimal(9,2)>>"
    )


def test_a_key_has_its_own_order():
    assert TABLE.key_type.simpleString() == "struct<line:int,id:bigint>"


def test_a_column_is_found_by_its_name():
    assert TABLE.column("note").id == 4
    with pytest.raises(KeyError):
        TABLE.column("Note")


def test_a_table_reads_back_as_it_was_written():
    assert TableSchema.from_json(TABLE.to_json()) == TABLE


def test_a_column_that_the_mirror_calls_otherwise_keeps_its_name_at_the_source():
    column = replace(TABLE.columns[2], name="source__file", source="_file")
    table = replace(TABLE, columns=(*TABLE.columns, column))
    assert TableSchema.from_json(table.to_json()) == table
    assert [each.sent_as for each in table.columns[2:]] == ["note", "prices", "_file"]


def test_names_that_a_format_or_the_mirror_keeps_become_others_which_no_column_has():
    for name in RESERVED:
        assert mirrored_names([name, name.upper()]) == {
            name: f"source_{name}",
            name.upper(): f"source_source_{name.upper()}",
        }
    assert mirrored_names(
        ["id", "_partition", "source__partition", "_cdcd_deleted", "_CDCD_x", "partition"]
    ) == {
        "id": "id",
        "_partition": "source_source__partition",
        "source__partition": "source__partition",
        "_cdcd_deleted": "source__cdcd_deleted",
        "_CDCD_x": "source__CDCD_x",
        "partition": "partition",
    }
