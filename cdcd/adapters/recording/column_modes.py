"""How each column is treated when a recording is redacted: the modes, and the rules of `--column` that choose them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cdcd.adapters.recording.recorded_names import RecordedNames
from cdcd.core.catalog.patterns import ColumnPattern, parse_column_pattern, parse_pattern
from cdcd.core.catalog.relations import TypeDescription
from cdcd.core.errors import ConfigError
from cdcd.core.protocol.messages import COLUMN_IS_KEY, Column, Relation
from cdcd.core.table_names import table_text

REPLACE: Final = "replace"
"""Mode that replaces a value by another one of the same type and length (`redacted_values.py`); columns without a
rule have this mode."""
KEEP: Final = "keep"
"""Mode that keeps a value unchanged."""
NULL: Final = "null"
"""Mode that replaces a value by NULL."""
HASH: Final = "hash"
"""Mode that replaces a text by 32 hexadecimal digits of an HMAC, which hide its length. The key is random for each
copy, and is not kept."""

MODES: Final = (REPLACE, KEEP, NULL, HASH)

_STRICTNESS: Final = (KEEP, REPLACE, HASH, NULL)
"""The modes, in the order of how little they reveal: of two modes for the names of a column, the later one applies."""

_TEXTS: Final = frozenset({18, 19, 25, 1042, 1043})
"""Oids of "char", name, text, bpchar and varchar."""


@dataclass(frozen=True, slots=True)
class ColumnMode:
    """A rule: the mode of the columns that a pattern matches."""

    pattern: ColumnPattern
    mode: str


def parse_mode(text: str) -> ColumnMode:
    """Read `<schema>.<table>.<column>=<mode>` or `<schema>.<table>=<mode>`, which means all columns of the table.

    Raises:
        ConfigError: the text has another form, or the mode does not exist.
    """
    pattern, equals, mode = text.rpartition("=")
    if not equals or mode not in MODES:
        raise ConfigError(
            f"--column {text!r} does not end with = and a mode.",
            hint=f"Modes are {', '.join(MODES)}, as in --column 'public.users.email={NULL}'.",
        )
    try:
        return ColumnMode(parse_column_pattern(pattern, "--column"), mode)
    except ConfigError as error:
        try:
            parse_pattern(pattern, "--column")
        except ConfigError:
            raise error from None
        return ColumnMode(parse_column_pattern(f"{pattern}.*", "--column"), mode)


class ColumnModes:
    """The rules of a redaction. If several rules match a name of a column, the last one applies.

    Attributes:
        not_kept: the reason by table, for tables with a column that a rule keeps, but that had or may have had a name
            which no rule keeps. The column is replaced.

    Args:
        names: the names of the columns in the recording. Of the modes for the names of a column, the one that reveals
            least applies.
    """

    def __init__(self, rules: Sequence[ColumnMode] = (), names: RecordedNames | None = None) -> None:
        self._rules = tuple(rules)
        self._names = RecordedNames() if names is None else names
        self.not_kept: dict[str, str] = {}

    def of(self, relation: Relation, types: Mapping[int, TypeDescription]) -> tuple[str, ...]:
        """Return the mode of each column.

        Raises:
            ConfigError: a column of a key would become NULL, or a column that is not text would become a hash.
        """
        if not self._rules:
            return (REPLACE,) * len(relation.columns)
        doubt = self._names.doubt(relation)
        found = []
        for column, names in zip(relation.columns, self._names.of(relation), strict=True):
            mode = max([self._by_name(*name) for name in names], key=_STRICTNESS.index)
            if mode == KEEP and doubt:
                mode = REPLACE
            if mode != KEEP and self._by_name(relation.schema, relation.name, column.name) == KEEP:
                reason = doubt or f"column {column.name} or its table had a name that no --column keeps"
                self.not_kept.setdefault(table_text(relation.schema, relation.name), reason)
            found.append(_fitting(mode, relation, column, types))
        return tuple(found)

    def _by_name(self, schema: str, table: str, column: str) -> str:
        mode = REPLACE
        for rule in self._rules:
            if rule.pattern.matches(schema, table, column):
                mode = rule.mode
        return mode


def _fitting(mode: str, relation: Relation, column: Column, types: Mapping[int, TypeDescription]) -> str:
    """Return the mode, if the column can have it. Raises as `ColumnModes.of`."""
    name = f"{relation.schema}.{relation.name}.{column.name}"
    is_key = bool(column.flags & COLUMN_IS_KEY) and relation.replica_identity != "f"
    if mode == NULL and is_key:
        raise ConfigError(
            f"--column: {name} is part of a key, which cannot be NULL.",
            hint=f"Use {HASH} for a text, or {REPLACE}.",
        )
    if mode == HASH and _base(column.type_oid, types) not in _TEXTS:
        raise ConfigError(
            f"--column: {name} is not text, so it has no hash of the same type.",
            hint=f"Use {NULL} or {REPLACE}.",
        )
    return mode


def _base(oid: int, types: Mapping[int, TypeDescription]) -> int:
    """Return the type itself, or the base type of a domain."""
    found = types.get(oid)
    while found is not None and found.base_oid:
        oid = found.base_oid
        found = types.get(oid)
    return oid
