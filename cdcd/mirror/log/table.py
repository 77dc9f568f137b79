"""The log: one append-only table with a row for each record of a pipeline's topics.

The rule: nothing that a record holds can fail the query that appends it. Each expression of `rows` gives NULL for a
value that it cannot read, and a record that is no change is a row with its bytes and the reason.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from uuid import uuid4

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import LongType, StringType, StructField, StructType

from cdcd.core.errors import ConfigError
from cdcd.core.records.encoder import (
    HEADER_CHANGE,
    HEADER_NEW_KEY,
    HEADER_OLD_KEY,
    HEADER_UNCHANGED,
    HEADER_UNWRITABLE,
    HEADER_WATERMARK,
)
from cdcd.mirror.jars import DELTA, ICEBERG
from cdcd.mirror.platform.sql import assigned
from cdcd.mirror.platform.tables import location, properties, set_properties
from cdcd.mirror.records.changes import WITH_ROW, header, header_bytes, once, told
from cdcd.mirror.records.values import key_text

COLUMNS: Final = {
    "topic": "string",
    "part": "int",
    "off": "bigint",
    "topic_id": "string",
    "ts": "timestamp",
    "tbl": "string",
    "schema_id": "string",
    "lsn": "bigint",
    "ord": "bigint",
    "op": "string",
    "key": "binary",
    "before": "string",
    "after": "string",
    "unchanged": "string",
    "oldkey": "string",
    "newkey": "string",
    "unwritable": "string",
    "kind": "string",
    "reason": "string",
    "value": "binary",
    "appended": "timestamp",
    "day": "date",
    "change": "string",
}
"""Columns of the log in their order, with their types in SQL. docs/mirror-log.md says what each one holds.

The log is partitioned by `day`, the day of `appended`, so that old days are deleted without a rewrite of any file. Rows
of the log itself have no day. So a look at them reads one small partition.
"""

ADDED: Final = "change"
"""The last column. A log that an earlier version of cdcd made gets the column when a mirror starts."""

STATISTICS: Final = ("topic", "part", "off", "ts", "tbl", "lsn", "kind", "appended")
"""Columns whose least and greatest values are in the metadata. Values of rows do not belong there."""

_DATA_PATH: Final = "write.data.path"
"""The property of a table in Iceberg that names the folder of new data files."""

_RUN: Final = re.compile(r"/run-[0-9a-f]{32}$")

_CORRUPT: Final = "_cdcd_corrupt"
_SOURCE: Final = [
    StructField("schema", StringType()),
    StructField("table", StringType()),
    StructField("commit_lsn", LongType()),
    StructField("event_serial_no", LongType()),
    StructField("schema_id", StringType()),
]
_ENVELOPE: Final = StructType(
    [
        StructField("before", StringType()),
        StructField("after", StringType()),
        StructField("source", StructType(_SOURCE)),
        StructField("op", StringType()),
        StructField(_CORRUPT, StringType()),
    ]
)

_ICEBERG: Final = {
    "write.distribution-mode": "none",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "5",
    "write.metadata.metrics.default": "none",
    **{f"write.metadata.metrics.column.{column}": "full" for column in STATISTICS},
}


@dataclass(frozen=True, slots=True)
class LogPlace:
    """Where the log is.

    Attributes:
        name: of the table, in SQL.
        table_format: ICEBERG or DELTA.
        checkpoint: folder or bucket for the checkpoints of Spark.
        properties: further properties of the table, for when it is created.
    """

    name: str
    table_format: str
    checkpoint: str
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_path(self) -> bool:
        """True if the table is a folder that no catalog knows."""
        return self.name.startswith("delta.`")


def create(spark: SparkSession, place: LogPlace, keep_s: int) -> None:
    """Create the log, if there is no such table.

    Args:
        keep_s: how long former versions can be read, in seconds. Iceberg's versions expire by `upkeep`.

    Raises:
        ConfigError: a table of that name lacks columns of a log.
    """
    columns = ", ".join(f"`{column}` {type_}" for column, type_ in COLUMNS.items())
    properties = dict(_ICEBERG)
    if place.table_format == DELTA:
        kept = f"interval {max(1, keep_s // 3600)} hours"
        properties = {
            "delta.logRetentionDuration": kept,
            "delta.deletedFileRetentionDuration": kept,
            "delta.dataSkippingStatsColumns": ",".join(STATISTICS),
        }
    if not place.is_path:
        spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {place.name.rpartition('.')[0]}")
    spark.sql(
        f"CREATE TABLE IF NOT EXISTS {place.name} ({columns}) USING {place.table_format} PARTITIONED BY (day) "
        f"TBLPROPERTIES ({assigned({**properties, **place.properties})})"
    )
    lacks = COLUMNS.keys() - set(spark.table(place.name).columns)
    if lacks == {ADDED}:
        spark.sql(f"ALTER TABLE {place.name} ADD COLUMNS ({ADDED} {COLUMNS[ADDED]})")
    elif lacks:
        raise ConfigError(
            f"The log {place.name} lacks the columns {', '.join(sorted(lacks))}: an earlier version of cdcd made it.",
            hint="Give the mirror another log (target.log_table). It begins at the first records that the topics have. "
            "Drop the former log when nobody reads it.",
        )


def use_own_folder(spark: SparkSession, place: LogPlace) -> None:
    """Let the data files that this process appends to a log in Iceberg lie in a folder of their own.

    Iceberg names a file of a streaming query by the query, the batch, and Spark's number of the task
    (SparkWrite.java, `StreamingWriterFactory`). After a kill, the next process repeats the last batch, and often with
    the same numbers of tasks. In the same folder, it would overwrite files that the table has, and a kill in the middle
    would leave them torn.
    """
    if place.table_format != ICEBERG:
        return
    had = properties(spark, place.name).get(_DATA_PATH) or f"{location(spark, place.name)}/data"
    folder = f"{_RUN.sub('', had.rstrip('/'))}/run-{uuid4().hex}"
    set_properties(spark, place.name, {_DATA_PATH: folder})


def rows(records: DataFrame, ids: dict[str, str], own: dict[str, str]) -> DataFrame:
    """Rows of the log, one for each record.

    Args:
        records: of Spark's Kafka source, with headers.
        ids: Kafka's id of each topic.
        own: the kind of all records of a topic that is not a table's: `schema`, `checkpoint` or `message`.
    """
    envelope = sf.from_json(
        told(),
        _ENVELOPE,
        {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT},
    )
    kind = _by_topic(own)
    parsed = records.select(
        "*",
        sf.when(once() & _has_value() & kind.isNull(), envelope).alias("e"),
        kind.alias("own"),
    )
    marked = parsed.withColumn("reason", _reason()).withColumn("kind", _kind())
    kept = sf.col("kind").isin("change", "truncate")
    return marked.select(
        "topic",
        sf.col("partition").alias("part"),
        sf.col("offset").alias("off"),
        _by_topic(ids).alias("topic_id"),
        sf.col("timestamp").alias("ts"),
        sf.when(kept, sf.concat_ws(".", "e.source.schema", "e.source.table")).alias("tbl"),
        sf.col("e.source.schema_id").alias("schema_id"),
        sf.col("e.source.commit_lsn").alias("lsn"),
        sf.col("e.source.event_serial_no").alias("ord"),
        sf.col("e.op").alias("op"),
        "key",
        sf.when(kept, sf.col("e.before")).alias("before"),
        sf.when(kept, sf.col("e.after")).alias("after"),
        header(HEADER_UNCHANGED).alias("unchanged"),
        key_text(header_bytes(HEADER_OLD_KEY)).alias("oldkey"),
        key_text(header_bytes(HEADER_NEW_KEY)).alias("newkey"),
        header(HEADER_UNWRITABLE).alias("unwritable"),
        "kind",
        "reason",
        # Spark renders the numbers and escapes of a nested object again, so `before` and `after` are not the bytes.
        "value",
        # Both are the time of the batch, which is the same when Spark repeats the batch.
        sf.current_timestamp().alias("appended"),
        sf.current_date().alias("day"),
        header(HEADER_CHANGE).alias(ADDED),
    )


def _by_topic(values: dict[str, str]) -> Column:
    """The value of the record's topic; NULL if `values` lacks the topic."""
    found = sf.lit(None).cast("string")
    if not values:
        return found
    pairs = [sf.lit(each) for pair in sorted(values.items()) for each in pair]
    return sf.try_element_at(sf.create_map(*pairs), sf.col("topic"))


def _has_value() -> Column:
    """Whether a record is more than a tombstone: it has a value, or tells of a change without one."""
    return sf.col("value").isNotNull() | header(HEADER_CHANGE).isNotNull()


def _is_table() -> Column:
    return sf.col("own").isNull() & _has_value() & header(HEADER_WATERMARK).isNull()


def _reason() -> Column:
    """Why a record of a table's topic is no change; NULL if it is one."""
    op, has_header = sf.col("e.op"), header(HEADER_CHANGE).isNotNull()
    is_corrupt = sf.col(f"e.{_CORRUPT}").isNotNull() | sf.col("e").isNull()
    cases = {
        "its value is not JSON but a registry's format (it begins with a zero byte, or with 3)": (
            sf.expr("substring(value, 1, 1) IN (X'00', X'03')") & ~has_header
        ),
        f"its header {HEADER_CHANGE} is not that of a change": has_header & is_corrupt,
        "its JSON is not that of a change": is_corrupt,
        "its op is no change of a row": op.isNull() | ~op.isin(*WITH_ROW, "d", "t"),
        "it has no source.commit_lsn": sf.col("e.source.commit_lsn").isNull(),
        "it has no value": op.isin(*WITH_ROW) & sf.col("value").isNull(),
        "it has no row in after": op.isin(*WITH_ROW) & sf.col("e.after").isNull() & ~has_header,
    }
    reason = sf.lit(None).cast("string")
    for words, failed in reversed(cases.items()):
        reason = sf.when(failed, sf.lit(words)).otherwise(reason)
    return sf.when(_is_table(), reason)


def _kind() -> Column:
    return (
        sf.when(sf.col("own").isNotNull(), sf.col("own"))
        .when(header(HEADER_WATERMARK).isNotNull(), "heartbeat")
        .when(~_has_value(), "tombstone")
        .when(sf.col("reason").isNotNull(), "unreadable")
        .when(sf.col("e.op") == "t", "truncate")
        .otherwise("change")
    )
