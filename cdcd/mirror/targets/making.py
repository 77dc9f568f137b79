"""What a target table is made of: its columns, its properties, and where each row lies.

The rule: the properties say all that a later process must know of a table (`described`, `made`). The state of the
table is in its commits, not here.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from cdcd.mirror.platform.sql import quoted
from cdcd.mirror.records.schema import TableSchema
from cdcd.mirror.targets import changelog
from cdcd.mirror.targets.buckets import BUCKET, bucket_of
from cdcd.mirror.targets.layout import DELETED, Deletes, Layout
from cdcd.mirror.targets.merge import UNKNOWN
from cdcd.mirror.targets.partitions import Field
from cdcd.mirror.targets.reduction import EVENT, LSN
from cdcd.mirror.targets.state import At
from cdcd.mirror.targets.target import Kind, New

SCHEMA: Final = "cdcd.schema"
SCHEMA_AT: Final = "cdcd.schema-at"
KIND: Final = "cdcd.kind"
"""Properties of a table: its form (`TableSchema.to_json`), the latest change known to be in it, what its rows are."""
BUCKETS: Final = "cdcd.buckets"
"""The property of a mirror that has buckets: how many. It never changes while the rows stay where they are. A changelog
that was put in the place of such a mirror has it too, and the column without a value."""
DELETES: Final = "cdcd.deletes"
"""The property of a mirror that marks deletes. A mirror without it removes deleted rows."""
PARTITION: Final = "cdcd.partition"
"""The property of a mirror that is partitioned: the fields, by the names that their columns have."""
SWAPPED: Final = "cdcd.swapped"
"""The property of a table that was put in the place of another one: what is older than its versions is not empty."""

_MIRROR_COLUMNS: Final = {LSN: "BIGINT", EVENT: "BIGINT", UNKNOWN: "ARRAY<STRING>"}


def columns(new: New) -> str:
    """The columns with their types, as SQL."""
    source = {column.name: column.spark.simpleString() for column in new.schema.columns}
    ordered = source | _MIRROR_COLUMNS if new.kind is Kind.MIRROR else changelog.COLUMNS | source
    if new.layout.marks:
        ordered = ordered | {DELETED: "BOOLEAN"}
    ordered = ordered | {name: "STRING" for name, _ in new.layout.own}
    if new.layout.buckets > 1:
        ordered = ordered | {BUCKET: "INT"}
    return ", ".join(f"{quoted(name)} {type_}" for name, type_ in ordered.items())


def placed(rows: DataFrame, new: New) -> DataFrame:
    """The rows with the columns by which the table is laid out."""
    is_mirror = new.kind is Kind.MIRROR
    for name, field in new.layout.own:
        value = sf.expr(field.value(new.schema, quoted(field.column))) if is_mirror else sf.lit(None)
        rows = rows.withColumn(name, value.cast("string"))
    if new.layout.buckets == 1:
        return rows
    bucket = sf.expr(bucket_of(new.schema, new.layout.buckets)) if is_mirror else sf.lit(None).cast("int")
    return rows.withColumn(BUCKET, bucket)


def partitioned_by(new: New) -> str | None:
    """By what the table is partitioned, as SQL. None: by nothing."""
    if new.kind is not Kind.MIRROR:
        return None
    own = [name for name, _ in new.layout.own]
    fields = own or [field.sql for field in new.layout.fields]
    return ", ".join([*fields, *([BUCKET] if new.layout.buckets > 1 else [])]) or None


def replacing(before: Layout, wanted: Layout) -> Layout:
    """The layout of a table that takes the place of one with the layout `before`.

    A table that had buckets once keeps the column, and as a mirror at least two buckets. Iceberg keeps former
    layouts beside the new one, and cannot merge into a table that lacks the column by which it was partitioned.
    """
    return wanted if before.buckets == 1 else replace(wanted, buckets=max(2, wanted.buckets))


def described(new: New, at: At) -> dict[str, str]:
    """The properties of a table. `at`: the latest change known to be in its form."""
    found = {SCHEMA: new.schema.to_json(), SCHEMA_AT: json.dumps(list(at)), KIND: new.kind.value}
    if new.layout.buckets > 1:
        found[BUCKETS] = str(new.layout.buckets)
    if new.layout.marks:
        found[DELETES] = new.layout.deletes.value
    return found | partitioned(new.layout)


def partitioned(layout: Layout) -> dict[str, str]:
    """The property that names the fields of a partitioned table."""
    if not layout.fields:
        return {}
    fields = [[field.column, field.transform, field.number] for field in layout.fields]
    return {PARTITION: json.dumps({"fields": fields, "computed": layout.computed})}


def made(properties: Mapping[str, str]) -> New:
    """What a table with these properties was made as. KeyError, ValueError: this program did not make it."""
    parts = json.loads(properties.get(PARTITION, "{}"))
    layout = Layout(
        int(properties.get(BUCKETS, 1)),
        Deletes(properties.get(DELETES, Deletes.REMOVE)),
        tuple([Field(*field) for field in parts.get("fields", ())]),
        parts.get("computed", False),
    )
    return New(TableSchema.from_json(properties[SCHEMA]), Kind(properties[KIND]), layout)
