"""Records in quarantine come back: `cdcd mirror --replay-quarantine` with `change_log: fold`.

The quarantine is the unreadable records of the log. A later version of cdcd may read one of them, or its description
may have come late. The rule: such a record comes back in its place among the changes. So the log is folded again from
before the first of these records on, as after a rollback, and what was deleted or changed since stays so. A record that
moves a row to another key stays in quarantine if it lacks values that did not change: the row with the former key,
which had these values, was removed by a fold without the record. The table must be read again. The log says
that the records are changes only when all tables have them. So a process that is killed before leaves them in
quarantine, and the next replay does the same again.
"""

from dataclasses import dataclass
from functools import reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from cdcd.mirror.base.commit import IN_MERGES
from cdcd.mirror.base.formats import READS_TWICE
from cdcd.mirror.base.part import Forms, FromQuarantine, Place, records_of
from cdcd.mirror.log.positions import at_version
from cdcd.mirror.log.table import rows
from cdcd.mirror.platform.tables import as_view, having
from cdcd.mirror.records.changes import PROBLEM, parse
from cdcd.mirror.records.descriptions import Form
from cdcd.mirror.records.values import as_json

_PLACE = ("part", "off")
_READ = ("kind", "tbl", "schema_id", "lsn", "ord", "op", "before", "after", "reason")
"""Columns of the log that say how a record was read."""


@dataclass(frozen=True, slots=True)
class InQuarantine:
    """The records of a topic that are in quarantine.

    Attributes:
        replay: the records that can be read by now. None: there are none.
        count: their number.
        left: number of records that cannot be read, or that lack values of a row with another key.
        gone: number of records that cannot come back: the log lacks changes after them, or the topic was made again.
    """

    replay: FromQuarantine | None
    count: int
    left: int
    gone: int


def topics_waiting(spark: SparkSession, log: str, version: str) -> dict[str, str]:
    """The topics with records in quarantine, each with Kafka's id of the topic that the log reads now."""
    mine = at_version(spark, log, version).filter("day IS NOT NULL")
    found = mine.groupBy("topic").agg(
        sf.count_if(sf.col("kind") == "unreadable").alias("waiting"),
        sf.max_by("topic_id", "appended").alias("id"),
    )
    return {row["topic"]: row["id"] for row in found.filter("waiting > 0").collect()}


def waiting(spark: SparkSession, place: Place, topic_id: str, forms: Forms) -> InQuarantine:
    """Return what the quarantine has of a table."""
    log = at_version(spark, place.log, place.log_version)
    mine = log.filter((sf.col("topic") == place.topic) & (sf.col("kind") == "unreadable"))
    # A log that was rolled back has some records twice.
    mine = mine.dropDuplicates(["topic_id", *_PLACE])
    here = mine.filter(sf.col("topic_id") == topic_id)
    count = here.count()
    former = mine.count() - count
    read = rows(records_of(here), {place.topic: topic_id}, {})
    read = read.filter(sf.col("kind").isin("change", "truncate") & sf.col("schema_id").isNotNull())
    ids = [row["schema_id"] for row in read.select("schema_id").distinct().collect()]
    sound = [_sound(read, id_, form) for id_, form in forms(ids).items()]
    if not sound:
        return InQuarantine(None, 0, count, former)
    fit = read.join(reduce(DataFrame.unionByName, sound), list(_PLACE), "left_semi")
    fit = fit.filter(sf.col("oldkey").isNull() | sf.col("unchanged").isNull())
    comes = sf.col("lsn") > place.log_begins
    about = fit.agg(
        sf.count("*").alias("fit"),
        sf.count_if(comes).alias("count"),
        sf.min(sf.when(comes, sf.col("lsn"))).alias("first"),
    ).collect()[0]
    # A MERGE that copies files refuses a source that is not deterministic, so the rows are a plan of their own.
    replay = (
        None
        if not about["count"]
        else FromQuarantine(fit.filter(comes).localCheckpoint(), about["first"] - 1)
    )
    left, gone = count - about["fit"], former + about["fit"] - about["count"]
    return InQuarantine(replay, about["count"], left, gone)


def _sound(read: DataFrame, schema_id: str, form: Form) -> DataFrame:
    """The places of the records that are changes of the form."""
    records = as_json(records_of(read.filter(sf.col("schema_id") == schema_id)), form.values)
    parsed = parse(records, form.schema, form.rules).filter(sf.col(PROBLEM).isNull())
    return parsed.select(sf.col("partition").alias("part"), sf.col("offset").alias("off"))


def release(spark: SparkSession, place: Place, replay: FromQuarantine) -> None:
    """Let the log say that the records are changes. All tables have them."""
    with as_view(replay.rows) as view, having(spark, {**IN_MERGES, **READS_TWICE}):
        spark.sql(
            f"MERGE INTO {place.log} t USING {view} s "
            "ON t.topic = s.topic AND t.topic_id = s.topic_id AND t.part = s.part AND t.off = s.off "
            "AND t.kind = 'unreadable' "
            f"WHEN MATCHED THEN UPDATE SET {', '.join(f'{name} = s.{name}' for name in _READ)}"
        )
