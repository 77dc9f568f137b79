"""How fast the mirror is beside the same reading without the tables, and whether it equals the source.

    python -m tests.spark.bench [--changes N] [--tables N] [--batch N] [--format iceberg|delta …] [--kills N] [--warm N]

A real PostgreSQL, the daemon and a broker fill the topics once. Then, in one Spark and with batches of the same size,
the topics are read, parsed and counted (the limit; every value is looked at: all are hashed), and mirrored by `BaseJob`
(`cdcd mirror --once`), format by format. The limit is taken before and after the mirror, and counts as the mean of
both; what runs first, with all code still to be compiled, does not count, nor what runs --warm times more, reading and
mirroring, until a mirror is as in the days after its start. Beside the seconds stand those of the CPU,
which say more on a machine that others use too. The first batch fills empty tables; with a --batch smaller than the
changes, the others merge. With --kills, `cdcd mirror` is killed so many times (SIGKILL) on the way and started again.
The tables are compared with the source by count and checksum.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from cdcd.adapters.kafka.topic_facts import TopicStarts
from cdcd.cli.mirror_parts import lake_of, settings_of, target_of
from cdcd.config.mirror import MirrorConfig, parse_mirror
from cdcd.mirror.base.job import BaseJob
from cdcd.mirror.log.job import CONSUMERS
from cdcd.mirror.records.changes import parse
from cdcd.mirror.records.descriptions import Descriptions
from cdcd.mirror.session import catalog_conf, session
from cdcd.mirror.targets.target import Kind
from cdcd.mirror.watching.lines import lines
from cdcd.mirror.watching.progress import BatchDone, Fact
from deploy.local.cache import cache_folder
from deploy.local.kafka_broker import KafkaBroker
from deploy.local.postgres_server import PostgresServer
from tests.bench.drain import drain_with_cdcd

SERVER_SETTINGS = {"max_wal_size": "4GB", "logical_decoding_work_mem": "64MB"}
SLOT = "shop"
KEYS_OF_ALL = 5
"""So many changes for each key."""

TABLE = """CREATE TABLE {name} (id bigint PRIMARY KEY, n int NOT NULL, amount numeric(12,2), at timestamptz,
  status text, note text)"""
ROW = """SELECT i, 0, i / 7.0, TIMESTAMPTZ '2026-01-01' + i * interval '1 second', 'new', repeat(md5(i::text), 4)
  FROM generate_series(1, {keys}) i"""
CHECKSUM = """SELECT count(*), sum(id)::bigint, sum(n)::bigint, sum(amount)::text, sum(length(note))::bigint,
  sum(('x' || substr(md5(concat_ws('|', id, n, amount, status, note)), 1, 8))::bit(32)::bigint)::bigint FROM {name}"""
MIRRORED = """SELECT count(*), sum(id), sum(n), CAST(sum(amount) AS STRING), sum(length(note)),
  sum(CAST(conv(substr(md5(concat_ws('|', id, n, amount, status, note)), 1, 8), 16, 10) AS BIGINT)) FROM {name}"""


def main() -> None:
    """Run what the arguments say and print it."""
    parser = argparse.ArgumentParser(prog="python -m tests.spark.bench")
    parser.add_argument("--changes", type=int, default=500_000)
    parser.add_argument("--tables", type=int, default=10)
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument("--batch", type=int, default=500_000, help="batches.records_max")
    parser.add_argument("--format", choices=["iceberg", "delta"], nargs="+", default=["iceberg", "delta"])
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument(
        "--kill-batch", type=int, default=250_000, help="batches.records_max of what is killed"
    )
    parser.add_argument("--warm", type=int, default=0, help="so many times more before it counts")
    parser.add_argument("--memory", default="1g", help="of the driver")
    parser.add_argument("--property", nargs="*", default=[], help="of the tables, name=value")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cdcd-spark-bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        with (
            KafkaBroker(folder / "kafka", heap_mb=500, for_measuring=True) as broker,
            PostgresServer(18, folder / "postgres", settings=SERVER_SETTINGS) as server,
        ):
            changes = _fill(server, broker, folder, arguments)
            want = {
                table: server.execute(CHECKSUM.format(name=table), "bench")[0] for table in _names(arguments)
            }
            for format_ in arguments.format:
                killed = _config(
                    broker, folder / f"killed-{format_}", format_, arguments, arguments.kill_batch
                )
                if arguments.kills:
                    _killed(killed, folder, arguments.kills)
                config = _config(broker, folder / f"lake-{format_}", format_, arguments)
                warm = [
                    _config(broker, folder / f"warm-{turn}-{format_}", format_, arguments)
                    for turn in range(arguments.warm)
                ]
                with _spark(arguments.format, killed, config, *warm) as spark:
                    if arguments.kills:
                        _mirror(spark, killed)
                        _compare(spark, killed, want)
                    else:
                        _print("read, parse, count (cold)", changes, _limit(spark, config))
                        _print(f"mirror to {format_} (cold)", changes, _mirror(spark, killed))
                    for again in warm:
                        _print("read, parse, count (warming)", changes, _limit(spark, again))
                        _print(f"mirror to {format_} (warming)", changes, _mirror(spark, again))
                    before = _limit(spark, config)
                    _print("read, parse, count (before)", changes, before)
                    mirror = _mirror(spark, config)
                    after = _limit(spark, config)
                    _print("read, parse, count (after)", changes, after)
                    _print(f"mirror to {format_}", changes, mirror, (before + after) / 2)
                    _compare(spark, config, want)


def _names(arguments: argparse.Namespace) -> list[str]:
    return [f"item_{number}" for number in range(arguments.tables)]


def _fill(server: PostgresServer, broker: KafkaBroker, folder: Path, arguments: argparse.Namespace) -> int:
    """Inserts, updates, and at the end some deletes and changes of keys."""
    server.execute("CREATE DATABASE bench")
    names = _names(arguments)
    for name in names:
        server.execute(TABLE.format(name=name), "bench")
    server.execute(f"CREATE PUBLICATION bench FOR TABLE {', '.join(names)}", "bench")
    server.execute(f"SELECT pg_create_logical_replication_slot('{SLOT}', 'pgoutput')", "bench")
    each = arguments.changes // arguments.tables
    keys = each // KEYS_OF_ALL
    for name in names:
        server.execute(f"INSERT INTO {name} {ROW.format(keys=keys)}", "bench")
    updates = 10 * (KEYS_OF_ALL - 1) - 2
    for turn in range(updates):
        for name in names:
            server.execute(
                f"UPDATE {name} SET n = n + 1, status = 'turn {turn}', amount = amount + 0.01"
                f" WHERE id % 10 = {turn % 10}",
                "bench",
            )
    for name in names:
        server.execute(f"DELETE FROM {name} WHERE id % 10 = 3", "bench")
        server.execute(f"UPDATE {name} SET id = -id WHERE id % 10 = 4", "bench")
    ((end,),) = server.execute("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint", "bench")
    server.execute(
        f"INSERT INTO {names[0]} VALUES (0, 0, 0, now(), 'last', ''); SELECT pg_switch_wal()", "bench"
    )
    topics = [NewTopic(f"{SLOT}.public.{name}", arguments.partitions, 1) for name in names]
    topics.append(NewTopic(f"{SLOT}.checkpoint", 1, 1, config={"cleanup.policy": "compact"}))
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    for created in admin.create_topics(topics).values():
        created.result()
    drained = drain_with_cdcd(server, broker, SLOT, end, arguments.changes, folder, "uncompiled")
    print(f"{arguments.changes} changes in the topics after {drained.wall_s:.0f} s", flush=True)
    return int(arguments.changes)


def _config(
    broker: KafkaBroker, place: Path, format_: str, arguments: argparse.Namespace, batch: int | None = None
) -> MirrorConfig:
    catalog = place.name.replace("-", "_") if format_ == "iceberg" else "spark_catalog"
    properties = dict(text.split("=", 1) for text in arguments.property)
    data: dict[str, Any] = {
        "name": SLOT,
        "kafka": {"bootstrap_servers": broker.bootstrap_servers},
        "target": {"format": format_, "catalog": catalog, "location": str(place), "properties": properties},
        "batches": {"records_max": batch or arguments.batch},
        "maintenance": {"interval_s": None},
        "spark": {"spark.driver.memory": arguments.memory},
    }
    return parse_mirror(yaml.safe_dump(data), {})


@contextmanager
def _spark(formats: Sequence[str], *configs: MirrorConfig) -> Iterator[SparkSession]:
    # All that will be asked for: a process has one Java, and that has its jars from the first session.
    conf = dict(CONSUMERS)
    for config in configs:
        place = config.target
        assert place.location is not None
        conf |= catalog_conf(place.format, place.catalog, place.location)
        conf |= {name: str(value) for name, value in config.spark.items()}
    spark = session(formats, conf=conf)
    spark.sparkContext.setLogLevel("OFF")
    try:
        yield spark
    finally:
        spark.stop()


@dataclass(frozen=True, slots=True)
class _Took:
    """Seconds, and those of the CPU in all threads of the JVM."""

    wall_s: float
    cpu_s: float

    @classmethod
    def until_now(cls, spark: SparkSession) -> "_Took":
        jvm: Any = spark._jvm
        stat = Path(f"/proc/{jvm.java.lang.ProcessHandle.current().pid()}/stat").read_text()
        # proc(5): after the name in brackets, the 12th and 13th are utime and stime.
        ticks = sum(map(int, stat.rpartition(")")[2].split()[11:13]))
        return cls(time.monotonic(), ticks / os.sysconf("SC_CLK_TCK"))

    def __sub__(self, other: "_Took") -> "_Took":
        return _Took(self.wall_s - other.wall_s, self.cpu_s - other.cpu_s)

    def __add__(self, other: "_Took") -> "_Took":
        return _Took(self.wall_s + other.wall_s, self.cpu_s + other.cpu_s)

    def __truediv__(self, parts: int) -> "_Took":
        return _Took(self.wall_s / parts, self.cpu_s / parts)


def _limit(spark: SparkSession, config: MirrorConfig) -> _Took:
    """How long it takes to read and parse all topics and look at each value, in the mirror's batches and threads."""
    settings = settings_of(config)
    client = TopicStarts(settings.kafka.librdkafka())
    descriptions = Descriptions(spark, settings.kafka, client, settings.schemas)
    began = _Took.until_now(spark)
    descriptions.refresh()
    topics = sorted(descriptions.topics())
    starts, ends = client.beginnings(topics), client.ends(topics)
    offsets = [sum(ends[topic][part] - start for part, start in starts[topic].items()) for topic in topics]
    # What a topic has at the start is mirrored in slices of this size, each table by itself.
    turns = -(-max(offsets) // settings.batch_records_max)

    def count(topic: str, turn: int) -> int:
        form = descriptions.newest(topic)
        first, last = [
            {part: start + (ends[topic][part] - start) * at // turns for part, start in starts[topic].items()}
            for at in (turn, turn + 1)
        ]
        records = settings.kafka.read(spark, topic, first, last)
        changes = parse(records, form.schema, form.rules)
        row = changes.agg(
            sf.count(sf.lit(1)), sf.sum(sf.xxhash64(*changes.columns).cast("double"))
        ).collect()[0]
        return int(row[0])

    counted = 0
    for turn in range(turns):
        with ThreadPoolExecutor(settings.threads) as pool:
            counted += sum(pool.map(count, topics, [turn] * len(topics)))
    took = _Took.until_now(spark) - began
    assert counted > 0
    return took


def _mirror(spark: SparkSession, config: MirrorConfig) -> _Took:
    def show(fact: Fact) -> None:
        if isinstance(fact, BatchDone):
            slowest = max([table.seconds for table in fact.tables], default=0.0)
            print(f"  batch {fact.batch_id}: {fact.seconds:.1f} s, slowest table {slowest:.1f} s", flush=True)
        else:
            print(*[f"  {line}" for line in lines(fact)], sep="\n", flush=True)

    mirror = BaseJob(spark, settings_of(config), lake_of(config), config.kafka.librdkafka(), show)
    began = _Took.until_now(spark)
    mirror.run(once=True, stop=threading.Event())
    took = _Took.until_now(spark) - began
    assert not mirror.stopped, mirror.stopped
    return took


def _killed(config: MirrorConfig, folder: Path, kills: int) -> None:
    """Run `cdcd mirror --once`, and kill it each time somewhere in the middle of applying."""
    file = folder / f"mirror-{config.target.format}.json"
    file.write_text(json.dumps(json.loads(config.model_dump_json(exclude_none=True))))
    command = [sys.executable, "-m", "cdcd.cli", "mirror", "--once", "--config", str(file)]
    place = Path(str(config.target.location))
    for number in range(kills):
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
        )
        began, had = time.monotonic(), _files(place)
        # It has begun to write, and is somewhere in the middle of it.
        while _files(place) == had and process.poll() is None and time.monotonic() - began < 300:
            time.sleep(0.05)
        time.sleep(random.uniform(0.1, 10))
        ended = process.poll()
        _kill_group(process)
        print(
            f"  kill {number + 1}: {'it had ended' if ended is not None else 'SIGKILL'} after"
            f" {time.monotonic() - began:.1f} s, {_files(place)} files",
            flush=True,
        )


def _kill_group(process: "subprocess.Popen[bytes]") -> None:
    """Python and its JVM at once."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _files(place: Path) -> int:
    return sum(1 for _ in place.rglob("*.parquet"))


def _compare(spark: SparkSession, config: MirrorConfig, want: Mapping[str, tuple[Any, ...]]) -> None:
    target = target_of(config)
    settings = settings_of(config)
    client = TopicStarts(settings.kafka.librdkafka())
    descriptions = Descriptions(spark, settings.kafka, client, settings.schemas)
    descriptions.refresh()
    wrong = 0
    for topic in descriptions.topics():
        schema = descriptions.newest(topic).schema
        got = tuple(spark.sql(MIRRORED.format(name=target.name_of(schema, Kind.MIRROR))).collect()[0])
        if got != tuple(want[schema.name]):
            wrong += 1
            print(f"  {schema.table} differs: {got} instead of {want[schema.name]}")
    rows = sum(table[0] for table in want.values())
    print(
        f"  {len(want) - wrong} of {len(want)} tables equal the source by count and checksum, {rows} rows",
        flush=True,
    )
    if wrong:
        raise SystemExit(1)


def _print(what: str, changes: int, took: _Took, limit: _Took | None = None) -> None:
    beside = ""
    if limit is not None:
        beside = f"; {took.wall_s / limit.wall_s:.2f} times the limit, {took.cpu_s / limit.cpu_s:.2f} times its CPU"
    print(
        f"{what}: {took.wall_s:.1f} s, {changes / took.wall_s:,.0f} events/s;"
        f" {took.cpu_s:.1f} s of CPU, {changes / took.cpu_s:,.0f} events for each{beside}",
        flush=True,
    )


if __name__ == "__main__":
    os.environ.setdefault("CDCD_CACHE", str(cache_folder()))
    main()
