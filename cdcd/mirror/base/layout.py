"""How a folded table keeps its rows: its partitions and buckets, and the part of them in which the keys of a fold are.

The rule: the table says by what it is partitioned, and not the configuration. In Iceberg, Spark's description of the
table has its partition fields, so the fields of an owner count too. In Delta, each field is a column of the table's own
(`targets.partitions`), and a property names the fields by the numbers of their columns, so that a renamed column keeps
its field.

A field that is a bucket of a column of the key says where the row of a key is. So a fold names the buckets of its keys,
and reads no others.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from pyspark.sql import SparkSession

from cdcd.core.errors import SinkError
from cdcd.core.pasted import begin_again
from cdcd.mirror.base.part import Place
from cdcd.mirror.platform.sql import catalog_of, quoted
from cdcd.mirror.records.schema import TableSchema
from cdcd.mirror.targets.buckets import BUCKET
from cdcd.mirror.targets.layout import Layout
from cdcd.mirror.targets.making import BUCKETS
from cdcd.mirror.targets.partitions import OWN, Field, check_fields, parse_fields

FIELDS: Final = "cdcd.fields"
"""The property of a Delta table that has its partition fields: number and name of the column, transform, and number."""

NAMED_MAX: Final = 1024
"""Maximum number of buckets that a fold names. More of them are most of the table anyway."""

_GONE: Final = ""
"""Name of the column of a field whose column the source has dropped."""


def made(schema: TableSchema, layout: Layout, *, computed: bool) -> Layout:
    """Return the layout of a new table. ConfigError: the table cannot have the configured fields."""
    check_fields(schema, layout.fields, computed=computed)
    return replace(layout, computed=computed and bool(layout.fields))


def properties_of(schema: TableSchema, layout: Layout) -> dict[str, str]:
    """The properties of a table with this layout."""
    found = {BUCKETS: str(layout.buckets)} if layout.buckets > 1 else {}
    if layout.computed:
        ids = {column.name: column.id for column in schema.columns}
        fields = [[ids[field.column], field.column, field.transform, field.number] for field in layout.fields]
        found[FIELDS] = json.dumps(fields)
    return found


def own_columns(layout: Layout) -> dict[str, str]:
    """Columns by which a table is partitioned that the source does not have, with their types in SQL."""
    found = dict.fromkeys([name for name, _ in layout.own], "string")
    return found | ({BUCKET: "int"} if layout.buckets > 1 else {})


def partitioned_by(layout: Layout) -> list[str]:
    """What stands in `PARTITIONED BY`. Empty: the table has no partitions."""
    fields = list(own_columns(layout))
    return fields if layout.computed else [*[field.sql for field in layout.fields], *fields]


def layout_of(
    spark: SparkSession, place: Place, has: Mapping[str, str], schema: TableSchema, *, computed: bool
) -> Layout:
    """Return the layout that a table has.

    Args:
        has: properties of the table.
        schema: the form of its rows after the fold.
        computed: the format has no partition fields of its own.

    Raises:
        SinkError: the source has dropped the column of a field.
    """
    fields = _said(has, schema) if computed else _described(spark, place.name, schema)
    if _GONE in [field.column for field in fields]:
        raise SinkError(
            f"{place.table}: the source has dropped a column by which {place.name} is partitioned.",
            hint=f"Take the column out of tables.partition_by, drop {place.name}, and let the daemon read the table "
            f"again. {begin_again(place.table)}",
        )
    buckets = int(has.get(BUCKETS, 1))
    return replace(place.layout, buckets=buckets, fields=fields, computed=computed and bool(fields))


def _said(has: Mapping[str, str], schema: TableSchema) -> tuple[Field, ...]:
    names = {column.id: column.name for column in schema.columns if column.id is not None}
    all_names = {column.name for column in schema.columns}
    found = []
    for number, name, transform, count in json.loads(has.get(FIELDS, "[]")):
        now = names.get(number, _GONE) if number is not None else name if name in all_names else _GONE
        found.append(Field(now, transform, count))
    return tuple(found)


def _described(spark: SparkSession, name: str, schema: TableSchema) -> tuple[Field, ...]:
    """The partition fields of an Iceberg table, as far as they are of columns of the source."""
    columns = {column.name for column in schema.columns}
    rows = spark.sql(f"DESCRIBE TABLE {name}").collect()
    found = fields_described([(row["col_name"], row["data_type"]) for row in rows], name)
    return tuple([field for field in found if field.column in columns])


def fields_described(rows: Sequence[tuple[str, str]], where: str) -> tuple[Field, ...]:
    """Return the partition fields in Spark's description of a table.

    Spark names the columns if each field is a column, and numbers the transforms if one is not
    (DescribeTableExec.scala, `addPartitioning`). A heading has no type, so a column can have the name of a heading.

    Args:
        rows: name and type of each row of the description.
        where: name of the table, for errors.
    """
    heading, found, texts = "", [], []
    for name, kind in rows:
        if not kind:
            heading = name
        elif heading == "# Partition Information" and name != "# col_name":
            found.append(Field(name[1:-1].replace("``", "`") if name.startswith("`") else name))
        elif heading == "# Partitioning":
            texts.append(kind.replace("`", ""))
    return (*found, *parse_fields(list(dict.fromkeys(texts)), where))


def conditions(
    spark: SparkSession, name: str, view: str, schema: TableSchema, layout: Layout
) -> Sequence[str]:
    """Return SQL conditions on the buckets of the table `t`. Every row of `t` whose key is in the view meets them."""
    found = []
    for number, field in enumerate(layout.fields, 1):
        if field.transform != "bucket" or field.column not in schema.key:
            continue
        if layout.computed:
            of_row, of_key = f"t.{OWN}{number}", field.value(schema, quoted(field.column))
        else:
            bucket = f"{catalog_of(name)}.system.bucket({field.number}, "
            of_row, of_key = f"{bucket}t.{quoted(field.column)})", f"{bucket}{quoted(field.column)})"
        rows = spark.sql(f"SELECT DISTINCT {of_key} AS b FROM {view} LIMIT {NAMED_MAX + 1}").collect()
        if 0 < len(rows) <= NAMED_MAX:
            values = sorted([row["b"] for row in rows])
            found.append(f"{of_row} IN ({', '.join(map(repr, values))})")
    return found
