"""Cost of the log: CPU of a process that appends many busy topics, and of the look at its positions.

    python -m tests.spark.bench_log [--tables 200] [--seconds 300] [--interval 15] [--format iceberg]

Each interval, each topic gets five changes of some 500 bytes. CPU is that of Python and Java together, after a warm-up.
Maintenance runs every minute. The load of the machine stands beside each figure.
"""

import argparse
import json
import os
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

from cdcd.mirror.jars import DELTA, ICEBERG
from cdcd.mirror.kafka import KafkaSource
from cdcd.mirror.log import positions
from cdcd.mirror.log.job import CONSUMERS, LogJob
from cdcd.mirror.log.table import LogPlace
from cdcd.mirror.session import catalog_conf, session
from cdcd.mirror.settings import MirrorSettings
from cdcd.mirror.targets.target import Maintenance
from deploy.local import KafkaBroker
from deploy.local.cache import cache_folder

CHANGES = 5


def _described(number: int) -> bytes:
    column = {
        "name": "id",
        "id": 1,
        "type": "integer",
        "type_oid": 23,
        "modifier": -1,
        "form": "int32",
        "default": None,
    }
    form = {
        "schema": "public", "table": f"t{number}", "topic": f"m.public.t{number}", "oid": number + 1, "key": ["id"],
        "last_id": 1, "rewritten": 0, "fingerprint": f"f{number}", "columns": [column],
    }  # fmt: skip
    return json.dumps(form).encode()


def _produce(producer: Producer, tables: int, moment: int) -> None:
    for table in range(tables):
        for n in range(CHANGES):
            source = {
                "schema": "public", "table": f"t{table}", "commit_lsn": moment * 100 + n, "event_serial_no": 1,
                "schema_id": f"f{table}",
            }  # fmt: skip
            value = {"before": None, "after": {"id": n, "x": "y" * 400}, "source": source, "op": "c"}
            producer.produce(f"m.public.t{table}", json.dumps(value).encode(), b"{}")
    producer.flush()


def _cpu(java: int) -> float:
    fields = Path(f"/proc/{java}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") + time.process_time()


def _java() -> int:
    own = [int(each) for each in Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()]
    (found,) = [each for each in own if "pyspark" in Path(f"/proc/{each}/cmdline").read_text()]
    return found


def _seconds(spark: SparkSession, name: str, java: int) -> str:
    began, cpu = time.monotonic(), _cpu(java)
    positions.read(spark, name)
    return f"{time.monotonic() - began:.2f} s, {_cpu(java) - cpu:.2f} CPU-s"


def run(folder: str, servers: str, options: Any) -> None:
    """Append records for `options.seconds`, and print the time and CPU of the batches."""
    is_delta = options.format == DELTA
    spark = session(
        (options.format,), conf={**catalog_conf(options.format, "lake", f"{folder}/lake"), **CONSUMERS}
    )
    spark.sparkContext.setLogLevel("OFF")
    java = _java()
    topics = ["m.schemas", *[f"m.public.t{table}" for table in range(options.tables)]]
    asked = AdminClient({"bootstrap.servers": servers}).create_topics(
        [NewTopic(topic, 1, 1) for topic in topics]
    )
    for made in asked.values():
        made.result()
    producer = Producer({"bootstrap.servers": servers})
    for table in range(options.tables):
        producer.produce("m.schemas", _described(table), b"k")
    _produce(producer, options.tables, 0)
    settings = MirrorSettings(
        "m", KafkaSource(servers), "m", "m.schemas", "m.checkpoint", "", interval_s=options.interval,
        maintenance_interval_s=60.0, maintenance=Maintenance(versions_max=10),
    )  # fmt: skip
    place = LogPlace(
        f"delta.`{folder}/lake/log`" if is_delta else "`lake`.`m`.`log`", options.format, f"{folder}/cp"
    )
    stop = threading.Event()
    job = LogJob(spark, settings, place, {"bootstrap.servers": servers}, lambda fact: None)
    thread = threading.Thread(target=lambda: job.run(once=False, stop=stop))
    thread.start()
    moment = 0
    for phase, seconds in (("warm-up", 4 * options.interval), ("measured", options.seconds)):
        began, cpu, sent = time.monotonic(), _cpu(java), 0
        while time.monotonic() - began < seconds:
            due = time.monotonic() + options.interval
            moment += 1
            sent += options.tables * CHANGES
            _produce(producer, options.tables, moment)
            time.sleep(max(0.0, due - time.monotonic()))
        took = time.monotonic() - began
        used = _cpu(java) - cpu
        print(
            f"{phase}: {used:.0f} CPU-s in {took:.0f} s, {used * 3600 / took:,.0f} an hour, {sent:,} changes, "
            f"load {os.getloadavg()[0]:.1f}",
            flush=True,
        )
    stop.set()
    thread.join(120)
    log = spark.table(place.name)
    rows = log.filter("kind = 'change'").count()
    print(f"rows of changes {rows:,} of {(moment + 1) * options.tables * CHANGES:,}")
    print(f"positions, from the newest row: {_seconds(spark, place.name, java)}")
    spark.sql(f"DELETE FROM {place.name} WHERE day IS NULL AND kind = 'positions'")
    print(f"positions, from all records: {_seconds(spark, place.name, java)}")
    spark.stop()


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.spark.bench_log")
    parser.add_argument("--tables", type=int, default=200)
    parser.add_argument("--seconds", type=int, default=300)
    parser.add_argument("--interval", type=float, default=15.0)
    parser.add_argument("--format", choices=[ICEBERG, DELTA], default=ICEBERG)
    options = parser.parse_args()
    os.environ.setdefault("CDCD_CACHE", str(cache_folder()))
    with tempfile.TemporaryDirectory(prefix="cdcd-bench-log-") as folder:
        broker = KafkaBroker(Path(folder) / "kafka")
        broker.start()
        try:
            run(folder, broker.bootstrap_servers, options)
        finally:
            broker.kill()


if __name__ == "__main__":
    main()
