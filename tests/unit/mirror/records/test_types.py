import pytest
from pyspark.sql.types import ArrayType, DecimalType, LongType, StringType

from cdcd.core.catalog.relations import ColumnForm
from cdcd.core.errors import ConfigError
from cdcd.core.records.schemas import TableForm
from cdcd.mirror.records.mode_types import UnreadableFormError
from cdcd.mirror.records.types import is_variant, rule_for, rules, table_schema


@pytest.mark.parametrize(
    ("form", "spark"),
    [
        ("boolean", "boolean"),
        ("int16", "smallint"),
        ("int64", "bigint"),
        ("float32", "float"),
        ("decimal(12,2)", "decimal(12,2)"),
        ("decimal(3,-2)", "decimal(5,0)"),
        ("decimal(2,4)", "decimal(4,4)"),
        ("decimal(39,2)", "string"),
        ("decimal", "string"),
        ("bytes", "binary"),
        ("date", "date"),
        ("time", "bigint"),
        ("timestamp_ms", "timestamp_ntz"),
        ("timestamptz", "timestamp"),
        ("point", "struct<x:double,y:double>"),
        ("json", "string"),
        ("text", "string"),
        ("int32[]", "array<int>"),
        ("decimal(9,2)[][]", "array<array<decimal(9,2)>>"),
        ("boolean[]", "array<boolean>"),
        ("decimal_bytes(12,2)", "decimal(12,2)"),
        ("decimal_bytes(4,-2)", "decimal(6,0)"),
        ("date_iso", "date"),
        ("time_iso", "bigint"),
        ("timestamp_ns", "timestamp_ntz"),
        ("bytes_hex[]", "array<binary>"),
    ],
)
def test_each_form_has_its_type(form: str, spark: str):
    assert rule_for(form).spark.simpleString() == spark


def test_json_is_variant_where_that_is_asked_for():
    assert rule_for("json", variant=True).spark.simpleString() == "variant"
    assert rule_for("json[]", variant=True).spark.simpleString() == "array<variant>"
    assert is_variant(rule_for("json", variant=True).spark)
    assert not is_variant(rule_for("json").spark)


def test_variant_is_refused_where_spark_does_not_have_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr("pyspark.sql.types.VariantType")
    assert rule_for("json").spark.simpleString() == "string"
    with pytest.raises(ConfigError, match="VARIANT") as refused:
        rule_for("json", variant=True)
    assert "tables.json_as" in refused.value.hint


@pytest.mark.parametrize("form", ["decimal_variable", "decimal_bytes(39,2)", "decimal_variable[]"])
def test_a_form_that_spark_cannot_read_is_refused_with_a_hint(form: str):
    with pytest.raises(UnreadableFormError) as refusal:
        rule_for(form)
    what, hint = refusal.value.args
    assert "precise" in what
    assert "decimal_handling_mode" in hint


@pytest.mark.parametrize("form", ["date_struct", "interval_struct", "timestamptz_struct[]"])
def test_a_date_or_time_as_an_object_is_refused_with_a_hint(form: str):
    with pytest.raises(UnreadableFormError) as refusal:
        rule_for(form)
    what, hint = refusal.value.args
    assert "structured" in what
    assert "time_precision_mode" in hint


def test_a_form_of_a_newer_daemon_is_refused():
    with pytest.raises(ValueError, match="uuid7"):
        rule_for("uuid7")


def test_an_array_whose_placeholder_does_not_parse_comes_as_text():
    assert rule_for("boolean[]").wire == StringType()
    assert rule_for("decimal(9,2)[]").wire == ArrayType(StringType())


def test_a_table_has_the_types_of_its_columns():
    form = TableForm(
        "public",
        "t",
        "x.public.t",
        ("id",),
        (
            ColumnForm("id", 1, "bigint", 20, -1, "int64"),
            ColumnForm("price", 2, "numeric(9,2)", 1700, 589830, "decimal(9,2)", default='"1.50"'),
        ),
    )
    schema = table_schema("abc", form)
    assert [(column.name, column.spark, column.form, column.default) for column in schema.columns] == [
        ("id", LongType(), "int64", None),
        ("price", DecimalType(9, 2), "decimal(9,2)", '"1.50"'),
    ]
    assert (schema.table, schema.topic, schema.schema_id, schema.key) == (
        "public.t",
        "x.public.t",
        "abc",
        ("id",),
    )
    assert rules(form).keys() == {"id", "price"}
