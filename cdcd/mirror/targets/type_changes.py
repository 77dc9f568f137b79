"""What ALTER TABLE does to values that are there and that no record tells.

PostgreSQL writes a table again when a column gets another type, and sends nothing. A mirror can follow only where each
value stays what it was. So a change of a type is followed if this module knows that it keeps values, and is refused if
it does not: a change that is not known may round, pad or write in another way what both sides call a text.
"""

from typing import Final

from pyspark.sql.types import StringType

from cdcd.core.catalog.types import BUILTIN_TYPES
from cdcd.mirror.records.schema import ColumnSchema

_TEXT: Final = 25
_VARCHAR: Final = 1043
_VARBIT: Final = 1562
_NUMERIC: Final = 1700
_FRACTIONS: Final = (1083, 1114, 1184, 1266)
"""time, timestamp, timestamptz and timetz. Their modifier is a number of digits, 6 if there is none."""

_WIDER: Final = {(21, 23), (21, 20), (23, 20), (700, 701)}
"""smallint to integer to bigint, and real to double precision."""


def unsent_values(before: ColumnSchema | None, column: ColumnSchema, newest: int) -> str | None:
    """Why rows that are there may have values in `column` that no record told; None: they have none.

    Args:
        before: the same column in the form from before. None: the column is new in the records.
        newest: the highest number of a column that the records had before; 0: none is known.
    """
    if before is None and column.id is not None and column.id < newest:
        # Numbers rise: it is older than a column that the records had.
        return (
            f"column {column.name} is sent now, and was there before without being sent: it was generated, or the"
            " publication's list of columns left it out, or it had another name while the daemon was behind. Its values"
            " in the rows that are there are not known."
        )
    if before is not None and not keeps_values(before, column):
        to = "another type of that name" if before.type == column.type else column.type
        return (
            f"column {column.name} changed from {before.type} to {to}, by which PostgreSQL may have changed"
            " its values without sending them."
        )
    return None


def keeps_values(before: ColumnSchema, now: ColumnSchema) -> bool:
    """Whether each value of the column is the same after ALTER COLUMN ... TYPE, as records have it.

    A change with USING that keeps the type cannot be told from none.
    """
    if (before.type_oid, before.modifier) == (now.type_oid, now.modifier):
        return True
    old, new = _element(before.type_oid), _element(now.type_oid)
    if old != new:
        to_text = (old, new) == (_VARCHAR, _TEXT)
        to_varchar = (old, new) == (_TEXT, _VARCHAR) and now.modifier == -1
        return to_text or to_varchar or (old, new) in _WIDER
    if now.modifier == -1:
        return True
    if new in _FRACTIONS:
        return now.modifier >= (6 if before.modifier == -1 else before.modifier)
    if new == _NUMERIC:
        # Decimals with a type of their own in Spark are compared there.
        return not isinstance(now.spark, StringType) or _same_scale(before.modifier, now.modifier)
    return new in {_VARCHAR, _VARBIT} and 0 <= before.modifier <= now.modifier


def _element(oid: int) -> int:
    """The type of an array's elements; the type itself, if it is no array."""
    type_ = BUILTIN_TYPES.get(oid)
    return oid if type_ is None or not type_.element_oid else type_.element_oid


def _same_scale(before: int, now: int) -> bool:
    """Modifiers of numeric: precision in the upper half, scale in the lower (numeric.c, `numeric_typmod_scale`)."""
    if before == -1:
        return False
    digits, scale = divmod(now - 4, 1 << 16)
    digits_before, scale_before = divmod(before - 4, 1 << 16)
    return scale == scale_before and digits >= digits_before
