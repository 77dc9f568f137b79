"""Columns whose values readers of the topics must not see: left out, masked, cut short, hashed or encrypted.

The rule: a protected value is replaced where a format's converter makes something of it, before anything else sees what
was made. So keys, rows before
and after a change, rows of snapshots, dead letters and claim checks have the replacement, whichever way a value came
(text, binary, COPY). The same value in the same pipeline always has the same replacement, so a protected column may be
part of a key if different values keep different replacements (hash, encrypt).

NULL stays null. A value that the server did not send (unchanged TOAST) stays Debezium's placeholder.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cdcd.errors import ConfigError
from cdcd.protocol.messages import Column, Relation
from cdcd.rows.modes import DEFAULTS, Modes, form_under
from cdcd.rows.relations import TypeDescription
from cdcd.snapshots.patterns import ColumnPattern

EXCLUDE: Final = "exclude"
MASK: Final = "mask"
TRUNCATE: Final = "truncate"
HASH: Final = "hash"
ENCRYPT: Final = "encrypt"

KEEPS_KEYS_APART: Final = (HASH, ENCRYPT)
"""Actions after which different values still differ, as the values of a key must."""

_TEXTS: Final = ("text", "json")
"""The forms (`modes.form_under`) of values that are text."""

Seal = Callable[[bytes], bytes]
"""Bytes to other bytes: the same each time, different for different bytes."""


@dataclass(frozen=True, slots=True)
class ColumnRule:
    """What happens to the values of the columns that a pattern matches.

    Attributes:
        action: EXCLUDE, MASK, TRUNCATE, HASH or ENCRYPT.
        mask: the text that stands for each value, if the action is MASK.
        length: how many characters are kept, if the action is TRUNCATE.
        seal: makes ciphertext of a value, if the action is ENCRYPT; its HMAC, if it is HASH.
    """

    pattern: ColumnPattern
    action: str
    mask: str = ""
    length: int = 0
    seal: Seal | None = None

    def __str__(self) -> str:
        return f"columns.{self.action} ({self.pattern.text})"


class Protections:
    """The rules of a configuration. Without rules, nothing is protected. `modes` say which values are text."""

    def __init__(self, rules: Sequence[ColumnRule] = (), modes: Modes = DEFAULTS) -> None:
        self._rules = tuple(rules)
        self._modes = modes

    def __bool__(self) -> bool:
        return bool(self._rules)

    @property
    def rules(self) -> tuple[ColumnRule, ...]:
        return self._rules

    def unmatched(self, relations: Iterable[Relation]) -> list[ColumnRule]:
        """The rules that match no column of these relations."""
        left = list(self._rules)
        for relation in relations:
            left = [
                rule
                for rule in left
                if not any(
                    rule.pattern.matches(relation.schema, relation.name, column.name)
                    for column in relation.columns
                )
            ]
        return left

    def of_columns(
        self, relation: Relation, key_columns: Sequence[str], types: Mapping[int, TypeDescription]
    ) -> list[ColumnRule | None]:
        """The rule of each column of a relation, None for a column that is not protected.

        Raises:
            ConfigError: two rules match one column, a rule would make different keys equal, or would cut short what is
                not text.
        """
        return [self._of_column(relation, column, key_columns, types) for column in relation.columns]

    def _of_column(
        self,
        relation: Relation,
        column: Column,
        key_columns: Sequence[str],
        types: Mapping[int, TypeDescription],
    ) -> ColumnRule | None:
        found = [
            rule for rule in self._rules if rule.pattern.matches(relation.schema, relation.name, column.name)
        ]
        if not found:
            return None
        rule, *others = found
        name = f"{relation.schema}.{relation.name}.{column.name}"
        if others:
            raise ConfigError(
                f"{rule} and {others[0]} both match column {name}.",
                hint="Narrow one of the patterns, so that one rule decides what the records have of the column.",
            )
        if column.name in key_columns and rule.action not in KEEPS_KEYS_APART:
            raise ConfigError(
                f"{rule} matches column {name}, which is part of the table's key. Rows with different keys would get "
                "the same key in Kafka.",
                hint=f"Use columns.hash or columns.encrypt for {name}, which keep different keys apart.",
            )
        if rule.action == TRUNCATE and not self._is_text(column, types):
            raise ConfigError(
                f"{rule} matches column {name}, which is not text.",
                hint=f"Use columns.mask or columns.hash for {name}, or narrow the pattern.",
            )
        return rule

    def _is_text(self, column: Column, types: Mapping[int, TypeDescription]) -> bool:
        return form_under(self._modes, column.type_oid, column.type_modifier, types) in _TEXTS
