"""Partitions: the parts of a mirror in which rows lie by values that readers ask for, as `tables.partition_by` says.

The rule: a partition says nothing of where the row of a key lies, because the values of a row change while its key
stays. So a MERGE leaves out no part of the table by its partitions, and a row whose values change moves.

Iceberg has transforms of its own. In Delta, each field is a column of the mirror's own (`OWN`) that the mirror computes
as text: the values of Delta's partition columns are texts, and an empty one counts as NULL.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    TimestampNTZType,
    TimestampType,
)

from cdcd.core.errors import ConfigError
from cdcd.mirror.platform.sql import quoted
from cdcd.mirror.records.schema import TableSchema
from cdcd.mirror.targets.buckets import canonical

OWN: Final = "_cdcd_partition_"
"""Begins the name of a Delta table's column by which it is partitioned. The number of the field follows, from 1."""

IDENTITY: Final = "identity"

_NUMBERED: Final = ("bucket", "truncate")
_WHOLE: Final = (ShortType, IntegerType, LongType)
_TIMES: Final = (TimestampType, TimestampNTZType)

EXACT: Final = (BooleanType, *_WHOLE, DecimalType, DateType, *_TIMES, StringType, BinaryType)
"""The types for which Spark, Iceberg, Delta and Arrow compare values for equality in the same way. REAL and DOUBLE are
not among these types, because programs differ on whether NaN equals NaN and whether -0.0 equals 0.0.
"""

_TAKES: Final[dict[str, tuple[type[DataType], ...]]] = {
    IDENTITY: EXACT,
    "years": (DateType, *_TIMES),
    "months": (DateType, *_TIMES),
    "days": (DateType, *_TIMES),
    "hours": _TIMES,
    "bucket": (*_WHOLE, DecimalType, DateType, *_TIMES, StringType, BinaryType),
    "truncate": (*_WHOLE, DecimalType, StringType),
}
"""Types of columns by transform, as in Iceberg's specification. REAL and DOUBLE are of no use, and no two formats have
the same NaN."""

_PATTERNS: Final = {"years": "yyyy", "months": "yyyy-MM", "days": "yyyy-MM-dd", "hours": "yyyy-MM-dd-HH"}
"""The value of a time in Delta, as Iceberg shows its own."""

_NAMES: Final = {"years": "year", "months": "month", "days": "day", "hours": "hour", "truncate": "trunc"}
"""How Iceberg ends the name of a field, where that is not the transform's own name."""

_FIELD: Final = re.compile(r"(?:(\w+)\s*\(\s*(?:(\d+)\s*,\s*)?(.+?)\s*\)|(.+?))\s*")
_NUMBER_MAX: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a table's partition specification.

    Attributes:
        transform: a key of `_TAKES`.
        number: of buckets, or the width of `truncate`; None with other transforms.
    """

    column: str
    transform: str = IDENTITY
    number: int | None = None

    def __str__(self) -> str:
        """As the configuration has it."""
        return self._call(self.column)

    @property
    def sql(self) -> str:
        """As Iceberg's SQL has it."""
        return self._call(quoted(self.column))

    @property
    def name(self) -> str:
        """The name that Iceberg gives to the field."""
        if self.transform == IDENTITY:
            return self.column
        return f"{self.column}_{_NAMES.get(self.transform, self.transform)}"

    def _call(self, column: str) -> str:
        if self.transform == IDENTITY:
            return column
        return f"{self.transform}({column if self.number is None else f'{self.number}, {column}'})"

    def value(self, schema: TableSchema, column: str) -> str:
        """The field's value in Delta, as an expression of SQL. `column`: that of the column's value."""
        kind = schema.column(self.column).spark
        if self.transform == "bucket":
            return f"CAST(pmod(xxhash64({canonical(column, kind)}), {self.number}) AS STRING)"
        if self.transform in _PATTERNS:
            return f"date_format({column}, '{_PATTERNS[self.transform]}')"
        if self.transform == "truncate" and isinstance(kind, StringType):
            return f"substring({column}, 1, {self.number})"
        if self.transform == "truncate":
            unit = f"CAST({self.number} AS DECIMAL(38, 0))"
            if isinstance(kind, DecimalType):
                # Iceberg's width counts units of the last digit.
                unit = f"CAST({self.number}e-{kind.scale} AS DECIMAL(38, {kind.scale}))"
            return f"CAST({column} - pmod({column}, {unit}) AS STRING)"
        return f"hex({column})" if isinstance(kind, BinaryType) else f"CAST({column} AS STRING)"


def parse_fields(texts: Sequence[str], where: str) -> tuple[Field, ...]:
    """The fields that a configuration names, such as `days(created_at)`, `bucket(16, id)`, `region`.

    Args:
        where: the place in the configuration.

    Raises:
        ConfigError: a text is no field.
    """
    found = tuple([_parsed(text, where) for text in texts])
    if len(set(found)) < len(found):
        raise ConfigError(f"{where}: the same field is given twice.", hint="Remove one of them.")
    return found


def _parsed(text: str, where: str) -> Field:
    match = _FIELD.fullmatch(text.strip())
    transform, number, column, plain = match.groups() if match is not None else (None, None, None, "")
    if plain:
        return Field(_bare(plain))
    known = ", ".join(name for name in _TAKES if name != IDENTITY)
    if transform not in _TAKES or column is None:
        raise ConfigError(
            f"{where}: {text!r} is no partition field: there is no transform {transform or text!r}.",
            hint=f"Name a column, or one of {known} of a column: days(created_at), bucket(16, id), truncate(4, name).",
        )
    if (transform in _NUMBERED) != (number is not None):
        wants = f"{transform}(16, {column})" if transform in _NUMBERED else f"{transform}({column})"
        raise ConfigError(f"{where}: {text!r} is no partition field.", hint=f"Write it as {wants}.")
    if number is not None and not 1 <= int(number) <= _NUMBER_MAX:
        raise ConfigError(
            f"{where}: {text!r} has the number {number}.", hint=f"It must be from 1 to {_NUMBER_MAX}."
        )
    return Field(_bare(column), transform, None if number is None else int(number))


def _bare(name: str) -> str:
    """A column's name without the double quotes that it may stand in."""
    if len(name) > 1 and name[0] == name[-1] == '"':
        return name[1:-1].replace('""', '"')
    return name


def check_fields(schema: TableSchema, fields: Sequence[Field], *, computed: bool) -> None:
    """That a table can be partitioned by these fields.

    Args:
        computed: as in `Layout`.

    Raises:
        ConfigError: it cannot.
    """
    columns = {column.name: column for column in schema.columns}
    where = f"tables.partition_by of {schema.table}"
    for field in fields:
        if field.column not in columns:
            raise ConfigError(
                f"{where}: {field} names the column {field.column}, which the table does not have.",
                hint=f"The table has {', '.join(columns)}. Correct or remove the field, and start the mirror again.",
            )
        column = columns[field.column]
        if not isinstance(column.spark, _TAKES[field.transform]):
            takes = ", ".join(sorted({each.typeName() for each in _TAKES[field.transform]}))
            raise ConfigError(
                f"{where}: {field} does not support the type of the column {field.column}, {column.type}"
                f" ({column.spark.simpleString()}).",
                hint=f"{field.transform} supports columns of {takes}. Name another field, and start the mirror again.",
            )
        if not computed and field.name != field.column and field.name in columns:
            raise ConfigError(
                f"{where}: Iceberg calls the field {field} {field.name}, and a column of the table has the same name.",
                hint="Partition by another column or transform, and start the mirror again.",
            )


def renamed(fields: Sequence[Field], column: str, to: str) -> tuple[Field, ...]:
    """The fields after a column has got another name."""
    return tuple([replace(field, column=to) if field.column == column else field for field in fields])
