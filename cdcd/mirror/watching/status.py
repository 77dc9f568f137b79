"""What a mirror's tables say of it, read from the lakehouse alone: no mirror has to run, and no Kafka has to answer.

Each table names its form, its position and its files in its metadata. The mirror's own tables add what is stopped, what
is in quarantine, and the last common LSN. Rows are read of own tables only.
"""

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from cdcd.core.errors import ConfigError, PositionError
from cdcd.core.protocol.lsn import Lsn
from cdcd.mirror.platform.kafka_admin import Admin
from cdcd.mirror.platform.offsets import batch_ends, last_batch
from cdcd.mirror.stream.settings import MirrorSettings
from cdcd.mirror.targets.pinned import CONTROL
from cdcd.mirror.targets.quarantine import QUARANTINE
from cdcd.mirror.targets.target import Inspected, Kind, Target
from cdcd.mirror.watching.progress import first_lines
from cdcd.mirror.watching.stops import Stop, read_stops
from cdcd.telemetry.mirror_status import (
    MirrorStatus,
    Point,
    Stopped,
    TableStatus,
    TargetStatus,
    Unreadable,
)

_HINT: Final = (
    "Let the user of this program read the table's files. Then check that other programs can read the table."
)


@dataclass(slots=True)
class Findings:
    """What was read, before it is put together.

    Attributes:
        inspected: the tables of the place that are of this program, whatever pipeline's.
        quarantined: by topic and table, the number of records by reason.
        without: the tables that are not as of `point`.
        topics: topics that the mirror has read, also those whose names do not begin with the pipeline's prefix.
    """

    inspected: list[Inspected] = field(default_factory=list)
    unreadable: list[Unreadable] = field(default_factory=list)
    stops: Mapping[str, Stop] = field(default_factory=dict)
    quarantined: Mapping[tuple[str, str], Mapping[str, int]] = field(default_factory=dict)
    point: Point | None = None
    without: frozenset[str] = frozenset()
    topics: frozenset[str] = frozenset()


def look(
    spark: SparkSession, target: Target, settings: MirrorSettings, place: str, *, kafka: bool = False
) -> MirrorStatus:
    """Read the status of a mirror.

    Args:
        place: where the tables are, for people.
        kafka: also ask how far the tables are behind their topics.

    Raises:
        ConfigError: the place of the tables cannot be read.
        SinkError, SinkUnavailableError: Kafka refuses, or does not answer.
    """
    try:
        found = _find(spark, target, settings.threads)
        found.topics = stream_topics(spark, settings)
    except (PySparkException, Py4JError) as error:
        raise ConfigError(
            f"The tables in {place} cannot be read: {_short(error)}",
            hint="Check that the catalog and the storage answer, and target.* and spark.* in the configuration.",
        ) from error
    status = assemble(found, settings, target.format, place, datetime.now(UTC))
    return _with_behind(spark, status, found, settings) if kafka else status


def stream_topics(spark: SparkSession, settings: MirrorSettings) -> frozenset[str]:
    """Return the topics that the mirror's stream has read; none before its first batch."""
    location = settings.checkpoint_location
    last = last_batch(spark, location) if location else None
    return frozenset() if last is None else frozenset(batch_ends(spark, location, last))


def _find(spark: SparkSession, target: Target, threads: int) -> Findings:
    found = Findings()
    with ThreadPoolExecutor(threads, thread_name_prefix="status") as pool:
        looks = [pool.submit(_inspect, spark, target, name) for name in target.list_tables(spark)]
        for each in looks:
            match each.result():
                case Inspected() as inspected:
                    found.inspected.append(inspected)
                case Unreadable() as unreadable:
                    found.unreadable.append(unreadable)
    found.stops = read_stops(spark, target)
    found.quarantined = _quarantined(spark, target)
    found.point, found.without = _point(spark, target)
    return found


def assemble(
    found: Findings, settings: MirrorSettings, table_format: str, place: str, now: datetime
) -> MirrorStatus:
    """Put together what belongs to this mirror: its pipeline's topics, and the tables that its configuration names."""
    tables: dict[str, TableStatus] = {}

    def is_ours(topic: str, table: str) -> bool:
        return (topic in found.topics or topic.startswith(f"{settings.prefix}.")) and settings.wants(table)

    def of(topic: str, table: str) -> TableStatus:
        return tables.setdefault(topic, TableStatus(table, topic, left_out=table in found.without))

    for each in sorted(found.inspected, key=lambda each: (each.schema.table, each.kind != "mirror")):
        topic = each.schema.topic
        if is_ours(topic, each.schema.table):
            had = of(topic, each.schema.table)
            tables[topic] = replace(had, targets=(*had.targets, _target(each, settings)))
    for topic, stop in found.stops.items():
        if is_ours(topic, stop.table):
            stopped = Stopped(stop.since, stop.waits, stop.message, stop.hint)
            tables[topic] = replace(of(topic, stop.table), stopped=stopped)
    for (topic, table), reasons in found.quarantined.items():
        if is_ours(topic, table):
            tables[topic] = replace(of(topic, table), quarantined=reasons)
    return MirrorStatus(
        settings.name, table_format, place, now, tuple(tables.values()), tuple(found.unreadable), found.point
    )


def _inspect(spark: SparkSession, target: Target, name: str) -> Inspected | Unreadable | None:
    try:
        return target.inspect(spark, name)
    except PositionError as error:
        return Unreadable(name, error.message, error.hint)
    except (PySparkException, Py4JError) as error:
        return Unreadable(name, _short(error), _HINT)


def _short(error: Exception) -> str:
    """What Spark or Java says, without the trace."""
    return first_lines(error.java_exception.toString() if isinstance(error, Py4JJavaError) else error)


def _target(inspected: Inspected, settings: MirrorSettings) -> TargetStatus:
    state, files, metadata = inspected.state, inspected.files, inspected.metadata
    consistent = None if state is None else state.consistent_lsn
    return TargetStatus(
        inspected.kind.value,
        inspected.name,
        None if state is None else str(Lsn(state.commit_lsn)),
        None if consistent is None else str(Lsn(consistent)),
        None if state is None else state.commit_time,
        inspected.written_at,
        0 if state is None else state.held,
        None,
        inspected.schema.schema_id,
        len(inspected.schema.columns),
        files.data,
        files.deletes,
        files.size,
        inspected.layout.buckets,
        settings.buckets_of(inspected.schema.table, files.size) if inspected.kind is Kind.MIRROR else 1,
        None if metadata is None else metadata.versions,
        None if metadata is None else metadata.size,
    )


def _quarantined(spark: SparkSession, target: Target) -> dict[tuple[str, str], dict[str, int]]:
    name = target.own_name(QUARANTINE)
    if not target.has(spark, name):
        return {}
    found: dict[tuple[str, str], dict[str, int]] = {}
    for row in spark.table(name).groupBy("topic", "table", "reason").count().collect():
        found.setdefault((row["topic"], row["table"]), {})[row["reason"] or ""] = row["count"]
    return found


def _point(spark: SparkSession, target: Target) -> tuple[Point | None, frozenset[str]]:
    """The last common LSN, and the tables that are not as of it."""
    name = target.own_name(CONTROL)
    if not target.has(spark, name):
        return None, frozenset()
    points = spark.table(name)
    # Rows of former versions have no `without`.
    without = sf.col("without") if "without" in points.columns else sf.lit(None).alias("without")
    newest = points.orderBy(sf.desc("commit_lsn")).select("lsn", "at", without).head()
    if newest is None:
        return None, frozenset()
    return Point(newest["lsn"], newest["at"].astimezone(UTC)), frozenset(newest["without"] or ())


def _with_behind(
    spark: SparkSession, status: MirrorStatus, found: Findings, settings: MirrorSettings
) -> MirrorStatus:
    """With the number of records that each table lacks."""
    with Admin(spark, settings.kafka) as admin:
        ends = admin.ends([table.topic for table in status.tables])
    lacks = {each.name: behind(each, ends.get(each.schema.topic, {})) for each in found.inspected}
    tables = [
        replace(table, targets=tuple([replace(one, behind=lacks[one.name]) for one in table.targets]))
        for table in status.tables
    ]
    return replace(status, tables=tuple(tables))


def behind(inspected: Inspected, ends: Mapping[int, int]) -> int:
    """Number of offsets in a topic, which ends at `ends`, that come after what its table has."""
    return sum(_offsets(inspected, ends))


def _offsets(inspected: Inspected, ends: Mapping[int, int]) -> Iterable[int]:
    state = inspected.state
    for partition, end in ends.items():
        place = None if state is None else state.partitions.get(partition)
        first = 0 if state is None else state.origin.first.get(partition, 0)
        yield max(0, end - (first if place is None else place.offset + 1))
