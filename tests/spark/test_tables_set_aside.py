"""Tables that the daemon sets aside, and logs that were dropped: a table stops by name, and is equal afterwards.

One pipeline, today's mirror, and folds in both formats.
"""

import random
import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cdcd.mirror.jars import DELTA, ICEBERG
from tests.integration.forked import run_cdcd
from tests.spark.folding import Folds
from tests.spark.jobs import HasTables, Job
from tests.spark.stage import Source, Stage

LARGE = random.Random(3).randbytes(50_000).hex()
"""Compression does not make it small."""

TABLES = [
    f"CREATE TABLE {name} (id int PRIMARY KEY, n int, note text); "
    f"INSERT INTO {name} SELECT g, g, 'old' FROM generate_series(1, 5) g"
    for name in ("big", "other")
]


@pytest.mark.timeout(3600)
def test_a_table_that_the_daemon_set_aside_stops_by_name_and_is_equal_after_its_return(
    stage: Stage, spark: SparkSession, tmp_path: Path
) -> None:
    with stage.source("aside", *TABLES, tables={"on_error": "set_aside"}) as source:
        folds = [Folds(spark, source, tmp_path / "folds", each) for each in (ICEBERG, DELTA)]
        today = Job(spark, source, tmp_path / "today", DELTA)
        tables: list[HasTables] = [*folds, today]

        def run() -> list[dict[str, str]]:
            """Run each mirror once. Returns why tables stopped."""
            source.deliver()
            found = [{table: error.message for table, error in each.once().items()} for each in folds]
            mirror = today.once()
            named = {topic.removeprefix("aside."): error.message for topic, error in mirror.stopped.items()}
            return [*found, named]

        def rows(table: str) -> list[list[tuple[int, int, str]]]:
            sorted_ = []
            for each in tables:
                frame = each.table(source, table).select("id", "n", "note")
                sorted_.append(sorted(tuple(row) for row in frame.collect()))
            return sorted_

        def expected(table: str) -> list[tuple[int, int, str]]:
            with source.connect() as connection:
                found = connection.execute(f"SELECT id, n, note FROM {table} ORDER BY id").fetchall()
            return [(int(id_), int(n), str(note)) for id_, n, note in found]

        # GIVEN mirrors that are equal
        assert run() == [{}, {}, {}]
        assert rows("big") == 3 * [expected("big")]
        before = expected("big")
        # WHEN the topic of a table refuses a record
        source.limit_records("public.big", 20_000)
        source.execute("INSERT INTO big VALUES (6, 6, %s)", LARGE)
        source.daemon.await_event("table.aside", table="public.big")
        source.execute("UPDATE big SET n = 70 WHERE id = 1; DELETE FROM big WHERE id = 2")
        source.execute("INSERT INTO other VALUES (6, 6, 'new')")
        # THEN it stops by the daemon's reason, with the rows from before, and the other table goes on
        for stopped in run():
            assert list(stopped) == ["public.big"]
            assert "The daemon has set the table aside (size)" in stopped["public.big"]
        assert rows("big") == 3 * [before]
        assert rows("other") == 3 * [expected("other")]
        # AND a second run says the same
        assert [list(stopped) for stopped in run()] == 3 * [["public.big"]]
        # WHEN it comes back
        source.limit_records("public.big", 1_000_000)
        resumed = run_cdcd("tables", "resume", "public.big", "--config", str(source.daemon.config_path))
        assert resumed.returncode == 0, resumed.stderr
        source.daemon.await_event("table.returned", table="public.big")
        source.daemon.await_event("table.read", table="public.big")
        source.execute("UPDATE big SET n = 80 WHERE id = 3")
        # THEN all are equal
        assert run() == [{}, {}, {}]
        assert rows("big") == 3 * [expected("big")]
        assert rows("other") == 3 * [expected("other")]

        # WHEN the owner drops the log, and the topics have lost records: of `other` one that the tables lack
        _drop_logs(spark, folds)
        ends = _ends(source, "public.other")
        source.shorten("public.big", _ends(source, "public.big"))
        source.execute("UPDATE other SET n = 100 WHERE id = 1; UPDATE other SET n = 200 WHERE id = 2")
        source.execute("INSERT INTO other SELECT g, g, 'more' FROM generate_series(10, 40) g")
        source.execute("UPDATE big SET n = 90 WHERE id = 4")
        source.deliver()
        source.shorten("public.other", {part: end + 8 for part, end in ends.items()})
        # THEN that table stops by name, and the other one goes on
        for stopped in run()[:2]:
            assert list(stopped) == ["public.other"]
            assert "the table lacks records before it" in stopped["public.other"]
        assert rows("big")[:2] == 2 * [expected("big")]
        # AND it is equal after it was read again, as the hint says
        config = ("--config", str(source.daemon.config_path))
        for command in ("stop", "resume"):
            done = run_cdcd("tables", command, "public.other", *config)
            assert done.returncode == 0, done.stderr
            if command == "stop":
                source.daemon.await_event("table.aside", table="public.other")
        source.daemon.await_event("table.returned", table="public.other")
        source.daemon.await_event("table.read", table="public.other")
        for _ in range(2):
            source.execute("UPDATE other SET n = n + 1 WHERE id = 10")
            assert run()[:2] == [{}, {}]
            assert rows("other")[:2] == 2 * [expected("other")]


def _ends(source: Source, table: str) -> dict[int, int]:
    """By partition, the offset after the last record of a table's topic."""
    found: dict[int, int] = {}
    for record in source.records(table):
        found[record.partition] = max(found.get(record.partition, 0), record.offset + 1)
    return found


def _drop_logs(spark: SparkSession, folds: list[Folds]) -> None:
    for each in folds:
        if each.place.is_path:
            shutil.rmtree(each.place.name.removeprefix("delta.`").removesuffix("`"))
        else:
            spark.sql(f"DROP TABLE {each.place.name} PURGE")
