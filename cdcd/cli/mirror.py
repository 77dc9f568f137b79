"""`cdcd mirror`: topics to lakehouse tables. `spark-submit` is given this module, which is a program by itself."""

import json
import os
import shutil
import signal
import sys
import threading
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from click.core import ParameterSource

from cdcd.cli.mirror_forget import forget
from cdcd.cli.mirror_parts import (
    base_format,
    check_pyspark,
    given,
    lake_of,
    load_folded,
    load_tables,
    log_place,
    log_to,
    session_for,
    settings_of,
    source_of,
    target_of,
)
from cdcd.cli.mirror_rules import check_modes, check_sources
from cdcd.cli.options import CommandGroup, mirror_option
from cdcd.cli.output import say as show
from cdcd.core.errors import CdcdError, ConfigError
from cdcd.core.facts.process import Failed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cdcd.config.loading import Config
    from cdcd.config.mirror import MirrorConfig
    from cdcd.core.facts import Fact, Observer

_PIPE_COLUMNS: Final = 160
"""Width of lines where no terminal says how wide it is."""


@click.group("mirror", invoke_without_command=True, cls=CommandGroup)
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
    "--where",
    default="",
    metavar="SQL",
    help="With --snapshot, read only rows that satisfy this condition of PostgreSQL, and keep all other rows of the "
    "mirror's table.",
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
    where: str,
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
    if where and not tables:
        raise click.UsageError("--where needs --snapshot SCHEMA.TABLE.")
    pipeline = None if source is None else load_config(source, os.environ)
    check_sources(config, pipeline, consistent=consistent)
    check_modes(config, consistent=consistent, commands=replay or bool(relayout), tables=bool(tables))
    check_pyspark()
    from cdcd.adapters.credentials.weaknesses import mirror_weaknesses  # noqa: PLC0415  as above
    from cdcd.mirror.watching.progress import MirrorSecretWeak  # noqa: PLC0415

    say = log_to(config.log)
    for each in mirror_weaknesses(config):
        say(MirrorSecretWeak(each.key, each.found, each.fix))
    try:
        _mirror(
            config,
            pipeline,
            say,
            once=once,
            consistent=consistent,
            replay=replay,
            relayout=tuple(map(table_named, relayout)),
            tables=tuple(map(table_named, tables)),
            where=where,
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
    where: str,
) -> None:
    """Append the topics to the log until stopped, and fold tables of it with `change_log: fold`.

    Args:
        replay: the first round of folds begins with the records in quarantine.
        relayout: `schema.table` of the folded tables that are written again first.
        tables: `schema.table` of the folded tables that Spark reads from the database first.
        where: condition on their rows; "" for all rows.

    Raises what ended it, or the first error that stopped a topic or a table.
    """
    from cdcd.mirror.base.job import BaseJob  # noqa: PLC0415  loads pyspark
    from cdcd.mirror.base.load import read_again  # noqa: PLC0415
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
    settings = settings_of(config, consistent=consistent, source=pipeline is not None)
    # Before the session, which takes seconds: a login may be wrong.
    client = config.kafka.librdkafka()
    spark = session_for(config, f"cdcd mirror {config.name}", also=CONSUMERS)
    # A SparkContext replaces the handler of SIGINT by one that raises KeyboardInterrupt.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    place = log_place(config)
    source = None if pipeline is None else source_of(pipeline, settings)
    load_one = load_folded(spark, config, settings)
    job: LogJob | BaseJob
    if config.change_log == "only":
        job = LogJob(spark, settings, place, client, observe)
        run = job.run
    else:
        reads = None if source is None else partial(read_again, spark, source, load_one, observe)
        job = BaseJob(spark, settings, lake_of(config), client, observe, reads)
        run = partial(job.run, replays=replay)
        numbers.lags = job.lags
    try:
        if tables and source is not None:
            load_tables(spark, source, tables, observe, load_folded(spark, config, settings, where))
        if isinstance(job, BaseJob):
            job.relayout(relayout)
        with nullcontext("") if once else serve(config.http, mirror_routes(numbers, config.http)) as address:
            if address:
                observe(MirrorServing(address))
            run(once=once, stop=stop)
    finally:
        spark.stop()
    for error in job.stopped.values():
        raise error


@command.command("fold")
@mirror_option()
@click.argument("tables", metavar="SCHEMA.TABLE...", nargs=-1)
@click.option(
    "--wait",
    type=click.FloatRange(0),
    default=120.0,
    show_default=True,
    help="Maximum number of seconds to wait until the log has all records that Kafka has now.",
)
@click.pass_context
def fold(context: click.Context, file: Path | None, *, tables: tuple[str, ...], wait: float) -> int:
    """Fold these tables now, or all tables, while the mirror runs and would fold them later.

    The mirror appends to the log meanwhile, and this command waits until the log has what Kafka has now. Without a
    mirror that runs, `cdcd mirror --once` appends and folds. No common point is listed, because other tables may be at
    another LSN.

    Exits with 0, or with the code of the first error that stopped a table.
    """
    from cdcd.config.mirror import load_mirror  # noqa: PLC0415  --help needs none of it
    from cdcd.core.catalog.routing import table_named  # noqa: PLC0415

    assert context.parent is not None, "it is a command of `mirror`"
    config = load_mirror(given(file or context.parent.params["file"]), os.environ)
    if config.change_log == "only":
        raise ConfigError(
            "change_log is only, so there are no tables to fold.",
            hint="Set change_log to fold, and let the mirror run.",
        )
    check_pyspark()
    settings = replace(settings_of(config), consistent=False, reload=False, reload_for=())
    for table in tables:
        if not settings.wants(table_named(table)):
            raise ConfigError(
                f"The mirror leaves {table} out.",
                hint="Name tables that tables.include and tables.exclude of the mirror's configuration select.",
            )
    if tables:
        settings = replace(settings, include=tuple(map(table_named, tables)))

    from cdcd.mirror.base.job import BaseJob  # noqa: PLC0415  loads pyspark
    from cdcd.mirror.log.live import FollowedLog  # noqa: PLC0415

    client = config.kafka.librdkafka()
    spark = session_for(config, f"cdcd mirror fold {config.name}")
    try:
        log = FollowedLog(spark, log_place(config), settings.kafka, wait)
        job = BaseJob(spark, settings, lake_of(config), client, log_to(config.log))
        job.run(once=True, stop=threading.Event(), followed=log)
    finally:
        spark.stop()
    for error in job.stopped.values():
        raise error
    return 0


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
    from cdcd.telemetry.mirror_lines import lines  # noqa: PLC0415

    ask = partial(ends_in_kafka, config.kafka.librdkafka()) if kafka else None
    base = None if config.change_log == "only" else base_format(config)
    spark = session_for(config, f"cdcd mirror status {config.name}", kafka=kafka)
    try:
        found = look_at_log(spark, target_of(config), log_place(config), settings_of(config), base, ask)
    finally:
        spark.stop()
    # Without a location, the catalog knows where the tables are.
    found = replace(found, place=config.target.location or found.place)
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

    Reads the lakehouse alone, and changes nothing. Keys and values are not shown. The quarantine is the unreadable
    records of the log, and the table of records that a version without a log left (cdcd.quarantine).
    """
    from cdcd.config.mirror import load_mirror  # noqa: PLC0415  --help needs none of it

    assert context.parent is not None, "it is a command of `mirror`"
    config = load_mirror(given(file or context.parent.params["file"]), os.environ)
    check_pyspark()

    from cdcd.mirror.watching.log_status import read_quarantine  # noqa: PLC0415  loads pyspark
    from cdcd.telemetry.mirror_lines import quarantine_lines  # noqa: PLC0415

    spark = session_for(config, f"cdcd mirror quarantine {config.name}", kafka=False)
    try:
        found = read_quarantine(spark, target_of(config), log_place(config).name, settings_of(config), limit)
    finally:
        spark.stop()
    if form == "json":
        show(json.dumps([each.to_json() for each in found], indent=2, ensure_ascii=False))
    else:
        for line in quarantine_lines(found, limit):
            show(line)
    return 0


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


command.add_command(forget)

if __name__ == "__main__":
    from cdcd.cli.__main__ import main

    main(["mirror", *sys.argv[1:]])
