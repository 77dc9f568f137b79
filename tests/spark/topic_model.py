"""A topic in memory, of a table that had several forms: what the daemon would have written, and what is no change."""

import json
from collections.abc import Collection, Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from cdcd.core.catalog.relations import ColumnForm
from cdcd.core.records.schemas import TableForm
from cdcd.mirror.kafka import KafkaSource, Offsets
from cdcd.mirror.records.descriptions import Form
from cdcd.mirror.records.schema import TableSchema
from cdcd.mirror.records.types import rules, table_schema

TOPIC = "shop.public.item"
TABLE = "public.item"


def form(name: str, *columns: ColumnForm) -> Form:
    described = TableForm(topic=TOPIC, schema="public", table="item", key=("id",), columns=columns)
    return Form(table_schema(name, described), rules(described))


ID = ColumnForm("id", 1, "bigint", 20, -1, "int64")
NOTE = ColumnForm("note", 2, "text", 25, -1, "text")
OLD, NEW = form("old", ID), form("new", ID, NOTE)
OTHER = form("other", ID, ColumnForm("note", 2, "bigint", 20, -1, "int64"))
"""A form that cannot be brought to `NEW`."""
_FORMS = {"old": OLD, "new": NEW, "other": OTHER}


def record(schema_id: str, lsn: int, after: Mapping[str, Any]) -> str:
    """An insert."""
    source = {"commit_lsn": lsn, "event_serial_no": 1, "ts_us": lsn * 1_000_000, "schema_id": schema_id}
    return json.dumps({"op": "c", "before": None, "after": after, "source": source})


class Described:
    """All forms; the newest is `NEW`."""

    def former_name(self, _schema: TableSchema) -> None:
        """No table had another name before."""

    def newest(self, _: str) -> Form:
        return NEW

    def table(self, _: str) -> str:
        return TABLE

    def find(self, _: str, ids: Collection[str]) -> dict[str, Form]:
        return {name: _FORMS[name] for name in ids if name in _FORMS}


class Topic(KafkaSource):
    """One partition with these records."""

    def __init__(self, *values: str) -> None:
        super().__init__("nobody:1")
        object.__setattr__(self, "values", values)

    def read(self, spark: SparkSession, topic: str, start: Offsets, end: Offsets) -> DataFrame:
        values: tuple[str, ...] = object.__getattribute__(self, "values")
        numbered = list(enumerate(values))[max(0, start.get(0, 0)) : end[0]]
        rows = spark.createDataFrame(numbered, "offset bigint, text string")
        return rows.select(
            sf.lit(None).cast("binary").alias("key"),
            sf.encode("text", "UTF-8").alias("value"),
            sf.lit(topic).alias("topic"),
            sf.lit(0).alias("partition"),
            "offset",
            sf.current_timestamp().alias("timestamp"),
            sf.lit(None).cast("array<struct<key:string,value:binary>>").alias("headers"),
        )
