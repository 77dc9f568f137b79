"""The MERGE that brings a reduced batch into a target, as SQL; the same for both formats."""

from collections.abc import Collection
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from cdcd.spark.schema import TableSchema
from cdcd.spark.sql import quoted, text
from cdcd.spark.targets.buckets import BUCKET, bucket_of, named
from cdcd.spark.targets.reduction import EVENT, KEEP, LOST, LSN, OP

UNKNOWN: Final = "_cdcd_unknown"
"""Array of the columns whose value in the row is not known, because the source did not send it and the target never had
it; null for almost all rows."""


def merge(
    target: str,
    source: str,
    schema: TableSchema,
    *,
    keeps: Collection[str] = (),
    truncated: tuple[int, int] | None = None,
    key_range: tuple[int, int] | None = None,
    hashes: Collection[int] = (),
    buckets: int = 1,
    again: bool = False,
) -> str:
    """MERGE INTO `target` of the view `source` (`reduction.reduced`).

    A row changes only if the batch's is later than its own. So a batch that comes again finds nothing to do, even
    without what `state` leaves out.

    Args:
        keeps: columns that some row of the batch leaves as they are.
        truncated: rows that were last changed before it go.
        again: what the row has may be known better now, so that its own change is taken once more.
        key_range: bounds on the first column of the key, by which files are left out; not where all rows are looked at.
        hashes: of all keys of the batch (`buckets.hash_of`), by which rows are left out; empty: they are not known.
        buckets: how many the target has; 1: it has none.
    """
    before = "<=" if again else "<"
    later = f"(t.{LSN} < s.{LSN} OR (t.{LSN} = s.{LSN} AND t.{EVENT} {before} s.{EVENT}))"
    on = [f"t.{quoted(name)} = s.{quoted(name)}" for name in schema.key]
    if key_range is not None and truncated is None:
        low, high = key_range
        on.append(f"t.{quoted(schema.key[0])} BETWEEN {low} AND {high}")
    if hashes and truncated is None:
        on += named(schema, "t", hashes, buckets)
    names = [column.name for column in schema.columns]
    sets = [
        f"{quoted(name)} = "
        + (
            f"CASE WHEN array_contains(s.{KEEP}, '{text(name)}') THEN t.{quoted(name)} ELSE s.{quoted(name)} END"
            if name in keeps
            else f"s.{quoted(name)}"
        )
        for name in names
    ]
    sets += [f"{LSN} = s.{LSN}", f"{EVENT} = s.{EVENT}"]
    # What was unknown stays so where the batch does not know it either.
    none = "CAST(array() AS ARRAY<STRING>)"
    still = f"array_union(array_intersect(coalesce(t.{UNKNOWN}, {none}), s.{KEEP}), s.{LOST})"
    sets.append(f"{UNKNOWN} = {f'nullif({still}, {none})' if keeps else 'NULL'}")
    unknown = f"nullif(array_union(s.{KEEP}, s.{LOST}), {none})" if keeps else "NULL"
    columns = [*map(quoted, names), LSN, EVENT, UNKNOWN]
    values = [*[f"s.{column}" for column in columns[:-1]], unknown]
    if buckets > 1:
        columns.append(BUCKET)
        values.append(bucket_of(schema, buckets, lambda name: f"s.{quoted(name)}"))
    lines = [
        f"MERGE INTO {target} t USING {source} s ON {' AND '.join(on)}",
        f"WHEN MATCHED AND s.{OP} = 'd' AND {later} THEN DELETE",
        f"WHEN MATCHED AND s.{OP} <> 'd' AND {later} THEN UPDATE SET {', '.join(sets)}",
        f"WHEN NOT MATCHED AND s.{OP} <> 'd' THEN INSERT ({', '.join(columns)}) VALUES ({', '.join(values)})",
    ]
    if truncated is not None:
        lsn, event = truncated
        before = f"(t.{LSN} < {lsn} OR (t.{LSN} = {lsn} AND t.{EVENT} < {event}))"
        lines.append(f"WHEN NOT MATCHED BY SOURCE AND {before} THEN DELETE")
    return "\n".join(lines)


def first_rows(source: DataFrame, schema: TableSchema) -> DataFrame:
    """What the MERGE of `source` inserts into a table that has no rows."""
    none = sf.array().cast("array<string>")
    unknown = sf.nullif(sf.array_union(KEEP, LOST), none).alias(UNKNOWN)
    names = [column.name for column in schema.columns]
    return source.filter(sf.col(OP) != "d").select(*map(quoted, names), LSN, EVENT, unknown)
