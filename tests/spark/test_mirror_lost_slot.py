"""A mirror after a lost slot: rows that were deleted while no daemon was running are removed from the mirror."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.integration.daemon import drop_slot
from tests.spark.stage import Stage
from tests.spark.test_mirror_identity import Mirrored, source_name

__all__ = ["source_name"]


@pytest.mark.timeout(2400)
def test_rows_that_were_deleted_while_the_slot_was_lost_leave_the_mirror(
    stage: Stage, spark: SparkSession, source_name: str, table_format: str, tmp_path: Path
) -> None:
    tables = ("t", "emptied", "altered")
    created = [f"CREATE TABLE {table} (id int PRIMARY KEY, v text)" for table in tables]
    with stage.source(source_name, *created) as source:
        mirrored = Mirrored(spark, source, table_format, tmp_path)
        # GIVEN mirrors with rows
        for table in tables:
            source.execute(f"INSERT INTO {table} SELECT g, 'old' FROM generate_series(1, 20) g")
        source.deliver()
        assert mirrored.once() == {}
        assert mirrored.different(*tables) == []
        for lost in (True, False):
            # WHEN rows are deleted, keys and columns change, and the slot is lost
            assert source.daemon.stop() == 0
            source.daemon.config["snapshot"]["mode"] = "when_needed"
            source.execute("DELETE FROM t WHERE id % 3 = 0; UPDATE t SET id = id + 1000 WHERE id < 5")
            source.execute("DELETE FROM emptied")
            source.execute("DELETE FROM altered WHERE id < 4")
            source.execute(f"ALTER TABLE altered ADD COLUMN c{int(lost)} int DEFAULT 7")
            if lost:
                drop_slot(source.dsn, f"cdcd_{source.name}")
            else:
                slot = f"cdcd_{source.name}"
                source.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_insert_lsn())", slot)
            source.daemon.start()
            healed = source.daemon.await_event("gap.healed")
            assert healed["tables"] == len(tables)
            source.daemon.await_streaming()
            source.execute("INSERT INTO emptied VALUES (99, 'later'); UPDATE t SET v = 'new' WHERE id = 8")
            source.deliver()
            # THEN the mirrors equal the source
            assert mirrored.once() == {}
            assert mirrored.different(*tables) == []
