"""What folded tables cost: many small ones that change all the time, and a large one with few changes.

    python -m tests.spark.bench_folds small [--tables 200] [--rounds 5] [--format iceberg|delta] [--former]
    python -m tests.spark.bench_folds busy [--tables 200] [--seconds 300] [--interval 15] [--fold-interval 300]
    python -m tests.spark.bench_folds large [--rows 3000000] [--keys 100] [--format iceberg|delta] [--buckets 256]

`small` runs `cdcd mirror` behind a real PostgreSQL and its daemon. In each round, every table gets five changes. The
CPU of a round is that of the whole process, Python and Java, from the changes until the mirror has committed all of
them. The first two rounds do not count, because Java still compiles its code. `--former` measures the mirror of commit
99c61843 instead, which has no log.

`busy` runs the same mirror with its own intervals, while every table gets five changes each interval. It counts the CPU
from the end of the first fold of all tables on, and prints it every `--period` seconds, because Java compiles its code
in the first minutes. A round folds at least ten tables (`batches.fold_tables_min`), so with the defaults, 50 tables are
folded as often in an hour as 200.

`large` fills a table by one fold of a log that Spark makes, and then folds changes of random keys, as many as `--keys`
in each of four folds. It prints the share of rows that a fold has read, by Spark's own counters.
"""

import argparse
import os
import random
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from cdcd.mirror.jars import DELTA, ICEBERG
from cdcd.mirror.log.table import COLUMNS
from cdcd.mirror.targets.layout import Layout
from cdcd.mirror.targets.partitions import Field
from deploy.local.cache import cache_folder
from tests.bench.processes import cpu_s
from tests.integration.daemon import until
from tests.integration.former import unpack
from tests.spark.base_model import Lake, as_row, form_of
from tests.spark.bench_tables import SHAPES, changed, family, inserted
from tests.spark.counters import READ, counted
from tests.spark.sessions import for_tests
from tests.spark.stage import Source, Stage

WARM: Final = 2
"""Number of rounds that do not count."""

CHANGES: Final = 5

FIRST_LSN: Final = 1000

FORM: Final = "form-text"
"""The form of the large table, whose key is a text."""


def main() -> None:
    """Run what the arguments say and print it."""
    parser = argparse.ArgumentParser(prog="python -m tests.spark.bench_folds")
    parser.add_argument("what", choices=["small", "busy", "large"])
    parser.add_argument("--format", choices=[ICEBERG, DELTA], default=ICEBERG)
    parser.add_argument("--tables", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2, help="batches.threads")
    parser.add_argument("--former", action="store_true", help="the mirror of commit 99c61843")
    parser.add_argument("--seconds", type=float, default=300.0, help="of `busy`, after the first folds")
    parser.add_argument("--period", type=float, default=120.0, help="seconds of a line of `busy`")
    parser.add_argument("--interval", type=float, default=15.0, help="batches.interval_s of `busy`")
    parser.add_argument(
        "--fold-interval", type=float, default=300.0, help="batches.fold_interval_s of `busy`"
    )
    parser.add_argument("--rows", type=int, default=3_000_000)
    parser.add_argument("--keys", type=int, default=100)
    parser.add_argument("--buckets", type=int, default=0, help="of tables.partition_by")
    given = parser.parse_args()
    os.environ.setdefault("CDCD_CACHE", str(cache_folder()))
    with tempfile.TemporaryDirectory(prefix="cdcd-bench-folds-") as folder:
        if given.what == "small":
            _small(Path(folder), given)
        elif given.what == "busy":
            _busy(given)
        else:
            _large(Path(folder), given)


def _small(folder: Path, given: argparse.Namespace) -> None:
    tables = [f"CREATE TABLE t_{i} ({SHAPES[i % len(SHAPES)]})" for i in range(given.tables)]
    with Stage.set_up() as stage, stage.source("many", *tables, partitions=1) as source:
        mirror = source.mirror(
            given.format,
            batches={
                "interval_s": 5,
                "threads": given.threads,
                **({} if given.former else {"fold_interval_s": 0}),
            },
            maintenance={"interval_s": None},
            log={"format": "console"},
        )
        if given.former:
            unpack(folder, "cdcd", "config")
            mirror.variables = {"PYTHONPATH": str(folder), "PYTHONSAFEPATH": "1"}
            del mirror.config["change_log"]
        else:
            mirror.config["change_log"] = "fold"
        mirror.start()
        said = mirror.lines()
        measured = []
        for number in range(given.rounds):
            began, before = time.monotonic(), _cpu(mirror)
            for table in range(given.tables):
                source.execute("; ".join(_statements(number, table)))
            source.deliver()
            working = _await_changes(said, CHANGES * given.tables)
            took = _cpu(mirror) - before
            measured += [(took, working)] if number >= WARM else []
            print(
                f"round {number + 1}: {took:.1f} s of CPU, {took / given.tables:.3f} a table,"
                f" {time.monotonic() - began:.0f} s, batches of {working:.1f} s, load {os.getloadavg()[0]:.1f}",
                flush=True,
            )
        mean, seconds = [sum(each) / len(measured) for each in zip(*measured, strict=True)]
        print(
            f"{given.tables} tables in {given.format}{' by 99c61843' if given.former else ''}: {mean:.1f} s of CPU a"
            f" round, batches of {seconds:.1f} s; {12 * mean:,.0f} an hour every 5 minutes, {60 * mean:,.0f} every"
            " minute"
        )


def _statements(number: int, table: int) -> list[str]:
    """`CHANGES` changes of a table, in one transaction."""
    if number == 0:
        return list(inserted(table, CHANGES))
    if number == 1:
        return list(changed(table, CHANGES))
    return [f"UPDATE t_{table} SET n = n + 1"]


def _cpu(mirror: Any) -> float:
    total = 0.0
    for pid in family(mirror.pid):
        # Java starts small programs, which may have ended since they were listed.
        with suppress(FileNotFoundError):
            total += cpu_s(pid)
    return total


def _await_changes(said: Iterator[str], wanted: int) -> float:
    """Read what the mirror says until its batches of tables have this number of changes. Return their seconds."""
    found, seconds, lines = 0, 0.0, [""]
    while found < wanted:
        lines.append(next(said))
        # The lines below name the tables. A batch of the log names only the log.
        if lines[-1].startswith("  public.") and lines[-2].startswith("batch "):
            words = lines[-2].split(":")[1].split()
            found, seconds = found + int(words[0]), seconds + float(words[3])
        elif "STOPPED" in lines[-1] or "failed" in lines[-1]:
            raise AssertionError(lines[-1])
    assert found == wanted, "\n".join([f"{found} changes instead of {wanted}", *lines])
    return seconds


def _busy(given: argparse.Namespace) -> None:
    tables = [f"CREATE TABLE t_{i} ({SHAPES[i % len(SHAPES)]})" for i in range(given.tables)]
    rows = [each for i in range(given.tables) for each in inserted(i, CHANGES)]
    with Stage.set_up() as stage, stage.source("many", *tables, *rows, partitions=1) as source:
        batches = {"interval_s": given.interval, "fold_interval_s": given.fold_interval}
        mirror = source.mirror(given.format, batches=batches, log={"format": "console"})
        mirror.config["change_log"] = "fold"
        source.deliver()
        mirror.start()
        done, stop = _Said(), threading.Event()
        reader = threading.Thread(target=done.read, args=(mirror.lines(),))
        writer = threading.Thread(target=_change_all, args=(source, given.tables, given.interval, stop))
        reader.start()
        try:
            until(lambda: True if done.folds >= given.tables else None, "folded once", 3600)
            writer.start()
            end = time.monotonic() + given.seconds
            while (left := end - time.monotonic()) > 1:
                began, before, folds, appends = time.monotonic(), _cpu(mirror), done.folds, done.appends
                stop.wait(min(left, given.period))
                took, wall = _cpu(mirror) - before, time.monotonic() - began
                print(
                    f"{given.tables} tables in {given.format} that change every {given.interval:.0f} s: {took:.0f} s of"
                    f" CPU in {wall:.0f} s, {took * 3600 / wall:,.0f} an hour; {done.folds - folds} folds,"
                    f" {done.appends - appends} appends, load {os.getloadavg()[0]:.1f}",
                    flush=True,
                )
        finally:
            stop.set()
            mirror.kill()
            reader.join()
    writer.join()


class _Said:
    """Counts what a mirror says that it did.

    Attributes:
        folds: number of tables that it folded.
        appends: number of batches of the log.
    """

    def __init__(self) -> None:
        self.folds, self.appends = 0, 0

    def read(self, lines: Iterator[str]) -> None:
        for line in lines:
            if line.startswith("  and ") and line.endswith(" more tables"):
                self.folds += int(line.split()[1])
            elif line.startswith("  public."):
                self.folds += 1
            elif line.startswith("log: "):
                self.appends += 1
            elif "STOPPED" in line or "failed" in line:
                print(line, flush=True)


def _change_all(source: Source, tables: int, interval: float, stop: threading.Event) -> None:
    """Change all rows of all tables every `interval` seconds until `stop` is set."""
    with source.connect() as connection:
        while not stop.wait(interval):
            for table in range(tables):
                connection.execute(f"UPDATE t_{table} SET n = n + 1".encode())


def _large(folder: Path, given: argparse.Namespace) -> None:
    spark = for_tests(folder)
    lake = Lake(spark, str(folder), "large", given.format)
    lake.forms[FORM] = form_of(
        FORM, ("id", 1, "text"), ("n", 2, "int32"), ("title", 3, "text"), ("body", 4, "text")
    )
    fields = (Field("id", "bucket", given.buckets),) if given.buckets else ()
    layout = Layout(fields=fields)
    _fill(spark, lake, given.rows)
    began = time.monotonic()
    lake.fold(FIRST_LSN, layout=layout)
    print(f"{given.rows:,} rows folded in {time.monotonic() - began:.0f} s", flush=True)
    java = _java()
    dice = random.Random(1)
    for number in range(4):
        lsn = 2000 + number
        keys = dice.sample(range(given.rows), given.keys)
        lake.append([_update(key, lsn, event) for event, key in enumerate(keys)])
        began, before = time.monotonic(), cpu_s(java)
        with counted(spark, "docs") as counts:
            done = lake.fold(lsn, layout=layout)
        assert done.keys == given.keys
        print(
            f"{given.keys} keys: {counts[READ] / given.rows:.1%} of the rows read, {cpu_s(java) - before:.1f} s of CPU,"
            f" {time.monotonic() - began:.1f} s, load {os.getloadavg()[0]:.1f}",
            flush=True,
        )
    spark.stop()


def _fill(spark: SparkSession, lake: Lake, rows: int) -> None:
    """Append one insert of each row to the log."""
    each = lake.frame([_update(0, FIRST_LSN, 0)]).drop("off", "ord").crossJoin(spark.range(rows))
    numbered = {
        name: sf.expr(f"encode(replace(decode({name}, 'utf-8'), 'key 0', 'key ' || id), 'utf-8')")
        for name in ("key", "value")
    }
    made = each.withColumns({**numbered, "off": sf.col("id"), "ord": sf.col("id")})
    lake.append_frame(made.select(*COLUMNS))


def _update(key: int, lsn: int, event: int) -> dict[str, Any]:
    """A row of the log: the key has these values now."""
    name = f"key {key}"
    values = (name, lsn, f"title {key}", "text " * 10)
    record = {
        "op": "c" if lsn == FIRST_LSN else "u", "commit_lsn": lsn, "event_no": event, "partition": 0,
        "offset": lsn * 10_000 + event, "schema_id": FORM, "key": (name,), "before": None, "after": values,
    }  # fmt: skip
    return as_row(record)


def _java() -> int:
    (found,) = [
        pid for pid in family(os.getpid()) if "SparkSubmit" in Path(f"/proc/{pid}/cmdline").read_text()
    ]
    return found


if __name__ == "__main__":
    main()
