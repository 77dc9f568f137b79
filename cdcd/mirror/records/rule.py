"""How values of one form come to be values of a Spark type."""

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql.types import DataType

Convert = Callable[[Column], Column]


def try_cast(value: Column, type_: DataType) -> Column:
    """`value` as the type, and NULL if it does not fit."""
    # Columns of Spark 3.5 have no try_cast. Its casts give NULL, because `spark.sql.ansi.enabled` is off there.
    cast: Callable[[Column, DataType], Column] = getattr(type(value), "try_cast", type(value).cast)
    return cast(value, type_)


@dataclass(frozen=True, slots=True)
class Rule:
    """How values of one form come to be values of a Spark type.

    Attributes:
        wire: what `from_json` makes of the JSON.
        spark: the type of the column.
        convert: from `wire` to `spark`; None where they are the same.
        nulls: values of `wire`, as text, that become NULL by rule and not by failure.
    """

    wire: DataType
    spark: DataType
    convert: Convert | None = None
    nulls: tuple[str, ...] = ()

    def value(self, wire: Column) -> Column:
        """The column's value."""
        return wire if self.convert is None else self.convert(wire)

    def fails(self, wire: Column) -> Column | None:
        """Whether a value could not be converted; None where that cannot be."""
        if self.convert is None:
            return None
        failed = wire.isNotNull() & self.convert(wire).isNull()
        return failed & ~wire.isin(*self.nulls) if self.nulls else failed
