"""Which columns of two forms of a table are the same.

Columns are the same where their ids (PostgreSQL's attribute numbers) are, which tells a rename from a drop and an add;
where an id is not known, where their names are. An id that was known once stays known (`numbered`).

The rule: columns are in the order of their ids, and no id is given twice. Where names say something else (`crossed`),
or not enough (`doubtful`), it is not known which columns are the same.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Final

from pyspark.sql.types import (
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
)

from cdcd.mirror.records.schema import ColumnSchema, TableSchema

_WIDER: Final[dict[type[DataType], tuple[type[DataType], ...]]] = {
    ByteType: (ShortType, IntegerType, LongType),
    ShortType: (IntegerType, LongType),
    IntegerType: (LongType,),
    FloatType: (DoubleType,),
}
"""What both formats can do to a column in place (Iceberg's and Delta's rules of type promotion)."""


def is_other(old: TableSchema, new: TableSchema) -> bool:
    """Whether the two are of two relations that have one name after the other."""
    return old.oid is not None and new.oid is not None and old.oid != new.oid


def numbered(old: TableSchema, new: TableSchema) -> TableSchema:
    """`new` with the ids that it lacks, of columns that `old` has under their names; `plan` keeps them so."""
    if is_other(old, new):
        return new
    known = {column.name: column.id for column in old.columns}
    taken = {column.id for column in new.columns}
    columns = [
        replace(column, id=known[column.name])
        if column.id is None and known.get(column.name) not in {None, *taken}
        else column
        for column in new.columns
    ]
    return replace(new, columns=tuple(columns))


def pairs(old: TableSchema, new: TableSchema) -> Iterator[tuple[ColumnSchema, ColumnSchema]]:
    """The columns that are the same in both."""
    by_id = {column.id: column for column in old.columns if column.id is not None}
    by_name = {column.name: column for column in old.columns}
    if is_other(old, new):
        for column in new.columns:
            before = by_name.get(column.name)
            if before is not None and (before.spark == column.spark or widens(before.spark, column.spark)):
                yield before, column
        return
    taken = {column.id for column in new.columns}
    for place, column in enumerate(new.columns):
        if column.id in by_id:
            yield by_id[column.id], column
            continue
        before = by_name.get(column.name)
        # Of the same name, but both ids known and different: dropped, and added again.
        if before is None or (before.id is not None and (column.id is not None or before.id in taken)):
            continue
        was = old.columns.index(before)
        if not (_fits(old.columns, was, column.id) and _fits(new.columns, place, before.id)):
            continue
        # Of another type: the column was altered, unless what stands after it shows that it was dropped and added.
        holds = before.spark == column.spark or widens(before.spark, column.spark)
        if holds or _fits(_by_names(old, new), was, column.id):
            yield before, column


def widens(old: DataType, new: DataType) -> bool:
    """Both formats can change a column of type `old` to `new` without touching its values."""
    if isinstance(old, DecimalType) and isinstance(new, DecimalType):
        return bool(new.scale == old.scale and new.precision >= old.precision)
    return isinstance(new, _WIDER.get(type(old), ()))


def crossed(old: TableSchema, new: TableSchema) -> list[str]:
    """The names in `new` of columns that `pairs` takes for the same and that cannot all be.

    Columns are in the order of their numbers, and a column keeps its number. So those that are the same stand in the
    same order in both forms, and between two of them there are no more columns than numbers. Only columns whose numbers
    are not known can be crossed.
    """
    if is_other(old, new):
        return []
    place = {column.name: number for number, column in enumerate(old.columns)}
    same = list(pairs(old, new))
    places = [place[before.name] for before, _ in same]
    before = [-1, *accumulate(places, max)]
    after = [*reversed(list(accumulate(reversed(places), min))), len(place)]
    found = [
        column.name
        for at, (number, (_, column)) in enumerate(zip(places, same, strict=True))
        if before[at] > number or after[at + 1] < number
    ]
    return found or _cramped(same, places)


def _cramped(same: Sequence[tuple[ColumnSchema, ColumnSchema]], places: Sequence[int]) -> list[str]:
    """The names of the first two columns between which the former form has more columns than there are numbers.

    Args:
        places: of the columns in that form.
    """
    former, place, number = "", -1, 0
    for at, (before, column) in zip(places, same, strict=True):
        now = before.id or column.id
        if now is None:
            continue
        if now - number < at - place:
            return [name for name in (former, column.name) if name]
        former, place, number = column.name, at, now
    return []


def doubtful(old: TableSchema, new: TableSchema) -> tuple[str, str] | None:
    """Names of a column that is gone and of one that is new, if they may be one column. None: there are no such two.

    They may be if one of the two has no number, and if they stand in the same place among the columns that are the same
    (`pairs`; none of these is `crossed`).
    """
    if is_other(old, new):
        return None
    same = [(before.name, after.name) for before, after in pairs(old, new)]
    gone = _between(old.columns, {before for before, _ in same})
    for place, column in _between(new.columns, {after for _, after in same}):
        for former_place, former in gone:
            if place == former_place and (column.id is None or former.id is None):
                return former.name, column.name
    return None


def _between(columns: Sequence[ColumnSchema], same: Collection[str]) -> list[tuple[int, ColumnSchema]]:
    """The other columns, each with how many of `same` stand before it."""
    found, before = [], 0
    for column in columns:
        if column.name in same:
            before += 1
        else:
            found.append((before, column))
    return found


def _fits(columns: Sequence[ColumnSchema], place: int, id_: int | None) -> bool:
    """Whether the column at that place may have this id: columns are in the order of their ids."""
    return id_ is None or (
        all(column.id is None or column.id < id_ for column in columns[:place])
        and all(column.id is None or column.id > id_ for column in columns[place + 1 :])
    )


def _by_names(old: TableSchema, new: TableSchema) -> list[ColumnSchema]:
    """The columns of `old`, with ids of `new` where `old` has none for a column with that name and type."""
    known = {column.id for column in old.columns}
    ids = {(column.name, column.type_oid): column.id for column in new.columns if column.id not in known}
    return [
        replace(column, id=ids.get((column.name, column.type_oid))) if column.id is None else column
        for column in old.columns
    ]
