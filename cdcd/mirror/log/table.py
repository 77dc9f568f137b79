"""The log: one append-only table with a row for each record of a pipeline's topics.

The rule: nothing that a record holds can fail the query that appends it. Each expression of `rows` gives NULL for a
value that it cannot read, and a record that is no change is a row with its bytes and the reason.
"""

from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import LongType, StringType, StructField, StructType

from cdcd.core.records.encoder import (
    HEADER_NEW_KEY,
    HEADER_OLD_KEY,
    HEADER_UNCHANGED,
    HEADER_UNWRITABLE,
    HEADER_WATERMARK,
)
from cdcd.mirror.jars import DELTA
from cdcd.mirror.records.changes import WITH_ROW, header, once, payload

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
}
"""Columns of the log in their order, with their types in SQL. docs/mirror-log.md says what each one holds."""

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

_PROPERTIES: Final = {
    "write.distribution-mode": "none",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "5",
}


def create(spark: SparkSession, name: str, table_format: str) -> None:
    """Create the log with the name `name` in SQL, if there is no such table."""
    columns = ", ".join(f"`{column}` {type_}" for column, type_ in COLUMNS.items())
    if table_format == DELTA:
        spark.sql(f"CREATE TABLE IF NOT EXISTS {name} ({columns}) USING delta")
        return
    namespace = name.rpartition(".")[0]
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {namespace}")
    properties = ", ".join(f"'{key}' = '{value}'" for key, value in _PROPERTIES.items())
    spark.sql(f"CREATE TABLE IF NOT EXISTS {name} ({columns}) USING iceberg TBLPROPERTIES ({properties})")


def rows(records: DataFrame, ids: dict[str, str], own: dict[str, str]) -> DataFrame:
    """Rows of the log, one for each record.

    Args:
        records: of Spark's Kafka source, with headers.
        ids: Kafka's id of each topic.
        own: the kind of all records of a topic that is not a table's: `schema`, `checkpoint` or `message`.
    """
    envelope = sf.from_json(
        payload(sf.col("value").cast("string")),
        _ENVELOPE,
        {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT},
    )
    kind = _by_topic(own)
    parsed = records.select(
        "*",
        sf.when(once() & sf.col("value").isNotNull() & kind.isNull(), envelope).alias("e"),
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
        header(HEADER_OLD_KEY).alias("oldkey"),
        header(HEADER_NEW_KEY).alias("newkey"),
        header(HEADER_UNWRITABLE).alias("unwritable"),
        "kind",
        "reason",
        # Spark renders the numbers and escapes of a nested object again, so `before` and `after` are not the bytes.
        "value",
    )


def _by_topic(values: dict[str, str]) -> Column:
    """The value of the record's topic; NULL if `values` lacks the topic."""
    found = sf.lit(None).cast("string")
    if not values:
        return found
    pairs = [sf.lit(each) for pair in sorted(values.items()) for each in pair]
    return sf.try_element_at(sf.create_map(*pairs), sf.col("topic"))


def _is_table() -> Column:
    return sf.col("own").isNull() & sf.col("value").isNotNull() & header(HEADER_WATERMARK).isNull()


def _reason() -> Column:
    """Why a record of a table's topic is no change; NULL if it is one."""
    op = sf.col("e.op")
    cases = {
        "its value is not JSON but a registry's format (it begins with a zero byte)": (
            sf.expr("substring(value, 1, 1) = X'00'")
        ),
        "its JSON is not that of a change": sf.col(f"e.{_CORRUPT}").isNotNull() | sf.col("e").isNull(),
        "its op is no change of a row": op.isNull() | ~op.isin(*WITH_ROW, "d", "t"),
        "it has no source.commit_lsn": sf.col("e.source.commit_lsn").isNull(),
        "it has no row in after": op.isin(*WITH_ROW) & sf.col("e.after").isNull(),
    }
    reason = sf.lit(None).cast("string")
    for words, failed in reversed(cases.items()):
        reason = sf.when(failed, sf.lit(words)).otherwise(reason)
    return sf.when(_is_table(), reason)


def _kind() -> Column:
    return (
        sf.when(sf.col("own").isNotNull(), sf.col("own"))
        .when(header(HEADER_WATERMARK).isNotNull(), "heartbeat")
        .when(sf.col("value").isNull(), "tombstone")
        .when(sf.col("reason").isNotNull(), "unreadable")
        .when(sf.col("e.op") == "t", "truncate")
        .otherwise("change")
    )
