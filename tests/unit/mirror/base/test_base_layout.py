from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cdcd.core.errors import ConfigError, SinkError
from cdcd.mirror.base.layout import (
    fields_described,
    layout_of,
    made,
    own_columns,
    partitioned_by,
    properties_of,
)
from cdcd.mirror.base.part import Place
from cdcd.mirror.targets.layout import Layout
from cdcd.mirror.targets.partitions import Field
from tests.spark.source_model import FORM

PLACE = Place("public.docs", "shop.public.docs", "lake.docs", "lake.log")
WANTED = Layout(buckets=4, fields=(Field("n"), Field("id", "bucket", 8)))


def test_delta_gets_a_column_for_each_field_and_a_property_that_follows_renamed_columns():
    layout = made(FORM, WANTED, computed=True)
    assert own_columns(layout) == {
        "_cdcd_partition_1": "string",
        "_cdcd_partition_2": "string",
        "_cdcd_bucket": "int",
    }
    assert partitioned_by(layout) == list(own_columns(layout))
    has = properties_of(FORM, layout)
    ident, n, *rest = FORM.columns
    renamed = replace(FORM, columns=(ident, replace(n, name="number"), *rest))
    found = layout_of(cast("Any", None), PLACE, has, renamed, computed=True)
    assert found == Layout(buckets=4, fields=(Field("number"), Field("id", "bucket", 8)), computed=True)


def test_a_dropped_column_of_a_field_stops_the_table():
    has = properties_of(FORM, made(FORM, WANTED, computed=True))
    ident, _, *rest = FORM.columns
    without = replace(FORM, columns=(ident, *rest))
    with pytest.raises(SinkError, match="dropped a column by which") as stopped:
        layout_of(cast("Any", None), PLACE, has, without, computed=True)
    assert "cdcd tables resume public.docs" in stopped.value.hint


def test_iceberg_has_the_fields_itself():
    layout = made(FORM, WANTED, computed=False)
    assert partitioned_by(layout) == ["`n`", "bucket(8, `id`)", "_cdcd_bucket"]
    assert properties_of(FORM, layout) == {"cdcd.buckets": "4"}
    rows = [
        {"col_name": "id", "data_type": "bigint"},
        {"col_name": "# Partitioning", "data_type": ""},
        {"col_name": "Part 0", "data_type": "n"},
        {"col_name": "Part 1", "data_type": "bucket(8, id)"},
        {"col_name": "Part 2", "data_type": "_cdcd_bucket"},
    ]
    spark: Any = SimpleNamespace(sql=lambda _: SimpleNamespace(collect=lambda: rows))
    found = layout_of(spark, PLACE, {"cdcd.buckets": "4"}, FORM, computed=False)
    assert found == WANTED


@pytest.mark.parametrize(
    ("told", "fields"),
    [
        (
            ["# Partition Information|", "# col_name|data_type", "n|int", "`odd ``name`|string"],
            ["n", "odd `name"],
        ),
        (["|", "# Partitioning|", "Part 0|days(d)", "Part 1|`odd name`"], ["days(d)", "odd name"]),
        # A column with the name of a heading is a column, also among those that name the partitions.
        (["# Partitioning|int", "Part 0|int"], []),
        (["# Partition Information|", "# col_name|data_type", "`# col_name`|int"], ["# col_name"]),
    ],
)
def test_the_fields_of_iceberg_are_columns_or_numbered_transforms(told: list[str], fields: list[str]):
    rows = [(name, kind) for name, _, kind in [each.partition("|") for each in ["id|bigint", *told]]]
    assert [str(field) for field in fields_described(rows, "lake.docs")] == fields


def test_a_field_of_a_column_that_the_table_lacks_is_refused():
    with pytest.raises(ConfigError, match="which the table does not have"):
        made(FORM, Layout(fields=(Field("region"),)), computed=True)
