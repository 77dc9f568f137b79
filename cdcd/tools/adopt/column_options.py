"""Debezium's lists of columns to include, exclude, mask and cut short, as rules of cdcd's `columns`.

The options are column.include.list, column.exclude.list, column.mask.with.<n>.chars and column.truncate.to.<n>.chars.
The value is a list of expressions for `<schema>.<table>.<column>`, which ignore the case of letters
(`Predicates.java`). Debezium masks columns of char, varchar and text, and nothing else (`MaskStrings.java`). Rules of
cdcd's are for every column that a pattern matches, and never for one of a key.
"""

import re
from collections.abc import Sequence
from typing import Final

from cdcd.core.catalog.patterns import parse_column_pattern
from cdcd.tools.adopt.reach import Known, KnownTable
from cdcd.tools.adopt.references import has_placeholder
from cdcd.tools.adopt.tables import (
    alternatives_of,
    compiled_names,
    is_readable,
    patterns_of_names,
    quoted,
    split_list,
)
from cdcd.tools.adopt.verdicts import Verdict, VerdictKind, lacks

_EXCLUDE: Final = "column.exclude.list"
_INCLUDE: Final = "column.include.list"
_OPTION: Final = re.compile(r"column\.(?:mask\.with|truncate\.to)\.([0-9]+)\.chars", re.ASCII)
_NAMES: Final = 3
"""Schema, table and column."""

_BY_HAND: Final = (
    "Write the columns into `columns` of cdcd.yaml (docs/columns.md), and accept this option. Do not take over "
    "before that: cdcd would deliver the whole values."
)
_NOT_COMPARED: Final = (
    "The database was not asked. The rule may match other columns if names differ only in case. cdcd refuses to start "
    "if a column is in a key, or is not text and has to be truncated."
)
_TODAY: Final = (
    "The list names the present columns, because no pattern matches exactly these columns. Add later "
    "columns by hand."
)
_LATER: Final = (
    "If a column gets a matching name later, because it is added or renamed, Debezium would deliver the column. cdcd "
    "leaves the column out until columns.include is changed."
)
_NO_COLUMN: Final = (
    "If the list has no column of a table, Debezium delivers no columns of the table, and cdcd would deliver all of "
    "them. Such tables are found only with the database. Run the command where the database can be reached."
)
_MASKS: Final = (
    "NULL stays null, where Debezium writes the mask. Columns of enums, uuid and other types that records have as "
    "text are masked too."
)

Column = tuple[KnownTable, str]


def of_columns(name: str, value: str, known: Known, found: Verdict) -> Verdict:
    """The verdict on an option, if it is one of these lists; else `found`."""
    length = _OPTION.fullmatch(name)
    if (length is None and name not in {_EXCLUDE, _INCLUDE}) or not value.strip() or has_placeholder(value):
        return found
    expressions = tuple(split_list(value))
    if unreadable := [each for each in expressions if not is_readable(each)]:
        return lacks(f"Only Java reads {unreadable[0]}. {_BY_HAND}")
    patterns = _patterns(expressions)
    if known is None and patterns is None:
        return Verdict(
            VerdictKind.UNKNOWN,
            "No pattern matches the same columns, and the database was not asked. Run the command where the database "
            "can be reached.",
        )
    if name == _INCLUDE and known is None:
        return Verdict(VerdictKind.UNKNOWN, _NO_COLUMN)
    notes = [_NOT_COMPARED] if known is None else []
    meant = _meant(expressions, known or ())
    if known is not None and (patterns is None or _chosen(patterns, known) != meant):
        patterns = [f"{table.pattern}.{quoted(column)}" for table, column in meant]
        notes = [_TODAY]
    assert patterns is not None, "either the expressions have patterns, or the tables are known"
    if name == _INCLUDE:
        refused = _refused_inclusion(meant, known or ())
    else:
        refused = _refused(meant, is_exclusion=length is None)
    if refused:
        return lacks(f"{refused} {_BY_HAND}")
    return _written(name, None if length is None else int(length[1]), patterns, notes)


def _written(name: str, length: int | None, patterns: Sequence[str], notes: Sequence[str]) -> Verdict:
    if name == _INCLUDE:
        keys: dict[str, object] = {"columns.include": list(patterns)}
        said = [_LATER]
    elif length is None:
        keys = {"columns.exclude": list(patterns)}
        said = list(notes)
    elif name.startswith("column.mask.") and length > 0:
        keys, said = {"columns.mask": dict.fromkeys(patterns, "*" * length)}, [_MASKS, *notes]
    else:
        keys = {"columns.truncate": dict.fromkeys(patterns, length)}
        said = [_MASKS if name.startswith("column.mask.") else _CHARACTERS, *notes]
    kind = VerdictKind.DIFFERENT if said else VerdictKind.SAME
    return Verdict(kind, " ".join([f"{', '.join(keys)}.", *said]), keys if patterns else {})


_CHARACTERS: Final = "cdcd counts Unicode characters; Debezium counts a character beyond U+FFFF as two."


def _refused(meant: Sequence[Column], *, is_exclusion: bool) -> str:
    """Why cdcd has no such rule for one of the columns; "": it has."""
    for table, column in meant:
        if column in table.key:
            return (
                f"Column {column} is in the key of {table.qualified}, and cdcd does not leave out, mask or truncate a "
                f"column of a key. With columns.hash or columns.encrypt, different rows keep different keys."
            )
        if not is_exclusion and column not in table.texts:
            return (
                f"Column {column} of {table.qualified} is not text. Debezium does not mask it, but cdcd would mask or "
                f"refuse it. Name only the other columns."
            )
    return ""


def _refused_inclusion(meant: Sequence[Column], known: Sequence[KnownTable]) -> str:
    """The reason why cdcd cannot have the same list; "": it can."""
    for table in known:
        included = {column for each, column in meant if each == table}
        if not included:
            return (
                f"The list has no column of {table.qualified}. Debezium delivers records without columns, and cdcd "
                "would deliver all columns. Leave the table out (tables.exclude)."
            )
        for column in table.columns:
            if column in table.key and column not in included:
                return (
                    f"Column {column} is in the key of {table.qualified} and not in the list. columns.include must "
                    "have it."
                )
    return ""


def _patterns(expressions: Sequence[str]) -> list[str] | None:
    """The patterns for all of the expressions; None: there are none for one."""
    found: dict[str, None] = {}
    for each in expressions:
        alternatives = alternatives_of(each)
        if alternatives is None:
            return None
        for one in alternatives:
            patterns = patterns_of_names(one, _NAMES)
            if patterns is None:
                return None
            found |= dict.fromkeys(patterns)
    return list(found) or None


def _meant(expressions: Sequence[str], known: Sequence[KnownTable]) -> list[Column]:
    """The columns that the expressions match."""
    regexes = [compiled_names(each) for each in expressions]
    return [
        (table, column)
        for table in known
        for column in table.columns
        if any(regex.fullmatch(f"{table.qualified}.{column}") for regex in regexes)
    ]


def _chosen(patterns: Sequence[str], known: Sequence[KnownTable]) -> list[Column]:
    """The columns that the patterns match, each as often as it is matched: cdcd takes one rule for a column."""
    parsed = [parse_column_pattern(each, "columns") for each in patterns]
    return [
        (table, column)
        for table in known
        for column in table.columns
        for each in parsed
        if each.matches(table.schema, table.name, column)
    ]
