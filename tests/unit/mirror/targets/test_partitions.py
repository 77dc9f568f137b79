"""What a partition field may be, and its values where the mirror computes them."""

import json
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import (
    BinaryType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    StringType,
    TimestampNTZType,
    TimestampType,
)

from cdcd.core.errors import ConfigError
from cdcd.mirror.base.layout import partitioned_by
from cdcd.mirror.records.schema import ColumnSchema, TableSchema
from cdcd.mirror.targets.layout import Layout
from cdcd.mirror.targets.making import BUCKETS, KIND, SCHEMA, made
from cdcd.mirror.targets.merge import merge
from cdcd.mirror.targets.partitions import Field, check_fields, parse_fields, renamed
from cdcd.mirror.targets.target import Kind


def column(name: str, kind: DataType, number: int = 1) -> ColumnSchema:
    return ColumnSchema(name, number, kind.simpleString(), 0, -1, kind)


FORM = TableSchema(
    "shop.public.t",
    "public",
    "t",
    "1",
    ("id",),
    (
        column("id", IntegerType()),
        column("at", TimestampType(), 2),
        column("a`b", StringType(), 3),
        column("x", DoubleType(), 4),
    ),
)
DAYS = Field("at", "days")


def test_a_field_is_a_column_or_a_transform_of_a_column():
    texts = ["days(at)", " bucket( 16 , id ) ", "truncate(4, name)", "region", '"days"', 'months("A t")']
    fields = parse_fields(texts, "x")
    assert fields == (
        DAYS, Field("id", "bucket", 16), Field("name", "truncate", 4), Field("region"), Field("days"),
        Field("A t", "months"),
    )  # fmt: skip
    assert [str(field) for field in fields[:4]] == [
        "days(at)",
        "bucket(16, id)",
        "truncate(4, name)",
        "region",
    ]
    assert Field("a`b", "bucket", 4).sql == "bucket(4, `a``b`)"


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        (["weeks(at)"], "no transform 'weeks'"),
        (["bucket(id)"], "Write it as bucket(16, id)"),
        (["days(3, at)"], "Write it as days(at)"),
        (["bucket(0, id)"], "from 1 to"),
        ([""], "no partition field"),
        (["at", "at"], "twice"),
    ],
)
def test_what_is_no_field_is_refused_with_its_place(texts: list[str], says: str):
    with pytest.raises(ConfigError) as refused:
        parse_fields(texts, "tables.partition_by: public.t")
    assert refused.value.message.startswith("tables.partition_by: public.t")
    assert says in f"{refused.value.message} {refused.value.hint}"


@pytest.mark.parametrize(
    ("field", "says"),
    [
        (Field("nope"), "the column nope, which the table does not have. The table has id, at, a`b, x."),
        (
            Field("id", "days"),
            "days(id) does not support the type of the column id, int (int). days supports columns of",
        ),
        (Field("x"), "x does not support the type of the column x"),
    ],
)
def test_a_field_that_a_table_cannot_have_is_refused_by_name(field: Field, says: str):
    with pytest.raises(ConfigError) as refused:
        check_fields(FORM, [field], computed=False)
    assert says in f"{refused.value.message} {refused.value.hint}"
    assert "tables.partition_by of public.t" in refused.value.message


def test_a_column_that_is_called_as_icebergs_field_is_no_matter_in_delta():
    form = replace(FORM, columns=(*FORM.columns, column("at_day", DateType(), 5)))
    check_fields(form, [DAYS], computed=True)
    check_fields(form, [Field("at_day")], computed=False)
    with pytest.raises(ConfigError, match="at_day"):
        check_fields(form, [DAYS], computed=False)


def test_fields_go_before_buckets():
    layout = Layout(8, fields=(DAYS, Field("a`b")))
    assert partitioned_by(layout) == ["days(`at`)", "`a``b`", "_cdcd_bucket"]
    own = replace(layout, computed=True)
    assert partitioned_by(own) == ["_cdcd_partition_1", "_cdcd_partition_2", "_cdcd_bucket"]


def test_a_table_of_a_mirror_without_a_log_says_by_what_it_is_partitioned():
    fields = {"fields": [["at", "days", None], ["a`b", "identity", None]], "computed": True}
    properties = {SCHEMA: FORM.to_json(), KIND: "mirror", BUCKETS: "8", "cdcd.partition": json.dumps(fields)}
    former = made(properties)
    assert (former.schema, former.kind) == (FORM, Kind.MIRROR)
    assert former.layout == Layout(8, fields=(DAYS, Field("a`b")), computed=True)


def test_a_renamed_column_keeps_its_field():
    assert renamed((DAYS, Field("id")), "at", "created") == (Field("created", "days"), Field("id"))


def test_a_merge_moves_rows_and_never_asks_where_they_lie():
    # A row that the batch takes to another partition lies in a partition that the batch does not know.
    plain = merge("lake.t", "batch", FORM, hashes={1})
    assert merge("lake.t", "batch", FORM, hashes={1}, layout=Layout(fields=(DAYS,))) == plain
    computed = Layout(fields=(DAYS, Field("a`b", "bucket", 4)), computed=True)
    lines = merge("lake.t", "batch", FORM, keeps=["a`b"], hashes={1}, layout=computed).splitlines()
    assert "_cdcd_partition" not in lines[0]
    assert "_cdcd_partition_1 = date_format((s.`at`), 'yyyy-MM-dd')" in lines[2]
    # What the source did not send is what the row has.
    assert "_cdcd_partition_2 = CAST(pmod(xxhash64((CASE WHEN array_contains(s._cdcd_keep, 'a`b')" in lines[2]
    assert "CAST(pmod(xxhash64(s.`a``b`), 4) AS STRING)" in lines[3]


@pytest.mark.parametrize(
    ("kind", "field", "value", "expected"),
    [
        (TimestampType(), ("hours", None), "TIMESTAMP '2026-03-01 23:59:59.9Z'", "2026-03-01-23"),
        (TimestampNTZType(), ("months", None), "TIMESTAMP_NTZ '1969-12-31 23:00:00'", "1969-12"),
        (DateType(), ("years", None), "DATE '0044-03-15'", "0044"),
        (TimestampType(), ("days", None), "CAST(NULL AS TIMESTAMP)", None),
        (StringType(), ("identity", None), "''", ""),
        (BinaryType(), ("identity", None), "X'00ff'", "00FF"),
        (StringType(), ("truncate", 3), "'äöüß'", "äöü"),
        (IntegerType(), ("truncate", 10), "-1", "-10"),
        (IntegerType(), ("truncate", 10), "29", "20"),
        (DecimalType(9, 2), ("truncate", 50), "CAST(10.65 AS DECIMAL(9, 2))", "10.50"),
        (DecimalType(9, 2), ("identity", None), "CAST(1.5 AS DECIMAL(9, 2))", "1.50"),
    ],
)
def test_the_value_of_a_field_is_as_iceberg_shows_its_own(
    spark: SparkSession, kind: DataType, field: tuple[str, int | None], value: str, expected: Any
):
    form = replace(FORM, columns=(column("c", kind),))
    one = Field("c", *field)
    check_fields(form, [one], computed=True)
    row = spark.sql(f"SELECT {one.value(form, value)} AS v").head()
    assert row is not None
    assert row.v == expected


def test_a_bucket_stays_when_the_type_grows(spark: SparkSession):
    narrow, wide = (
        replace(FORM, columns=(column("c", kind),)) for kind in (IntegerType(), DecimalType(9, 2))
    )
    field = Field("c", "bucket", 7)
    grown = replace(wide, columns=(column("c", DecimalType(20, 2)),))
    for form, values in (
        (narrow, ("7", "CAST(7 AS BIGINT)")),
        (wide, ("1.25BD", "CAST(1.25 AS DECIMAL(20, 2))")),
    ):
        after = grown if form is wide else form
        both = spark.sql(f"SELECT {field.value(form, values[0])}, {field.value(after, values[1])}").head()
        assert both is not None
        assert both[0] == both[1]
