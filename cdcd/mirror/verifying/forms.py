"""Which columns of a mirror can be held against those of its source, and why the others cannot.

The rule: a column is compared if Spark reads the value from the database that the daemon writes into the topic, and if
the mirror's column is the same one, of the same type. Every other column of the source is named with the reason.
"""

from dataclasses import dataclass, replace

from pyspark.sql.types import DataType

from cdcd.core.records.schemas import TableForm
from cdcd.mirror.records.schema import ColumnSchema, TableSchema
from cdcd.mirror.targets.same_columns import is_other, pairs


@dataclass(frozen=True, slots=True)
class ComparedColumn:
    """A column that is compared.

    Attributes:
        name: at the source.
        mirrored: its name in the mirror's version.
        type: of its values, on both sides.
    """

    name: str
    mirrored: str
    type: DataType


@dataclass(frozen=True, slots=True)
class Compared:
    """What is compared of a table.

    Attributes:
        columns: all, those of the key too.
        key: those of the key. Without any, no row is compared.
        limits: why not everything is compared.
    """

    columns: tuple[ComparedColumn, ...] = ()
    key: tuple[ComparedColumn, ...] = ()
    limits: tuple[str, ...] = ()


def keyed(source: TableSchema, daemon: TableForm) -> TableSchema:
    """Return the form of the table as Spark reads it, with the key that records have.

    Args:
        source: the form of the table as Spark reads it, with the table's own key.
        daemon: the same as the daemon describes it: `key.columns` may choose the key, and `fields.tables` renames.
    """
    columns = {
        field.name: column.name for field, column in zip(daemon.columns, daemon.source_columns, strict=True)
    }
    return replace(source, key=tuple([columns.get(name, name) for name in daemon.key]))


def compared(source: TableSchema, daemon: TableForm, mirror: TableSchema, there: frozenset[str]) -> Compared:
    """What is compared of a table with a key.

    Args:
        source: the form of the table as Spark reads it, with the key of records (`keyed`).
        daemon: the same as the daemon describes it.
        mirror: the form that the mirror's table is in.
        there: the columns of the version that is read.
    """
    if is_other(mirror, source):
        return Compared(limits=("the mirror has the rows of another table, which had this name before",))
    same = {after.name: before for before, after in pairs(mirror, source)}
    columns: list[ComparedColumn] = []
    limits: list[str] = []
    for column in source.columns:
        before = same.get(column.name)
        why = _as_others_write(column, daemon) or _not_in(before, column, there)
        if why:
            limits.append(f"column {column.name}, {why}")
        else:
            assert before is not None, "it is in the mirror"
            columns.append(ComparedColumn(column.name, before.name, column.spark))
    key = tuple([column for column in columns if column.name in source.key])
    if len(key) != len(source.key) or {column.mirrored for column in key} != set(mirror.key):
        limits.append("any row: the columns of the key cannot be compared, or are others in the mirror")
        return Compared(limits=tuple(limits))
    return Compared(tuple(columns), key, tuple(limits))


def key_in(form: TableSchema, mirror: TableSchema, what: Compared) -> tuple[ComparedColumn, ...]:
    """Return the columns of the key that is compared, with their names in another form of the table.

    Args:
        form: form of records of the table.
        mirror: the form that the mirror's table is in.

    Returns:
        The columns in the order of `what.key`. (): the records have another key, or are of another table.
    """
    if is_other(mirror, form):
        return ()
    same = {before.name: after for before, after in pairs(mirror, form)}
    key = []
    for column in what.key:
        after = same.get(column.mirrored)
        if after is None or after.spark != column.type:
            return ()
        key.append(replace(column, name=after.name))
    return tuple(key) if {each.name for each in key} == set(form.key) else ()


def _as_others_write(column: ColumnSchema, daemon: TableForm) -> str:
    """Why the topics do not have the values that Spark reads; "" if they have."""
    written = next((each for each in daemon.source_columns if each.name == column.name), None)
    if written is None:
        return "which the daemon leaves out (`columns`)"
    if written.protected is not None:
        return f"whose values the daemon replaces (`columns`: {written.protected})"
    if written.form != column.form:
        return f"whose values the daemon writes in another form (`format`: {written.form})"
    return ""


def _not_in(before: ColumnSchema | None, column: ColumnSchema, there: frozenset[str]) -> str:
    """Why the mirror cannot have the values of now; "" if it has."""
    if before is None or before.name not in there:
        return (
            "which the mirror does not have yet: it learns of a change of the table by the next changed row"
        )
    if before.spark != column.spark:
        return f"which is of type {before.type} in the mirror and {column.type} at the source"
    words = dict(column.labels)
    if any(words.get(oid, label) != label for oid, label in before.labels):
        return "whose labels were renamed, which the mirror does not know yet"
    return ""
