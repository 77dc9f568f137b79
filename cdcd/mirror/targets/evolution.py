"""From one form of a table to the next: what a target must do. `upgrading.py` brings changes from one to the next.

Which columns are the same, `same_columns` tells. A step either keeps all values or is refused: a target is never left
with values that the source does not have.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Final

from pyspark.sql.types import ArrayType, DataType

from cdcd.core.catalog.relations import Labels
from cdcd.core.errors import FatalError, SourceError
from cdcd.core.pasted import on_table
from cdcd.mirror.platform.sql import text
from cdcd.mirror.records.schema import OWN, ColumnSchema, TableSchema
from cdcd.mirror.targets.same_columns import crossed, doubtful, is_other, pairs, widens
from cdcd.mirror.targets.target import Kind
from cdcd.mirror.targets.type_changes import unsent_values

_ASIDE: Final = f"{OWN}rename_"


class IncompatibleSchemaError(FatalError):
    """A table's new form cannot be had by changing the target; the table stops, others go on."""

    exit_code = SourceError.exit_code

    def __init__(self, table: str, what: str, hint: str) -> None:
        super().__init__(f"{table}: {what}", hint=hint)
        self.table = table
        self.what = what


@dataclass(frozen=True, slots=True)
class Add:
    """A new column; rows that are there get its default."""

    column: ColumnSchema


@dataclass(frozen=True, slots=True)
class Drop:
    """A column that is gone."""

    name: str


@dataclass(frozen=True, slots=True)
class Rename:
    """The same column under another name."""

    name: str
    to: str


@dataclass(frozen=True, slots=True)
class Widen:
    """All values of the old type are values of the new one."""

    name: str
    to: DataType


@dataclass(frozen=True, slots=True)
class Relabel:
    """Labels of an enum have other words, or there are more: `words` from before and now, and all `labels` of now."""

    name: str
    words: tuple[tuple[str, str], ...]
    labels: Labels


Step = Add | Drop | Rename | Widen | Relabel


def way_on(table: str) -> str:
    """What to do with a table that cannot be followed: read it again. What its topic has from before is then skipped,
    whatever its form."""
    return (
        f"Read the table again, which replaces the target in one commit: "
        f"cdcd mirror --config FILE {on_table('--snapshot', table)}"
        " --source FILE (the daemon's configuration). With tables.on_incompatible: reload the mirror does so by itself."
        " Other tables go on meanwhile."
    )


def check(schema: TableSchema, reserved: Collection[str] = ()) -> None:
    """That a target can have the columns of `schema`. IncompatibleSchemaError: it cannot.

    Args:
        reserved: names that the format keeps for itself.
    """
    seen: dict[str, str] = {}
    for column in schema.columns:
        if column.name in reserved:
            raise IncompatibleSchemaError(
                schema.table,
                f"column {column.name} has a name that the table format reserves.",
                f"Rename the column at the source. {way_on(schema.table)} Or leave the table out (tables.exclude), or"
                " mirror it into the other format.",
            )
        if column.name.startswith(OWN):
            raise IncompatibleSchemaError(
                schema.table,
                f"column {column.name} has a name that begins with {OWN}, which the target's own columns have.",
                f"Rename the column at the source. {way_on(schema.table)} Or leave the table out (tables.exclude).",
            )
        other = seen.setdefault(column.sent_as.casefold(), column.sent_as)
        if other != column.sent_as:
            raise IncompatibleSchemaError(
                schema.table,
                f"columns {other} and {column.sent_as} differ only in case, and Iceberg and Delta treat them as one "
                f"column.",
                f"Rename one of them at the source. {way_on(schema.table)} Or leave the table out (tables.exclude).",
            )


def plan(old: TableSchema, new: TableSchema, kind: Kind = Kind.MIRROR) -> tuple[Step, ...]:
    """The steps from `old` to `new`, in an order in which no two columns ever have one name.

    Of another relation (`is_other`), whose rows `old` has none of, columns are kept only where they have room for it.
    A changelog takes any form: its rows stay as they were, so a column of another type is another column, and the key
    may change.

    Raises:
        IncompatibleSchemaError: a column's new type does not hold all values of the old one, or the key is another, or
            it is not known which columns are the same.
    """
    check(new)
    if kind is Kind.MIRROR and (names := crossed(old, new)):
        raise IncompatibleSchemaError(
            new.table,
            f"columns {', '.join(names)} are not all the former columns: one was dropped and added again, or got the "
            f"name of another column. Because the daemon was behind, it is not known which.",
            way_on(new.table),
        )
    if kind is Kind.MIRROR and (either := doubtful(old, new)):
        raise IncompatibleSchemaError(
            new.table,
            f"column {either[1]} is new, or is the renamed column {either[0]}. Because the daemon was behind, it is "
            f"not known which.",
            way_on(new.table),
        )
    same = {after.name: before for before, after in pairs(old, new)}
    if kind is Kind.CHANGELOG:
        same = {
            name: before
            for name, before in same.items()
            if before.spark == new.column(name).spark or widens(before.spark, new.column(name).spark)
        }
    # A column that was taken for the same by its name has the number that the name has now.
    numbers = [column.id for column in (*old.columns, *[new.column(name) for name in same])]
    newest = max([number for number in numbers if number is not None], default=0)
    kept = {before.name for before in same.values()}
    steps: list[Step] = [Drop(column.name) for column in old.columns if column.name not in kept]
    renames = {before.name: name for name, before in same.items() if before.name != name}
    steps += renames_in_order(renames)
    for column in new.columns:
        before = same.get(column.name)
        if before is None:
            if column.default_lost and kind is Kind.MIRROR and not is_other(old, new):
                raise default_lost(new.table, column)
            steps.append(Add(without_default(column) if is_other(old, new) else column))
        elif before.spark != column.spark:
            if not widens(before.spark, column.spark):
                raise IncompatibleSchemaError(
                    new.table,
                    f"column {column.name} changed from {before.type} to {column.type}, and"
                    f" {before.spark.simpleString()} does not become {column.spark.simpleString()} in place.",
                    way_on(new.table),
                )
            steps.append(Widen(column.name, column.spark))
        unsent = (
            unsent_values(before, column, newest) if kind is Kind.MIRROR and not is_other(old, new) else None
        )
        if unsent is not None:
            raise IncompatibleSchemaError(new.table, unsent, way_on(new.table))
        if before is not None and not is_other(old, new):
            steps += _relabel(new.table, before, column)
    # Former versions of the daemon gave a key of several columns in the order of its index.
    is_keyed = kind is Kind.MIRROR and not is_other(old, new)
    if is_keyed and {same[name].name if name in same else None for name in new.key} != set(old.key):
        raise rekeyed(old, new)
    return tuple(steps)


def without_default(column: ColumnSchema) -> ColumnSchema:
    """Rows of another relation have no value in the column."""
    return replace(column, missing=None, default=None)


def rekeyed(old: TableSchema, new: TableSchema) -> IncompatibleSchemaError:
    """The key of a table is another, or it has one no more, or has one now."""
    return IncompatibleSchemaError(
        new.table,
        f"the key changed from ({', '.join(old.key)}) to ({', '.join(new.key)});"
        " earlier changes cannot be assigned to rows by the new key.",
        way_on(new.table),
    )


def _relabel(table: str, old: ColumnSchema, new: ColumnSchema) -> Iterator[Step]:
    if not new.labels or old.type_oid != new.type_oid or dict(old.labels) == dict(new.labels):
        return
    before, now = dict(old.labels), dict(new.labels)
    used = [word for oid, word in now.items() if word in before.values() and before.get(oid) != word]
    if used:
        raise IncompatibleSchemaError(
            table,
            f"labels of {new.type} were renamed to names that other labels had before: {', '.join(map(repr, used))}; "
            f"it is not known which label a value of column {new.name} means.",
            f"{way_on(table)} Do so when the daemon is not behind.",
        )
    words = [(word, now[oid]) for oid, word in before.items() if oid in now and now[oid] != word]
    yield Relabel(new.name, tuple(words), new.labels)


def value_of(step: Relabel, kind: DataType, value: str, depth: int = 0) -> str:
    """The expression of SQL for what `value`, of the type `kind`, is by now."""
    if isinstance(kind, ArrayType):
        inner = value_of(step, kind.elementType, f"v{depth}", depth + 1)
        return f"transform({value}, v{depth} -> {inner})"
    cases = " ".join(f"WHEN '{text(before)}' THEN '{text(now)}'" for before, now in step.words)
    return f"CASE {value} {cases} ELSE {value} END"


def is_unknown(step: Relabel, kind: DataType, value: str, depth: int = 0) -> str:
    """The condition of SQL that `value`, of the type `kind`, has a word that is no label."""
    if isinstance(kind, ArrayType):
        return f"exists({value}, v{depth} -> {is_unknown(step, kind.elementType, f'v{depth}', depth + 1)})"
    labels = ", ".join(f"'{text(label)}'" for _, label in step.labels)
    return f"coalesce({value} NOT IN ({labels}), false)"


def aside_of(name: str) -> str:
    """The temporary name of a column while another column takes its name."""
    return f"{_ASIDE}{name}"


def renames_in_order(names: dict[str, str]) -> list[Step]:
    """The renames in an order in which the new name is free; a ring goes by way of a name that nobody has."""
    steps: list[Step] = []
    waiting = dict(names)
    while waiting:
        free = [name for name, to in waiting.items() if to not in waiting]
        if free:
            name = free[0]
            steps.append(Rename(name, waiting.pop(name)))
        else:
            name, to = next(iter(waiting.items()))
            aside = aside_of(name)
            steps.append(Rename(name, aside))
            del waiting[name]
            waiting[aside] = to
    return steps


def default_lost(table: str, column: ColumnSchema) -> IncompatibleSchemaError:
    """What rows have in a column that was added before a row told of it is not known (`ColumnSchema.default_lost`)."""
    return IncompatibleSchemaError(
        table,
        f"column {column.name} is new, and its values in existing rows are not known: PostgreSQL rewrote the table "
        f"(ALTER TYPE, VACUUM FULL, a volatile default) before the first changed row with the column, or the column "
        f"was dropped and added again while the daemon was behind.",
        way_on(table),
    )


def unfilled(table: str, column: ColumnSchema) -> IncompatibleSchemaError:
    """The default of an added column does not fit its type."""
    return IncompatibleSchemaError(
        table,
        f"column {column.name} of type {column.type} was added with a default that does not fit"
        f" {column.spark.simpleString()}: {column.default or column.missing}.",
        way_on(table),
    )
