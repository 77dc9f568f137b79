"""What older changes of a table look like in its newer form."""

from collections.abc import Sequence
from contextlib import suppress

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from cdcd.mirror.records.defaults import default_of
from cdcd.mirror.records.schema import TableSchema
from cdcd.mirror.targets.evolution import IncompatibleSchemaError, plan, without_default
from cdcd.mirror.targets.same_columns import is_other, pairs


def upgrade(changes: DataFrame, old: TableSchema, new: TableSchema) -> DataFrame:
    """Changes that were made under `old`, as they would be under `new`, to be merged with those.

    Renamed columns have their new name, widened ones the new type, dropped ones are gone, and added ones have what
    PostgreSQL gave to rows of that time.

    Raises:
        IncompatibleSchemaError: as `plan`.
    """
    return changes if old == new else changes.select(upgraded(changes.columns, old, new))


def upgraded(
    columns: Sequence[str], old: TableSchema, new: TableSchema, inside: str | None = None
) -> list[Column]:
    """The expressions for these columns of changes that were made under `old`, as they would be under `new`.

    Args:
        inside: the struct that has the columns as its fields; None: they are the DataFrame's own.

    Raises:
        IncompatibleSchemaError: as `plan`.
    """
    plan(old, new)
    other = is_other(old, new)
    before_of = {column.name: before for before, column in pairs(old, new)}
    new_name = {before.name: name for name, before in before_of.items()}

    def was(name: str) -> Column:
        return sf.col(name) if inside is None else sf.col(inside)[name]

    def row(name: str) -> Column:
        fields = []
        for column in new.columns:
            before = before_of.get(column.name)
            if before is None:
                value = default_of(without_default(column) if other else column)
            else:
                value = was(name)[before.name].cast(column.spark)
            fields.append(value.alias(column.name))
        return sf.when(was(name).isNotNull(), sf.struct(*fields))

    def key(name: str) -> Column:
        fields = [
            (was(name)[before_of[part].name] if part in before_of else sf.lit(None))
            .cast(new.column(part).spark)
            .alias(part)
            for part in new.key
        ]
        whole = sf.struct(*fields) if fields else sf.struct()
        return sf.when(was(name).isNotNull(), whole)

    names = sf.create_map(*[sf.lit(text) for pair in new_name.items() for text in pair]) if new_name else None
    found: dict[str, Column] = {"before": row("before"), "after": row("after")}
    found |= {name: key(name) for name in ("key", "old_key", "new_key") if name in columns and new.key}
    if names is not None:
        renamed = sf.transform(was("unchanged"), lambda column: names[column])
        found["unchanged"] = sf.filter(renamed, lambda column: column.isNotNull())
    return [found.get(name, was(name)).alias(name) for name in columns]


def together(schemas: Sequence[TableSchema], newest: TableSchema) -> list[list[TableSchema]]:
    """Forms one after the other, cut where those before cannot be brought to the next. Each run's last one is its aim.

    Args:
        newest: the aim of the last run, if its forms can be brought to it.
    """
    found: list[list[TableSchema]] = []
    for schema in schemas:
        if found and _can_become(found[-1], schema):
            found[-1].append(schema)
        else:
            found.append([schema])
    if not found:
        return [[newest]]
    if _can_become(found[-1], newest):
        found[-1].append(newest)
    return found


def _can_become(schemas: Sequence[TableSchema], aim: TableSchema) -> bool:
    with suppress(IncompatibleSchemaError):
        for schema in schemas:
            plan(schema, aim)
        return True
    return False
