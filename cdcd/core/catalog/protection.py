"""Protected columns, whose values readers of the topics must not see: left out, masked, truncated, hashed or encrypted.

The rule: a protected value is replaced right where a format converts it, before other code sees the result. So
keys, rows before and after a change, rows of snapshots, dead letters and claim checks contain the replacement,
whatever the form of the value was (text, binary, COPY). The same value in the same pipeline always has the same
replacement, so a protected column may be in a key if different values keep different replacements (hash, encrypt).

A rule stays bound to the column that it has matched once (`bindings.py`), so it follows renames of the column and
of its table. If a column may be protected but this is uncertain, nothing of the table is delivered.

NULL stays null. A value that the server did not send (unchanged TOAST) stays Debezium's placeholder.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Final

from cdcd.core.catalog.bindings import Bindings, Numbers
from cdcd.core.catalog.modes import DEFAULTS, Modes, form_under
from cdcd.core.catalog.patterns import ColumnPattern, parse_column_pattern
from cdcd.core.catalog.relations import CatalogColumn, Kin, TableDescription, TypeDescription
from cdcd.core.errors import ConfigError, WithheldError
from cdcd.core.protocol.messages import Column, Relation
from cdcd.core.table_names import table_text

INCLUDE: Final = "include"
EXCLUDE: Final = "exclude"
MASK: Final = "mask"
TRUNCATE: Final = "truncate"
HASH: Final = "hash"
ENCRYPT: Final = "encrypt"

_STRICTNESS: Final = {TRUNCATE: 1, HASH: 2, ENCRYPT: 2, MASK: 3, EXCLUDE: 4}
"""Priority of actions: of two rules for a column after renames, the one with the higher number applies."""

KEEPS_KEYS_APART: Final = (HASH, ENCRYPT)
"""Actions that keep different values different, as the values of a key need."""

_DIGEST_DIGITS: Final = 16

_WITHHELD_HINT: Final = (
    "Compare the present columns of the table ({table}) with its former ones, and change the rule so that it names "
    "the columns to protect. A changed rule applies to the columns that its pattern matches now. Or leave the table "
    "out "
    "(tables.exclude)."
)

_TEXTS: Final = ("text", "json")
"""Forms (`modes.form_under`) of values that are text."""

Seal = Callable[[bytes], bytes]
"""Converts bytes deterministically to other bytes; different bytes give different results."""


SealOf = Callable[[bytes], Seal]
"""Returns the seal of a column, by the column's identity (`identity_of`)."""


def identity_of(relation: Relation, column: str) -> bytes:
    """Return the identity that binds ciphertexts to a column: schema, table and column as JSON in UTF-8."""
    names = [relation.schema, relation.name, column]
    return json.dumps(names, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


@dataclass(frozen=True, slots=True)
class ColumnRule:
    """Treatment of the values of the columns that a pattern matches.

    Attributes:
        action: INCLUDE (all other columns of the table are left out), EXCLUDE, MASK, TRUNCATE, HASH or ENCRYPT.
        mask: text that replaces each value, for MASK.
        length: number of characters that are kept, for TRUNCATE.
        seal: computes a value's ciphertext for ENCRYPT, or its HMAC for HASH.
        seal_of: returns each column's own seal; None: all columns use `seal`.
    """

    pattern: ColumnPattern
    action: str
    mask: str = ""
    length: int = 0
    seal: Seal | None = None
    seal_of: SealOf | None = None
    rest: bool = False
    """True if the rule leaves out the columns that columns.include does not name."""
    digest: str = field(init=False, default="")
    """Identifier of the rule; a changed rule has another one. It does not depend on the key."""

    def __post_init__(self) -> None:
        said = json.dumps([self.action, self.pattern.text, self.mask, self.length])
        object.__setattr__(self, "digest", sha256(said.encode()).hexdigest()[:_DIGEST_DIGITS])

    def __str__(self) -> str:
        return "columns.include" if self.rest else f"columns.{self.action} ({self.pattern.text})"


FAMILIES_MAX: Final = 16
"""Maximum number of tables whose families are kept."""


@dataclass(frozen=True, slots=True)
class _Family:
    """The tables that a table belongs to, and its partitions, as rules were last bound to their columns.

    Attributes:
        kin, columns: as in the table's description.
        changes: `Bindings.changes` when the rules had been bound; -1 if they are not bound yet. After a change of the
            bindings, the rules may hold for further columns.
        related: rules that may match a column of the table by the name of one of these tables.
        parents: the tables that the table inherits from, or may have inherited from.
    """

    kin: tuple[Kin, ...]
    columns: tuple[CatalogColumn, ...]
    changes: int
    related: list[ColumnRule]
    parents: list[Kin]


def _with_former_parents(relation: Relation, table: TableDescription) -> TableDescription:
    """Return the description without the former parents whose columns are others.

    A partition has the columns of its parent, and a child has at least these. The parent may have got or lost columns
    since.
    """
    if not any(kin.is_former for kin in table.kin):
        return table
    mine = {column.name for column in relation.columns}
    kept: list[Kin] = [] if table.columns else [Kin(relation.oid, relation.schema, relation.name)]
    for kin in table.kin:
        theirs = {name for _, name in kin.columns}
        if not kin.is_former or mine <= theirs or theirs <= mine:
            kept.append(kin)
    return replace(table, kin=tuple(kept))


_NOT_INCLUDED: Final = ColumnRule(parse_column_pattern("*.*.*", "columns.include"), EXCLUDE, rest=True)


class Protections:
    """Rules of a configuration, with the columns to which they are bound. Without rules, no column is protected.

    Args:
        modes: determine which values are text.
        bindings: columns of the rules, whatever their present names are (`bindings.py`).
    """

    def __init__(
        self, rules: Sequence[ColumnRule] = (), modes: Modes = DEFAULTS, bindings: Bindings | None = None
    ) -> None:
        self._all = tuple(rules)
        self._sealed: dict[tuple[str, bytes], ColumnRule] = {}
        """Rules with the seals of single columns, by digest and the column's identity."""
        self._rules = tuple([rule for rule in rules if rule.action != INCLUDE])
        self._included = tuple([rule for rule in rules if rule.action == INCLUDE])
        self._list = sha256(json.dumps([rule.digest for rule in self._included]).encode()).hexdigest()
        """Digest of all rules that include columns, which together act as one rule."""
        self._modes = modes
        self._bindings = Bindings() if bindings is None else bindings
        self._families: dict[int, _Family] = {}
        """By oid. PostgreSQL describes a partitioned table before the first change of each partition. If each
        description bound the rules to all partitions again, the time would grow with the square of their number."""

    def __bool__(self) -> bool:
        return bool(self._all)

    @property
    def rules(self) -> tuple[ColumnRule, ...]:
        return self._all

    @property
    def digests(self) -> set[str]:
        """Return the digests by which columns are bound to rules."""
        return {rule.digest for rule in self._rules} | {self._list for _ in self._included[:1]}

    @property
    def bindings(self) -> Bindings:
        return self._bindings

    def unmatched(self, relations: Iterable[Relation]) -> list[ColumnRule]:
        """Return the rules that match no column of these relations and are bound to none."""
        left = list(self._all)
        for relation in relations:
            left = [
                rule
                for rule in left
                if not self._bindings.of_table(rule.digest, relation.oid)
                and not any(
                    rule.pattern.matches(relation.schema, relation.name, column.name)
                    for column in relation.columns
                )
            ]
        return left

    def in_force(self, relation: Relation, table: TableDescription) -> list[ColumnRule | None]:
        """Return the rule of each column of a relation; None for an unprotected column.

        Rules that match a column by its name are then bound to the column.

        Raises:
            WithheldError: a column may be protected, or a rule has lost its column.
            ConfigError: two rules match the same name.
        """
        if not self._all:
            return [None] * len(relation.columns)
        table = _with_former_parents(relation, table)
        family = self._family(relation.oid, table)
        named = [self._named(relation, table, family, column.name) for column in relation.columns]
        numbers = self._bindings.numbers(relation, table)
        if family.changes != self._bindings.changes:
            self._bind_catalog(table, family)
            self._keep(relation.oid, replace(family, changes=self._bindings.changes))
        for rules, each in zip(named, numbers, strict=True):
            if each.certain is not None:
                self._bind(relation.oid, each.certain, rules)
        found = [
            self._strictest(relation.oid, rules, each) for rules, each in zip(named, numbers, strict=True)
        ]
        self._refuse_uncertain(relation, table, named, numbers)
        self._refuse_lost(table)
        if self._included:
            found = self._with_left_out(relation, table, numbers, found)
        self._refuse_generated(relation, table, numbers, found)
        self._bindings.note(relation, table)
        return found

    def _with_left_out(
        self,
        relation: Relation,
        table: TableDescription,
        numbers: Sequence[Numbers],
        found: list[ColumnRule | None],
    ) -> list[ColumnRule | None]:
        """Return the rules, with rules for columns that are left out because other columns are included."""
        included = self._bindings.of_table(self._list, relation.oid)
        if not included:
            names = [(relation.schema, relation.name), *[(kin.schema, kin.name) for kin in table.kin]]
            rules = [
                rule for rule in self._included if any(rule.pattern.matches_table(*name) for name in names)
            ]
            of_parts: list[list[str]] = []
            for kin in table.kin[1:]:
                listed = self._bindings.of_table(self._list, kin.oid) if kin.is_part else ()
                if listed:
                    of_parts.append([name for number, name in kin.columns if number in listed])
            if not rules and not of_parts:
                return found
            by_number = {column.id: column.name for column in table.columns} or {
                each.certain: column.name
                for column, each in zip(relation.columns, numbers, strict=True)
                if each.certain is not None
            }
            matching = [
                number
                for number, name in by_number.items()
                if any(rule.pattern.column.fullmatch(name) is not None for rule in rules)
                or (not rules and all(name in names for names in of_parts))
            ]
            # No column has the number 0. It marks that the table's columns are chosen, even if none is.
            self._bindings.bind(self._list, relation.oid, (0, *matching))
            included = self._bindings.of_table(self._list, relation.oid)
        shown: list[ColumnRule | None] = []
        for each, rule in zip(numbers, found, strict=True):
            # A column that is perhaps not an included one is left out.
            is_included = all(number in included for number in each.possible)
            shown.append(rule if is_included else _NOT_INCLUDED)
        return shown

    def _family(self, oid: int, table: TableDescription) -> _Family:
        """Return the family of the table, as it was last bound if it is the same."""
        known = self._families.get(oid)
        if known is not None and known.kin == table.kin and known.columns == table.columns:
            return known
        related = [
            rule
            for rule in self._rules
            if any(rule.pattern.matches_table(kin.schema, kin.name) for kin in table.kin)
        ]
        return _Family(
            table.kin, table.columns, -1, related, [kin for kin in table.kin[1:] if not kin.is_part]
        )

    def _keep(self, oid: int, family: _Family) -> None:
        self._families.pop(oid, None)
        if len(self._families) >= FAMILIES_MAX:
            self._families.pop(next(iter(self._families)))
        self._families[oid] = family

    def _named(
        self, relation: Relation, table: TableDescription, family: _Family, column: str
    ) -> list[ColumnRule]:
        """Return the rules that match a column with this name. ConfigError: two rules match the same name."""
        own = [(relation.schema, relation.name), *[(kin.schema, kin.name) for kin in table.kin[:1]]]
        found: list[ColumnRule] = []
        for schema, name in dict.fromkeys(own):
            matching = [rule for rule in self._rules if rule.pattern.matches(schema, name, column)]
            if len(matching) > 1:
                raise ConfigError(
                    f"{matching[0]} and {matching[1]} both match column {schema}.{name}.{column}.",
                    hint="Narrow one of the patterns, so that only one rule applies to the column.",
                )
            found += [rule for rule in matching if rule not in found]
        return found + [rule for rule in self._inherited(family, column) if rule not in found]

    def _inherited(self, family: _Family, column: str) -> list[ColumnRule]:
        """Return the rules for a column name by the names of the table, its parents and its partitions."""
        found = [rule for rule in family.related if rule.pattern.column.fullmatch(column) is not None]
        for kin in family.parents:
            for number, name in kin.columns:
                if name == column:
                    found += [rule for rule in self._bound(kin.oid, number) if rule not in found]
        return found

    def _bind_catalog(self, table: TableDescription, family: _Family) -> None:
        """Bind the rules by the catalog's present names, also for parents and partitions of the table."""
        for kin in family.parents:
            for number, name in kin.columns:
                self._bind(
                    kin.oid,
                    number,
                    [rule for rule in self._rules if rule.pattern.matches(kin.schema, kin.name, name)],
                )
        of_parts = self._rules_of_parts(table)
        for kin in table.kin[:1]:
            for column in table.columns:
                rules = [*self._inherited(family, column.name), *of_parts.get(column.name, ())]
                self._bind(kin.oid, column.id, rules)
        own = {
            column.name: self._bound(kin.oid, column.id) for kin in table.kin[:1] for column in table.columns
        }
        for kin in table.kin[1:]:
            # A detached partition becomes a separate table.
            for number, name in kin.columns if kin.is_part else ():
                self._bind(kin.oid, number, own.get(name, ()))

    def _rules_of_parts(self, table: TableDescription) -> dict[str, list[ColumnRule]]:
        """Return the rules that are bound to columns of partitions, by the column's name.

        A protected table becomes a partition of a table that no rule names by ATTACH PARTITION.
        """
        found: dict[str, list[ColumnRule]] = {}
        for kin in table.kin[1:]:
            if kin.is_part and self._bindings.has(kin.oid):
                for number, name in kin.columns:
                    found.setdefault(name, []).extend(self._bound(kin.oid, number))
        return found

    def _bind(self, oid: int, number: int, rules: Iterable[ColumnRule]) -> None:
        """Bind rules to a column, except a rule that another bound rule makes superfluous."""
        for rule in rules:
            others = [other for other in self._bound(oid, number) if other is not rule]
            if all(_STRICTNESS[other.action] < _STRICTNESS[rule.action] for other in others):
                self._bindings.bind(rule.digest, oid, (number,))

    def _bound(self, oid: int, number: int) -> list[ColumnRule]:
        return [rule for rule in self._rules if number in self._bindings.of_table(rule.digest, oid)]

    def _strictest(self, oid: int, named: Sequence[ColumnRule], numbers: Numbers) -> ColumnRule | None:
        """Return the deciding rule: a bound one, and among several the one that reveals least."""
        bound = [] if numbers.certain is None else self._bound(oid, numbers.certain)
        return max(bound or named, key=lambda rule: _STRICTNESS[rule.action], default=None)

    def _refuse_uncertain(
        self,
        relation: Relation,
        table: TableDescription,
        named: Sequence[Sequence[ColumnRule]],
        numbers: Sequence[Numbers],
    ) -> None:
        """Raise WithheldError if a column that no rule matches by name may be protected."""
        oid = relation.oid
        name = table_text(relation.schema, relation.name)
        for rule in self._rules:
            bound = self._bindings.of_table(rule.digest, oid)
            for column, rules, each in zip(relation.columns, named, numbers, strict=True):
                if each.certain is None:
                    doubtful = rule in rules or any(number in bound for number in each.possible)
                else:
                    # The table was dropped, so only the order shows which column this is.
                    doubtful = (
                        not each.proved and not table.columns and each.certain in bound and rule not in rules
                    )
                if doubtful:
                    raise WithheldError(
                        f"Column {name}.{column.name} may be the column that {rule} protects: columns of {name} were "
                        f"renamed, dropped or added before cdcd could read the table's definition, so their attribute "
                        f"numbers are not certain. From now on, no change of the table is delivered.",
                        hint=_WITHHELD_HINT.format(table=name),
                    )

    def _refuse_lost(self, table: TableDescription) -> None:
        """Raise WithheldError if a rule that names one column of the table is bound to none."""
        if not table.kin or not table.columns:
            return
        now = table.kin[0]
        for rule in self._rules:
            pattern = rule.pattern
            if not pattern.is_literal or not pattern.matches_table(now.schema, now.name):
                continue
            named = any(pattern.column.fullmatch(column.name) is not None for column in table.columns)
            if not named and not self._bindings.of_table(rule.digest, now.oid):
                raise WithheldError(
                    f"{rule} names a column that {now.schema}.{now.name} does not have. If the column was renamed, its "
                    "values would be in the topic in clear, so nothing of the table is delivered.",
                    hint=f"Correct the name in columns.{rule.action}, or remove the rule if the column is gone. Case "
                    f"counts. \\d {now.schema}.{now.name} in psql lists the columns.",
                )

    def _refuse_generated(
        self,
        relation: Relation,
        table: TableDescription,
        numbers: Sequence[Numbers],
        found: Sequence[ColumnRule | None],
    ) -> None:
        """Raise WithheldError if PostgreSQL computes a column without a rule from a protected column.

        If columns.include has the columns of the table, the operator allowed each of them.
        """
        generated = {column.id: column for column in table.columns if column.reads}
        if not generated or self._bindings.of_table(self._list, relation.oid):
            return
        names = {column.id: column.name for column in table.columns}
        name = table_text(relation.schema, relation.name)
        for column, each, own in zip(relation.columns, numbers, found, strict=True):
            reads = [source for at in each.possible if at in generated for source in generated[at].reads]
            for source in reads if own is None else ():
                for rule in self._bound(relation.oid, source)[:1]:
                    raise WithheldError(
                        f"Column {name}.{column.name} is generated from column {names.get(source, source)}, which "
                        f"{rule} protects, so it would show the protected values. From now on, no change of the table "
                        f"is delivered.",
                        hint=f"Protect {name}.{column.name} by a rule of `columns`, too. If its values may be shown, "
                        f"list all columns of {name} that may be shown in columns.include. Or leave the column out of "
                        f"the publication.",
                    )

    def of_columns(
        self,
        relation: Relation,
        key_columns: Sequence[str],
        types: Mapping[int, TypeDescription],
        table: TableDescription = TableDescription(),  # noqa: B008 - frozen
    ) -> list[ColumnRule | None]:
        """Return the rules as `in_force`, for columns whose records follow.

        Raises:
            WithheldError: as `in_force`.
            ConfigError: as `in_force`; or a rule would make different keys equal, or truncate values that are not
                text.
        """
        found = self.in_force(relation, table)
        for column, rule in zip(relation.columns, found, strict=True):
            if rule is not None:
                self._check(relation, column, rule, key_columns, types)
        return [
            rule
            if rule is None or rule.seal_of is None
            else self._own(rule, identity_of(relation, column.name))
            for column, rule in zip(relation.columns, found, strict=True)
        ]

    def _own(self, rule: ColumnRule, identity: bytes) -> ColumnRule:
        """Return the rule with the seal of one column, always the same object for the same column."""
        found = self._sealed.get((rule.digest, identity))
        if found is None:
            assert rule.seal_of is not None
            found = self._sealed[rule.digest, identity] = replace(rule, seal=rule.seal_of(identity))
        return found

    def _check(
        self,
        relation: Relation,
        column: Column,
        rule: ColumnRule,
        key_columns: Sequence[str],
        types: Mapping[int, TypeDescription],
    ) -> None:
        name = f"{relation.schema}.{relation.name}.{column.name}"
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

    def _is_text(self, column: Column, types: Mapping[int, TypeDescription]) -> bool:
        return form_under(self._modes, column.type_oid, column.type_modifier, types) in _TEXTS
