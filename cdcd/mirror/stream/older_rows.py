"""Whether a table still has rows that are older than a column whose default is lost.

When PostgreSQL writes a table again, PostgreSQL forgets which value older rows have in a new column
(`ColumnSchema.default_lost`). TRUNCATE writes a table again, too, but leaves no older row. The rule: the lost default
does not matter if a truncate record in the batch comes after every change that lacks the column.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from pyspark.sql import functions as sf

from cdcd.mirror.records.schema import TableSchema
from cdcd.mirror.stream.replaced import At, Part
from cdcd.mirror.targets.reduction import is_new
from cdcd.mirror.targets.state import State

_NEVER: Final = (0, 0)


def newest_form(parts: Sequence[Part], has: TableSchema | None, state: State) -> TableSchema:
    """The form of the last of `parts`, whose columns have no lost default if a truncate ended all older rows.

    Args:
        has: the form of the mirror in `state`, which removes rows that are deleted. None: it is not there yet.
    """
    schema = parts[-1].form.schema
    if has is None:
        return schema
    lost = {column.id for column in schema.columns if column.default_lost} - {
        column.id for column in has.columns
    }
    # A column without a number cannot be found in other forms.
    if not lost or None in lost:
        return schema
    older = [part.last for part in parts if lost - {column.id for column in part.form.schema.columns}]
    if max(older, default=_NEVER) >= _truncated(parts, state):
        return schema
    return replace(schema, columns=tuple([replace(column, default_lost=False) for column in schema.columns]))


def _truncated(parts: Sequence[Part], state: State) -> At:
    """Where the last truncate lies that the mirror does not have yet."""
    number = sf.coalesce("event_no", sf.lit(0)).alias("event_no")
    found = [_NEVER]
    for part in parts:
        truncates = part.changes.filter((sf.col("op") == "t") & is_new(state))
        last = truncates.agg(sf.max(sf.struct("commit_lsn", number)).alias("at")).head()
        if last is not None and last["at"] is not None:
            found.append((last["at"]["commit_lsn"], last["at"]["event_no"]))
    return max(found)
