"""Programs for `test_connect`: a server of Spark Connect, and jobs that are its clients.

    python -m tests.spark.over_connect serve FOLDER
    python -m tests.spark.over_connect read SERVER KAFKA PREFIX TABLE
    python -m tests.spark.over_connect stream SERVER KAFKA PREFIX TABLE
    python -m tests.spark.over_connect fold SERVER KAFKA PREFIX TABLE FOLDER
    python -m tests.spark.over_connect apply SERVER KAFKA PREFIX TABLE
    python -m tests.spark.over_connect refused SERVER KAFKA

The server prints its address, and ends with its standard input. A client prints one object as JSON.
"""

import json
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from cdcd.core.errors import ConfigError
from cdcd.mirror.api import apply_changes, follow_changes, read_changes, stream_changes
from cdcd.mirror.base.formats import IcebergBase
from cdcd.mirror.base.given import reached
from cdcd.mirror.base.job import BaseJob
from cdcd.mirror.base.reading import LogTables
from cdcd.mirror.base.topic_folds import Lake
from cdcd.mirror.jars import ICEBERG
from cdcd.mirror.kafka import KafkaSource
from cdcd.mirror.log.table import LogPlace
from cdcd.mirror.records.schema import TableSchema
from cdcd.mirror.session import catalog_conf, session
from cdcd.mirror.settings import MirrorSettings
from cdcd.mirror.snapshot.reading import SnapshotSource, open_snapshot
from cdcd.mirror.targets.iceberg import IcebergTarget
from cdcd.mirror.targets.target import Kind


def serve(folder: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    made = session(
        (ICEBERG,),
        conf={
            **catalog_conf(ICEBERG, "lake", str(Path(folder) / "lake")),
            "spark.sql.warehouse.dir": folder,
            "spark.local.dir": folder,
            "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(port),
        },
    )
    print(f"sc://127.0.0.1:{port}", flush=True)
    sys.stdin.read()
    made.stop()


def read(server: str, servers: str, prefix: str, table: str) -> dict[str, Any]:
    spark = SparkSession.builder.remote(server).getOrCreate()
    return shown(spark, servers, prefix, table)


def shown(spark: SparkSession, servers: str, prefix: str, table: str) -> dict[str, Any]:
    """All that `read_changes` gives, of any session."""
    got = read_changes(spark, KafkaSource(servers), prefix, table)
    return {
        "schema": got.schema.to_json(),
        "types": got.changes.schema.json(),
        "changes": rows(got.changes),
        "rejected": rows(got.rejected),
        "end": {str(partition): offset for partition, offset in sorted(got.end.items())},
    }


def stream(server: str, servers: str, prefix: str, table: str) -> list[str]:
    spark = SparkSession.builder.remote(server).getOrCreate()
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    return streamed(spark, servers, prefix, table)


def streamed(spark: SparkSession, servers: str, prefix: str, table: str) -> list[str]:
    """All that `stream_changes` gives, of any session."""
    _, changes = stream_changes(spark, KafkaSource(servers), prefix, table)
    query = changes.writeStream.format("memory").queryName("streamed").trigger(availableNow=True).start()
    query.awaitTermination()
    return rows(spark.table("streamed"))


def rows(frame: DataFrame) -> list[str]:
    text = frame.select(sf.to_json(sf.struct("*"), {"ignoreNullFields": "false"}).alias("row"))
    return sorted(row["row"] for row in text.collect())


def fold(server: str, servers: str, prefix: str, table: str, folder: str) -> dict[str, Any]:
    """Append the topics to a log, fold the tables, and read one of them folded and as of now."""
    spark = SparkSession.builder.remote(server).getOrCreate()
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    source, target = KafkaSource(servers), IcebergTarget("lake")
    settings = MirrorSettings(prefix, source, prefix, f"{prefix}.schemas", f"{prefix}.checkpoint", "")
    place = LogPlace(target.own_name("log"), ICEBERG, f"{folder}/checkpoint")
    client = {"bootstrap.servers": servers}
    job = BaseJob(spark, settings, Lake(place, IcebergBase(), target), client, lambda _: None)
    job.run(once=True, stop=threading.Event())
    namespace, _, name = table.partition(".")
    folded = spark.table(target.name_of(TableSchema("", namespace, name, "", ("id",), ()), Kind.MIRROR))
    return {
        "stopped": {name: error.message for name, error in job.stopped.items()},
        "folded": rows(folded.select(sorted(folded.columns))),
        "now": rows(LogTables(spark, source, target, prefix).now(table).select(sorted(folded.columns))),
    }


def apply(server: str, servers: str, prefix: str, table: str) -> dict[str, Any]:
    """Bring the changes of a table into a table of a job's own, twice."""
    spark = SparkSession.builder.remote(server).getOrCreate()
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    got, target = read_changes(spark, KafkaSource(servers), prefix, table), IcebergTarget("lake", "applied")
    new = [apply_changes(target, got.changes, got.schema, batch_id=number).changes for number in (1, 2)]
    name = target.name_of(got.schema, Kind.MIRROR)
    names = [column.name for column in got.schema.columns]
    assert reached(spark, target, name).commit_lsn > 0
    return {"new": new, "rows": rows(target.read(spark, name).select(names))}


def refused(server: str, servers: str) -> list[str]:
    """What says that it does not work in such a session."""
    spark = SparkSession.builder.remote(server).getOrCreate()
    source = KafkaSource(servers)
    said = []
    attempts: list[Callable[[], object]] = [
        lambda: follow_changes(spark, source, "shop", "public.orders", lambda *_: None),
        lambda: open_snapshot(spark, SnapshotSource("", "", "", "shop"), ["public.orders"]).__enter__(),
    ]
    for attempt in attempts:
        try:
            attempt()
        except ConfigError as error:
            said.append(f"{error.message} {error.hint}")
    return said


if __name__ == "__main__":
    what, *given = sys.argv[1:]
    programs: dict[str, Callable[..., object]] = {
        "serve": serve,
        "read": read,
        "stream": stream,
        "fold": fold,
        "apply": apply,
        "refused": refused,
    }
    found = programs[what](*given)
    if found is not None:
        print(json.dumps(found))
