"""Columns whose names a table format keeps for itself, and values that are NULL in parts or as a whole."""

from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import SparkSession

from cdcd.mirror.jars import DELTA, ICEBERG
from cdcd.mirror.records.schema import RESERVED
from tests.spark.jobs import HasTables, Job
from tests.spark.stage import Source, Stage

KEPT: Final = ", ".join(f"{name} text" for name in sorted(RESERVED - {"_partition", "_spec_id"}))

NAMES: Final = f"""
    CREATE TABLE names (_partition int, n int, "_Spec_ID" text, _cdcd_op text, source__file text, {KEPT},
                        PRIMARY KEY (_partition));
    ALTER TABLE names ALTER _metadata SET STORAGE EXTERNAL;
    INSERT INTO names (_partition, n, _file, source__file, _cdcd_op, _metadata)
      SELECT g, g, 'f' || g, 's' || g, 'o' || g, repeat('m', 3000) FROM generate_series(1, 6) g"""
"""The key, a value that updates leave out (TOAST), and a name of the mirror's own are among the columns."""

CALLED: Final = {name: f"source_{name}" for name in [*RESERVED, "_cdcd_op", "_Spec_ID", "_cdcd_x"]} | {
    "_file": "source_source__file"
}
"""What the mirror calls columns of the table `names`. Other columns keep their names."""

NULLS: Final = """
    CREATE TYPE pair AS (a int, b text);
    CREATE TABLE nulls (id int PRIMARY KEY, p point DEFAULT '(1,2)', c pair DEFAULT (7, 'x'), j jsonb DEFAULT '{}',
                        a point[] DEFAULT '{"(1,2)"}', i int[] DEFAULT '{1}');
    INSERT INTO nulls (id) VALUES (1);
    INSERT INTO nulls VALUES (2, NULL, NULL, NULL, NULL, NULL), (3, NULL, (NULL, NULL), 'null', '{NULL}', '{NULL}')"""

ADDED: Final = """
    ALTER TABLE nulls ADD p2 point DEFAULT '(3,4)', ADD c2 pair DEFAULT (NULL, NULL), ADD j2 jsonb DEFAULT 'null',
                      ADD i2 int[] DEFAULT '{NULL}', ADD a2 point[] DEFAULT '{NULL}';
    INSERT INTO nulls (id) VALUES (4);
    INSERT INTO nulls VALUES (5, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
    UPDATE nulls SET p = NULL, p2 = NULL, c2 = NULL, j2 = NULL, i2 = NULL, a2 = NULL WHERE id = 1"""


def at_source(source: Source, table: str, columns: str) -> list[tuple[Any, ...]]:
    with source.connect() as connection:
        return connection.execute(f"SELECT {columns} FROM {table} ORDER BY 1").fetchall()


def named(source: Source, job: HasTables) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """The rows of the table `names`, at the source and in the mirror."""
    with source.connect() as connection:
        cursor = connection.execute("SELECT * FROM names ORDER BY _partition")
        columns = [column.name for column in cursor.description or ()]
        rows = cursor.fetchall()
    mirrored = [CALLED.get(column, column) for column in columns]
    found = job.table(source, "names").select(*mirrored).orderBy(CALLED["_partition"]).collect()
    return rows, [tuple(row) for row in found]


def values(
    source: Source, job: HasTables, *, added: bool
) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """The values of the table `nulls`, and whether they are NULL as a whole, at the source and in the mirror."""
    more = "2" if added else ""
    ours, theirs, whole = ["id"], ["id"], []
    for suffix in ("", more) if more else ("",):
        p, c, j, a, i = whole_of = [f"{name}{suffix}" for name in "pcjai"]
        ours += [
            f"{p}[0]",
            f"{c}::text",
            f"{j}::text",
            f"({a}[1])[0]",
            f"cardinality({a})",
            f"array_to_json({i})::text",
        ]
        theirs += [f"{p}.x", c, j, f"get({a}, 0).x", f"if({a} IS NULL, NULL, size({a}))", f"to_json({i})"]
        whole += whole_of
    # A row is NULL in PostgreSQL also if all of its parts are.
    ours += [f"num_nulls({name}) = 1" for name in whole]
    theirs += [f"{name} IS NULL" for name in whole]
    table = job.table(source, "nulls")
    found = [tuple(row) for row in table.selectExpr(*theirs).orderBy("id").collect()]
    return at_source(source, "nulls", ", ".join(ours)), found


@pytest.mark.timeout(3000)
def test_columns_with_names_of_the_format_and_values_with_parts_that_are_null_are_mirrored_in_both_formats(
    stage: Stage, spark: SparkSession, tmp_path: Path
) -> None:
    with stage.source("odd", NAMES, NULLS) as source:
        jobs = [Job(spark, source, tmp_path / each, each) for each in (ICEBERG, DELTA)]

        def all_equal(*, added: bool) -> None:
            source.deliver()
            for job in jobs:
                assert job.once(tables={"history": ["*.names"]}) == {}
                expected, found = named(source, job)
                assert found == expected
                expected, found = values(source, job, added=added)
                assert found == expected

        # GIVEN rows that were there before
        all_equal(added=False)
        # WHEN they change: with values that are not sent, with another key, deleted, and truncated in part
        source.execute("UPDATE names SET n = 10 * n, _pos = 'p' WHERE _partition < 5")
        source.execute("UPDATE names SET _partition = 40 WHERE _partition = 4")
        source.execute("DELETE FROM names WHERE _partition = 5")
        source.execute("INSERT INTO names (_partition, _row_id) VALUES (7, 'r')")
        source.execute(ADDED)
        # THEN all of it is in the mirrors
        all_equal(added=True)
        # WHEN columns get such names and lose them, and others come
        source.execute("ALTER TABLE names RENAME n TO _is_cdc; ALTER TABLE names RENAME _pos TO place")
        source.execute(
            "ALTER TABLE names RENAME _is_cdc TO _pos; ALTER TABLE names ADD _cdcd_x int DEFAULT 9"
        )
        source.execute("UPDATE names SET place = 'q' WHERE _partition = 1")
        all_equal(added=True)
        # AND the tables are read by Spark
        for job in jobs:
            job.load(["public.names", "public.nulls"])
        all_equal(added=True)
