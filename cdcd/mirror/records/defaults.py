"""What rows have in a column that came after them (ADD COLUMN ... DEFAULT), as a value of the column's type.

The daemon writes it into the description as a record would have it, and it goes through the same rule as the values of
records (`types.Rule`): so one value is the same in old rows and in new ones. Older daemons wrote PostgreSQL's text;
that goes through the daemon's own converter first.
"""

import json
from typing import Final

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from cdcd.core.catalog.logical import extension_type, form_of
from cdcd.core.catalog.modes import Modes
from cdcd.core.catalog.money import DIGITS_OF_C
from cdcd.core.catalog.types import BUILTIN_TYPES, EXTENSIONS
from cdcd.core.catalog.wiretext import to_bytes, wire
from cdcd.core.records.debezium_json.arrays import Array
from cdcd.core.records.debezium_json.converter import Converter
from cdcd.core.records.debezium_json.converters import converter_for, converter_of
from cdcd.mirror.records.rule import Rule
from cdcd.mirror.records.schema import ColumnSchema
from cdcd.mirror.records.types import is_variant, rule_for

_TEXT_OID: Final = 25

_OIDS: Final = {
    "boolean": 16,
    "bytes": 17,
    "int64": 20,
    "int16": 21,
    "int32": 23,
    "point": 600,
    "float32": 700,
    "float64": 701,
    "date": 1082,
    "time": 1083,
    "timestamp": 1114,
    "timestamptz": 1184,
    "bits": 1562,
    "decimal": 1700,
}
"""Of a type that is written in this form."""

_FORMS: Final[dict[type[DataType], str]] = {
    BooleanType: "boolean",
    BinaryType: "bytes",
    ShortType: "int16",
    IntegerType: "int32",
    LongType: "int64",
    FloatType: "float32",
    DoubleType: "float64",
    DecimalType: "decimal",
    DateType: "date",
    TimestampNTZType: "timestamp",
    TimestampType: "timestamptz",
    StructType: "point",
}
"""The form of a column whose form an older mirror did not write down."""


def default_of(column: ColumnSchema) -> Column:
    """The value, of the column's type."""
    written = _json(column)
    if written is None:
        return sf.lit(None).cast(column.spark)
    rule = _rule(column)
    return rule.value(_parsed(written, rule)).cast(column.spark)


def fits(spark: SparkSession, column: ColumnSchema) -> bool:
    """Whether the default can be had in the column's type; one that cannot would go to quarantine in a row."""
    written = _json(column)
    if written is None:
        return True
    rule = _rule(column)
    parsed = _parsed(written, rule)
    failed = rule.fails(parsed)
    lost = parsed.isNull() if failed is None else parsed.isNull() | failed
    return not spark.range(1).select(lost).collect()[0][0]


def _parsed(written: str, rule: Rule) -> Column:
    return sf.from_json(sf.lit(f'{{"v":{written}}}'), StructType([StructField("v", rule.wire)]))["v"]


def _rule(column: ColumnSchema) -> Rule:
    return rule_for(_form(column), variant="variant" in column.spark.simpleString())


def _form(column: ColumnSchema) -> str:
    if column.form is not None:
        return column.form
    depth, kind = 0, column.spark
    while isinstance(kind, ArrayType):
        depth, kind = depth + 1, kind.elementType
    form = form_of(column.type_oid, column.modifier, {}, dimensions=depth)
    if rule_for(form, variant=is_variant(kind)).spark == column.spark:
        return form
    if isinstance(kind, DecimalType):
        return f"decimal({kind.precision},{kind.scale})" + "[]" * depth
    return ("json" if is_variant(kind) else _FORMS.get(type(kind), "text")) + "[]" * depth


def _json(column: ColumnSchema) -> str | None:
    """The default as JSON; None for NULL."""
    if column.default is not None or column.missing is None:
        return column.default
    try:
        written = to_bytes(_converter(column).json(wire(column.missing))).decode()
    except ValueError:
        # Of a type that neither oid nor form tell; it does not fit, which `fits` says.
        return json.dumps(column.missing)
    return written


def _scale(kind: DataType) -> int:
    """Digits behind the point of a number, or of an array's elements."""
    while isinstance(kind, ArrayType):
        kind = kind.elementType
    return kind.scale if isinstance(kind, DecimalType) else DIGITS_OF_C


def _converter(column: ColumnSchema) -> Converter:
    """How the daemon writes values of the column, as far as an older description tells."""
    if column.type_oid in BUILTIN_TYPES:
        return converter_for(column.type_oid, column.modifier, {}, Modes(money_digits=_scale(column.spark)))
    name = column.type.partition("(")[0].rpartition(".")[2]
    if name in EXTENSIONS:
        return converter_of(extension_type(name))
    form = _form(column)
    scalar = form.partition("(")[0].partition("[")[0]
    modifier = 3 if scalar.endswith("_ms") else -1
    converter = converter_for(_OIDS.get(scalar.removesuffix("_ms"), _TEXT_OID), modifier, {})
    return Array(converter, ",") if form.endswith("[]") else converter
