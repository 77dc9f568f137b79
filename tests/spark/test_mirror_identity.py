"""What a column, a table, a topic and a label of an enum are: a mirror is equal, or stopped by name with a way on."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from deploy.demo.mirrored import compare
from tests.spark.stage import Source, Stage, target_for

FORMATS = pytest.mark.parametrize("table_format", ["iceberg", "delta"])


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with Stage.set_up() as stage:
        yield stage


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """Of a database and a pipeline that no other test has."""
    return f"i{abs(hash(request.node.nodeid)) % 10**8}"


def different(source: Source, spark: SparkSession, table_format: str, tables: list[str]) -> list[str]:
    """The tables whose mirror is not the source's table."""
    target = target_for(spark, source.mirrors[-1], f"c_{source.name}")
    return [str(each) for each in compare(source.dsn, spark, target, tables) if not each.equal]


COLUMNS = {
    # Columns that were dropped before: attribute numbers have a gap, so places do not tell.
    "renamed": (
        "CREATE TABLE renamed (id int PRIMARY KEY, gone int, v text); ALTER TABLE renamed DROP gone",
        "ALTER TABLE renamed RENAME v TO w",
    ),
    "renamed_and_added": (
        "CREATE TABLE renamed_and_added (id int PRIMARY KEY, v text)",
        "ALTER TABLE renamed_and_added RENAME v TO w; ALTER TABLE renamed_and_added ADD x text DEFAULT 'new'",
    ),
    "swapped": (
        "CREATE TABLE swapped (id int PRIMARY KEY, v text, u text)",
        "ALTER TABLE swapped RENAME v TO t; ALTER TABLE swapped RENAME u TO v; ALTER TABLE swapped RENAME t TO u",
    ),
    "swapped_and_added": (
        (
            "CREATE TABLE swapped_and_added (id int PRIMARY KEY, gone int, v text, u text);"
            " ALTER TABLE swapped_and_added DROP gone"
        ),
        (
            "ALTER TABLE swapped_and_added RENAME v TO t; ALTER TABLE swapped_and_added RENAME u TO v;"
            " ALTER TABLE swapped_and_added RENAME t TO u; ALTER TABLE swapped_and_added ADD x int"
        ),
    ),
    "renamed_and_dropped": (
        "CREATE TABLE renamed_and_dropped (id int PRIMARY KEY, v text, u text, z text)",
        "ALTER TABLE renamed_and_dropped DROP v; ALTER TABLE renamed_and_dropped RENAME u TO v",
    ),
}
"""Tables, and what becomes of their columns while the daemon is away."""


@pytest.mark.timeout(600)
@FORMATS
def test_columns_that_are_renamed_while_the_daemon_is_away_keep_their_values(
    stage: Stage, spark: SparkSession, table_format: str, name: str
) -> None:
    with stage.source(name, *[table for table, _ in COLUMNS.values()]) as source:
        # GIVEN rows in a mirror
        for table in COLUMNS:
            source.execute(f"INSERT INTO {table} (id, v) SELECT g, 'v' || g FROM generate_series(1, 3) g")
        source.deliver()
        mirror = source.mirror(table_format)
        assert mirror.once() == 0, mirror.errors()[-3000:]
        # AND a daemon that is away while rows come, columns get other names, and rows come again
        assert source.daemon.stop() == 0
        for table, (_, alter) in COLUMNS.items():
            source.execute(f"INSERT INTO {table} (id, v) VALUES (4, 'v4')")
            source.execute(alter)
        source.daemon.start()
        source.daemon.await_streaming()
        source.deliver()

        # WHEN the mirror has read rows of the old form that were described by today's catalog
        assert mirror.once() == 0, mirror.errors()[-3000:]
        for table in COLUMNS:
            column = "v" if "swapped" in table or table == "renamed_and_dropped" else "w"
            source.execute(f"INSERT INTO {table} (id, {column}) VALUES (5, 'after')")
        source.deliver()
        assert mirror.once() == 0, mirror.errors()[-3000:]

        # THEN every table equals its source
        assert different(source, spark, table_format, [f"public.{table}" for table in COLUMNS]) == []
