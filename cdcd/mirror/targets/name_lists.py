"""Names of columns in rows, which follow the columns: `_cdcd_unknown` of a mirror, `_cdcd_unchanged` of a changelog.

The rule: a name in such a list is that of a column that is there. So a renamed column is renamed in the lists too. A
column that is dropped from a mirror leaves the lists. A changelog keeps a dropped column under another name.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as sf

from cdcd.mirror.platform.sql import text

NO_NAMES: Final = "CAST(array() AS ARRAY<STRING>)"
"""The empty list in SQL."""


def no_names() -> Column:
    """The empty list."""
    return sf.array().cast("array<string>")


@dataclass(frozen=True, slots=True)
class Renamed:
    """How the lists of names in the rows of a table change.

    Attributes:
        column: has the list.
        names: former names that are not those of now.
        to: the names of now by the former ones. A name that is missing leaves the list.
    """

    column: str
    names: Sequence[str]
    to: Mapping[str, str]

    @property
    def condition(self) -> str:
        """Condition of SQL that a row `t` has one of the former names in its list."""
        return f"arrays_overlap(t.{self.column}, array({_texts(self.names)}))"

    @property
    def value(self) -> str:
        """The list of now of a row `t`, in SQL. An empty list is NULL."""
        found = ", ".join(_texts(pair) for pair in self.to.items()) or "'', ''"
        now = f"filter(transform(t.{self.column}, name -> map({found})[name]), name -> name IS NOT NULL)"
        return f"nullif({now}, {NO_NAMES})"


def _texts(names: Iterable[str]) -> str:
    return ", ".join(f"'{text(name)}'" for name in names)
