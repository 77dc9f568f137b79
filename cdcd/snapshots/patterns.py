"""Patterns of tables, in the one dialect that every key of the configuration has.

A pattern is `schema.table`, in which `*` stands for any characters and `?` for one. A part in double quotes is taken
literally ("" in it is one quote). Case counts, and a pattern matches whole names.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from cdcd.errors import ConfigError

_PART: Final = re.compile(r'"(?:[^"]|"")+"|[^".]+')
_WILD: Final = {"*": ".*", "?": "."}


@dataclass(frozen=True, slots=True)
class TablePattern:
    """A pattern of the configuration, read."""

    text: str
    schema: re.Pattern[str]
    table: re.Pattern[str]
    is_literal: bool
    whole_schema: str | None
    """The schema's name when the pattern is exactly all tables of one schema."""

    def matches(self, schema: str, table: str) -> bool:
        return self.schema.fullmatch(schema) is not None and self.table.fullmatch(table) is not None

    def matches_name(self, name: str) -> bool:
        """Whether it matches `schema.table`, as records and tasks name a table: unquoted, with any dots in it."""
        parts = name.split(".")
        return any(
            self.matches(".".join(parts[:place]), ".".join(parts[place:])) for place in range(1, len(parts))
        )


def parse_pattern(text: str, key: str = "postgres.tables") -> TablePattern:
    """Read `schema.table`; ConfigError, which names the key of the configuration, when it is not of that form."""
    schema = _PART.match(text)
    table = (
        _PART.fullmatch(text, schema.end() + 1)
        if schema and text[schema.end() : schema.end() + 1] == "."
        else None
    )
    if schema is None or table is None:
        raise ConfigError(
            f"{key}: {text!r} is not a pattern of the form schema.table.",
            hint="* stands for any characters, ? for one; a name with a dot, a star or a quote goes in double quotes, "
            'as in "a.b".*',
        )
    (schema_regex, schema_name), (table_regex, table_name) = _translate(schema[0]), _translate(table[0])
    return TablePattern(
        text,
        schema_regex,
        table_regex,
        is_literal=schema_name is not None and table_name is not None,
        whole_schema=schema_name if table[0] == "*" else None,
    )


def _translate(part: str) -> tuple[re.Pattern[str], str | None]:
    """The part as a regular expression, and as a name where it has no wildcard."""
    if part.startswith('"'):
        name = part[1:-1].replace('""', '"')
        return re.compile(re.escape(name)), name
    regex = "".join(_WILD.get(character) or re.escape(character) for character in part)
    return re.compile(regex, re.DOTALL), None if set(part) & _WILD.keys() else part


def matcher(patterns: Iterable[str], key: str) -> Callable[[str], bool]:
    """A test whether `schema.table` matches any of the patterns. ConfigError: one is malformed."""
    parsed = [parse_pattern(pattern, key) for pattern in patterns]
    return lambda name: any(pattern.matches_name(name) for pattern in parsed)
