"""Which tables a connector captures: Debezium's regular expressions, and cdcd's patterns for the same tables.

Debezium matches whole names `schema.table`, ignores the case of ASCII letters, and takes an include list before an
exclude list; the lists of schemas count besides (`Selectors.java`, `Predicates.java`).

An expression that consists of literal text, `.`, `.*`, `.+` and alternatives in parentheses has patterns that match the
same names, provided that names have no point and differ in more than case. Whether that is so, and what every other
expression matches, is decided by the list of the database's tables: patterns that choose the same tables are taken, and
else the tables are named one by one.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cdcd.core.catalog.patterns import parse_pattern
from cdcd.core.catalog.renaming import is_java_only

OPTIONS: Final = ("schema.include.list", "schema.exclude.list", "table.include.list", "table.exclude.list")

PATTERNS_MAX: Final = 200
"""So many patterns are written instead of tables; an expression with more alternatives is read as a list of "
"tables."""

_ONE: Final = "?"
_MANY: Final = "*"

Table = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Lists:
    """The four lists, as far as they are given.

    Attributes:
        unreadable: expressions that only Java reads, or nobody.
    """

    expressions: Mapping[str, tuple[str, ...]]
    unreadable: tuple[str, ...]

    @property
    def given(self) -> bool:
        return bool(self.expressions)

    def captures(self, schema: str, table: str) -> bool:
        """Whether Debezium captures the table. Call it only if nothing is `unreadable`."""
        return self._passes("schema", schema) and self._passes("table", f"{schema}.{table}")

    def _passes(self, what: str, name: str) -> bool:
        included = self.expressions.get(f"{what}.include.list")
        if included is not None:
            return any(compiled_names(each).fullmatch(name) for each in included)
        excluded = self.expressions.get(f"{what}.exclude.list", ())
        return not any(compiled_names(each).fullmatch(name) for each in excluded)


def read_lists(options: Mapping[str, str]) -> Lists:
    """The lists of a connector's options. An empty list is none."""
    expressions = {
        name: found for name in OPTIONS if (found := tuple(split_list(options.get(name, "").strip())))
    }
    return Lists(
        expressions, tuple([each for some in expressions.values() for each in some if not is_readable(each)])
    )


def split_list(text: str) -> Iterator[str]:
    """Split at commas without a backslash before them, as Debezium's `RegExSplitter` does."""
    for part in re.findall(r"(?:\\.|[^\\,])+", text, re.DOTALL):
        if part.strip():
            yield part.strip().replace("\\,", ",")


def compiled_names(expression: str) -> re.Pattern[str]:
    """An expression of a list of names, which ignores the case of ASCII letters."""
    # Java's classes (\w, \d) and its CASE_INSENSITIVE are those of ASCII.
    return re.compile(expression, re.ASCII | re.IGNORECASE)


def is_readable(expression: str) -> bool:
    """Whether Python reads the expression as Java does."""
    if is_java_only(expression):
        return False
    try:
        compiled_names(expression)
    except (re.error, OverflowError, RecursionError):
        return False
    return True


@dataclass(frozen=True, slots=True)
class Choice:
    """What to write as postgres.tables.

    Attributes:
        patterns: None: they cannot be told.
        is_exact: the patterns stand for the expressions. False: they are a list of the tables of today.
        is_checked: the database's tables were compared.
        excluded: patterns for tables.exclude. If they are given, empty `patterns` mean all tables.
    """

    patterns: tuple[str, ...] | None
    is_exact: bool
    is_checked: bool
    excluded: tuple[str, ...] = ()


def named_tables(lists: Lists) -> tuple[Table, ...] | None:
    """The captured tables, if the list of tables consists of names; None: an expression decides.

    An unescaped point counts as a point, as in the names of tables that people write.
    """
    named = lists.expressions.get("table.include.list", ())
    found = [re.fullmatch(r"(\w+)\\?\.(\w+)", each, re.ASCII) for each in named]
    tables = [(match[1], match[2]) for match in found if match is not None]
    if not tables or len(tables) < len(found) or lists.unreadable:
        return None
    return tuple([table for table in tables if lists.captures(*table)])


def choose(lists: Lists, tables: Sequence[Table] | None) -> Choice:
    """The patterns for what the lists capture.

    Args:
        tables: every table of the database that could be published; None: the database was not asked.
    """
    translated = _translated(lists)
    if lists.unreadable:
        return Choice(None, is_exact=False, is_checked=False)
    if tables is None:
        return _choose_unseen(lists, translated)
    captured = [table for table in tables if lists.captures(*table)]
    if translated is not None:
        patterns = [parse_pattern(each) for each in translated]
        if captured == [table for table in tables if any(each.matches(*table) for each in patterns)]:
            return Choice(translated, is_exact=True, is_checked=True)
    named = tuple([pattern_of_table(*table) for table in captured])
    return Choice(named or None, is_exact=False, is_checked=True)


def _choose_unseen(lists: Lists, translated: tuple[str, ...] | None) -> Choice:
    """The choice without the tables of the database."""
    if translated is not None:
        return Choice(translated, is_exact=True, is_checked=False)
    # An include list of tables or schemas makes the exclude list of the same kind void.
    out = [
        each if kind == "table" else f"(?:{each})\\..*"
        for kind in ("schema", "table")
        if f"{kind}.include.list" not in lists.expressions
        for each in lists.expressions.get(f"{kind}.exclude.list", ())
    ]
    included = Lists({name: some for name, some in lists.expressions.items() if ".include." in name}, ())
    patterns = _translated(included) if included.given else ()
    found = [patterns_of(each) for each in out]
    excluded = [pattern for some in found for pattern in some or ()]
    if patterns is None or not out or None in found or len(excluded) > PATTERNS_MAX:
        return Choice(None, is_exact=False, is_checked=False)
    return Choice(patterns, is_exact=True, is_checked=False, excluded=tuple(excluded))


def _translated(lists: Lists) -> tuple[str, ...] | None:
    """Patterns for the expressions themselves; None: there are none."""
    if "schema.exclude.list" in lists.expressions and "schema.include.list" not in lists.expressions:
        return None
    if "table.exclude.list" in lists.expressions and "table.include.list" not in lists.expressions:
        return None
    schemas = lists.expressions.get("schema.include.list")
    tables = lists.expressions.get("table.include.list")
    if tables is None:
        tables = tuple([f"(?:{each})\\..*" for each in schemas or ()])
    found: dict[str, None] = {}
    for each in tables:
        patterns = patterns_of(each)
        if patterns is None:
            return None
        found |= dict.fromkeys(_within(schemas or (), patterns))
    return tuple(found) if 0 < len(found) <= PATTERNS_MAX else None


def _within(schemas: Sequence[str], patterns: Iterable[str]) -> Iterator[str]:
    """The patterns with names of schemas in place of a wildcard, if the list of schemas consists of names."""
    is_named = schemas and all(re.fullmatch(r"\w+", each, re.ASCII) for each in schemas)
    for pattern in patterns:
        parsed = parse_pattern(pattern)
        matched = [each for each in schemas if is_named and parsed.schema.fullmatch(each)]
        if parsed.has_wild_schema and matched:
            yield from (f"{each}.{pattern.partition('.')[2]}" for each in matched)
        else:
            yield pattern


def patterns_of(expression: str) -> tuple[str, ...] | None:
    """The patterns that match the same names as an expression for `schema.table`; None: there are none."""
    sequences = alternatives_of(expression)
    if sequences is None or len(sequences) > PATTERNS_MAX:
        return None
    found: dict[str, None] = {}
    for sequence in sequences:
        pattern = pattern_of(sequence)
        patterns = patterns_of_names(sequence, 2) if pattern is None else [pattern]
        if not patterns:
            return None
        found |= dict.fromkeys(patterns)
    return tuple(found) if 0 < len(found) <= PATTERNS_MAX else None


Item = tuple[str, bool]
"""A character, and whether it is a wildcard."""


def pattern_of(sequence: Sequence[Item]) -> str | None:
    """The pattern `schema.table` of a sequence. A point in it, else its first `.`, is what parts the two names."""
    points = [place for place, item in enumerate(sequence) if item == (".", False)]
    points = points or [place for place, item in enumerate(sequence) if item == (_ONE, True)][:1]
    if len(points) != 1:
        return None
    schema, table = _part(sequence[: points[0]]), _part(sequence[points[0] + 1 :])
    return f"{schema}.{table}" if schema and table else None


MANY: Final[Item] = (_MANY, True)
ONE: Final[Item] = (_ONE, True)
POINT: Final[Item] = (".", False)


def patterns_of_names(sequence: Sequence[Item], count: int) -> list[str] | None:
    """The patterns of `count` names that are parted by points; None: no pattern says the same.

    Points that the sequence does not spell out may be any `.` of it, and in any `.*`. If it spells out too many, it
    matches no such names.
    """
    missing = count - 1 - sequence.count(POINT)
    found: dict[str, None] = {}
    for each in _with_points(tuple(sequence), missing) if missing >= 0 else ():
        parts = _parted(each)
        if not all(parts):
            continue
        texts = [_part(part) for part in parts]
        if not all(texts) or len(found) == PATTERNS_MAX:
            return None
        found[".".join(texts)] = None
    return list(found)


def _with_points(sequence: tuple[Item, ...], missing: int) -> Iterator[tuple[Item, ...]]:
    """The sequence with so many points in it that it does not spell out, in all ways."""
    place = next((place for place, item in enumerate(sequence) if item in (ONE, MANY)), None)
    if missing == 0 or place is None:
        if missing == 0:
            yield sequence
        return
    before, item, behind = sequence[:place], sequence[place], sequence[place + 1 :]
    held = (
        [(item,), (POINT,)]
        if item == ONE
        else [(MANY, *(POINT, MANY) * points) for points in range(missing + 1)]
    )
    for points, one in enumerate(held):
        for rest in _with_points(behind, missing - points):
            yield (*before, *one, *rest)


def _parted(sequence: Sequence[Item]) -> list[tuple[Item, ...]]:
    """What stands between the points."""
    found: list[tuple[Item, ...]] = [()]
    for item in sequence:
        if item == POINT:
            found.append(())
        else:
            found[-1] = (*found[-1], item)
    return found


def _part(items: Sequence[Item]) -> str:
    name = "".join(character for character, _ in items)
    if any(is_wild for _, is_wild in items):
        # A wildcard means nothing in quotes, and nothing but a wildcard may look like one outside.
        plain = "".join(character for character, is_wild in items if not is_wild)
        return "" if re.search(r'[*?".]', plain) else name
    return quoted(name) if name else ""


def pattern_of_table(schema: str, table: str) -> str:
    """The pattern that matches this table alone."""
    return f"{quoted(schema)}.{quoted(table)}"


def quoted(name: str) -> str:
    """A name as a part of a pattern that matches it alone."""
    return name if re.fullmatch(r'[^*?".\s]+', name) else '"' + name.replace('"', '""') + '"'


class _UntranslatableError(Exception):
    """The expression has no pattern."""


def alternatives_of(expression: str) -> list[tuple[Item, ...]] | None:
    """The alternatives of an expression without any other choice in it; None: it has others."""
    reader = _PatternReader(expression)
    try:
        found = reader.alternatives()
        return found if reader.at_end else None
    except _UntranslatableError:
        return None


class _PatternReader:
    """Reads literal characters, `.`, `.*`, `.+`, `( | )` and `(?: | )`, and nothing else."""

    def __init__(self, text: str) -> None:
        self._text = text.removeprefix("^")
        self._place = 0

    @property
    def at_end(self) -> bool:
        return self._place == len(self._text)

    def alternatives(self) -> list[tuple[Item, ...]]:
        found = self._sequence()
        while self._take("|"):
            found += self._sequence()
            if len(found) > PATTERNS_MAX:
                raise _UntranslatableError
        return found

    def _sequence(self) -> list[tuple[Item, ...]]:
        found: list[tuple[Item, ...]] = [()]
        while not self.at_end and self._text[self._place] not in "|)":
            items = self._item()
            found = [(*one, *other) for one in found for other in items]
            if len(found) > PATTERNS_MAX:
                raise _UntranslatableError
        return found

    def _item(self) -> list[tuple[Item, ...]]:
        """One element, in each of its alternatives."""
        if self._take("("):
            self._take("?:")
            found = self.alternatives()
            if not self._take(")"):
                raise _UntranslatableError
            self._refuse_quantifier()
            return found
        character = self._text[self._place]
        self._place += 1
        if character == ".":
            if self._take("*"):
                found = [((_MANY, True),)]
            elif self._take("+"):
                found = [((_ONE, True), (_MANY, True))]
            else:
                found = [((_ONE, True),)]
        elif character == "\\":
            found = [((self._escaped(), False),)]
        elif character == "$" and self.at_end:
            found = [()]
        elif character in "[]{}*+?^$":
            raise _UntranslatableError
        else:
            found = [((character, False),)]
        self._refuse_quantifier()
        return found

    def _escaped(self) -> str:
        character = self._text[self._place : self._place + 1]
        if not character or character.isalnum():
            raise _UntranslatableError
        self._place += 1
        return character

    def _refuse_quantifier(self) -> None:
        if self._text[self._place : self._place + 1] in {"*", "+", "?", "{"}:
            raise _UntranslatableError

    def _take(self, text: str) -> bool:
        if not self._text.startswith(text, self._place):
            return False
        self._place += len(text)
        return True
