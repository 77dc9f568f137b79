"""Tables of a mirror without a log go on as tables that are folded from a log, although Kafka lost their records."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cdcd.mirror.jars import DELTA, ICEBERG
from cdcd.mirror.watching.progress import TableTakenOver
from tests.spark.folding import Folds
from tests.spark.jobs import Job
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
        today = Job(spark.newSession(), source, folds.folder, table_format)
        # GIVEN tables of a mirror without a log, with keys that moved, and values that were not sent
        source.deliver()
        assert today.once().stopped == {}
        source.execute("UPDATE moved SET id = id + 10 WHERE id < 3; DELETE FROM plain WHERE id = 5")
        source.execute("UPDATE plain SET n = 10 * n; UPDATE late SET n = 100 WHERE id = 1")
        source.deliver()
        assert today.once(tables={"exclude": ["public.late"]}).stopped == {}
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
