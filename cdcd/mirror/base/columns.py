"""Columns of a base table: which column of the source each one is, and how they get the form of the next fold.

Each column's comment names the relation's oid and the column's number (`pg_attribute.attnum`). Table formats change
columns one by one, so a process may end in the middle of such changes. The rule: the next changes follow from the
columns as they are, and not from a plan that was made before.
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql.types import DataType, StructType

from cdcd.mirror.base.layout import own_columns
from cdcd.mirror.platform.sql import quoted
from cdcd.mirror.records.schema import OWN, ColumnSchema, TableSchema
from cdcd.mirror.targets.changelog import dropped
from cdcd.mirror.targets.evolution import Rename, renames_in_order
from cdcd.mirror.targets.layout import DELETED, PLAIN, Layout
from cdcd.mirror.targets.merge import UNKNOWN
from cdcd.mirror.targets.reduction import EVENT, LSN
from cdcd.mirror.targets.same_columns import widens

OWN_COLUMNS: Final = {LSN: "bigint", EVENT: "bigint", UNKNOWN: "array<string>"}
"""cdcd's own columns of each base table, with their types in SQL. The other columns are the source's."""

DROPPED: Final = re.compile(r"__dropped(_\d+)?$")
"""What the name of a column ends with that the source has no more (`changelog.dropped`)."""

_COMMENT: Final = re.compile(r"cdcd: column (\d+) of relation (\d+)")


def digest(schema: TableSchema) -> str:
    """Short name of a form. Equal forms have equal names."""
    return hashlib.sha256(schema.to_json().encode()).hexdigest()[:16]


def comment(column: ColumnSchema, oid: int | None) -> str:
    """The comment of a column. It is empty if the description lacks the number or the oid."""
    return "" if column.id is None or oid is None else f"cdcd: column {column.id} of relation {oid}"


@dataclass(frozen=True, slots=True)
class Present:
    """A column of a table as it is.

    Attributes:
        number: (oid, attnum) by its comment; None: the comment says something else.
        type: as the table format has it. Iceberg has no smallint, and makes it an int.
    """

    name: str
    number: tuple[int, int] | None
    type: DataType


def present(fields: StructType) -> list[Present]:
    """The columns of the source in a table."""
    found = []
    for field in fields:
        if not field.name.startswith(OWN) or field.name.startswith(f"{OWN}rename_"):
            match = _COMMENT.fullmatch(field.metadata.get("comment", ""))
            number = None if match is None else (int(match[2]), int(match[1]))
            found.append(Present(field.name, number, field.dataType))
    return found


def definition(column: ColumnSchema, oid: int | None) -> str:
    """The column in SQL, as CREATE TABLE and ADD COLUMN have it."""
    said = comment(column, oid)
    return f"{quoted(column.name)} {column.spark.simpleString()}" + (f" COMMENT '{said}'" if said else "")


def created(schema: TableSchema, layout: Layout = PLAIN) -> str:
    """The columns of a new table in SQL."""
    own = [f"{quoted(name)} {type_}" for name, type_ in OWN_COLUMNS.items()]
    own += [f"{DELETED} boolean"] if layout.marks else []
    own += [f"{name} {type_}" for name, type_ in own_columns(layout).items()]
    return ", ".join([*[definition(column, schema.oid) for column in schema.columns], *own])


def _has_room(type_: DataType, wanted: DataType) -> bool:
    """True if the column's type holds all values of the wanted type."""
    one, other = [each.simpleString().replace("smallint", "int") for each in (type_, wanted)]
    return one == other or widens(wanted, type_)


def kept(there: Sequence[Present], schema: TableSchema, *, anew: bool = False) -> dict[str, str]:
    """The names in `schema` of the columns that stay, by the names that the table has.

    Args:
        anew: as in `alterations`.
    """
    types = {column.name: column.spark for column in schema.columns}
    wanted = {(schema.oid, column.id): column.name for column in schema.columns if column.id is not None}
    found: dict[str, str] = {}
    for column in there:
        if column.number is not None and column.number[0] == schema.oid:
            name = wanted.get(column.number)
        else:
            # The name identifies a column that has no number, and a column of another relation.
            name = column.name if column.name in types else None
        fits = not anew or name is None or _has_room(column.type, types[name])
        if name is not None and name not in found.values() and fits:
            found[column.name] = name
    return found


def alterations(
    there: Sequence[Present], schema: TableSchema, *, anew: bool = False, keeps: bool = False
) -> Iterator[str]:
    """What stands behind `ALTER TABLE <name>`, in its order, so that the table gets the columns of `schema`.

    Args:
        anew: no row stays, so that a column with another type is dropped and added again. Otherwise, such a column is
            left to `evolution.Widen`.
        keeps: rows keep what they have in columns that the source has no more, under another name.
    """
    stays = kept(there, schema, anew=anew)
    wanted = {column.name for column in schema.columns}
    names = wanted | {column.name for column in there}
    for column in there:
        if column.name in stays:
            continue
        if not keeps:
            yield f"DROP COLUMN {quoted(column.name)}"
            continue
        free = column.name
        if not DROPPED.search(free) or free in wanted:
            free = dropped(column.name, names)
            names.add(free)
            yield f"RENAME COLUMN {quoted(column.name)} TO {quoted(free)}"
        if column.number is not None:
            # A column of another type may come with this number.
            yield f"ALTER COLUMN {quoted(free)} COMMENT ''"
    for step in renames_in_order({name: to for name, to in stays.items() if name != to}):
        assert isinstance(step, Rename)
        yield f"RENAME COLUMN {quoted(step.name)} TO {quoted(step.to)}"
    for new in schema.columns:
        if new.name not in stays.values():
            yield f"ADD COLUMN {definition(new, schema.oid)}"
    numbers = {stays[column.name]: column.number for column in there if column.name in stays}
    for new in schema.columns:
        said = comment(new, schema.oid)
        if said and new.name in numbers and numbers[new.name] != (schema.oid, new.id):
            yield f"ALTER COLUMN {quoted(new.name)} COMMENT '{said}'"
