"""Tables folded from the log of a real pipeline, in both formats: names, values and identities."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cdcd.mirror.jars import DELTA, ICEBERG
from tests.spark.folding import Folds
from tests.spark.stage import Stage
from tests.spark.test_mirror_odd_columns import ADDED, NAMES, NULLS, named, values

ITEMS = [
    f"CREATE TABLE {table} (id int PRIMARY KEY, n int); INSERT INTO {table}"
    f" SELECT g, g * {count} FROM generate_series(1, {count}) g"
    for table, count in (("item", 10), ("item_next", 3))
]


@pytest.mark.timeout(3600)
def test_odd_columns_null_parts_exchanged_names_and_tables_without_a_key_are_equal(
    stage: Stage, spark: SparkSession, tmp_path: Path
) -> None:
    loose = "CREATE TABLE loose (n int); INSERT INTO loose VALUES (1)"
    with stage.source("base_odd", NAMES, NULLS, loose, *ITEMS) as source:
        both = [Folds(spark, source, tmp_path, each) for each in (ICEBERG, DELTA)]

        def all_equal(*items: str, added: bool) -> None:
            source.deliver()
            for folds, tag_interval_s in zip(both, (0.0, None), strict=True):
                stopped = folds.once(consistent=True, tag_interval_s=tag_interval_s)
                assert {name: error.message for name, error in stopped.items()} == {}
                # A table without a key has a changelog.
                changes = folds.spark.table(folds.name("loose")).select("_cdcd_op", "n").collect()
                assert sorted(map(tuple, changes)) == loose_changes
                for found, expected in (named(source, folds), values(source, folds, added=added)):
                    assert found == expected
                assert folds.different(*items) == []

        loose_changes: list[tuple[str, int]] = [("r", 1)]
        # GIVEN rows that were there before
        all_equal("item", "item_next", added=False)
        # WHEN rows change: with values that are not sent, with another key, deleted, and truncated in part
        source.execute("UPDATE names SET n = 10 * n, _pos = 'p' WHERE _partition < 5")
        source.execute("UPDATE names SET _partition = 40 WHERE _partition = 4")
        source.execute("DELETE FROM names WHERE _partition = 5")
        source.execute("INSERT INTO names (_partition, _row_id) VALUES (7, 'r')")
        source.execute("TRUNCATE item_next; INSERT INTO item_next VALUES (7, 7)")
        source.execute("INSERT INTO loose VALUES (2), (2)")
        loose_changes[:0] = [("c", 2), ("c", 2)]
        source.execute(ADDED)
        # AND names of columns and of tables are exchanged
        source.execute("ALTER TABLE names RENAME n TO _is_cdc; ALTER TABLE names RENAME _pos TO place")
        source.execute(
            "ALTER TABLE names RENAME _is_cdc TO _pos; ALTER TABLE names ADD _cdcd_x int DEFAULT 9"
        )
        source.execute("UPDATE names SET place = 'q' WHERE _partition = 1")
        source.execute("ALTER TABLE item RENAME TO item_prev; ALTER TABLE item_next RENAME TO item")
        source.execute("INSERT INTO item_prev VALUES (11, 11); DELETE FROM item_prev WHERE id = 1")
        for table in ("item", "item_prev"):
            replaced = source.daemon.await_event("table.replaced", table=f"public.{table}")
            after = source.daemon.events.index(replaced)
            source.daemon.await_event("table.read", after=after, table=f"public.{table}")
        # THEN the tables equal the source
        all_equal("item", "item_prev", added=True)
        # AND the points name versions that can be read
        for folds in both:
            newest, oldest = folds.points()
            assert newest["without"] == oldest["without"] == []
            name = folds.target.bare_name(folds.name("item"))
            for point, count in ((oldest, 10), (newest, 1)):
                version = point["versions"][name]
                then = folds.spark.sql(f"SELECT * FROM {folds.name('item')} VERSION AS OF {version}")
                assert then.count() == count
                if point["tag"] is not None:
                    assert point["tag"].startswith("lsn-")
                    tagged = folds.spark.sql(
                        f"SELECT * FROM {folds.name('item')} VERSION AS OF '{point['tag']}'"
                    )
                    assert tagged.count() == count
            assert (newest["tag"] is None) == (folds is both[1])
