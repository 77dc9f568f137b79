"""A folded table as of now: its rows and what the log has since, without a fold. Its changes and its history."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from cdcd.core.errors import FatalError, SinkError, SourceError
from cdcd.mirror.base.now import now
from cdcd.mirror.base.reading import LogTables
from cdcd.mirror.jars import DELTA, ICEBERG
from cdcd.mirror.kafka import KafkaSource
from tests.integration.forked import run_cdcd
from tests.spark.base_model import DOCS, Lake, expected, form_of
from tests.spark.folding import Folds
from tests.spark.source_model import Source
from tests.spark.stage import Stage


@pytest.fixture(params=[ICEBERG, DELTA])
def lake(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path, unique: str) -> Lake:
    return Lake(spark, str(tmp_path), unique, request.param)


def shown(lake: Lake, **more: Any) -> DataFrame:
    return now(lake.spark, lake.format, lake.place(**more), lake.described)


def rows(found: DataFrame) -> set[tuple[Any, ...]]:
    had = [tuple(row) for row in found.select("id", "n", "title", "body").collect()]
    assert len(had) == len({row[0] for row in had}), "a key is there twice"
    return set(had)


def test_a_table_as_of_now_follows_moved_keys_unsent_values_and_truncates_without_a_commit(
    lake: Lake,
) -> None:
    source = Source(1, wanders=True)
    # GIVEN a log, and no table
    source.run(8)
    lake.write(source)
    assert rows(shown(lake)) == expected(source, source.lsn)
    for _ in range(3):
        # WHEN the table is folded, and the log goes on
        lake.fold(source.lsn)
        before = lake.format.version(lake.spark, lake.table).pin
        assert rows(shown(lake)) == expected(source, source.lsn)
        source.run(12)
        lake.write(source)
        # THEN the rows are those of the source, and no commit was made
        assert rows(shown(lake)) == expected(source, source.lsn)
        assert lake.format.version(lake.spark, lake.table).pin == before


def test_a_table_as_of_now_has_the_columns_of_the_last_change(lake: Lake) -> None:
    # GIVEN a table, and changes after a column was renamed and another one added
    source = Source(2, moves=False, truncates=False)
    source.run(6)
    lake.write(source)
    lake.fold(source.lsn)
    lake.forms["form-3"] = form_of("form-3", *DOCS, ("note", 5, "int32"), note=7)
    source.run(3)
    lake.write(source, form="form-3")
    # WHEN the table is read as of now, and then folded
    found = shown(lake)
    notes = {(row["id"], row["note"]) for row in found.collect()}
    assert rows(found) == expected(source, source.lsn)
    lake.fold(source.lsn)
    # THEN both have the same columns and rows
    folded = lake.spark.table(lake.table)
    assert sorted(found.columns) == sorted(folded.columns)
    assert notes == {(row["id"], row["note"]) for row in folded.collect()}
    assert 7 in {note for _, note in notes}


def test_a_table_as_of_now_is_refused_if_the_log_lacks_changes(lake: Lake) -> None:
    source = Source(3)
    source.run(6)
    lake.write(source)
    lake.fold(source.lsn)
    with pytest.raises(SinkError) as lacks:
        shown(lake, log_begins=source.lsn + 1)
    assert "cdcd tables resume public.docs" in lacks.value.hint


@pytest.fixture(params=[ICEBERG, DELTA])
def table_format(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.timeout(1200)
def test_readers_see_the_source_before_a_fold_and_its_changes_and_history(
    stage: Stage, spark: SparkSession, tmp_path: Path, table_format: str
) -> None:
    doc = "CREATE TABLE doc (id int PRIMARY KEY, n numeric(10, 2), at timestamptz, tags text[])"
    first = "INSERT INTO doc VALUES (1, 1.10, '2026-01-01 00:00:00+00', '{a,NULL}'), (2, NULL, NULL, NULL)"
    with stage.source(f"now_{table_format}", doc, first) as source:
        folds = Folds(spark, source, tmp_path, table_format)
        # GIVEN a table that is folded
        source.deliver()
        assert folds.once() == {}
        # WHEN the log goes on, and no fold does
        source.execute("UPDATE doc SET n = 2.20 WHERE id = 1")
        source.execute("DELETE FROM doc WHERE id = 2; INSERT INTO doc VALUES (3, 3, now(), '{}')")
        source.deliver()
        folds.append()
        # THEN a reader sees the source
        tables = LogTables(folds.spark, KafkaSource(source.servers), folds.target, source.name)
        with source.connect() as connection:
            there = {row[0]: row[1:] for row in connection.execute("SELECT id, n, at, tags FROM doc")}
        found = tables.now("public.doc")
        assert {row["id"]: (row["n"], row["tags"]) for row in found.collect()} == {
            key: (n, tags) for key, (n, _, tags) in there.items()
        }
        assert {row["id"] for row in folds.spark.table(folds.name("doc")).collect()} == {1, 2}
        # AND its changes and its history
        ops = sorted(row["op"] for row in tables.changes("public.doc").changes.collect())
        assert ops == ["c", "d", "r", "r", "u"]
        states = tables.history("public.doc")
        assert {(row["id"], str(row["n"]), row["is_current"]) for row in states.collect()} == {
            (1, "1.10", False), (1, "2.20", True), (2, "None", False), (3, "3.00", True),
        }  # fmt: skip
        # AND the fold that follows has the same rows
        assert folds.once() == {}
        assert folds.different("doc") == []
        with pytest.raises(SourceError, match=r"No description of public\.other"):
            tables.now("public.other")
        # AND a table that the daemon sets aside is refused by name
        done = run_cdcd("tables", "stop", "public.doc", "--config", str(source.daemon.config_path))
        assert done.returncode == 0, done.stderr
        source.daemon.await_event("table.aside", table="public.doc")
        source.deliver()
        with pytest.raises(FatalError, match="set the table aside"):
            tables.now("public.doc")
