"""PostgreSQL's types in Spark: which type a column has, and how it comes from the JSON of a record.

The daemon describes the encoding of each column (`cdcd.core.records.schemas`); the table below gives the type in Spark
for each encoding. `from_json` parses a value into a *wire* type, and Spark's expressions convert it from there, so that
no row passes through Python. The rules for rare but legal values:

- numeric with a declared precision is DECIMAL, up to Spark's 38 digits; with more, or without one, it is STRING, as
  PostgreSQL writes it (`NaN`, `Infinity`). DECIMAL has no NaN: there it is **NULL**.
- float4, float8: FLOAT and DOUBLE have NaN and infinities.
- date: DATE, in the proleptic Gregorian calendar, also BC and past 9999; infinity is the greatest date that the type
  has (5881580-07-11), -infinity the least.
- timestamp: TIMESTAMP_NTZ; timestamptz: TIMESTAMP; infinity is 294247-01-10 04:00:25.2 and -infinity
  -290308-12-21 19:59:27.6, Debezium's numbers. Later years than 294246 do not fit, and go into quarantine.
- time: BIGINT, microseconds of the day, because the table formats have no TIME in Spark; timetz, interval: STRING.
- bytea: BINARY; bit(1): BOOLEAN; other bit strings: BINARY, little-endian without leading zero bytes.
- json, jsonb, hstore: VARIANT where that is asked for, else STRING, the text of the document.
- point: STRUCT<x, y>. PostGIS and sparsevec: STRING, the JSON object of the record.
- arrays: ARRAY, nested as deep as declared (`int[][]`). An array with another number of dimensions than declared,
  which PostgreSQL allows, does not fit, and goes into quarantine.
- what other modes write (`format.*_mode`) has the same types, but for those that `mode_types.py` names.
- text, uuid, enums, ranges, network addresses, composites and everything else: STRING, PostgreSQL's text.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as sf
from pyspark.sql import types as spark_types
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
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from cdcd.core.errors import ConfigError
from cdcd.core.records.schemas import TableForm, is_default_lost
from cdcd.mirror.records.mode_types import INFINITE_US, micros_of_ms, mode_rule
from cdcd.mirror.records.rule import Rule, try_cast
from cdcd.mirror.records.schema import ColumnSchema, TableSchema, mirrored_names

DECIMAL_DIGITS_MAX: Final = 38

INFINITE_DATES: Final = {-2147472692: 2147483647, -2147472691: -2147483648}
"""Days since 1970 in a record, and in a DATE."""

_NOT_NUMBERS: Final = {
    "NAN": "NaN",
    "POSITIVE_INFINITY": "Infinity",
    "NEGATIVE_INFINITY": "-Infinity",
}

_DECIMAL: Final = re.compile(r"decimal\((\d+),(-?\d+)\)")


def _cases(value: Column, otherwise: Column, cases: dict[str, Column]) -> Column:
    for text, result in cases.items():
        otherwise = sf.when(value == text, result).otherwise(otherwise)
    return otherwise


def _decimal_text(value: Column) -> Column:
    return _cases(value, value, {text: sf.lit(plain) for text, plain in _NOT_NUMBERS.items()})


def _date(days: Column) -> Column:
    for written, kept in INFINITE_DATES.items():
        days = sf.when(days == written, sf.lit(kept)).otherwise(days)
    return sf.date_from_unix_date(days)


def _timestamp(micros: Column) -> Column:
    # The session's time zone is UTC (session.py): the cast moves nothing.
    return sf.timestamp_micros(micros).cast(TimestampNTZType())


def _timestamp_of_ms(millis: Column) -> Column:
    return _timestamp(micros_of_ms(millis))


def _timestamptz(text: Column) -> Column:
    infinite = {name: sf.timestamp_micros(sf.lit(micros)) for name, micros in INFINITE_US.items()}
    return _cases(text, try_cast(text, TimestampType()), infinite)


def _time_of_ms(millis: Column) -> Column:
    return millis * 1000


_POINT: Final = StructType([StructField("x", DoubleType()), StructField("y", DoubleType())])
_TEXT: Final = Rule(StringType(), StringType())

_RULES: Final = {
    "boolean": Rule(BooleanType(), BooleanType()),
    "int16": Rule(ShortType(), ShortType()),
    "int32": Rule(IntegerType(), IntegerType()),
    "int64": Rule(LongType(), LongType()),
    "float32": Rule(FloatType(), FloatType()),
    "float64": Rule(DoubleType(), DoubleType()),
    "decimal": Rule(StringType(), StringType(), _decimal_text),
    "bytes": Rule(BinaryType(), BinaryType()),
    "bits": Rule(BinaryType(), BinaryType()),
    "date": Rule(IntegerType(), DateType(), _date),
    "time": Rule(LongType(), LongType()),
    "time_ms": Rule(LongType(), LongType(), _time_of_ms),
    "timestamp": Rule(LongType(), TimestampNTZType(), _timestamp),
    "timestamp_ms": Rule(LongType(), TimestampNTZType(), _timestamp_of_ms),
    "timestamptz": Rule(StringType(), TimestampType(), _timestamptz),
    "point": Rule(_POINT, _POINT),
    "object": _TEXT,
    "json": _TEXT,
    "text": _TEXT,
}

_PLACEHOLDER_IS_TEXT: Final = (BooleanType, StructType)
"""Elements as which the placeholder for an array that was not sent does not parse: all of the record would fail."""


def variant_type() -> DataType:
    """Spark's type VARIANT. ConfigError: Spark 3.5 does not have it."""
    found = getattr(spark_types, "VariantType", None)
    if found is None:
        raise ConfigError(
            "Spark 3.5 has no type VARIANT for columns json and jsonb.",
            hint="Set tables.json_as to string, or run the mirror with Spark 4.0 or later.",
        )
    made: DataType = found()
    return made


def is_variant(type_: DataType) -> bool:
    """True for Spark's type VARIANT."""
    return bool(type_.typeName() == "variant")


def rule_for(form: str, *, variant: bool = False) -> Rule:
    """The rule of a form (`ColumnForm.form`).

    Args:
        variant: json becomes VARIANT.

    Raises:
        ValueError: a newer daemon writes a form that this version does not know.
        UnreadableFormError: a mode writes a form that a mirror cannot read.
        ConfigError: this Spark has no VARIANT.
    """
    if form.endswith("[]"):
        return _array(rule_for(form.removesuffix("[]"), variant=variant))
    if form == "json" and variant:
        return Rule(StringType(), variant_type(), sf.try_parse_json)
    declared = _DECIMAL.fullmatch(form)
    if declared is not None:
        return _decimal(int(declared[1]), int(declared[2]))
    rule = _RULES.get(form) or mode_rule(form)
    if rule is None:
        raise ValueError(f"values are written as {form!r}, which this version of cdcd does not know")
    return rule


def _relabelled(form: str, words: Mapping[str, str]) -> Rule:
    """Of an enum, or of an array of one: words that labels had before become those that they have now."""
    if form.endswith("[]"):
        return _array(_relabelled(form.removesuffix("[]"), words))

    def now(text: Column) -> Column:
        return _cases(text, text, {before: sf.lit(label) for before, label in words.items()})

    return Rule(StringType(), StringType(), now)


def _decimal(precision: int, scale: int) -> Rule:
    # A negative scale has so many more digits before the point; a scale above the precision, zeros after it.
    precision, scale = (precision - scale, 0) if scale < 0 else (max(precision, scale), scale)
    if precision > DECIMAL_DIGITS_MAX:
        return _RULES["decimal"]
    spark = DecimalType(precision, scale)
    return Rule(StringType(), spark, lambda text: try_cast(text, spark), ("NAN",))


def _array(element: Rule) -> Rule:
    spark = ArrayType(element.spark)
    if isinstance(element.wire, _PLACEHOLDER_IS_TEXT):
        wire = ArrayType(element.wire)
        return Rule(StringType(), spark, lambda text: sf.from_json(text, wire, {"mode": "PERMISSIVE"}))
    if element.convert is None:
        return Rule(ArrayType(element.wire), spark)
    return _ArrayRule(
        ArrayType(element.wire), spark, lambda array: sf.transform(array, element.value), element=element
    )


@dataclass(frozen=True, slots=True)
class _ArrayRule(Rule):
    """An array fails where one of its elements does."""

    element: Rule | None = None

    def fails(self, wire: Column) -> Column | None:
        assert self.element is not None
        element = self.element

        def element_fails(value: Column) -> Column:
            failed = element.fails(value)
            return sf.lit(False) if failed is None else failed

        return wire.isNotNull() & sf.exists(wire, element_fails)


def names_of(form: TableForm, *, mirrored: bool) -> dict[str, str]:
    """The names of a form's columns in Spark, by their names at the source.

    Args:
        mirrored: they are those that the mirror has (`mirrored_names`). False: they are the same.
    """
    names = [column.name for column in form.columns]
    return mirrored_names(names) if mirrored else dict(zip(names, names, strict=True))


def table_schema(
    schema_id: str, form: TableForm, *, variant: bool = False, mirrored: bool = False
) -> TableSchema:
    """The table's form in Spark's types.

    Args:
        mirrored: as in `names_of`.

    Raises:
        ValueError: see `rule_for`.
    """
    names = names_of(form, mirrored=mirrored)
    columns = tuple(
        [
            ColumnSchema(
                name=names[column.name],
                id=column.id,
                type=column.type,
                type_oid=column.type_oid,
                modifier=column.modifier,
                spark=rule_for(column.form, variant=variant).spark,
                missing=column.missing,
                labels=column.labels,
                form=column.form,
                default=column.default,
                default_lost=is_default_lost(column, form),
                source=None if names[column.name] == column.name else column.name,
            )
            for column in form.columns
        ]
    )
    key = tuple([names[name] for name in form.key])
    return TableSchema(form.topic, form.schema, form.table, schema_id, key, columns, form.oid)


def rules(
    form: TableForm,
    *,
    variant: bool = False,
    words: Mapping[str, Mapping[str, str]] | None = None,
    mirrored: bool = False,
) -> dict[str, Rule]:
    """The rule of each column, by its name in Spark.

    Args:
        words: by column of an enum, words that labels had before, and those that they have now.
        mirrored: as in `names_of`.
    """
    former = words or {}
    names = names_of(form, mirrored=mirrored)
    return {
        names[column.name]: _relabelled(column.form, former[column.name])
        if former.get(column.name)
        else rule_for(column.form, variant=variant)
        for column in form.columns
    }
