"""Tables of a mirror without a log go on as tables that are folded from a log, although Kafka lost their records."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cdcd.mirror.jars import DELTA, ICEBERG
from cdcd.mirror.watching.progress import TableTakenOver
from tests.spark.folding import Folds
from tests.spark.former_tables import FormerTables
from tests.spark.stage import Source, Stage

TABLES = [
    f"CREATE TABLE {name} (id int PRIMARY KEY, n int, note text); ALTER TABLE {name} ALTER note SET STORAGE EXTERNAL;"
    f" INSERT INTO {name} SELECT g, g, repeat('old', 1000) FROM generate_series(1, 5) g"
    for name in ("plain", "moved", "late")
]


def ends(source: Source, table: str) -> dict[int, int]:
    """By partition, the offset after the last record of a table's topic."""
    found: dict[int, int] = {}
    for record in source.records(f"public.{table}"):
        found[record.partition] = max(found.get(record.partition, 0), record.offset + 1)
    return found


@pytest.mark.timeout(2400)
@pytest.mark.parametrize("table_format", [ICEBERG, DELTA])
def test_a_table_of_a_mirror_without_a_log_goes_on_without_being_read_again(
    stage: Stage, spark: SparkSession, tmp_path: Path, table_format: str
) -> None:
    with stage.source(f"taken_{table_format}", *TABLES) as source:
        folds = Folds(spark, source, tmp_path, table_format)
        former = FormerTables(spark.newSession(), source, folds.target)
        # GIVEN tables of a mirror without a log, with keys that moved, and values that were not sent
        source.deliver()
        former.once("plain", "moved", "late")
        source.execute("UPDATE moved SET id = id + 10 WHERE id < 3; DELETE FROM plain WHERE id = 5")
        source.execute("UPDATE plain SET n = 10 * n; UPDATE late SET n = 100 WHERE id = 1")
        source.deliver()
        former.once("plain", "moved")
        # AND Kafka loses the records, and those of one table before they were mirrored
        for table in ("plain", "moved", "late"):
            source.shorten(f"public.{table}", ends(source, table))
        # WHEN the source goes on, with a column of another name, and the tables are folded from a log
        source.execute("ALTER TABLE plain RENAME n TO number; ALTER TABLE moved ADD more int DEFAULT 7")
        source.execute("UPDATE plain SET number = 1 WHERE id = 1; UPDATE moved SET id = 20 WHERE id = 11")
        source.execute("DELETE FROM plain WHERE id = 2; DELETE FROM moved WHERE id = 12")
        source.execute("INSERT INTO late VALUES (6, 6, 'new')")
        source.deliver()
        stopped = folds.once()
        # THEN they equal the source, and the table that lacks records stops by name
        assert {name: error.message for name, error in stopped.items() if name != "public.late"} == {}
        assert "cdcd tables resume public.late" in stopped["public.late"].hint
        assert folds.different("plain", "moved") == []
        taken = [fact.table for fact in folds.facts if isinstance(fact, TableTakenOver)]
        assert sorted(taken) in (
            ["public.moved", "public.plain"],
            ["public.late", "public.moved", "public.plain"],
        )
        # AND they go on as folded tables
        source.execute("UPDATE plain SET number = 5 WHERE id = 3")
        source.deliver()
        folds.facts.clear()
        assert list(folds.once()) == ["public.late"]
        assert folds.different("plain", "moved") == []
        assert [fact for fact in folds.facts if isinstance(fact, TableTakenOver)] == []


HISTORY = ["public.paired"]
CHANGELOGS = [
    "CREATE TABLE paired (id int PRIMARY KEY, n int)",
    "CREATE TABLE keyless (id int, n int); ALTER TABLE keyless REPLICA IDENTITY FULL",
    "INSERT INTO paired VALUES (1, 1), (2, 2); INSERT INTO keyless VALUES (1, 1), (1, 1), (2, 2)",
]
"""The second table has two rows of the snapshot that are the same."""


def changes_of(folds: Folds, name: str) -> list[tuple[Any, ...]]:
    """The rows of a changelog without the places of the records."""
    rows = folds.spark.table(name)
    named = [column for column in ("id", "n", "number", "n__dropped") if column in rows.columns]
    own = ["_cdcd_op", "_cdcd_commit_lsn", "_cdcd_event_no"]
    return sorted([tuple(row) for row in rows.select(*own, *named).collect()], key=repr)


@pytest.mark.timeout(2400)
@pytest.mark.parametrize("table_format", [ICEBERG, DELTA])
def test_changelogs_of_a_mirror_without_a_log_go_on_with_each_change_once(
    stage: Stage, spark: SparkSession, tmp_path: Path, table_format: str
) -> None:
    with stage.source(f"logs_{table_format}", *CHANGELOGS) as source:
        folds = Folds(spark, source, tmp_path, table_format)
        former = FormerTables(spark.newSession(), source, folds.target)
        keyless, paired = folds.name("keyless"), folds.name("paired").replace("paired", "paired_changes")
        # GIVEN changelogs of a mirror without a log, with rows of a snapshot, and a column of another type
        source.deliver()
        former.once("keyless", "paired", history=("paired",))
        source.execute("UPDATE paired SET n = 10 WHERE id = 1; DELETE FROM paired WHERE id = 2")
        source.execute("UPDATE keyless SET n = 20 WHERE id = 2")
        source.deliver()
        former.once("keyless", "paired", history=("paired",))
        source.execute("ALTER TABLE keyless ALTER n TYPE text USING 'n' || n")
        source.execute("INSERT INTO keyless VALUES (3, 'three'); DELETE FROM keyless WHERE id = 3")
        source.deliver()
        former.once("keyless", "paired", history=("paired",))
        before = {name: changes_of(folds, name) for name in (keyless, paired)}
        # WHEN they are folded from a log, THEN no change is there twice
        assert folds.once(history=tuple(HISTORY)) == {}
        assert {name: changes_of(folds, name) for name in before} == before
        taken = [fact.table for fact in folds.facts if isinstance(fact, TableTakenOver)]
        assert sorted(taken) == ["public.keyless", "public.paired", "public.paired"]
        # AND changes of now are added
        source.execute("ALTER TABLE paired RENAME n TO number; INSERT INTO paired VALUES (5, 5)")
        source.execute("INSERT INTO keyless VALUES (5, 'five')")
        source.deliver()
        assert folds.once(history=tuple(HISTORY)) == {}
        assert folds.different("paired") == []
        for name, had in before.items():
            now = changes_of(folds, name)
            assert len(now) == len(had) + 1
            assert set(had) < set(now)
        # AND a changelog whose topic has lost records that it had goes on too
        for table in ("paired", "keyless"):
            source.shorten(f"public.{table}", ends(source, table))
        source.execute("INSERT INTO keyless VALUES (6, 'six')")
        source.deliver()
        assert folds.once(history=tuple(HISTORY)) == {}
        assert len(changes_of(folds, keyless)) == len(before[keyless]) + 2
