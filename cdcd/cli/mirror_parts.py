"""What the commands of the mirror make of its configuration: the session of Spark, settings, target, source and log."""

import logging
import os
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cdcd.cli.output import say as show
from cdcd.core.errors import ConfigError, TransientError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cdcd.adapters.postgres.slot import SlotWait
    from cdcd.config.loading import Config
    from cdcd.config.mirror import MirrorConfig, MirrorLogConfig
    from cdcd.core.facts import Fact, Observer
    from cdcd.mirror.base.formats import BaseFormat
    from cdcd.mirror.base.topic_folds import Lake
    from cdcd.mirror.kafka import KafkaSource
    from cdcd.mirror.log.table import LogPlace
    from cdcd.mirror.settings import MirrorSettings
    from cdcd.mirror.snapshot.reading import Loaded, Snapshot, SnapshotSource
    from cdcd.mirror.targets.target import Target
    from cdcd.mirror.verifying.waiting import Mirrored


def given(file: Path | None) -> Path:
    """UsageError: no configuration is named."""
    if file is None and "CDCD_CONFIG" in os.environ:
        raise click.UsageError(
            "Missing option '--config'. CDCD_CONFIG names the configuration of the pipeline, and CDCD_MIRROR_CONFIG "
            "names the configuration of the mirror."
        )
    if file is None:
        raise click.UsageError("Missing option '--config'.")
    return file


def check_pyspark() -> None:
    """ConfigError: it is not installed."""
    if find_spec("pyspark") is None:
        raise ConfigError("PySpark is not installed.", hint="pip install 'cdcd[spark]'")


def log_to(log: "MirrorLogConfig") -> "Observer":
    """Say facts on standard output, as `log` has it, with masked passwords."""
    from cdcd.config.masking import mask_text  # noqa: PLC0415  --help needs none of it
    from cdcd.mirror.watching.lines import lines  # noqa: PLC0415  --help needs none of it
    from cdcd.telemetry.logs import LEVELS, configure_logging  # noqa: PLC0415

    if log.format == "json":
        if log.level != "debug":
            # It says of each call from Java that there was one.
            logging.getLogger("py4j").setLevel(logging.WARNING)
        return configure_logging(log, sys.stdout)

    def echo(fact: "Fact") -> None:
        if LEVELS[fact.level] >= LEVELS[log.level]:
            for line in lines(fact):
                # Spark's errors can repeat the address of a catalog with its password.
                show(mask_text(line))

    return echo


def load_tables(
    spark: Any,
    source: "SnapshotSource",
    tables: "Sequence[str]",
    observe: "Observer",
    load_one: "Callable[[Snapshot, str], Loaded]",
) -> None:
    """Read these tables (`schema.table`) from the database into the mirror, all at one snapshot.

    Args:
        load_one: reads one table at a snapshot.

    Raises:
        SourceError: there is no such table or slot, or it may not be read.
        TransientError: a snapshot was lost, or a table changed its form meanwhile, several times.
    """
    from cdcd.mirror.snapshot.reading import load_all  # noqa: PLC0415
    from cdcd.mirror.watching.progress import LoadRestarted, LoadWaiting, TableLoaded  # noqa: PLC0415

    def wait(held: "SlotWait") -> None:
        who = held.gid if held.pid is None else f"the session with PID {held.pid}"
        observe(LoadWaiting(who or "open transactions", held.waited_s))

    def locked(table: str, who: str, seconds: float) -> None:
        observe(LoadWaiting(f"the lock on {table} ({who})", seconds))

    def load(snapshot: "Snapshot", table: str) -> None:
        began = time.monotonic()
        done = load_one(snapshot, table)
        seconds = time.monotonic() - began
        observe(TableLoaded(table, done.rows, done.quarantined, int(done.lsn), seconds))

    def lost(error: TransientError) -> None:
        observe(LoadRestarted(error.message))

    load_all(spark, source, tables, load, on_wait=wait, on_locked=locked, on_lost=lost)


def session_for(
    config: "MirrorConfig", name: str, *, kafka: bool = True, also: "Mapping[str, str] | None" = None
) -> Any:
    """The session that the configuration asks for.

    Args:
        kafka: with Spark's Kafka source.
        also: more settings; those of the configuration take precedence.
    """
    from cdcd.mirror.session import catalog_conf, session  # noqa: PLC0415  loads pyspark

    place = config.target
    own = {} if place.location is None else catalog_conf(place.format, place.catalog, place.location)
    conf = {**own, **(also or {}), **{key: str(value) for key, value in config.spark.items()}}
    spark = session((place.format,), conf=conf, kafka=kafka, name=name)
    spark.sparkContext.setLogLevel(str(config.spark.get("spark.log.level", "ERROR")))
    return spark


def log_place(config: "MirrorConfig") -> "LogPlace":
    """Where the log is."""
    from cdcd.mirror.log.table import LogPlace  # noqa: PLC0415  loads pyspark

    return LogPlace(
        target_of(config).own_name(config.target.log_table),
        config.target.format,
        f"{config.stream_checkpoint().rstrip('/')}_log",
        _table_properties(config),
    )


def base_format(config: "MirrorConfig") -> "BaseFormat":
    """Format of the tables that are folded from the log."""
    from cdcd.mirror.base.formats import base_of  # noqa: PLC0415  loads pyspark

    return base_of(config.target.format, _table_properties(config))


def _table_properties(config: "MirrorConfig") -> dict[str, str]:
    return {name: str(value) for name, value in config.target.properties.items()}


def lake_of(config: "MirrorConfig") -> "Lake":
    """Where the log and the tables that are folded from it are."""
    from cdcd.mirror.base.topic_folds import Lake  # noqa: PLC0415  loads pyspark

    return Lake(log_place(config), base_format(config), target_of(config))


def load_folded(
    spark: Any, config: "MirrorConfig", settings: "MirrorSettings", where: str = ""
) -> "Callable[[Snapshot, str], Loaded]":
    """Return the function that reads one table from the database into its folded table. `where`: as in `load.load`."""
    from cdcd.mirror.base.load import Loading, load  # noqa: PLC0415  loads pyspark
    from cdcd.mirror.base.part import Place  # noqa: PLC0415
    from cdcd.mirror.log.positions import note_read  # noqa: PLC0415
    from cdcd.mirror.platform.tables import exists  # noqa: PLC0415
    from cdcd.mirror.targets.target import Kind  # noqa: PLC0415

    target, format_, log = target_of(config), base_format(config), log_place(config)

    def load_one(snapshot: "Snapshot", table: str) -> "Loaded":
        schema = snapshot.form(table, variant=settings.variant, mirrored=True).schema
        name, layout = target.name_of(schema, Kind.MIRROR), settings.layout_of(table, snapshot.size(table))
        place = Place(table, snapshot.topic(table), name, log.name, layout=layout)
        done = load(Loading(spark, format_, place, settings.variant), snapshot, where)
        if not where and exists(spark, log.name):
            note_read(spark, log, place.topic, snapshot.commit_lsn)
        return done

    return load_one


def mirrored(spark: Any, config: "MirrorConfig", settings: "MirrorSettings") -> "Mirrored":
    """The tables of the mirror, as `cdcd verify` reads them."""
    from cdcd.adapters.kafka.topic_facts import TopicStarts  # noqa: PLC0415
    from cdcd.mirror.records.descriptions import Descriptions  # noqa: PLC0415  loads pyspark
    from cdcd.mirror.verifying.folds import FoldedTables  # noqa: PLC0415

    forms = Descriptions(
        spark,
        settings.kafka,
        TopicStarts(config.kafka.librdkafka()),
        settings.schemas,
        variant=settings.variant,
        mirrored=True,
        by_header=True,
    )
    log = log_place(config).name
    return FoldedTables(spark, target_of(config), base_format(config), log, settings.kafka, forms)


def source_of(pipeline: "Config", settings: "MirrorSettings") -> "SnapshotSource":
    """Where tables are read, by the daemon's configuration."""
    from cdcd.daemon.readers import readers_of  # noqa: PLC0415
    from cdcd.mirror.snapshot.reading import SnapshotSource  # noqa: PLC0415

    return SnapshotSource(
        pipeline.postgres.libpq(),
        pipeline.postgres.publication,
        pipeline.postgres.slot,
        pipeline.topics.prefix,
        settings.kafka,
        pipeline.postgres.connect_timeout_s,
        pipeline.topics.names,
        pipeline.postgres.password_command or (),
        pipeline.topics.name,
        pipeline.money.digits,
        readers_of(pipeline),
        pipeline.topics.renames,
    )


def kafka_of(config: "MirrorConfig") -> "KafkaSource":
    """Where the topics are, with the logins of both clients."""
    from cdcd.mirror.kafka import KafkaSource  # noqa: PLC0415  loads pyspark

    kafka = config.kafka
    return KafkaSource(kafka.bootstrap_servers, kafka.java_client(), kafka.own_client())


def settings_of(
    config: "MirrorConfig", *, consistent: bool = False, source: bool = False
) -> "MirrorSettings":
    """Return the settings of the job. `source`: True if the job can read tables from PostgreSQL again."""
    from cdcd.mirror.settings import MirrorSettings  # noqa: PLC0415
    from cdcd.mirror.targets.layout import Deletes  # noqa: PLC0415
    from cdcd.mirror.targets.partitions import parse_fields  # noqa: PLC0415
    from cdcd.mirror.targets.target import Maintenance  # noqa: PLC0415

    topics, batches, upkeep = config.topics, config.batches, config.maintenance
    return MirrorSettings(
        name=config.name,
        kafka=kafka_of(config),
        prefix=topics.prefix,
        schemas=topics.schemas,
        checkpoint=topics.checkpoint,
        not_tables=frozenset({topics.message, topics.dead_letter}),
        checkpoint_location=config.stream_checkpoint(),
        include=config.tables.include or (),
        exclude=config.tables.exclude or (),
        history=config.tables.history or (),
        scd2=config.tables.scd2 or (),
        interval_s=batches.interval_s,
        fold_interval_s=batches.fold_interval_s,
        fold_changes=batches.fold_changes,
        fold_tables_min=batches.fold_tables_min,
        batch_records_max=batches.records_max,
        threads=batches.threads,
        consistent=consistent or batches.consistent,
        tag_interval_s=batches.tag_interval_s,
        variant=config.tables.json_as == "variant",
        reload=source if config.tables.on_incompatible is None else config.tables.on_incompatible == "reload",
        buckets=config.tables.buckets,
        buckets_for=tuple(config.tables.buckets_for.items()),
        partition_by=tuple(
            [
                (pattern, parse_fields(fields, f"tables.partition_by: {pattern}"))
                for pattern, fields in config.tables.partition_by.items()
            ]
        ),
        deletes=Deletes(config.tables.deletes),
        deletes_for=tuple([(pattern, Deletes(what)) for pattern, what in config.tables.deletes_for.items()]),
        reload_for=tuple(
            [(pattern, what == "reload") for pattern, what in config.tables.on_incompatible_for.items()]
        ),
        maintenance_interval_s=upkeep.interval_s,
        maintenance=Maintenance(
            keep_s=upkeep.keep_s,
            keep_versions=upkeep.keep_versions,
            versions_max=upkeep.versions_max,
            small_files_min=upkeep.small_files_min,
            target_file_bytes=upkeep.target_file_bytes,
            log_keep_days=upkeep.log_keep_days,
            log_held_days=upkeep.log_held_days,
        ),
    )


def target_of(config: "MirrorConfig") -> "Target":
    """Where the tables are kept."""
    from cdcd.mirror.targets.delta import DeltaTarget  # noqa: PLC0415
    from cdcd.mirror.targets.iceberg import IcebergTarget  # noqa: PLC0415

    place = config.target
    properties = _table_properties(config)
    if place.format == "iceberg":
        return IcebergTarget(place.catalog, place.namespace, properties)
    if place.location is not None:
        return DeltaTarget(place.location, namespace=place.namespace, properties=properties)
    return DeltaTarget(catalog=place.catalog, namespace=place.namespace, properties=properties)
