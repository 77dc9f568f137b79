r"""Patterns of tables and columns, in the one dialect that every key of the configuration has.

A pattern is `schema.table`, or `schema.table.column`, in which `*` stands for any characters and `?` for one. A part in
double quotes is taken literally ("" in it is one quote). Case counts, and a pattern matches whole names. A part may
also be written as PostgreSQL writes names with hidden characters: U&"\202e".

`tables.include` and `tables.exclude` choose the tables of a publication that a pipeline has. A table is left out as a
whole, by the name under which its changes are sent. It has no topic, no description and no snapshot. The catalog's
lists lack it, and `engine/left_out.py` takes its events out of the stream.
"""

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final

from cdcd.core.errors import ConfigError
from cdcd.core.table_names import split_table

PART: Final = re.compile(r'(?:[Uu]&)?"(?:[^"]|"")+"|[^".]+')
_ESCAPE: Final = re.compile(r"\\(?:(\\)|([0-9A-Fa-f]{4})|\+([0-9A-Fa-f]{6}))")
_WILD: Final = {"*": ".*", "?": "."}


@dataclass(frozen=True, slots=True)
class TablePattern:
    """A parsed pattern of tables."""

    text: str
    schema: re.Pattern[str]
    table: re.Pattern[str]
    is_literal: bool
    whole_schema: str | None
    """Name of the schema if the pattern means exactly all tables of one schema; else None."""
    has_wild_schema: bool = False
    has_wild_table: bool = False
    """True if the part has a wildcard."""

    def matches(self, schema: str, table: str) -> bool:
        return self.schema.fullmatch(schema) is not None and self.table.fullmatch(table) is not None

    def matches_name(self, name: str) -> bool:
        """Return True if the pattern matches the table of this text (`table_names.table_text`)."""
        return self.matches(*split_table(name))


@dataclass(frozen=True, slots=True)
class ColumnPattern:
    """A parsed pattern of columns."""

    text: str
    schema: re.Pattern[str]
    table: re.Pattern[str]
    column: re.Pattern[str]
    is_literal: bool = False
    """True if the pattern has no wildcard, so that it names one column."""

    def matches_table(self, schema: str, table: str) -> bool:
        return self.schema.fullmatch(schema) is not None and self.table.fullmatch(table) is not None

    def matches(self, schema: str, table: str, column: str) -> bool:
        return all(
            part.fullmatch(name) is not None
            for part, name in ((self.schema, schema), (self.table, table), (self.column, column))
        )


def parse_pattern(text: str, key: str = "postgres.tables") -> TablePattern:
    """Parse `schema.table`; raise ConfigError, which names the configuration key, for other text."""
    schema, table = _parts(text, key, "schema.table")
    (schema_regex, schema_name), (table_regex, table_name) = _translate(schema), _translate(table)
    return TablePattern(
        text,
        schema_regex,
        table_regex,
        is_literal=schema_name is not None and table_name is not None,
        whole_schema=schema_name if table == "*" else None,
        has_wild_schema=schema_name is None,
        has_wild_table=table_name is None,
    )


def parse_column_pattern(text: str, key: str) -> ColumnPattern:
    """Parse `schema.table.column`; raise ConfigError as `parse_pattern`."""
    parts = [_translate(part) for part in _parts(text, key, "schema.table.column")]
    (schema, _), (table, _), (column, _) = parts
    return ColumnPattern(text, schema, table, column, all(name is not None for _, name in parts))


def _parts(text: str, key: str, form: str) -> list[str]:
    """Return the parts of a pattern of this form, still quoted."""
    match = re.fullmatch(r"\.".join([f"({PART.pattern})"] * (form.count(".") + 1)), text, re.DOTALL)
    if match is None:
        raise ConfigError(
            f"{key}: {text!r} is not a pattern of the form {form}.",
            hint="* stands for any characters, ? for one; a name with a dot, a star or a quote goes in double quotes, "
            'as in "a.b".*',
        )
    return list(match.groups())


def unquoted(part: str) -> str:
    """Return the name of a part without wildcard."""
    if not part.endswith('"'):
        return part
    _, _, inside = part[:-1].partition('"')
    name = inside.replace('""', '"')
    return name if part.startswith('"') else _ESCAPE.sub(_letter, name)


def _letter(match: re.Match[str]) -> str:
    digits = match[2] or match[3]
    return chr(min(int(digits, 16), 0x10FFFF)) if digits else "\\"


def _translate(part: str) -> tuple[re.Pattern[str], str | None]:
    """Return the part as a regular expression, and as a name if it has no wildcard, else None."""
    if part.endswith('"'):
        name = unquoted(part)
        return re.compile(re.escape(name)), name
    regex = "".join(_WILD.get(character) or re.escape(character) for character in part)
    return re.compile(regex, re.DOTALL), None if set(part) & _WILD.keys() else part


def matcher(patterns: Iterable[str], key: str) -> Callable[[str], bool]:
    """Return a function that is True for `schema.table` if any pattern matches. ConfigError: a pattern is malformed."""
    parsed = [parse_pattern(pattern, key) for pattern in patterns]
    return lambda name: any(pattern.matches_name(name) for pattern in parsed)


@dataclass(frozen=True, slots=True)
class TableSelection:
    """Patterns of tables.

    Attributes:
        include: patterns of the pipeline's tables; None: all published tables.
        exclude: patterns of tables among these that the pipeline leaves out.
    """

    include: tuple[str, ...] | None = None
    exclude: tuple[str, ...] = ()

    @property
    def is_all(self) -> bool:
        """True if no table can be left out."""
        return self.include is None and not self.exclude

    def unmatched(self, names: Collection[str]) -> list[str]:
        """Return the patterns that match none of these names `schema.table`. ConfigError: a pattern is malformed."""
        return [
            pattern
            for pattern in (*(self.include or ()), *self.exclude)
            if not any(map(parse_pattern(pattern).matches_name, names))
        ]

    def test(self) -> Callable[[str], bool]:
        """Return a function that is True for the pipeline's tables, by the name `schema.table`.

        ConfigError: a pattern is malformed.
        """
        excluded = matcher(self.exclude, "tables.exclude")
        if self.include is None:
            return lambda name: not excluded(name)
        included = matcher(self.include, "tables.include")
        return lambda name: included(name) and not excluded(name)
