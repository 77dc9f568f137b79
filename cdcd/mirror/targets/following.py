"""Brings a table that is there to a new form, step by step.

The rule: neither format changes columns and fills values in one commit. So each step is recorded when it is done, and
found done when it is taken again.
"""

import json
from collections.abc import Sequence
from dataclasses import replace

from pyspark.sql import SparkSession
from pyspark.sql.types import DataType

from cdcd.mirror.platform.sql import quoted
from cdcd.mirror.records.defaults import default_of, fits
from cdcd.mirror.records.schema import TableSchema
from cdcd.mirror.targets import changelog
from cdcd.mirror.targets.buckets import BUCKET, bucket_of
from cdcd.mirror.targets.evolution import (
    Add,
    Drop,
    IncompatibleSchemaError,
    Relabel,
    Rename,
    Step,
    UnknownLabelError,
    Widen,
    after,
    aside_of,
    check,
    is_unknown,
    original_of,
    plan,
    unfilled,
    value_of,
    way_on,
)
from cdcd.mirror.targets.known import KnownTables, Table
from cdcd.mirror.targets.making import (
    SCHEMA,
    SCHEMA_AT,
    partitioned,
)
from cdcd.mirror.targets.merge import UNKNOWN
from cdcd.mirror.targets.name_lists import names_it, with_other_name
from cdcd.mirror.targets.partitions import renamed
from cdcd.mirror.targets.same_columns import numbered
from cdcd.mirror.targets.table_format import TableFormat, as_view
from cdcd.mirror.targets.target import Kind


class Following:
    """Takes the steps of `evolution.plan`."""

    def __init__(self, format_: TableFormat, known: KnownTables) -> None:
        self._format = format_
        self._known = known

    def follow(
        self, spark: SparkSession, name: str, table: Table, schema: TableSchema, at: tuple[int, int]
    ) -> None:
        try:
            self.evolve(spark, name, table, schema, at)
        except BaseException:
            self._known.forget(name)
            raise

    def evolve(
        self, spark: SparkSession, name: str, table: Table, schema: TableSchema, at: tuple[int, int]
    ) -> None:
        schema = numbered(table.schema, schema)
        check(schema, self._format.reserved)
        if not table.is_complete:
            # Other columns may be lacking because a former process dropped or renamed them and did not record the step.
            self._lacking(spark, name, table)
        steps = plan(table.schema, schema, table.kind)
        for step in steps:
            if isinstance(step, Add) and not fits(spark, step.column):
                raise unfilled(schema.table, step.column)
        if table.kind is Kind.MIRROR:
            self._check_parts(spark, name, table, steps)
        for step in steps:
            self._take(spark, name, table, step)
            table.schema = after(table.schema, step)
            if isinstance(step, Rename):
                fields = renamed(table.layout.fields, step.name, step.to)
                table.layout = replace(table.layout, fields=fields)
            self._known.record(spark, name, {SCHEMA: table.schema.to_json()} | partitioned(table.layout))
        self._known.record(spark, name, {SCHEMA: schema.to_json(), SCHEMA_AT: json.dumps(list(at))})
        table.schema, table.schema_at = schema, at

    def complete(self, spark: SparkSession, name: str, table: Table) -> None:
        """Check that the table has all columns of its form. After the first success this does nothing.

        Raises:
            IncompatibleSchemaError: the table lacks a column.
        """
        if table.is_complete:
            return
        lacking = self._lacking(spark, name, table)
        if lacking:
            raise IncompatibleSchemaError(
                table.schema.table,
                f"its target {name} lacks the column {lacking[0]}: another process changed the table.",
                way_on(table.schema.table),
            )
        table.is_complete = True

    def _lacking(self, spark: SparkSession, name: str, table: Table) -> list[str]:
        """Returns the columns of the form that the table lacks.

        Columns whose name and form do not go together get their names first. Two processes that swap columns at the
        same moment leave such columns: one of them renames a column, and the other one then records the form. A process
        that is killed in the middle of a swap leaves them too.

        Raises:
            FencedError: another process writes to the table.
        """
        there = self._format.columns(spark, name)
        lacking = [column.name for column in table.schema.columns if column.name not in there]
        names = {aside_of(column): column for column in lacking if aside_of(column) in there}
        names = names or _set_aside(table.schema, there, lacking)
        for column, to in names.items():
            spark.sql(f"ALTER TABLE {name} RENAME COLUMN {quoted(column)} TO {quoted(to)}")
            lacking.remove(to)
        if names:
            # The other process, which may be in the middle of the swap, finds this commit.
            self._known.record(spark, name, {SCHEMA: table.schema.to_json()})
        return lacking

    def _check_parts(self, spark: SparkSession, name: str, table: Table, steps: Sequence[Step]) -> None:
        """That the partitions of a mirror allow these steps. IncompatibleSchemaError: they do not."""
        source = table.schema.table
        gone = {step.name for step in steps if isinstance(step, Drop)}
        if gone:
            gone &= {*self._format.bound(spark, name), *[field.column for field in table.layout.fields]}
        for column in sorted(gone):
            fields = [str(field) for field in table.layout.fields if field.column == column]
            by = ", ".join(fields) or "it in a former layout"
            raise IncompatibleSchemaError(
                source,
                f"column {column} is dropped, and the mirror is partitioned by {by}.",
                "Take the field out of tables.partition_by, and start the mirror again. If the mirror does not read"
                f" the table again by itself then: {way_on(source)}",
            )
        names = {
            step.column.name if isinstance(step, Add) else step.to
            for step in steps
            if isinstance(step, Add | Rename)
        }
        for column in sorted(names & set(self._format.taken(spark, name)) if names else ()):
            raise name_taken(source, column, name)

    def _take(self, spark: SparkSession, name: str, table: Table, step: Step) -> None:
        """One step, which may have been taken already by a process that was killed before it could say so.

        Raises:
            FencedError: another process writes to the table.
        """
        self._known.check_writer(spark, name)
        there: dict[str, DataType] = {part.name: part.dataType for part in spark.table(name).schema}
        alter = f"ALTER TABLE {name}"
        match step:
            case Drop(column) if column in there:
                if table.kind is Kind.CHANGELOG:
                    kept = changelog.dropped(column, there)
                    self._name_in_lists(spark, name, table, column, kept)
                    spark.sql(f"{alter} RENAME COLUMN {quoted(column)} TO {quoted(kept)}")
                else:
                    self._name_in_lists(spark, name, table, column, None)
                    spark.sql(f"{alter} DROP COLUMN {quoted(column)}")
            case Rename(column, to) if column in there:
                self._name_in_lists(spark, name, table, column, to)
                spark.sql(f"{alter} RENAME COLUMN {quoted(column)} TO {quoted(to)}")
            case Widen(column, to):
                self._format.widen(spark, name, column, to.simpleString())
            case Add(column):
                fills = column.has_default and table.kind is Kind.MIRROR and not table.empty
                if fills and self._format.add_filled(spark, name, column):
                    return
                if column.name not in there:
                    self._format.add(spark, name, column.name, column.spark.simpleString())
                if fills:
                    self._fill(spark, name, table, step)
            case Relabel() if table.kind is Kind.MIRROR and not table.empty:
                self._relabel(spark, name, table, step)
            case _:
                pass

    def _name_in_lists(
        self, spark: SparkSession, name: str, table: Table, column: str, to: str | None
    ) -> None:
        """Give a column its other name in the rows' lists of columns; None: it is dropped."""
        names = changelog.UNCHANGED if table.kind is Kind.CHANGELOG else UNKNOWN
        rows = names_it(names, column)
        # Few rows have such a list, and most tables have none: then there is nothing to commit.
        if table.empty or spark.table(name).filter(rows).isEmpty():
            return
        with self._known.commit(spark, name, table.state) as table.state:
            spark.sql(f"UPDATE {name} SET {names} = {with_other_name(names, column, to)} WHERE {rows}")

    def _relabel(self, spark: SparkSession, name: str, table: Table, step: Relabel) -> None:
        """Rows that are there get the words of now. Taken again it finds none of before."""
        column = quoted(step.name)
        kind = table.schema.column(step.name).spark
        if step.words:
            value = value_of(step, kind, column)
            sets = f"{column} = {value}"
            buckets = table.layout.buckets
            if buckets > 1 and step.name in table.schema.key:
                moved = bucket_of(
                    table.schema, buckets, lambda part: value if part == step.name else quoted(part)
                )
                sets += f", {BUCKET} = {moved}"
            for own, field in table.layout.own:
                if field.column == step.name:
                    sets += f", {own} = {field.value(table.schema, f'({value})')}"
            with self._known.commit(spark, name, table.state) as table.state:
                spark.sql(f"UPDATE {name} SET {sets} WHERE NOT ({column} <=> {value})")
        found = spark.sql(
            f"SELECT {column} FROM {name} WHERE {is_unknown(step, kind, column)} LIMIT 1"
        ).head()
        if found is not None:
            raise UnknownLabelError(
                table.schema.table,
                f"column {step.name} has a value {found[0]!r} that is no label of its enum, which must have been"
                " renamed before it was described.",
                way_on(table.schema.table),
            )

    def _fill(self, spark: SparkSession, name: str, table: Table, step: Add) -> None:
        """Rows that are there get what PostgreSQL gave them; the commit carries the position on."""
        value = spark.range(1).select(default_of(step.column).alias("value"))
        with (
            as_view(value) as view,
            self._known.commit(spark, name, table.state) as table.state,
            self._format.merging(spark, name, None),
        ):
            # Not an UPDATE: neither format can set a column of any type to a value that is not written in SQL.
            statement = f"MERGE INTO {name} t USING {view} s ON true WHEN MATCHED THEN UPDATE SET"
            spark.sql(f"{statement} t.{quoted(step.column.name)} = s.value")


def _set_aside(schema: TableSchema, there: Sequence[str], lacking: Sequence[str]) -> dict[str, str]:
    """The columns of a table that must get the temporary names which the form has for them.

    Args:
        there: the table's columns.
        lacking: the columns of the form that the table lacks.

    Returns:
        The temporary names by the columns' names. It is empty if the order of the columns does not say that the columns
        are the same: a swap that went further has the same names.
    """
    back = {column: original_of(column) for column in lacking}
    wanted = [back.get(column.name, column.name) for column in schema.columns]
    if [column for column in there if column in wanted] != wanted:
        return {}
    return {original: column for column, original in back.items() if original != column}


def name_taken(table: str, column: str, target: str) -> IncompatibleSchemaError:
    """The error for a column that has the name of a field by which a target is or was partitioned."""
    return IncompatibleSchemaError(
        table,
        f"column {column} has the name of a partition field of its mirror in Iceberg (of now or of former times).",
        "Remove the field of that name from tables.partition_by, drop the target table"
        f" {target}, and then: {way_on(table)}",
    )
