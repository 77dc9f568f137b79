"""Tables that the daemon sets aside, and logs that were dropped: a table stops by name, and is equal afterwards.

One pipeline, today's mirror, and folds in both formats.
"""

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cdcd.mirror.jars import DELTA, ICEBERG
from tests.integration.forked import run_cdcd
from tests.spark.folding import Folds
from tests.spark.stage import Source, Stage

TABLES = [
    f"CREATE TABLE {name} (id int PRIMARY KEY, n int, note text); "
    f"INSERT INTO {name} SELECT g, g, 'old' FROM generate_series(1, 5) g"
    for name in ("big", "other")
]


@pytest.mark.timeout(3600)
def test_tables_that_were_set_aside_or_whose_log_was_dropped_stop_by_name_and_are_equal_afterwards(
    stage: Stage, spark: SparkSession, tmp_path: Path
) -> None:
    with stage.source("aside", *TABLES, tables={"on_error": "set_aside"}) as source:
        folds = [Folds(spark, source, tmp_path / "folds", each) for each in (ICEBERG, DELTA)]
        config = ("--config", str(source.daemon.config_path))

        def fold() -> list[dict[str, str]]:
            """Fold once in each format. Returns why tables stopped."""
            return [{table: error.message for table, error in each.once().items()} for each in folds]

        def rows(of: Folds, table: str) -> list[tuple[int, int, str]]:
            frame = of.table(source, table).select("id", "n", "note")
            return sorted(tuple(row) for row in frame.collect())

        def expected(table: str) -> list[tuple[int, int, str]]:
            with source.connect() as connection:
                found = connection.execute(f"SELECT id, n, note FROM {table} ORDER BY id").fetchall()
            return [(int(id_), int(n), str(note)) for id_, n, note in found]

        # GIVEN mirrors that are equal
        source.deliver()
        assert fold() == [{}, {}]
        before = expected("big")
        assert [rows(each, "big") for each in folds] == 2 * [before]
        # WHEN the daemon sets a table aside
        done = run_cdcd("tables", "stop", "public.big", *config)
        assert done.returncode == 0, done.stderr
        source.daemon.await_event("table.aside", table="public.big")
        source.execute("UPDATE big SET n = 70 WHERE id = 1; DELETE FROM big WHERE id = 2")
        source.execute("INSERT INTO other VALUES (6, 6, 'new')")
        source.deliver()
        # THEN it stops by the daemon's reason, with the rows from before, and the other table goes on
        for stopped in fold():
            assert list(stopped) == ["public.big"]
            assert "The daemon has set the table aside (request)" in stopped["public.big"]
        assert [rows(each, "big") for each in folds] == 2 * [before]
        assert [rows(each, "other") for each in folds] == 2 * [expected("other")]
        # WHEN it comes back
        _resume(source, "big")
        source.execute("UPDATE big SET n = 80 WHERE id = 3")
        source.deliver()
        # THEN it is equal
        assert fold() == [{}, {}]
        assert [rows(each, "big") for each in folds] == 2 * [expected("big")]
        # AND when the logs are dropped, and a topic has lost records by then that the tables lack
        _drop_logs(spark, folds)
        ends = _ends(source, "public.other")
        source.execute("UPDATE other SET n = 100 WHERE id = 1; UPDATE other SET n = 200 WHERE id = 2")
        source.execute("INSERT INTO other SELECT g, g, 'more' FROM generate_series(10, 40) g")
        source.deliver()
        source.shorten("public.other", {part: end + 8 for part, end in ends.items()})
        # THEN that table stops by name, and the first one is equal
        for stopped in fold():
            assert list(stopped) == ["public.other"]
            assert "the table lacks records before it" in stopped["public.other"]
        assert [rows(each, "big") for each in folds] == 2 * [expected("big")]
        # AND it is equal after it was read again, as the hint says
        done = run_cdcd("tables", "stop", "public.other", *config)
        assert done.returncode == 0, done.stderr
        source.daemon.await_event("table.aside", table="public.other")
        _resume(source, "other")
        source.execute("UPDATE other SET n = n + 1 WHERE id = 10")
        source.deliver()
        assert fold() == [{}, {}]
        assert [rows(each, "other") for each in folds] == 2 * [expected("other")]


def _resume(source: Source, table: str) -> None:
    """Let a table come back, and wait until it is read."""
    daemon = source.daemon
    seen = len(daemon.events)
    done = run_cdcd("tables", "resume", f"public.{table}", "--config", str(daemon.config_path))
    assert done.returncode == 0, done.stderr
    daemon.await_event("table.returned", after=seen, table=f"public.{table}")
    daemon.await_event("table.read", after=seen, table=f"public.{table}")


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
