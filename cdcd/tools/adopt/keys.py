"""Debezium's `message.key.columns` as cdcd's `key.columns`.

The value is a list, parted by semicolons, of `<expression for schema.table>:<column>,<column>…` (`Key.java`,
CustomKeyMapper).
"""

import re
from typing import Final

from cdcd.tools.adopt.tables import patterns_of
from cdcd.tools.adopt.verdicts import Kind, Verdict

_PLAIN: Final = re.compile(r"\w+", re.ASCII)

_DIFFERENT: Final = (
    "key.columns. cdcd refuses a key of which PostgreSQL does not send the former values: set REPLICA IDENTITY FULL or "
    "choose among the columns of the replica identity. `cdcd check` names the tables. Where rows may share a key, they "
    "are read at the slot's exported snapshot only, and cdcd mirror and cdcd verify leave them out."
)


def key_columns(value: str) -> Verdict:
    """What becomes of the option. ValueError: Debezium does not take the value either."""
    if value.strip() in {"", "none"}:
        return Verdict(Kind.SAME, "Nothing is asked for.")
    found: dict[str, list[str]] = {}
    for each in filter(None, map(str.strip, value.split(";"))):
        expression, parts, columns = each.rpartition(":")
        names = [name.strip() for name in columns.split(",")]
        if not parts or not expression or not all(names):
            raise ValueError("must be a list of <schema>.<table>:<column>,<column>, parted by semicolons")
        patterns = patterns_of(expression)
        if patterns is None or not all(map(_PLAIN.fullmatch, names)):
            return Verdict(
                Kind.IMPOSSIBLE,
                f"{each} has a regular expression that no pattern of key.columns stands for. Write the tables and the "
                "columns into key.columns.",
            )
        for pattern in patterns:
            if pattern in found:
                return Verdict(
                    Kind.IMPOSSIBLE, f"{pattern} is there twice. Write its columns into key.columns once."
                )
            found[pattern] = names
    return Verdict(Kind.DIFFERENT, _DIFFERENT, {"key.columns": found})
