"""Records in quarantine that are understood by now, back into their tables.

A newer version of the mirror may have a rule that an older one lacked, and a description may have come late. The rule:
a record comes back in its place among the changes. So all that the topic has of the same keys from there on is read
too, and merged as one batch would have been: what was deleted or changed since stays so. What is still no change, or is
gone from the topic, stays in quarantine; the way to have such rows is to read the table again.
"""

from collections.abc import Iterator, Mapping
from functools import reduce
from typing import Final
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from cdcd.spark.kafka import KafkaSource
from cdcd.spark.platform.kafka_admin import Admin
from cdcd.spark.records.changes import PROBLEM, parse
from cdcd.spark.records.descriptions import Descriptions
from cdcd.spark.stream.settings import MirrorSettings
from cdcd.spark.targets.quarantine import PLACE, QUARANTINE
from cdcd.spark.targets.target import Kind, Target, kind_of
from cdcd.spark.targets.upgrading import upgrade
from cdcd.spark.watching.progress import Replayed

_RAW: Final = ("key_bytes", "value_bytes", "timestamp")


def replay_quarantine(  # noqa: PLR0917
    spark: SparkSession,
    source: KafkaSource,
    admin: Admin,
    descriptions: Descriptions,
    target: Target,
    settings: MirrorSettings,
) -> Iterator[Replayed]:
    """Replay what is in quarantine, table by table. Nobody else may write to the tables meanwhile.

    Safe to be killed anywhere and called again.

    Raises:
        SinkError, SinkUnavailableError: Kafka refuses, or does not answer.
        IncompatibleSchemaError: a record is of a form that its target cannot have any more.
    """
    name = target.own_name(QUARANTINE)
    if not target.has(spark, name):
        return
    descriptions.refresh()
    waiting: dict[str, dict[int, list[int]]] = {}
    # Rows of snapshots are in no partition.
    for row in spark.table(name).filter("partition >= 0").select(*PLACE).distinct().collect():
        waiting.setdefault(row["topic"], {}).setdefault(row["partition"], []).append(row["offset"])
    for topic in sorted(waiting):
        if descriptions.table(topic) is not None:
            yield _replay(spark, source, admin, descriptions, target, settings, topic, waiting[topic])


def _replay(  # noqa: PLR0917
    spark: SparkSession,
    source: KafkaSource,
    admin: Admin,
    descriptions: Descriptions,
    target: Target,
    settings: MirrorSettings,
    topic: str,
    waiting: Mapping[int, list[int]],
) -> Replayed:
    newest = descriptions.newest(topic)
    first = admin.beginnings([topic]).get(topic, {})
    there = {
        partition: [offset for offset in offsets if offset >= first.get(partition, 0)]
        for partition, offsets in waiting.items()
        if partition in first
    }
    there = {partition: offsets for partition, offsets in there.items() if offsets}
    total = sum(len(offsets) for offsets in waiting.values())
    gone = total - sum(len(offsets) for offsets in there.values())
    if not there:
        return Replayed(newest.schema.table, 0, 0, gone)
    kind = kind_of(newest.schema)
    kinds = (
        [kind] if kind is Kind.CHANGELOG or not settings.keeps_history(newest.schema.table) else list(Kind)
    )
    places = spark.createDataFrame(
        [(partition, offset) for partition, offsets in there.items() for offset in offsets],
        "partition int, offset bigint",
    )
    replayed = 0
    for each in kinds:
        name = target.name_of(newest.schema, each)
        has = target.schema(spark, name)
        if has is None:
            continue
        state = target.reached(spark, name)
        # What lies after that the stream brings.
        ends = {
            partition: 1
            + max([*offsets, state.partitions[partition].offset if partition in state.partitions else 0])
            for partition, offsets in there.items()
        }
        starts = {partition: min(offsets) for partition, offsets in there.items()}
        records = source.read(spark, topic, starts, ends)
        raw = parse(records, newest.schema, newest.rules)
        ids = [row[0] for row in raw.select("schema_id").distinct().collect() if row[0] is not None]
        parts: list[DataFrame] = []
        for schema_id, form in descriptions.known(topic, ids).items():
            mine = parse(records, form.schema, form.rules, keep=True).filter(sf.col("schema_id") == schema_id)
            sound = mine.filter(sf.col(PROBLEM).isNull()).drop(PROBLEM, *_RAW)
            parts.append(upgrade(sound, form.schema, has))
        if not parts:
            continue
        changes = reduce(DataFrame.unionByName, parts).persist()
        try:
            now = changes.join(sf.broadcast(places), ["partition", "offset"], "left_semi")
            if each is Kind.MIRROR:
                keys = now.select(sf.col("key").alias("of")).distinct()
                now_and_later = changes.join(keys, sf.col("key") == sf.col("of"), "left_semi")
                target.replay(name, now_and_later)
            else:
                target.replay(name, now)
            back = now.select("partition", "offset").distinct().persist()
            replayed = back.count()
            if each is kinds[-1] and replayed:
                _let_go(spark, target.own_name(QUARANTINE), topic, back)
            back.unpersist()
        finally:
            changes.unpersist()
    return Replayed(newest.schema.table, replayed, total - gone - replayed, gone)


def _let_go(spark: SparkSession, name: str, topic: str, places: DataFrame) -> None:
    view = f"cdcd_replayed_{uuid4().hex}"
    places.withColumn("topic", sf.lit(topic)).createOrReplaceTempView(view)
    same = " AND ".join(f"q.{column} = s.{column}" for column in PLACE)
    try:
        spark.sql(f"MERGE INTO {name} q USING {view} s ON {same} WHEN MATCHED THEN DELETE")
    finally:
        spark.catalog.dropTempView(view)
