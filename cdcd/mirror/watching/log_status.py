"""Status and quarantine of a log and of the tables folded from it, read from the lakehouse by Spark's public API alone.

The log says which topics stopped, which tables stopped, how far each topic is read, and which records are unreadable.
The position of a folded table is in the table's own commits. So this works while the mirror is down.
"""

from collections.abc import Callable, Collection, Container, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import reduce
from typing import Any, Final

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as sf

from cdcd.core.errors import ConfigError
from cdcd.core.protocol.lsn import Lsn
from cdcd.mirror.base.formats import CHANGES, MADE_BY, STATES, BaseFormat, read_form
from cdcd.mirror.base.position import BASE, Position
from cdcd.mirror.jars import DELTA
from cdcd.mirror.log import positions
from cdcd.mirror.log.positions import Ends, Positions
from cdcd.mirror.log.table import LogPlace
from cdcd.mirror.platform.tables import exists, properties
from cdcd.mirror.records.schema import TableSchema
from cdcd.mirror.settings import MirrorSettings
from cdcd.mirror.targets.making import BUCKETS
from cdcd.mirror.targets.pinned import CONTROL
from cdcd.mirror.targets.target import QUARANTINE, Target
from cdcd.mirror.watching.progress import first_lines
from cdcd.telemetry.mirror_status import (
    LogStatus,
    MirrorStatus,
    Point,
    Quarantined,
    Stopped,
    TableStatus,
    TargetStatus,
    Unreadable,
)

_KINDS: Final = {BASE: "mirror", STATES: "scd2", CHANGES: "changelog"}
"""The kind of a folded table by the value of its property `MADE_BY`."""

_HINT: Final = "Check that the catalog and the storage answer, and target.* and spark.* in the configuration."


@dataclass(frozen=True, slots=True)
class Base:
    """A folded table.

    Attributes:
        position: None: no commit that is left names it.
        kind: a value of `_KINDS`.
        buckets, buckets_apt: as in `TargetStatus`.
    """

    name: str
    schema: TableSchema
    position: Position | None
    figures: "Figures"
    kind: str = "mirror"
    buckets: int = 1
    buckets_apt: int = 1


@dataclass(frozen=True, slots=True)
class Figures:
    """Size of a table.

    Attributes:
        deletes: number of files with deleted rows; None: the format has no such files.
        size: bytes of all files.
        versions, metadata: number of versions, and bytes of the metadata that names them; None: unknown.
        written_at: time of the newest commit; None: there is none.
    """

    files: int = 0
    deletes: int | None = None
    size: int = 0
    versions: int | None = None
    metadata: int | None = None
    written_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Waiting:
    """Changes of a topic in the log that its table does not have. `since`: Kafka's time of the oldest one."""

    changes: int
    since: datetime


@dataclass(frozen=True, slots=True)
class Common:
    """The newest common point of a consistent mirror.

    Attributes:
        without: tables of the source that are not as of the point.
        names: names of the tables that are as of the point, without their catalog.
    """

    point: Point
    without: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()


def look_at_log(
    spark: SparkSession,
    target: Target,
    place: LogPlace,
    settings: MirrorSettings,
    base: BaseFormat | None,
    ask_ends: Callable[[Collection[str]], Ends] | None = None,
) -> MirrorStatus:
    """Read the status of a log, and of the tables folded from it.

    Args:
        base: format of the folded tables. None: there are none (`change_log: only`).
        ask_ends: asks Kafka for the ends of topics. None: do not ask Kafka how far the log is behind.

    Raises:
        ConfigError: the log cannot be read.
        Errors of `ask_ends`.
    """
    try:
        if not exists(spark, place.name):
            raise ConfigError(
                f"There is no log {place.name} yet.", hint="Start the mirror: cdcd mirror --config FILE."
            )
        has = positions.read(spark, place.name)
        newest = _newest(spark, place.name)
        unreadable_rows = _unreadable(spark, place.name).groupBy("topic", "reason").count().collect()
        own = figures(spark, place.name, place.table_format)
        bases, unreadable = [], []
        for name in () if base is None else target.list_tables(spark):
            try:
                found = _base(spark, name, base, place.table_format, settings)
            except PySparkException as error:
                unreadable.append(Unreadable(name, first_lines(error), _HINT))
                continue
            if found is not None and _is_ours(found.schema, settings, has.topics):
                bases.append(found)
        waiting = _waiting(spark, place.name, bases)
        common = None if base is None else _common(spark, target.own_name(CONTROL))
    except PySparkException as error:
        raise ConfigError(f"The log {place.name} cannot be read: {first_lines(error)}", hint=_HINT) from error
    log = LogStatus(
        name=place.name,
        topics=len(has.topics),
        lsn=None if newest["lsn"] is None else str(Lsn(newest["lsn"])),
        newest_at=_utc(newest["ts"]),
        appended_at=_utc(newest["appended"]),
        first_day=newest["day"],
        maintained_at=has.saved_at,
        offsets={topic: dict(parts) for topic, parts in has.ends.items()},
        behind=None if ask_ends is None else behind(has, ask_ends(has.topics)),
        stopped={
            topic: (reason, f"Run in Spark: {positions.let_go_on(place.name, topic)}")
            for topic, reason in has.stopped.items()
        },
        files=own.files,
        size=own.size,
        versions=own.versions,
        metadata_bytes=own.metadata,
    )
    quarantined: dict[str, dict[str, int]] = {}
    for row in unreadable_rows:
        quarantined.setdefault(row["topic"], {})[row["reason"] or ""] = row["count"]
    tables = assemble(settings.prefix, bases, has, waiting, quarantined)
    if common is not None:
        tables = [at_point(table, common, target) for table in tables]
    location = place.name.rpartition(".")[0]
    return MirrorStatus(
        settings.name,
        place.table_format,
        location,
        datetime.now(UTC),
        tables,
        unreadable,
        None if common is None else common.point,
        log,
    )


def assemble(
    prefix: str,
    bases: Collection[Base],
    has: Positions,
    waiting: Mapping[str, Waiting],
    quarantined: Mapping[str, Mapping[str, int]],
) -> list[TableStatus]:
    """Put together what belongs to each table, by its topic.

    A topic with unreadable records and without a table is named like a table, after its part behind the prefix.
    """
    tables: dict[str, TableStatus] = {}
    for each in sorted(bases, key=lambda one: (one.schema.table, one.kind)):
        topic = each.schema.topic
        status = tables.get(topic) or TableStatus(each.schema.table, topic)
        target = _target(each, has.summary.deleted.get(topic, 0), waiting.get(topic))
        tables[topic] = replace(status, targets=(*status.targets, target))
    for topic, stop in has.tables.items():
        had = tables.get(topic) or TableStatus(stop.table, topic)
        stopped = Stopped(stop.since, stop.waits, stop.message, stop.hint)
        tables[topic] = replace(had, stopped=stopped)
    for topic, reasons in quarantined.items():
        had = tables.get(topic) or TableStatus(topic.removeprefix(f"{prefix}."), topic)
        tables[topic] = replace(had, quarantined=reasons)
    return list(tables.values())


def at_point(table: TableStatus, common: Common, target: Target) -> TableStatus:
    """Return the status of a table, with what the common point says of it."""
    targets = [
        replace(each, consistent_lsn=common.point.lsn)
        if target.bare_name(each.name) in common.names
        else each
        for each in table.targets
    ]
    return replace(table, targets=tuple(targets), left_out=table.table in common.without)


def behind(has: Positions, ends: Ends) -> int:
    """Number of offsets in Kafka after the log's, including Kafka's own markers, of topics that did not stop."""
    return sum(
        max(0, end - has.ends.get(topic, {}).get(part, 0))
        for topic, parts in ends.items()
        if topic in has.topics and topic not in has.stopped
        for part, end in parts.items()
    )


def read_quarantine(
    spark: SparkSession, target: Target, log: str, settings: MirrorSettings, limit: int
) -> list[Quarantined]:
    """Read the records in quarantine, the newest first, without their keys and values.

    Args:
        log: name of the log in SQL. Its unreadable rows are the quarantine.
        limit: largest number of records.

    Raises:
        ConfigError: a table cannot be read.
    """
    name = log
    try:
        found: list[DataFrame] = []
        topics: list[str] = []
        if exists(spark, log):
            topics += positions.read(spark, log).topics
            found.append(
                _unreadable(spark, log).selectExpr(
                    "topic", "part AS partition", "off AS offset", "ts AS record_time", "reason"
                )
            )
        # Former versions had no log, and kept such records in a table of all pipelines in the place.
        name = target.own_name(QUARANTINE)
        if exists(spark, name):
            ours = sf.startswith("topic", sf.lit(f"{settings.prefix}.")) | sf.col("topic").isin(*topics)
            former = spark.table(name).filter(ours)
            found.append(former.select("topic", "partition", "offset", "record_time", "reason"))
        if not found:
            return []
        rows = (
            reduce(DataFrame.unionByName, found)
            .orderBy(sf.desc("record_time"), "topic", "partition", sf.desc("offset"))
            .limit(limit)
            .collect()
        )
    except PySparkException as error:
        raise ConfigError(f"The table {name} cannot be read: {first_lines(error)}", hint=_HINT) from error
    return [
        Quarantined(
            row["topic"], row["partition"], row["offset"], _utc(row["record_time"]), row["reason"] or ""
        )
        for row in rows
    ]


def figures(spark: SparkSession, name: str, table_format: str) -> Figures:
    """Read the size of a table from its metadata."""
    if table_format == DELTA:
        row = (
            spark.sql(f"DESCRIBE DETAIL {name}")
            .select("numFiles", "sizeInBytes", "lastModified")
            .collect()[0]
        )
        return Figures(row["numFiles"], None, row["sizeInBytes"], written_at=_utc(row["lastModified"]))
    row = (
        spark.table(f"{name}.snapshots")
        .agg(
            sf.count("*").alias("versions"),
            sf.max("committed_at").alias("at"),
            sf.max_by("summary", "committed_at").alias("summary"),
        )
        .collect()[0]
    )
    said = row["summary"] or {}
    data, deletes, size = [
        int(said.get(f"total-{of}") or 0) for of in ("data-files", "delete-files", "files-size")
    ]
    return Figures(data, deletes, size, row["versions"], _metadata(spark, name), _utc(row["at"]))


def _metadata(spark: SparkSession, name: str) -> int | None:
    """Bytes of an Iceberg table's newest metadata file. None: Spark cannot open the file."""
    entries = (
        spark.table(f"{name}.metadata_log_entries").orderBy(sf.desc("timestamp")).select("file").limit(1)
    )
    try:
        files = spark.read.format("binaryFile").load(entries.collect()[0]["file"]).select("length").collect()
    except (PySparkException, IndexError):
        return None
    return None if not files else int(files[0]["length"])


def _newest(spark: SparkSession, name: str) -> Row:
    """Newest record and oldest day of the log. The newest records are those of the last day."""
    log = spark.table(name).filter("day IS NOT NULL")
    first = log.agg(sf.min("day").alias("day"), sf.max("day").alias("last")).collect()[0]
    recent = log if first["last"] is None else log.filter(sf.col("day") == sf.lit(first["last"]))
    found = recent.agg(
        sf.max("lsn").alias("lsn"), sf.max("ts").alias("ts"), sf.max("appended").alias("appended")
    ).collect()[0]
    return Row(day=first["day"], **found.asDict())


def _unreadable(spark: SparkSession, name: str) -> Any:
    return spark.table(name).filter("day IS NOT NULL AND kind = 'unreadable'")


def _common(spark: SparkSession, name: str) -> Common | None:
    """Read the newest common point. None: the mirror has none.

    Args:
        name: of the table with the points, in SQL.
    """
    if not exists(spark, name):
        return None
    newest = spark.table(name).orderBy(sf.desc("commit_lsn")).head()
    if newest is None:
        return None
    point = Point(newest["lsn"], newest["at"].astimezone(UTC))
    return Common(point, frozenset(newest["without"] or ()), frozenset(newest["versions"] or ()))


def _base(
    spark: SparkSession, name: str, base: BaseFormat | None, table_format: str, settings: MirrorSettings
) -> Base | None:
    """Read a folded table. None: a fold did not make the table."""
    assert base is not None, "there are folded tables"
    try:
        found = properties(spark, name)
    except AnalysisException:
        # A view, or a table that was dropped meanwhile.
        return None
    kind = _KINDS.get(found.get(MADE_BY, ""))
    if kind is None:
        return None
    position = base.version(spark, name).position
    text = None if position is None else read_form(spark, name, position.form)
    if text is None:
        forms = [value for key, value in found.items() if key.startswith("cdcd.form.")]
        if not forms:
            return None
        text = forms[-1]
    schema, size = TableSchema.from_json(text), figures(spark, name, table_format)
    buckets = int(found.get(BUCKETS, 1))
    apt = settings.buckets_of(schema.table, size.size) if kind == "mirror" else buckets
    return Base(name, schema, position, size, kind, buckets, apt)


def _is_ours(schema: TableSchema, settings: MirrorSettings, topics: Container[str]) -> bool:
    """Whether the table belongs to this mirror. `topics`: those of the log, also with names without the prefix."""
    is_read = schema.topic in topics or schema.topic.startswith(f"{settings.prefix}.")
    return is_read and settings.wants(schema.table)


def _waiting(spark: SparkSession, name: str, bases: Collection[Base]) -> dict[str, Waiting]:
    """By topic, the changes of the log after the position of its tables, the least one of them."""
    places: dict[str, int] = {}
    for each in bases:
        lsn = 0 if each.position is None else each.position.lsn
        places[each.schema.topic] = min(places.get(each.schema.topic, lsn), lsn)
    if not places:
        return {}
    pairs: list[Column] = [sf.lit(each) for pair in sorted(places.items()) for each in pair]
    rows = (
        spark.table(name)
        .filter(sf.col("kind").isin("change", "truncate") & (sf.col("lsn") > min(places.values())))
        .filter(sf.col("lsn") > sf.try_element_at(sf.create_map(*pairs), sf.col("topic")))
        .groupBy("topic")
        .agg(sf.count("*").alias("changes"), sf.min("ts").alias("since"))
        .collect()
    )
    return {row["topic"]: Waiting(row["changes"], row["since"].astimezone(UTC)) for row in rows}


def _target(base: Base, deleted: int, waiting: Waiting | None) -> TargetStatus:
    position, own = base.position, base.figures
    return TargetStatus(
        kind=base.kind,
        name=base.name,
        lsn=None if position is None else str(Lsn(position.lsn)),
        consistent_lsn=None,
        written_at=own.written_at,
        held=0 if waiting is None else waiting.changes,
        behind=None,
        schema_id=base.schema.schema_id,
        columns=len(base.schema.columns),
        files=own.files,
        delete_files=own.deletes,
        size=own.size,
        buckets=base.buckets,
        buckets_apt=base.buckets_apt,
        versions=own.versions,
        metadata_bytes=own.metadata,
        held_since=None if waiting is None else waiting.since,
        is_expired=(0 if position is None else position.lsn) < deleted,
    )


def _utc(at: Any) -> datetime | None:
    return None if at is None else at.astimezone(UTC)
