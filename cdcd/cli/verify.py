"""`cdcd verify`: whether the topics, or the mirror, have what the tables have."""

import asyncio
import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from click.core import ParameterSource

from cdcd.cli.options import config_option
from cdcd.cli.output import say
from cdcd.core.pasted import cdcd
from cdcd.scratch import scratch_folder

if TYPE_CHECKING:
    from collections.abc import Callable

    from cdcd.config.loading import Config
    from cdcd.tools.verify.report import VerifyReport
    from cdcd.tools.verify.topics import ComparisonOptions, TopicsTarget

MEBIBYTE: Final = 1 << 20

_FOR_TOPICS: Final = ("since", "sample", "continuous", "interval_s", "port", "directory")
"""Parameters that --target mirror does not take."""


@click.command("verify")
@config_option()
@click.option(
    "--target",
    type=click.Choice(["topics", "mirror"]),
    default="topics",
    show_default=True,
    help="Data to compare with the tables: the topics, or the lakehouse tables of `cdcd mirror`.",
)
@click.option(
    "--mirror",
    "mirror_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="With --target mirror: the mirror's configuration.",
)
@click.option(
    "--table",
    "tables",
    multiple=True,
    metavar="SCHEMA.TABLE",
    help="Compare only this table. * stands for any characters, ? for one character. May be repeated.",
)
@click.option(
    "--since",
    metavar="LSN",
    help="Compare only rows that have a record after this LSN, such as 0/16B3748.",
)
@click.option(
    "--sample",
    type=click.FloatRange(min=0, max=100, min_open=True),
    default=100.0,
    metavar="PERCENT",
    help="Percentage of the pages of each table to read. Each comparison draws other pages. [default: 100]",
)
@click.option(
    "--rate",
    type=click.FloatRange(min=0),
    default=20.0,
    show_default=True,
    metavar="MIB",
    help="Maximum rate of rows that are read from PostgreSQL, in MiB per second. 0: no limit.",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=1),
    default=300.0,
    show_default=True,
    metavar="SECONDS",
    help="Time for the pipeline to deliver all commits before the snapshot, in seconds.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Output format: lines for people, or a JSON object for programs.",
)
@click.option(
    "--show",
    "shown",
    type=click.IntRange(min=0, max=1000),
    default=10,
    show_default=True,
    metavar="N",
    help="Number of differences to show for each table. The report counts all differences, also those that it does "
    "not show.",
)
@click.option(
    "--repair",
    is_flag=True,
    help="Ask the daemon to read the rows that differ again, wait for it, and compare once more.",
)
@click.option(
    "--continuous",
    is_flag=True,
    help="Run until stopped, and compare a part of the tables every --interval seconds.",
)
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(min=1),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="With --continuous: seconds between the starts of two comparisons.",
)
@click.option(
    "--port",
    type=click.IntRange(min=0, max=65535),
    default=9465,
    show_default=True,
    metavar="PORT",
    help="With --continuous: port of /metrics and /healthz, on the address in http.host. 0: any free port.",
)
@click.option("--no-values", is_flag=True, help="Show keys and names of columns, but no values.")
@click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Directory for the rows of the topics during the comparison. [default: the system's temporary directory]",
)
def command(
    *,
    file: Path,
    target: str,
    mirror_file: Path | None,
    tables: tuple[str, ...],
    since: str | None,
    sample: float,
    rate: float,
    timeout_s: float,
    form: str,
    shown: int,
    repair: bool,
    continuous: bool,
    interval_s: float,
    port: int,
    no_values: bool,
    directory: Path | None,
) -> int:
    """Compare the topics, or a mirror, with the tables at one moment.

    It takes a snapshot of PostgreSQL, builds rows from the records of all transactions that the snapshot sees, and
    compares both, value by value. Writers and the daemon keep running. Nothing waits for it. The daemon must run.

    With --target mirror, Spark compares the tables of the lakehouse. The mirror must run too.

    \b
    Exits with
      0    equal: every row and every value was compared
      9    the pipeline did not deliver in time (--timeout)
      10   there are differences; they are named
      12   no difference was found, but not everything could be compared; the output says what and why
    """  # noqa: D301  click wants the character, and not a backslash
    from cdcd.config.loading import load_config  # noqa: PLC0415  completion and --help need none of it

    if continuous and (repair or since is not None):
        raise click.UsageError("--continuous takes neither --repair nor --since.")
    _check_target(target, mirror_file, file)
    config = load_config(file, os.environ)

    from cdcd.core.protocol.lsn import Lsn  # noqa: PLC0415  a wrong configuration is told first
    from cdcd.tools.verify.report import as_object, lines  # noqa: PLC0415
    from cdcd.tools.verify.topics import ComparisonOptions, TopicsTarget  # noqa: PLC0415

    def notice(text: str) -> None:
        say(f"note: {text}", err=True)

    def show(report: "VerifyReport") -> None:
        if form == "json":
            say(json.dumps(as_object(report, shown=shown, values=not no_values), ensure_ascii=False))
        else:
            for line in lines(report, shown=shown, values=not no_values):
                say(line)

    options = ComparisonOptions(
        tables=tables,
        rate_bytes_s=rate * MEBIBYTE,
        timeout_s=timeout_s,
        sample=sample / 100,
        since=0 if since is None else int(Lsn.parse(since)),
    )
    if target == "mirror":
        assert mirror_file is not None, "it was asked for"
        report = _verify_mirror(config, mirror_file, options, notice)
        show(report)
        return report.exit_code
    with scratch_folder("cdcd-verify-", directory) as folder:
        topics = TopicsTarget(config, options, Path(folder), notice)
        try:
            if continuous:
                return _go_on(
                    config, topics, options.rate_bytes_s * interval_s, interval_s, port, show, notice
                )
            report = asyncio.run(topics.verify())
            if repair and report.differences and _repair(config, report, timeout_s, notice):
                report = asyncio.run(topics.verify())
        finally:
            topics.close()
    show(report)
    return report.exit_code


def _check_target(target: str, mirror_file: Path | None, file: Path) -> None:
    """UsageError: an option is not for this target."""
    if target == "topics":
        if mirror_file is not None:
            raise click.UsageError("--mirror works only with --target mirror.")
        return
    context = click.get_current_context()

    def is_given(name: str) -> bool:
        return context.get_parameter_source(name) is not ParameterSource.DEFAULT

    if is_given("repair"):
        raise click.UsageError(
            "--repair works only with --target topics. To read a table of the mirror again, stop the mirror, and: "
            f"{cdcd('mirror', '--config', mirror_file or 'FILE', '--snapshot', 'SCHEMA.TABLE', '--source', file)}. "
            "Or let the daemon read the table again: "
            f"{cdcd('tables', 'stop', 'SCHEMA.TABLE', '--config', file)}, and then the same with resume."
        )
    for parameter in context.command.params:
        if parameter.name in _FOR_TOPICS and is_given(parameter.name):
            raise click.UsageError(f"{parameter.opts[0]} works only with --target topics.")
    if mirror_file is None:
        raise click.UsageError("--target mirror needs --mirror FILE, the mirror's configuration.")


def _verify_mirror(
    config: "Config", mirror_file: Path, options: "ComparisonOptions", notice: "Callable[[str], None]"
) -> "VerifyReport":
    """Compare the tables of a mirror."""
    from cdcd.adapters.credentials.tokens import access  # noqa: PLC0415
    from cdcd.adapters.kafka import client  # noqa: PLC0415
    from cdcd.cli.mirror_parts import (  # noqa: PLC0415
        check_pyspark,
        mirrored,
        session_for,
        settings_of,
        source_of,
    )
    from cdcd.cli.mirror_rules import check_records  # noqa: PLC0415
    from cdcd.config.mirror import load_mirror  # noqa: PLC0415
    from cdcd.core.catalog.patterns import parse_pattern  # noqa: PLC0415
    from cdcd.core.errors import ConfigError  # noqa: PLC0415
    from cdcd.tools.operations.sides import bound_columns  # noqa: PLC0415
    from cdcd.tools.verify.delivery import TopicDelivery, chosen, tell_left_out  # noqa: PLC0415
    from cdcd.tools.verify.source import Forms  # noqa: PLC0415

    mirror = load_mirror(mirror_file, os.environ)
    if mirror.change_log == "only":
        raise ConfigError(
            "The mirror's change_log is only, so there are no tables that could be compared.",
            hint="Verify the topics: cdcd verify --target topics.",
        )
    check_records(config)
    check_pyspark()

    from cdcd.mirror.verifying.mirror import MirrorTarget  # noqa: PLC0415  loads pyspark

    tell_left_out(config, notice)
    settings = settings_of(mirror)
    connection, _ = client.split(*access(config.kafka))
    delivery = TopicDelivery(config, connection, options.timeout_s, notice)
    patterns = [parse_pattern(table, "--table") for table in options.tables]
    published = asyncio.run(delivery.published())
    meant = chosen(config, published, patterns, settings.wants)
    for name in chosen(config, published, patterns):
        if name not in meant:
            notice(
                f"{name} is not compared, because the mirror leaves it out (tables.include, tables.exclude)."
            )
    spark = session_for(mirror, f"cdcd verify {config.name}")
    bindings = bound_columns(config)
    try:
        return MirrorTarget(
            spark,
            source_of(config, settings),
            mirrored(spark, mirror, settings),
            settings,
            delivery,
            lambda shared, table: Forms(config, shared, bindings).form(table),
            options.timeout_s,
            options.rate_bytes_s,
            notice,
        ).verify(config.name, meant)
    finally:
        spark.stop()


def _go_on(
    config: "Config",
    target: "TopicsTarget",
    slice_bytes: float,
    interval_s: float,
    port: int,
    show: "Callable[[VerifyReport], None]",
    notice: "Callable[[str], None]",
) -> int:
    """Compare a slice after the other until SIGTERM or Ctrl-C; 0."""
    from cdcd.core.errors import TransientError  # noqa: PLC0415  few need it
    from cdcd.telemetry.http import serve  # noqa: PLC0415
    from cdcd.telemetry.verify import VerifyTelemetry, verify_routes  # noqa: PLC0415
    from cdcd.tools.verify.slices import Slices, Told  # noqa: PLC0415

    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    numbers = VerifyTelemetry()
    told, slices = Told(numbers), Slices(slice_bytes)
    listen = config.http.model_copy(update={"port": port})
    with serve(listen, verify_routes(numbers, listen)) as address:
        if address:
            notice(f"Metrics are at {listen.scheme}://{address}/metrics.")
        while not stop.is_set():
            next_at = time.monotonic() + interval_s
            try:
                report = asyncio.run(target.verify(slices.next))
            except TransientError as error:
                numbers.failed()
                notice(str(error))
            else:
                told.tell(report, time.time())
                show(report)
            stop.wait(max(0.0, next_at - time.monotonic()))
    return 0


def _repair(
    config: "Config", report: "VerifyReport", timeout_s: float, notice: "Callable[[str], None]"
) -> bool:
    """Have the daemon read again what differs; whether there was anything to read."""
    from cdcd.core.snapshot.signals import Signal  # noqa: PLC0415
    from cdcd.tools.operations.snapshot_request import ask  # noqa: PLC0415  few need it
    from cdcd.tools.operations.snapshot_wait import WaitLines, wait  # noqa: PLC0415
    from cdcd.tools.verify.report import not_repairable, requests  # noqa: PLC0415

    for text in not_repairable(report):
        notice(text)
    asked = []
    for table, where in requests(report):
        request = f"verify-{os.urandom(4).hex()}"
        asked_for = Signal("start", (table,), where=where, request=request, pipeline=config.name)
        asked.append((request, ask(config, asked_for, notice)[1]))
        notice(
            f"Asked the daemon to read {'the whole of ' if not where else 'rows of '}{table} again (request "
            f"{request})."
        )
    for request, position in asked:
        code, text = wait(config, request, position, timeout_s, WaitLines(notice))
        notice(f"{request}: {text}")
        if code:
            break
    return bool(asked)
