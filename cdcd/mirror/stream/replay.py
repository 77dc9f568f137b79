"""Records in quarantine that are understood by now, back into their tables.

A newer version of the mirror may have a rule that an older one lacked, and a description may have come late. The rule:
a record comes back in its place among the changes. So all that the topic has of the same keys from there on is read
too, and merged as one batch would have been: what was deleted or changed since stays so. What lies before the table's
last truncate or snapshot does not come back, and may be of any form. What is still no change, or is gone from the
topic, stays in quarantine; the way to have such rows is to read the table again.

A table whose records cannot be brought to its form is reported, and the others go on.
"""

from collections.abc import Iterator, Mapping
from functools import reduce
from typing import Final
from uuid import uuid4

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from cdcd.core.errors import FatalError, FencedError
from cdcd.mirror.kafka import KafkaSource
from cdcd.mirror.platform.kafka_admin import Admin
from cdcd.mirror.records.changes import PROBLEM, parse
from cdcd.mirror.records.descriptions import Descriptions
from cdcd.mirror.stream.settings import MirrorSettings
from cdcd.mirror.targets.quarantine import PLACE, QUARANTINE
from cdcd.mirror.targets.reduction import is_after
from cdcd.mirror.targets.state import State
from cdcd.mirror.targets.target import Kind, Target, kind_of
from cdcd.mirror.targets.upgrading import upgrade
from cdcd.mirror.watching.progress import Replayed, TableFailed

_RAW: Final = ("key_bytes", "value_bytes", "timestamp")


def replay_quarantine(
    spark: SparkSession,
    source: KafkaSource,
    admin: Admin,
    descriptions: Descriptions,
    target: Target,
    settings: MirrorSettings,
) -> Iterator[Replayed | TableFailed]:
    """Replay what is in quarantine, table by table. Nobody else may write to the tables meanwhile.

    Safe to be killed anywhere and called again.

    Returns:
        What was done for each table, or why nothing was: a record is of a form that its target cannot have any more.

    Raises:
        SinkError, SinkUnavailableError: Kafka refuses, or does not answer.
        FencedError: another process writes to a table.
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
        table = descriptions.table(topic)
        if table is None:
            continue
        try:
            yield _replay(spark, source, admin, descriptions, target, settings, topic, waiting[topic])
        except FencedError:
            raise
        except FatalError as error:
            yield TableFailed(table, f"quarantine is not replayed: {error.message}", error.hint)


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
    names = {target.name_of(newest.schema, each): each for each in kinds}
    there_are = [(name, has) for name in names if (has := target.schema(spark, name)) is not None]
    for name, has in there_are:
        state = target.reached(spark, name)
        # What lies after that the stream brings.
        ends = {
            partition: 1
            + max([*offsets, state.partitions[partition].offset if partition in state.partitions else 0])
            for partition, offsets in there.items()
        }
        starts = {partition: min(offsets) for partition, offsets in there.items()}
        records = source.read(spark, topic, starts, ends)
        raw = parse(records, newest.schema, newest.rules).filter(sf.col("schema_id").isNotNull())
        needed = {row[0]: row[1] for row in raw.groupBy("schema_id").agg(sf.max(_counts(state))).collect()}
        parts: list[DataFrame] = []
        back: list[DataFrame] = []
        for schema_id, form in descriptions.known(topic, needed).items():
            mine = parse(records, form.schema, form.rules, keep=True).filter(sf.col("schema_id") == schema_id)
            sound = mine.filter(sf.col(PROBLEM).isNull()).drop(PROBLEM, *_RAW)
            back.append(sound.select("partition", "offset"))
            if needed[schema_id]:
                parts.append(upgrade(sound.filter(_counts(state)), form.schema, has))
        if not back:
            continue
        if parts:
            _merge(target, name, names[name], reduce(DataFrame.unionByName, parts), places)
        if name == there_are[-1][0]:
            found = reduce(DataFrame.unionByName, back).join(
                sf.broadcast(places), ["partition", "offset"], "left_semi"
            )
            understood = found.distinct().persist()
            replayed = understood.count()
            if replayed:
                _let_go(spark, target.own_name(QUARANTINE), topic, understood)
            understood.unpersist()
    return Replayed(newest.schema.table, replayed, total - gone - replayed, gone)


def _counts(state: State) -> Column:
    """The change lies after the last truncate or snapshot of the target."""
    if state.truncated is None:
        return sf.lit(True)
    return is_after(sf.col("commit_lsn"), sf.coalesce("event_no", sf.lit(0)), state.truncated)


def _merge(target: Target, name: str, kind: Kind, changes: DataFrame, places: DataFrame) -> None:
    """Bring the changes at `places` into a target; into a mirror with all later ones of the same keys."""
    changes = changes.persist()
    try:
        now = changes.join(sf.broadcast(places), ["partition", "offset"], "left_semi")
        if kind is Kind.MIRROR:
            keys = now.select(sf.col("key").alias("of")).distinct()
            now = changes.join(keys, sf.col("key") == sf.col("of"), "left_semi")
        target.replay(name, now)
    finally:
        changes.unpersist()


def _let_go(spark: SparkSession, name: str, topic: str, places: DataFrame) -> None:
    view = f"cdcd_replayed_{uuid4().hex}"
    places.withColumn("topic", sf.lit(topic)).createOrReplaceTempView(view)
    same = " AND ".join(f"q.{column} = s.{column}" for column in PLACE)
    try:
        spark.sql(f"MERGE INTO {name} q USING {view} s ON {same} WHEN MATCHED THEN DELETE")
    finally:
        spark.catalog.dropTempView(view)
