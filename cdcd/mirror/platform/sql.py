"""Names and texts as Spark's SQL has them."""

import re
from typing import Final

_PART: Final = re.compile(r"`((?:[^`]|``)*)`")


def quoted(name: str) -> str:
    """`name` as an identifier of SQL."""
    return "`" + name.replace("`", "``") + "`"


def parts(name: str) -> list[str]:
    """The parts of a name that `quoted` wrote, each without its quotes."""
    return [part.replace("``", "`") for part in _PART.findall(name)]


def text(value: str) -> str:
    """`value` as it stands between the quotes of a string of SQL."""
    # Spark's SQL replaces ${...}, wherever it stands.
    return value.replace("\\", "\\\\").replace("'", "\\'").replace("$", "\\u0024")
