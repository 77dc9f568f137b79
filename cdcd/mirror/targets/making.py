"""Where each row of a table lies, and what the properties of a table say that a mirror without a log has made."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from cdcd.mirror.platform.sql import quoted
from cdcd.mirror.records.schema import TableSchema
from cdcd.mirror.targets.buckets import BUCKET, bucket_of
from cdcd.mirror.targets.layout import Deletes, Layout
from cdcd.mirror.targets.partitions import Field
from cdcd.mirror.targets.target import Kind

BUCKETS: Final = "cdcd.buckets"
"""The property of a mirror that has buckets: how many. It never changes while the rows stay where they are."""

SCHEMA: Final = "cdcd.schema"
KIND: Final = "cdcd.kind"
"""Properties of a table of a mirror without a log: its form (`TableSchema.to_json`), and what its rows are."""

_DELETES: Final = "cdcd.deletes"
"""The property of such a table that marks deletes. A table without it removes deleted rows."""
_PARTITION: Final = "cdcd.partition"
"""The property of such a table that is partitioned: the fields, by the names that their columns have."""


class Former(NamedTuple):
    """What a mirror without a log has made: the form of the rows, what they are, and where they lie."""

    schema: TableSchema
    kind: Kind
    layout: Layout


def made(properties: Mapping[str, str]) -> Former:
    """What a table with these properties was made as. KeyError, ValueError: no mirror without a log made it."""
    parts = json.loads(properties.get(_PARTITION, "{}"))
    layout = Layout(
        int(properties.get(BUCKETS, 1)),
        Deletes(properties.get(_DELETES, Deletes.REMOVE)),
        tuple([Field(*field) for field in parts.get("fields", ())]),
        parts.get("computed", False),
    )
    return Former(TableSchema.from_json(properties[SCHEMA]), Kind(properties[KIND]), layout)


def placed(rows: DataFrame, schema: TableSchema, layout: Layout) -> DataFrame:
    """The rows of a mirror with the columns by which it is laid out."""
    for name, field in layout.own:
        value = sf.expr(field.value(schema, quoted(field.column)))
        rows = rows.withColumn(name, value.cast("string"))
    if layout.buckets == 1:
        return rows
    return rows.withColumn(BUCKET, sf.expr(bucket_of(schema, layout.buckets)))


def replacing(before: Layout, wanted: Layout) -> Layout:
    """The layout of a table that takes the place of one with the layout `before`.

    A table that had buckets once keeps the column, and as a mirror at least two buckets. Iceberg keeps former
    layouts beside the new one, and cannot merge into a table that lacks the column by which it was partitioned.
    """
    return wanted if before.buckets == 1 else replace(wanted, buckets=max(2, wanted.buckets))
