"""A SparkSession that has what the mirror needs.

By itself it is a local one on this machine, with the jars of `jars.py`. Under `spark-submit`, whose arguments say where
it runs, with how much memory and with which jars, only what the table formats need is added.
"""

import os
import re
import shlex
import sys
from collections.abc import Iterable, Mapping
from typing import Final

from pyspark import SparkContext
from pyspark.sql import SparkSession

from cdcd.core.errors import ConfigError
from cdcd.mirror.jars import AVRO, DELTA, ICEBERG, KAFKA, jars

_EXTENSIONS: Final = {
    ICEBERG: "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    DELTA: "io.delta.sql.DeltaSparkSessionExtension",
}

_ZONE: Final = "spark.sql.session.timeZone"
_UTC: Final = ("UTC", "Etc/UTC", "Z", "+00:00", "GMT")

_ALWAYS: Final = {
    # A timestamp without time zone of PostgreSQL is TIMESTAMP_NTZ; one with a zone is an instant, shown in UTC.
    _ZONE: "UTC",
    # Columns that differ only in case are two columns in PostgreSQL.
    "spark.sql.caseSensitive": "true",
    # Parquet's dates before 1582 and timestamps before 1900 as they are, in the proleptic calendar of PostgreSQL.
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
    # Delta's files have timestamps as whole numbers, as Iceberg's have. Spark's default is INT96, which Parquet has
    # deprecated. Arrow reads PostgreSQL's infinity wrongly from it.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # A batch is kept for as long as it takes to apply it: looking for what could be packed tighter costs more than that
    # saves.
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
    # A compaction must not be overtaken by what a vacuum thinks of retention: maintain() says it itself.
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    # With each function and operator that makes a column, PySpark asks Java ten times for the session and its settings,
    # and looks for the caller's line, for the sake of error messages. A plan of ours is made of hundreds of them.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.sql.dataFrameQueryContext.enabled": "false",
    # Whatever is kept in memory is planned without it, and the session cloned for that where it is on (CacheManager).
    "spark.sql.sources.bucketing.autoBucketedScan.enabled": "false",
    # Spark gives the same number of cores to the jobs of the stream and to those of maintenance (`upkeep.POOL`). With
    # FIFO, Spark's default, a batch would wait for the tasks of a compaction.
    "spark.scheduler.mode": "FAIR",
}

_LISTS: Final = ("spark.jars", "spark.sql.extensions")

REMOTE: Final = "SPARK_REMOTE"
"""Spark's name for the environment variable with the address of a server of Spark Connect."""

REWRITING: Final = {
    # Iceberg sets it by itself when it writes small files together, but in the session that is active in one thread,
    # and looks for it in that of another.
    "spark.sql.catalog.default_rewrite_catalog": "org.apache.iceberg.spark.SparkRewriteTableCatalog",
}

_LATE_COMPILER: Final = " ".join(
    f"-XX:Tier4{name}={number}"
    for name, number in {
        "InvocationThreshold": 20_000,
        "MinInvocationThreshold": 2_400,
        "CompileThreshold": 60_000,
        "BackEdgeThreshold": 160_000,
    }.items()
)
"""Options of Java. Its second compiler compiles code after four times as many runs as by default.

A mirror runs much code, and most of it some hundred times for each table. By default, the second compiler takes a third
of the CPU of a run over many small tables.
"""

_LOCAL: Final = {
    "spark.driver.memory": "1g",
    "spark.driver.defaultJavaOptions": _LATE_COMPILER,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # As few partitions as cores: a batch is small, and each task's start costs more than its rows.
    "spark.sql.shuffle.partitions": "2",
    # Adaptive plans run each stage as a job of its own and plan the rest again: twice the jobs of a batch.
    # Between so few partitions there is nothing to adapt.
    "spark.sql.adaptive.enabled": "false",
    # A merge joins a small batch with a large table: a hash of the one, rather than both in order.
    "spark.sql.join.preferSortMergeJoin": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    # The state of a Delta table: 50 partitions by default, for logs of millions of files.
    "spark.databricks.delta.snapshotPartitions": "2",
    # What is listed when a Delta table is vacuumed: 10,000 tasks by default, for buckets of millions of files.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "4",
    # Every plan is compiled once per batch and table; what is kept must not fill the heap.
    "spark.sql.codegen.cache.maxEntries": "200",
    "spark.cleaner.periodicGC.interval": "5min",
    "spark.sql.ui.retainedExecutions": "20",
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
}


def under_spark_submit() -> bool:
    """`spark-submit` started this program, and has said where it runs (pyspark/java_gateway.py)."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def is_connect(spark: SparkSession) -> bool:
    """The session is one of Spark Connect: its Java is in another process, and none of it can be called."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def activate(spark: SparkSession) -> None:
    """Make a classic session the active session of this thread. Catalogs and data sources read the settings of the
    active session.

    In a thread without an active session, Iceberg takes Spark's first session, and Delta's catalog finds no table that
    is a folder.
    """
    # PySpark makes the session of a new DataFrame the active one, and has no other public way.
    spark.createDataFrame([], "id int")


def check_classic(spark: SparkSession, what: str, why: str) -> None:
    """Check that the session is a classic one, whose driver is this process.

    Args:
        what: needs a classic session, for people.
        why: the reason, for people.

    Raises:
        ConfigError: it is a session of Spark Connect.
    """
    if is_connect(spark):
        raise ConfigError(
            f"{what} does not work in a session of Spark Connect: {why}.",
            hint="Run the job with a classic session: by spark-submit, or with cdcd.spark.session.session. Over Spark"
            " Connect, read_changes, apply_changes and SQL on the mirror's tables work.",
        )


def check_time_zone(spark: SparkSession) -> None:
    """That timestamps without time zone come as they are, which the conversion of their values rests on.

    Raises:
        ConfigError: the session's time zone is not UTC.
    """
    zone = spark.conf.get(_ZONE)
    if zone not in _UTC:
        raise ConfigError(
            f"{_ZONE} of the session is {zone}. A timestamp without time zone would be moved by that.",
            hint=f'Call spark.conf.set("{_ZONE}", "UTC") first.',
        )


def catalog_conf(target_format: str, catalog: str, warehouse: str) -> dict[str, str]:
    """The settings of a catalog that is a folder or a bucket: an Iceberg catalog of type hadoop, or Delta's own.

    Any other catalog (REST, Glue, Hive, JDBC, Unity) is the user's settings in its place.
    """
    if target_format == DELTA:
        return {"spark.sql.warehouse.dir": warehouse}
    prefix = f"spark.sql.catalog.{catalog}"
    return {
        prefix: "org.apache.iceberg.spark.SparkCatalog",
        f"{prefix}.type": "hadoop",
        f"{prefix}.warehouse": warehouse,
        # One job writes: what it reads back is what it wrote, not what was there 30 seconds ago.
        f"{prefix}.cache-enabled": "false",
    }


def session(
    formats: Iterable[str] = (ICEBERG,),
    *,
    conf: Mapping[str, str] | None = None,
    kafka: bool = True,
    name: str = "cdcd mirror",
    cores: int = 2,
) -> SparkSession:
    """The session for tables of these `formats` (ICEBERG, DELTA), with Spark's Kafka source unless told otherwise.

    Args:
        conf: more settings, or others in place of those given here. Jars and extensions come beside those given here.
        cores: of this machine, where it runs locally.

    Raises:
        TransientError, ConfigError: the jars could not be had (`jars.jars`).
        ConfigError: the environment asks for a session of Spark Connect.
    """
    if REMOTE in os.environ:
        raise ConfigError(
            f"{REMOTE} is set and asks for a session of Spark Connect. {name} makes a classic session of its own.",
            hint=f"Unset {REMOTE}. To run on a cluster, use spark-submit.",
        )
    formats = tuple(formats)
    settings = dict(_ALWAYS)
    settings["spark.sql.extensions"] = ",".join(_EXTENSIONS[name] for name in formats)
    if ICEBERG in formats:
        settings |= REWRITING
    if DELTA in formats:
        settings["spark.sql.catalog.spark_catalog"] = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
    builder = SparkSession.builder.appName(name)
    if not under_spark_submit():
        builder = builder.master(f"local[{cores}]")
        # What runs in Python (`page_source`) needs what this process has; Spark's default is any python3.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        settings |= _LOCAL | {"spark.sql.shuffle.partitions": str(cores)}
        parts = (*formats, KAFKA, AVRO) if kafka else formats
        settings["spark.jars"] = ",".join(map(str, jars(parts)))
    joined = _joined(settings, conf or {})
    if not under_spark_submit():
        _launch_java({"spark.master": f"local[{cores}]", **joined})
    for key, value in joined.items():
        builder = builder.config(key, value)
    made = builder.getOrCreate()
    check_classic(made, name, "it makes a session of its own")
    return made


_LATER: Final = ("spark.sql.", "spark.hadoop.")
"""Beginnings of settings that Spark reads after the start of Java, such as the logins of catalogs and buckets."""

_SECRET: Final = re.compile(r"(?i)secret|password|token|access[.]?key")
"""Names of secrets (`spark.redaction.regex`)."""


_ARGUMENTS: Final = "PYSPARK_SUBMIT_ARGS"
"""PySpark's name for the environment variable with arguments for the start of Java."""


def _launch_java(settings: Mapping[str, str]) -> None:
    """Start Java, unless it runs, without secrets among its arguments, which all users of the machine can read.

    PySpark would pass all settings of the session as arguments. The session sets the other ones later.
    """
    arguments = [
        part
        for key, value in settings.items()
        if not key.startswith(_LATER) and _SECRET.search(key) is None
        for part in ("--conf", f"{key}={value}")
    ]
    given = os.environ.get(_ARGUMENTS)
    os.environ[_ARGUMENTS] = f"{shlex.join(arguments)} {given or 'pyspark-shell'}"
    try:
        # To set a property of Java, PySpark starts Java, and passes no settings.
        SparkContext.setSystemProperty("spark.master", settings["spark.master"])
    finally:
        if given is None:
            del os.environ[_ARGUMENTS]
        else:
            os.environ[_ARGUMENTS] = given


def _joined(settings: Mapping[str, str], conf: Mapping[str, str]) -> dict[str, str]:
    """Our settings and the user's, which win. Lists of jars and of extensions are put together."""
    both = {
        key: ",".join([settings[key], conf[key]]) for key in _LISTS if settings.get(key) and conf.get(key)
    }
    return {**settings, **conf, **both}
