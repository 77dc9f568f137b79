"""What `cdcd mirror status` says, from the tables alone: no mirror runs, and its Kafka does not answer."""

import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyspark.sql import SparkSession

from cdcd.core.errors import ConfigError
from cdcd.mirror.base.formats import MADE_BY, base_of
from cdcd.mirror.jars import DELTA, ICEBERG
from cdcd.mirror.kafka import KafkaSource
from cdcd.mirror.log.table import LogPlace
from cdcd.mirror.platform.tables import properties
from cdcd.mirror.settings import MirrorSettings
from cdcd.mirror.targets.delta import DeltaTarget
from cdcd.mirror.targets.iceberg import IcebergTarget
from cdcd.mirror.targets.target import QUARANTINE, Target
from cdcd.mirror.watching.log_status import look_at_log, read_quarantine
from cdcd.mirror.watching.progress import TableResumed
from cdcd.telemetry.mirror_status import FOUND
from deploy.demo.mirrored import environment
from tests.spark.conftest import MakeTarget
from tests.spark.jobs import Job
from tests.spark.stage import Source, Stage

TABLES = ("healthy", "altered", "poisoned")
NOBODY = "127.0.0.1:1"


@pytest.fixture
def source(stage: Stage, request: pytest.FixtureRequest) -> Iterator[Source]:
    tables = [f"CREATE TABLE {table} (id int PRIMARY KEY, n int)" for table in TABLES]
    with stage.source(f"st{abs(hash(request.node.nodeid)) % 10**8}", *tables) as source:
        for table in TABLES:
            source.execute(f"INSERT INTO {table} SELECT n, n FROM generate_series(1, 10) n")
        source.deliver()
        yield source


def status(job: Job, place: Path, warehouse: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """`cdcd mirror status`, of the tables that the job filled. It is told of a broker that nobody has."""
    config = dict(job._config)
    config["kafka"] = {"bootstrap_servers": NOBODY}
    config["target"] = {"location": str(warehouse / "iceberg"), **config["target"]}
    file = place / "status.yaml"
    file.write_text(yaml.safe_dump(config))
    return subprocess.run(
        [sys.executable, "-m", "cdcd.cli", "mirror", "status", "--config", str(file), *arguments],
        env={**environment(), "COLUMNS": "80"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("table_format", [ICEBERG, DELTA])
def test_a_stopped_table_and_one_with_quarantine_are_named_while_the_mirror_is_down(
    source: Source, spark: SparkSession, warehouse: Path, tmp_path: Path, table_format: str
) -> None:
    # GIVEN a mirror of three tables that is down; one could not follow, and one has records in quarantine
    job = Job(spark, source, tmp_path, table_format)
    job.once()
    source.execute("ALTER TABLE altered ALTER n TYPE text")
    source.execute("INSERT INTO altered VALUES (11, 'eleven')")
    source.produce("public.poisoned", b"{", b"[1", partition=1)
    source.execute("UPDATE healthy SET n = 0 WHERE id = 1")
    source.deliver()
    job.once()
    # WHEN its status is asked for
    done = status(job, tmp_path, warehouse, "--format", "json")
    # THEN it is JSON and nothing else, and the exit code says that a table is stopped
    assert done.returncode == FOUND, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert (found["name"], found["format"], found["exit_code"]) == (source.name, table_format, FOUND)
    assert (found["unreadable"], found["consistent"]) == ([], None)
    tables: dict[str, dict[str, Any]] = {table["table"]: table for table in found["tables"]}
    assert list(tables) == ["public.altered", "public.poisoned", "public.healthy"]
    assert [table["level"] for table in tables.values()] == ["error", "warning", "ok"]
    # AND each table says what it has, and why it does not go on
    stopped = tables["public.altered"]["stopped"]
    assert stopped["message"].startswith("public.altered: column n changed from integer to text")
    assert "tables stop public.altered" in stopped["hint"]
    assert not stopped["waits"]
    assert tables["public.poisoned"]["quarantined"] == {"its JSON is not that of a change": 2}
    (healthy,) = tables["public.healthy"]["targets"]
    assert (healthy["kind"], healthy["columns"], healthy["held"], healthy["behind"]) == ("mirror", 2, 0, None)
    name = healthy["name"]
    newest = spark.table(name).selectExpr("max(_cdcd_commit_lsn)").head()
    assert newest is not None
    high, _, low = healthy["lsn"].partition("/")
    assert (int(high, 16) << 32) + int(low, 16) >= newest[0]
    assert 0 <= healthy["written_age_s"] < 600
    assert healthy["files"] >= 1
    assert healthy["bytes"] > 0
    assert (healthy["buckets"], healthy["buckets_apt"]) == (1, 1)
    # AND a person reads the same
    if table_format == ICEBERG:
        shown = status(job, tmp_path, warehouse)
        assert shown.returncode == FOUND
        assert f"{source.name}: 3 tables, iceberg in {warehouse / 'iceberg'}" in shown.stdout
        assert "1 stopped, 1 with records in quarantine" in shown.stdout
        assert "STOPPED public.altered, for " in shown.stdout

    # WHEN the table is read again and the mirror runs once more
    job.load(["public.altered"])
    job.once()
    # THEN nothing is stopped any more, and that was written down once
    assert job.all(TableResumed) == [TableResumed("public.altered")]
    source.execute("INSERT INTO healthy SELECT n, n FROM generate_series(11, 13) n")
    source.deliver()
    now = status(job, tmp_path, warehouse, "--format", "json")
    assert now.returncode == 0
    tables = {table["table"]: table for table in json.loads(now.stdout)["tables"]}
    assert [table["stopped"] for table in tables.values()] == [None] * 3


def test_the_log_of_a_mirror_is_one_object_in_each_line(source: Source) -> None:
    mirror = source.mirror(ICEBERG, log={"format": "json"})
    said: list[str] = []
    assert mirror.once(say=said.append) == 0, mirror.errors()[-3000:]
    events = [json.loads(line) for line in said]
    assert all(list(event)[:3] == ["timestamp", "level", "event"] for event in events)
    assert events[0]["event"] == "mirror.started"
    assert (events[0]["topics"], events[0]["once"]) == (3, True)
    batches, appended = [
        [event for event in events if event["event"] == name] for name in ("mirror.batch", "log.batch")
    ]
    # The log counts the changes, and so do the tables that are folded from it.
    assert sum(batch["changes"] for batch in batches) == sum(batch["changes"] for batch in appended) == 30
    assert {batch["log"] for batch in appended} == {"`lake`.`cdcd`.`log`"}
    assert {table["table"] for batch in batches for table in batch["tables"]} == {
        f"public.{table}" for table in TABLES
    }


@pytest.mark.parametrize("table_format", [ICEBERG, DELTA])
def test_a_place_where_nothing_is_yet_has_no_log(
    spark: SparkSession, tmp_path: Path, table_format: str
) -> None:
    spark.conf.set("spark.sql.catalog.empty", "org.apache.iceberg.spark.SparkCatalog")
    spark.conf.set("spark.sql.catalog.empty.type", "hadoop")
    spark.conf.set("spark.sql.catalog.empty.warehouse", str(tmp_path / "empty"))
    targets: dict[str, list[Target]] = {
        ICEBERG: [IcebergTarget("empty"), IcebergTarget("empty", "mirror")],
        DELTA: [DeltaTarget(str(tmp_path / "none")), DeltaTarget(namespace="nowhere")],
    }
    settings = MirrorSettings("shop", KafkaSource(NOBODY), "shop", "shop.schemas", "shop.checkpoint", "/c")
    for target in targets[table_format]:
        place = LogPlace(target.own_name("log"), table_format, str(tmp_path / "checkpoint"))
        with pytest.raises(ConfigError, match="There is no log"):
            look_at_log(spark, target, place, settings, base_of(table_format))
        assert read_quarantine(spark, target, place.name, settings, 10) == []


def test_records_that_a_version_without_a_log_left_in_quarantine_are_shown(
    spark: SparkSession, make_target: MakeTarget
) -> None:
    # GIVEN the table of a former version, with records of this pipeline and of another one
    target = make_target()
    columns = (
        "`table` string, topic string, partition int, offset bigint, record_time timestamp, reason string"
    )
    places = [("public.a", f"{prefix}.public.a", 0, 7) for prefix in ("shop", "other")]
    rows = [(*place, datetime(2026, 1, 1, tzinfo=UTC), "no JSON") for place in places]
    target.append(
        target.own_name(QUARANTINE), spark.createDataFrame(rows, columns), ["topic", "partition", "offset"]
    )
    settings = MirrorSettings("shop", KafkaSource(NOBODY), "shop", "shop.schemas", "shop.checkpoint", "/c")
    # WHEN the quarantine is read, also before there is a log
    found = read_quarantine(spark, target, target.own_name("log"), settings, 10)
    # THEN the record of this pipeline is there
    assert [(each.topic, each.offset, each.reason) for each in found] == [("shop.public.a", 7, "no JSON")]


def test_a_table_of_another_format_in_the_same_catalog_is_passed_over(spark: SparkSession) -> None:
    spark.sql("CREATE TABLE IF NOT EXISTS spark_catalog.default.other (id int) USING parquet")
    try:
        target = IcebergTarget("spark_catalog", "default")
        names = list(target.list_tables(spark))
        assert names == ["`spark_catalog`.`default`.`other`"]
        assert MADE_BY not in properties(spark, names[0])
    finally:
        spark.sql("DROP TABLE spark_catalog.default.other")
