"""Names and texts as Spark's SQL has them, and the names of its errors."""

import re
from collections.abc import Mapping
from typing import Final

from pyspark.errors import PySparkException

_PART: Final = re.compile(r"`(?:[^`]|``)*`|[^.`]+")


def quoted(name: str) -> str:
    """`name` as an identifier of SQL."""
    return "`" + name.replace("`", "``") + "`"


def parts(name: str) -> list[str]:
    """The parts of a name in SQL, each without its quotes."""
    return [part[1:-1].replace("``", "`") if part.startswith("`") else part for part in _PART.findall(name)]


def catalog_of(name: str) -> str:
    """The catalog of a table `name` in SQL, as an identifier."""
    return quoted(parts(name)[0]) if "`" in name else name.partition(".")[0]


def text(value: str) -> str:
    """`value` as it stands between the quotes of a string of SQL."""
    # Spark's SQL replaces ${...}, wherever it stands.
    return value.replace("\\", "\\\\").replace("'", "\\'").replace("$", "\\u0024")


def assigned(properties: Mapping[str, str]) -> str:
    """The properties of a table as SQL has them between the brackets of TBLPROPERTIES."""
    return ", ".join(f"'{text(key)}' = '{text(value)}'" for key, value in properties.items())


def condition(error: PySparkException) -> str:
    """The name of the error's condition, such as `TABLE_OR_VIEW_NOT_FOUND`. Spark 3.5 calls it the error's class."""
    ask = getattr(error, "getCondition", None) or error.getErrorClass
    return ask() or ""
