"""Modes of single columns in `cdcd replay --redact`: the option `--column PATTERN=MODE`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cdcd.core.catalog.patterns import ColumnPattern, parse_column_pattern, parse_pattern
from cdcd.core.catalog.relations import TypeDescription
from cdcd.core.errors import ConfigError
from cdcd.core.protocol.messages import COLUMN_IS_KEY, Column, Relation

REPLACE: Final = "replace"
"""Another value of the same type and length (`redacted_values.py`). Columns without a rule have this mode."""
KEEP: Final = "keep"
"""The value as it is."""
NULL: Final = "null"
"""NULL."""
HASH: Final = "hash"
"""32 hexadecimal digits of an HMAC, which hide the length of a text. The key is drawn for each copy, and not kept."""

MODES: Final = (REPLACE, KEEP, NULL, HASH)

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
        ConfigError: the text has another form, or there is no such mode.
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
    """The rules of a redaction. If several rules match a column, the last rule holds."""

    def __init__(self, rules: Sequence[ColumnMode] = ()) -> None:
        self._rules = tuple(rules)

    def of(self, relation: Relation, types: Mapping[int, TypeDescription]) -> tuple[str, ...]:
        """The mode of each column.

        Raises:
            ConfigError: a column of a key would be NULL, or a column that is no text would be a hash.
        """
        return tuple([self._of(relation, column, types) for column in relation.columns])

    def _of(self, relation: Relation, column: Column, types: Mapping[int, TypeDescription]) -> str:
        mode = REPLACE
        for rule in self._rules:
            if rule.pattern.matches(relation.schema, relation.name, column.name):
                mode = rule.mode
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
    """The type itself, of a domain the type beneath it."""
    found = types.get(oid)
    while found is not None and found.base_oid:
        oid = found.base_oid
        found = types.get(oid)
    return oid
