"""`cdcd mirror`: topics to lakehouse tables. `spark-submit` is given this module, which is a program by itself."""

import json
import logging
import os
import shutil
import signal
import sys
import threading
import time
from contextlib import nullcontext
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from cdcd.cli.mirror_forget import forget
from cdcd.cli.options import Group, mirror_option
from cdcd.cli.output import say as show
from cdcd.core.errors import CdcdError, ConfigError, TransientError
from cdcd.core.facts.process import Failed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cdcd.adapters.postgres.slot import SlotWait
    from cdcd.config.loading import Config
    from cdcd.config.mirror import MirrorConfig, MirrorLogConfig
    from cdcd.core.facts import Fact, Observer
    from cdcd.mirror.base.formats import BaseFormat
    from cdcd.mirror.log.table import LogPlace
    from cdcd.mirror.snapshot.reading import Snapshot, SnapshotSource
    from cdcd.mirror.stream.settings import MirrorSettings
    from cdcd.mirror.targets.target import Target

_PIPE_COLUMNS: Final = 160
"""Width of lines where no terminal says how wide it is."""


@click.group("mirror", invoke_without_command=True, cls=Group)
@mirror_option()
@click.option("--once", is_flag=True, help="Apply the records that exist now, and exit.")
@click.option(
    "--consistent",
    is_flag=True,
    help="Move all tables together from one commit LSN to the next, as batches.consistent: true does.",
)
@click.option(
    "--snapshot",
    "tables",
    multiple=True,
    metavar="SCHEMA.TABLE",
    help="Before the first batch, read this whole table from its database with Spark's executors, and replace the "
    "mirror's table. The mirror then continues with the changes of this table. May be repeated. Needs --source.",
)
@click.option(
    "--replay-quarantine",
    "replay",
    is_flag=True,
    help="Before the first batch, apply records in quarantine that this version can read.",
)
@click.option(
    "--relayout",
    "relayout",
    multiple=True,
    metavar="SCHEMA.TABLE",
    help="Before the first batch, write this table again in one commit, with the configured tables.buckets, "
    "tables.partition_by and tables.deletes. May be repeated.",
)
@click.option(
    "--source",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="File with the pipeline's configuration, which has the address of the database.",
)
@click.option("--reference", is_flag=True, help="Print every key of the configuration, and exit.")
@click.pass_context
def command(
    context: click.Context,
    file: Path | None,
    *,
    once: bool,
    consistent: bool,
    replay: bool,
    relayout: tuple[str, ...],
    reference: bool,
    tables: tuple[str, ...],
    source: Path | None,
) -> int:
    """Keep tables in Apache Iceberg or Delta Lake equal to the source.

    Reads a pipeline's topics with Spark, and applies them in batches, until stopped. SIGTERM or SIGINT ends it. A
    kill loses nothing. Needs `pip install 'cdcd[spark]'` and a Java runtime. On a cluster, run this command's module
    by spark-submit.
    """
    if context.invoked_subcommand is not None:
        _refuse_options(context)
        return 0
    from cdcd.config.loading import load_config  # noqa: PLC0415  --help needs none of it
    from cdcd.config.mirror import load_mirror, mirror_reference  # noqa: PLC0415
    from cdcd.core.catalog.routing import table_named  # noqa: PLC0415

    if reference:
        show(mirror_reference(), nl=False)
        return 0
    config = load_mirror(given(file), os.environ)
    source = source or (None if config.source is None else Path(config.source))
    if tables and source is None:
        raise click.UsageError("--snapshot needs --source FILE, the pipeline's configuration.")
    pipeline = None if source is None else load_config(source, os.environ)
    _check_reload(config, pipeline is not None)
    _check_protected(pipeline)
    _check_filters(pipeline)
    _check_routes(pipeline)
    _check_modes(pipeline)
    _check_tags(config, consistent=consistent)
    if config.change_log == "only" and (
        consistent or config.batches.consistent or replay or relayout or tables
    ):
        raise ConfigError(
            "change_log is only, so there are no tables for batches.consistent, --consistent, --snapshot, --relayout "
            "or --replay-quarantine.",
            hint="Remove these options, or set change_log to none.",
        )
    _check_fold(config, replay or bool(relayout) or bool(tables))
    check_pyspark()
    say = log_to(config.log)
    try:
        if config.change_log != "none":
            _append_log(config, say, once=once, consistent=consistent)
            return 0
        _mirror(
            config,
            pipeline,
            say,
            once=once,
            consistent=consistent,
            replay=replay,
            relayout=tuple(map(table_named, relayout)),
            tables=tuple(map(table_named, tables)),
        )
    except CdcdError as error:
        say(Failed(type(error).__name__, error.message, error.hint, error.exit_code))
        raise
    return 0


def _mirror(
    config: "MirrorConfig",
    pipeline: "Config | None",
    say: "Observer",
    *,
    once: bool,
    consistent: bool,
    replay: bool,
    relayout: "Sequence[str]",
    tables: "Sequence[str]",
) -> None:
    """Mirror until stopped. Raises what ended it, or the first of the errors that stopped single tables."""
    from cdcd.mirror.stream.job import Mirror  # noqa: PLC0415  loads pyspark
    from cdcd.mirror.watching.observed import count  # noqa: PLC0415
    from cdcd.mirror.watching.progress import MirrorServing  # noqa: PLC0415
    from cdcd.telemetry.http import serve  # noqa: PLC0415
    from cdcd.telemetry.mirror import MirrorTelemetry, mirror_routes  # noqa: PLC0415

    numbers = MirrorTelemetry()

    def observe(fact: "Fact") -> None:
        count(fact, numbers)
        say(fact)

    stop = threading.Event()

    def stop_by_signals() -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())

    stop_by_signals()
    # First of all: it is wrong at once, and a session takes seconds.
    settings = settings_of(config, consistent=consistent, source=pipeline is not None)
    spark, target = session_for(config, f"cdcd mirror {config.name}"), target_of(config)
    # A SparkContext replaces the handler of SIGINT by one that raises KeyboardInterrupt.
    stop_by_signals()
    read_from = None if pipeline is None else source_of(pipeline, settings)
    mirror = Mirror(spark, settings, target, observe, read_from)
    try:
        if tables and read_from is not None:
            load_tables(spark, settings, target, read_from, tables, observe)
        if replay:
            mirror.commands.replay()
        if relayout:
            mirror.commands.relayout(relayout)
        with nullcontext("") if once else serve(config.http, mirror_routes(numbers)) as address:
            if address:
                observe(MirrorServing(address))
            mirror.run(once=once, stop=stop)
    finally:
        mirror.close()
        spark.stop()
    for error in mirror.stopped.values():
        raise error


def _append_log(config: "MirrorConfig", say: "Observer", *, once: bool, consistent: bool) -> None:
    """Append the topics to the log until stopped, and fold tables of it with `change_log: fold`.

    Raises what ended it, or the first error that stopped a topic or a table.
    """
    from cdcd.mirror.base.job import BaseJob  # noqa: PLC0415  loads pyspark
    from cdcd.mirror.log.job import CONSUMERS, LogJob  # noqa: PLC0415
    from cdcd.mirror.watching.observed import count  # noqa: PLC0415
    from cdcd.mirror.watching.progress import MirrorServing  # noqa: PLC0415
    from cdcd.telemetry.http import serve  # noqa: PLC0415
    from cdcd.telemetry.mirror import MirrorTelemetry, mirror_routes  # noqa: PLC0415

    numbers = MirrorTelemetry()

    def observe(fact: "Fact") -> None:
        count(fact, numbers)
        say(fact)

    stop = threading.Event()
    settings = settings_of(config, consistent=consistent)
    spark = session_for(config, f"cdcd mirror {config.name}", also=CONSUMERS)
    # A SparkContext replaces the handler of SIGINT by one that raises KeyboardInterrupt.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    place = _log_place(config)
    job: LogJob | BaseJob
    if config.change_log == "only":
        job = LogJob(spark, settings, place, config.kafka.librdkafka(), observe)
    else:
        target = target_of(config)
        job = BaseJob(
            spark,
            settings,
            place,
            _base_format(config),
            target,
            config.kafka.librdkafka(),
            observe,
        )
    try:
        with nullcontext("") if once else serve(config.http, mirror_routes(numbers)) as address:
            if address:
                observe(MirrorServing(address))
            job.run(once=once, stop=stop)
    finally:
        spark.stop()
    for error in job.stopped.values():
        raise error


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


@command.command("status")
@mirror_option()
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Output format: lines for people, or a JSON object for programs.",
)
@click.option(
    "--kafka", is_flag=True, help="Also ask Kafka how many records each table has not received yet."
)
@click.pass_context
def status(context: click.Context, file: Path | None, *, form: str, kafka: bool) -> int:
    """Show what each table has, and what stopped it, also while the mirror is down.

    Reads the lakehouse alone, unless --kafka is given, and changes nothing. Exits with 0, with 10 if a table is stopped
    or cannot be read, and with the code of the failure if the lakehouse or Kafka could not be asked.
    """
    from cdcd.config.mirror import load_mirror  # noqa: PLC0415  --help needs none of it

    assert context.parent is not None, "it is a command of `mirror`"
    config = load_mirror(given(file or context.parent.params["file"]), os.environ)
    check_pyspark()

    from cdcd.mirror.log.job import ends_in_kafka  # noqa: PLC0415  loads pyspark
    from cdcd.mirror.watching.log_status import look_at_log  # noqa: PLC0415
    from cdcd.mirror.watching.status import look  # noqa: PLC0415
    from cdcd.telemetry.mirror_lines import lines  # noqa: PLC0415

    place = config.target
    spark = session_for(config, f"cdcd mirror status {config.name}", kafka=kafka)
    try:
        if config.change_log == "none":
            found = look(
                spark, target_of(config), settings_of(config), place.location or place.catalog, kafka=kafka
            )
        else:
            base = None if config.change_log == "only" else _base_format(config)
            ask = partial(ends_in_kafka, config.kafka.librdkafka()) if kafka else None
            found = look_at_log(spark, target_of(config), _log_place(config), settings_of(config), base, ask)
    finally:
        spark.stop()
    if form == "json":
        show(json.dumps(found.to_json(), indent=2, ensure_ascii=False))
    else:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else _PIPE_COLUMNS
        for line in lines(found, width):
            show(line)
    return found.exit_code


@command.command("quarantine")
@mirror_option()
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Output format: lines for people, or a JSON list for programs.",
)
@click.option(
    "--limit",
    type=click.IntRange(1, 100_000),
    default=100,
    show_default=True,
    help="Maximum number of records.",
)
@click.pass_context
def quarantine(context: click.Context, file: Path | None, *, form: str, limit: int) -> int:
    """Show the records in quarantine, the newest first: topic, partition, offset, time and reason.

    Reads the lakehouse alone, and changes nothing. Keys and values are not shown. With `change_log`, the quarantine is
    the unreadable records of the log.
    """
    from cdcd.config.mirror import load_mirror  # noqa: PLC0415  --help needs none of it

    assert context.parent is not None, "it is a command of `mirror`"
    config = load_mirror(given(file or context.parent.params["file"]), os.environ)
    check_pyspark()

    from cdcd.mirror.watching.log_status import read_quarantine  # noqa: PLC0415  loads pyspark
    from cdcd.telemetry.mirror_lines import quarantine_lines  # noqa: PLC0415

    spark = session_for(config, f"cdcd mirror quarantine {config.name}", kafka=False)
    try:
        log = None if config.change_log == "none" else _log_place(config).name
        found = read_quarantine(spark, target_of(config), log, settings_of(config), limit)
    finally:
        spark.stop()
    if form == "json":
        show(json.dumps([each.to_json() for each in found], indent=2, ensure_ascii=False))
    else:
        for line in quarantine_lines(found, limit):
            show(line)
    return 0


def _log_place(config: "MirrorConfig") -> "LogPlace":
    """Where the log is."""
    from cdcd.mirror.log.table import LogPlace  # noqa: PLC0415  loads pyspark

    return LogPlace(
        target_of(config).own_name(config.target.log_table),
        config.target.format,
        f"{config.stream_checkpoint().rstrip('/')}_log",
    )


def _base_format(config: "MirrorConfig") -> "BaseFormat":
    """Format of the tables that are folded from the log."""
    from cdcd.mirror.base.formats import base_of  # noqa: PLC0415  loads pyspark

    properties = {name: str(value) for name, value in config.target.properties.items()}
    return base_of(config.target.format, properties)


def _refuse_options(context: click.Context) -> None:
    """UsageError: an option stands before a command that does not have it."""
    for parameter in context.command.params:
        name = parameter.name or ""
        if name != "file" and context.get_parameter_source(name) is not ParameterSource.DEFAULT:
            raise click.UsageError(
                f"The option {parameter.opts[0]} does not belong to the command "
                f"{context.invoked_subcommand}.",
                context,
            )


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
    """Say facts on standard output, as `log` has it."""
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
                show(line)

    return echo


def load_tables(
    spark: Any,
    settings: "MirrorSettings",
    target: "Target",
    source: "SnapshotSource",
    tables: "Sequence[str]",
    observe: "Observer",
) -> None:
    """Read these tables (`schema.table`) from the database into the mirror, all at one snapshot.

    Raises:
        SourceError: there is no such table or slot, or it may not be read.
        TransientError: a snapshot was lost, or a table changed its form meanwhile, several times.
    """
    from cdcd.mirror.snapshot.reading import load_all  # noqa: PLC0415
    from cdcd.mirror.stream.reload import load_as_set  # noqa: PLC0415
    from cdcd.mirror.watching.progress import LoadRestarted, LoadWaiting, TableLoaded  # noqa: PLC0415

    def wait(held: "SlotWait") -> None:
        who = held.gid if held.pid is None else f"the session with PID {held.pid}"
        observe(LoadWaiting(who or "open transactions", held.waited_s))

    def locked(table: str, who: str, seconds: float) -> None:
        observe(LoadWaiting(f"the lock on {table} ({who})", seconds))

    def load(snapshot: "Snapshot", table: str) -> None:
        began = time.monotonic()
        done = load_as_set(spark, snapshot, table, target, settings)
        seconds = time.monotonic() - began
        observe(TableLoaded(table, done.rows, done.quarantined, int(done.lsn), seconds))

    def lost(error: TransientError) -> None:
        observe(LoadRestarted(error.message))

    load_all(spark, source, tables, load, on_wait=wait, on_locked=locked, on_lost=lost)


def _check_reload(config: "MirrorConfig", source: bool) -> None:
    """Tables that are to be read again need a database. ConfigError: none is named."""
    tables = config.tables
    if not source and "reload" in (tables.on_incompatible, *tables.on_incompatible_for.values()):
        raise ConfigError(
            "tables.on_incompatible is reload, but the configuration has no address of the database.",
            hint="Set source to the daemon's configuration, or start with --source FILE.",
        )


def _check_fold(config: "MirrorConfig", commands: bool) -> None:
    """ConfigError: something is asked for that tables folded from a log do not have yet."""
    tables, batches = config.tables, config.batches
    asked = {
        "--snapshot, --relayout or --replay-quarantine": commands,
        "batches.tag_interval_s": batches.tag_interval_s is not None,
        "tables.history": bool(tables.history),
        "tables.buckets": tables.buckets is not None or bool(tables.buckets_for),
        "tables.partition_by": bool(tables.partition_by),
        "tables.deletes": tables.deletes != "remove" or bool(tables.deletes_for),
        "tables.on_incompatible: reload": "reload"
        in (tables.on_incompatible, *tables.on_incompatible_for.values()),
    }
    if config.change_log == "fold" and (refused := [name for name, is_set in asked.items() if is_set]):
        raise ConfigError(
            f"change_log is fold, a preview that does not have {refused[0]} yet.",
            hint="Leave it out, or set change_log to none.",
        )
    if config.change_log != "fold" and tables.scd2:
        raise ConfigError(
            f"change_log is {config.change_log}, and tables of tables.scd2 are folded from a log.",
            hint="Set change_log to fold, or remove tables.scd2. With change_log: none, tables.history keeps a "
            "changelog.",
        )


def _check_tags(config: "MirrorConfig", *, consistent: bool) -> None:
    """Tags name common LSNs. ConfigError: there are none."""
    if config.batches.tag_interval_s is not None and not (consistent or config.batches.consistent):
        raise ConfigError(
            "batches.tag_interval_s needs consistent batches, because only their common LSNs get tags.",
            hint="Set batches.consistent to true or start with --consistent, or remove batches.tag_interval_s.",
        )


def _check_protected(pipeline: "Config | None") -> None:
    """ConfigError: the daemon protects columns, whose values Spark would read in clear."""
    if pipeline is not None and pipeline.columns.patterns:
        raise ConfigError(
            "The pipeline's configuration protects columns (`columns`), and Spark would read their values in clear "
            "from the database.",
            hint="Start the mirror without --source, and let cdcd read the tables: "
            "cdcd snapshot start <schema>.<table>.",
        )


def _check_filters(pipeline: "Config | None") -> None:
    """ConfigError: the daemon filters rows, which Spark would read all the same."""
    if pipeline is not None and pipeline.filters.tables:
        raise ConfigError(
            f"The pipeline's configuration filters the rows of {', '.join(pipeline.filters.tables)} (filters.tables), "
            "and Spark would read all rows of these tables from the database.",
            hint="Start the mirror without --source, and let cdcd read the tables: "
            "cdcd snapshot start <schema>.<table>.",
        )


def _check_routes(pipeline: "Config | None") -> None:
    """ConfigError: the daemon routes rows, or tables share topics, and a mirror follows one topic of a table."""
    if pipeline is not None and pipeline.routes.tables:
        raise ConfigError(
            f"The pipeline's configuration routes the rows of {', '.join(pipeline.routes.tables)} to several topics "
            "(routes.tables), and cdcd mirror reads only one topic of a table.",
            hint="Mirror a pipeline without routes: a second one, with a slot and a prefix of its own.",
        )
    if pipeline is not None and pipeline.topics.shared:
        raise ConfigError(
            f"The pipeline's configuration has topics for several tables (topics.shared): "
            f"{', '.join(pipeline.topics.shared)}. cdcd mirror reads topics of one table.",
            hint="Mirror a pipeline without topics.shared: a second one, with a slot and a prefix of its own.",
        )


def _check_modes(pipeline: "Config | None") -> None:
    """ConfigError: what the topics say is not what Spark would read from the database."""
    if pipeline is None:
        return
    if pipeline.event_flattening.enabled:
        raise ConfigError(
            "The pipeline's records are flattened (event_flattening), so the order of the changes of a row is not "
            "known.",
            hint="Mirror a pipeline without event_flattening: a second one, with a slot and a prefix of its own.",
        )
    if pipeline.format.value == "cloudevents":
        raise ConfigError(
            "The pipeline's records are CloudEvents (format.value), which cdcd mirror does not read.",
            hint="Mirror a pipeline with format.value: json: a second one, with a slot and a prefix of its own.",
        )
    skipped = [op for op in pipeline.topics.skipped_operations if op != "t"]
    if skipped:
        raise ConfigError(
            f"The pipeline's topics leave out the operations {', '.join(skipped)} (topics.skipped_operations), so the "
            f"rows of the tables cannot be derived from them.",
            hint="Mirror a pipeline that writes all operations.",
        )
    if pipeline.fields.renames:
        raise ConfigError(
            "The pipeline renames fields (fields.tables), and Spark would read rows by the names of the columns.",
            hint="Start the mirror without --source, and let cdcd read the tables: "
            "cdcd snapshot start <schema>.<table>.",
        )
    if pipeline.key.columns:
        raise ConfigError(
            "The pipeline chooses the keys of records (key.columns), and Spark would read rows by the keys of the "
            "tables.",
            hint="Start the mirror without --source, and let cdcd read the tables: "
            "cdcd snapshot start <schema>.<table>.",
        )
    chosen = {
        "decimal_handling_mode: double": pipeline.format.decimal_handling_mode == "double",
        "interval_handling_mode: numeric": pipeline.format.interval_handling_mode == "numeric",
        "hstore_handling_mode: map": pipeline.format.hstore_handling_mode == "map",
        "geometry_handling_mode: structured": pipeline.format.geometry_handling_mode == "structured",
    }
    for key in [name for name, is_set in chosen.items() if is_set]:
        raise ConfigError(
            f"Under format.{key}, the topics have values of another type than Spark reads from the database.",
            hint="Start the mirror without --source, and let cdcd read the tables: "
            "cdcd snapshot start <schema>.<table>.",
        )


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


def settings_of(
    config: "MirrorConfig", *, consistent: bool = False, source: bool = False
) -> "MirrorSettings":
    """What the job is told. `source`: tables can be read again."""
    from cdcd.mirror.kafka import KafkaSource  # noqa: PLC0415
    from cdcd.mirror.stream.settings import MirrorSettings  # noqa: PLC0415
    from cdcd.mirror.targets.layout import Deletes  # noqa: PLC0415
    from cdcd.mirror.targets.partitions import parse_fields  # noqa: PLC0415
    from cdcd.mirror.targets.target import Maintenance  # noqa: PLC0415

    topics, batches, upkeep = config.topics, config.batches, config.maintenance
    return MirrorSettings(
        name=config.name,
        kafka=KafkaSource(config.kafka.bootstrap_servers, config.kafka.java_client()),
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
    properties = {name: str(value) for name, value in place.properties.items()}
    driver_writes = config.batches.driver_writes
    if place.format == "iceberg":
        return IcebergTarget(place.catalog, place.namespace, properties, driver_writes=driver_writes)
    if place.location is not None:
        return DeltaTarget(
            place.location, namespace=place.namespace, properties=properties, driver_writes=driver_writes
        )
    return DeltaTarget(
        catalog=place.catalog, namespace=place.namespace, properties=properties, driver_writes=driver_writes
    )


command.add_command(forget)

if __name__ == "__main__":
    from cdcd.cli.__main__ import main

    main(["mirror", *sys.argv[1:]])
