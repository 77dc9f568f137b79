"""Maintenance of a log beside its readers and writers: a held table, a query that runs, a process that is killed."""

import json
import subprocess
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cdcd.core.errors import SinkError
from cdcd.mirror.jars import DELTA, ICEBERG
from cdcd.mirror.log.table import LogPlace
from cdcd.mirror.log.upkeep import LogUpkeep
from cdcd.mirror.targets.target import Maintenance
from cdcd.telemetry.mirror_status import FOUND
from deploy.demo.mirrored import MirrorProcess, environment
from deploy.local.cache import REPOSITORY
from tests.integration.daemon import until
from tests.spark.base_model import TOPIC, Lake, expected
from tests.spark.source_model import Source
from tests.spark.stage import Stage
from tests.spark.test_log import Pipeline, _there, change, pipeline, servers  # noqa: F401  fixtures


class Killed(BaseException):
    """The end of a process: no handler of `Exception` sees it."""


class Dying:
    """A session whose process ends before its statement number `at` that writes."""

    def __init__(self, spark: SparkSession, at: int) -> None:
        self._spark = spark
        self.left = at

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Killed

    def sql(self, statement: str) -> Any:
        if statement.startswith(("CALL", "DELETE", "OPTIMIZE", "VACUUM")):
            self._count()
        return self._spark.sql(statement)

    def createDataFrame(self, *given: Any) -> Any:  # noqa: N802  as Spark has it
        self._count()
        return self._spark.createDataFrame(*given)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._spark, name)


def test_a_round_that_is_killed_before_any_of_its_statements_is_made_good_by_the_next(
    pipeline: Pipeline,  # noqa: F811
) -> None:
    # GIVEN a log with old records and records of today
    pipeline.describe("t")
    pipeline.produce("public.t", change(1), change(2))
    pipeline.once()
    pipeline.age(10)
    pipeline.produce("public.t", change(3))
    pipeline.once()
    # WHEN rounds are killed, each one statement later than the one before
    policy = Maintenance(keep_s=0, keep_versions=1, versions_max=10, small_files_min=2)
    kills, dying = 0, Dying(pipeline.spark, 0)
    while kills < 12:
        pipeline.refresh()
        session: Any = dying
        upkeep = LogUpkeep(session, pipeline.place, policy, None, lambda _: {}, pipeline.facts.append)
        try:
            assert upkeep.round(datetime.now(UTC)), pipeline.facts[-1]
            break
        except Killed:
            kills += 1
            dying = Dying(pipeline.spark, kills)
    # THEN the last one ends by itself, the old records are gone, and the log still knows its offsets
    assert 3 <= kills < 12
    assert [off for off, _ in pipeline.has("t")] == [2]
    Path(pipeline.place.checkpoint).rename(Path(pipeline.place.checkpoint).with_name("lost"))
    pipeline.produce("public.t", change(4))
    pipeline.once()
    assert [off for off, _ in pipeline.has("t")] == [2, 3]


def test_retention_and_compaction_run_beside_a_query_that_appends(
    pipeline: Pipeline,  # noqa: F811
) -> None:
    # GIVEN a log whose present records are old
    pipeline.describe("t")
    pipeline.produce("public.t", change(1), change(2))
    pipeline.once()
    pipeline.age(10)
    # WHEN it is maintained while a query appends a record after the other
    stop, ended = threading.Event(), threading.Event()

    def produce() -> None:
        for n in range(3, 13):
            pipeline.produce("public.t", change(n))
            ended.wait(0.5)

    query = threading.Thread(target=lambda: pipeline.job().run(once=False, stop=stop))
    writer = threading.Thread(target=produce)
    query.start()
    writer.start()
    try:
        policy = Maintenance(small_files_min=2)
        for _ in range(2):
            assert pipeline.upkeep(policy).round(datetime.now(UTC)), pipeline.facts[-1]
        writer.join(120)
        until(lambda: True if _there(pipeline, "t", 10) else None, "appended", 180)
    finally:
        ended.set()
        stop.set()
        query.join(60)
        writer.join(60)
    # THEN the old records are gone, and each later one is there once
    pipeline.refresh()
    assert [off for off, _ in pipeline.has("t")] == list(range(2, 12))


@pytest.mark.parametrize("table_format", [ICEBERG, DELTA])
def test_a_table_that_was_held_folds_on_and_a_position_before_the_logs_first_row_stops_it_by_name(
    spark: SparkSession, tmp_path: Path, unique: str, table_format: str
) -> None:
    # GIVEN a table that has a part of a log whose records are all old
    lake, source = Lake(spark, str(tmp_path), unique, table_format), Source(1)
    source.run(10)
    lake.write(source)
    position = lake.fold(source.lsn).lsn
    pin = lake.format.version(spark, lake.table).pin
    source.run(10)
    lake.write(source)
    spark.sql(
        f"UPDATE {lake.log} SET day = current_date() - 10, appended = current_timestamp() - INTERVAL 10 DAYS"
    )
    folded, facts = {TOPIC: position}, list[Any]()
    place = LogPlace(lake.log if table_format == DELTA else f"`lake`.`{unique}`.`log`", table_format, "")
    upkeep = LogUpkeep(spark, place, Maintenance(), None, lambda _: folded, facts.append)
    # WHEN retention runs, THEN the log holds what the table needs
    assert upkeep.round(datetime.now(UTC)), facts[-1]
    assert upkeep.deleted == {}
    lake.fold(source.lsn, log_begins=upkeep.deleted.get(TOPIC, 0))
    assert lake.rows() == expected(source, source.lsn)
    # AND when the table has folded it, the records go, and the table is as good as before
    folded[TOPIC] = source.lsn
    assert upkeep.round(datetime.now(UTC)), facts[-1]
    assert spark.table(lake.log).filter("day IS NOT NULL").count() == 0
    assert upkeep.deleted[TOPIC] == source.lsn
    assert lake.fold(source.lsn, log_begins=upkeep.deleted[TOPIC]).lsn == source.lsn
    # AND when its owner rolls it back beyond the log, it stops by name
    if table_format == DELTA:
        spark.sql(f"RESTORE {lake.table} TO VERSION AS OF {pin}")
    else:
        spark.sql(f"CALL lake.system.rollback_to_snapshot('{lake.table}', {pin})")
    with pytest.raises(SinkError, match="lacks the table's changes up to LSN") as raised:
        lake.fold(source.lsn, log_begins=upkeep.deleted[TOPIC])
    assert "public.docs" in raised.value.message


@pytest.mark.parametrize("table_format", [ICEBERG, DELTA])
def test_status_and_quarantine_of_a_log_and_of_folded_tables_are_told_while_the_mirror_is_down(
    stage: Stage, table_format: str
) -> None:
    tables = [f"CREATE TABLE {name} (id int PRIMARY KEY, n int)" for name in "tu"]
    with stage.source(f"ls_{table_format}", *tables) as source:
        # GIVEN a table that is folded, a record that is no change, and a table that cannot follow its source
        source.execute("INSERT INTO t SELECT n, n FROM generate_series(1, 9) n")
        source.execute("INSERT INTO u VALUES (1, 1)")
        source.produce("public.t", b"{")
        source.deliver()
        mirror = source.mirror(table_format, change_log="fold")
        assert mirror.once() == 0
        source.execute("ALTER TABLE u ALTER n TYPE text; INSERT INTO u VALUES (2, 'two')")
        source.deliver()
        assert mirror.once() != 0
        source.execute("INSERT INTO t VALUES (10, 10)")
        source.deliver()
        # WHEN status and quarantine are asked for
        told = _told(mirror, "status", "--kafka")
        # THEN they name the log, both tables, and the record
        assert told.returncode == FOUND, told.stderr[-3000:]
        found = json.loads(told.stdout)
        log = found["log"]
        assert log["topics"] >= 4
        assert log["behind"] > 0
        assert log["files"] > 0
        assert log["bytes"] > 0
        assert log["maintained_at"] is not None
        assert log["stopped"] == {}
        assert log["offsets"][f"{source.name}.public.t"]
        if table_format == ICEBERG:
            assert log["versions"] > 0
            assert log["metadata_bytes"] > 0
        t, u = sorted(found["tables"], key=lambda table: table["table"])
        (folded,) = t["targets"]
        assert (t["table"], t["stopped"], folded["held"], folded["is_expired"]) == (
            "public.t",
            None,
            0,
            False,
        )
        assert folded["lsn"] is not None
        assert sum(t["quarantined"].values()) == 1
        assert u["table"] == "public.u"
        assert "column n changed from integer to text" in u["stopped"]["message"]
        (record,) = json.loads(_told(mirror, "quarantine").stdout)
        assert record["topic"] == f"{source.name}.public.t"
        assert "its JSON is not that of a change" in record["reason"]


def _told(mirror: MirrorProcess, command: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    given = [command, "--config", str(mirror.path), "--format", "json", *arguments]
    return subprocess.run(
        [sys.executable, "-m", "cdcd.cli", "mirror", *given],
        env=environment(),
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
