"""Names of columns in rows, which follow the columns: `_cdcd_unknown` of a mirror, `_cdcd_unchanged` of a changelog.

The rule: a name in such a list is that of a column that is there. So a renamed column is renamed in the lists too,
before it is renamed in the table: a process that is killed in between does both again. A column that is dropped from a
mirror leaves the lists. A changelog keeps a dropped column under another name, and renames it.
"""

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as sf

from cdcd.mirror.platform.sql import quoted, text

NO_NAMES: Final = "CAST(array() AS ARRAY<STRING>)"

"""The empty list in SQL."""


def no_names() -> Column:
    """The empty list."""
    return sf.array().cast("array<string>")


def names_it(names: str, column: str) -> str:
    """The condition in SQL that the list `names` has the column."""
    return f"array_contains({quoted(names)}, '{text(column)}')"


def with_other_name(names: str, column: str, to: str | None) -> str:
    """The list in SQL with another name in the place of the column's; None: without it. An empty list is NULL."""
    if to is None:
        return f"nullif(array_remove({quoted(names)}, '{text(column)}'), {NO_NAMES})"
    return f"transform({quoted(names)}, name -> if(name = '{text(column)}', '{text(to)}', name))"
