"""Whatever a table's owner does to it, the mirror follows, or stops with a way on that works. In both formats."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from cdcd.mirror.jars import DELTA, ICEBERG
from cdcd.mirror.watching.progress import TableFailed, TableReloaded
from deploy.demo.mirrored import compare
from tests.altered_tables import DEFAULTS
from tests.spark.jobs import Job
from tests.spark.stage import Source, Stage

FORMATS = pytest.mark.parametrize("table_format", [ICEBERG, DELTA])

NAMES = (
    "_offset", "_op", "_keep", "_changes", "_unfit", "_lost", "_moved", "_partial", "_commit_time",
    "_half", "_halves_high", "_at_0", "_fill_1", "_key_0", "_value", "_found", "_new_0", "_old_0", "_then", "_image",
    "last", "at", "key", "op", "partition", "offset", "changes", "place", "unfit", "problem", "after", "value", "t",
)  # fmt: skip

CHANGES = {
    # int to text, numeric scale, timestamp to timestamptz, numeric(p,s) to numeric; a key changed.
    "typed": ("id int PRIMARY KEY, v int", "ALTER v TYPE text", "ALTER v TYPE int USING v::int"),
    "scaled": (
        "id int PRIMARY KEY, v numeric(9,2)",
        "ALTER v TYPE numeric(9,4)",
        "ALTER v TYPE numeric(9,1)",
    ),
    "zoned": (
        "id int PRIMARY KEY, v timestamp DEFAULT '2024-02-29'",
        "ALTER v TYPE timestamptz",
        "ALTER v TYPE timestamp",
    ),
    "unscaled": ("id int PRIMARY KEY, v numeric(9,2)", "ALTER v TYPE numeric", "ALTER v TYPE numeric(9,2)"),
    "rekeyed": (
        "id int PRIMARY KEY, v int NOT NULL DEFAULT 0",
        "DROP CONSTRAINT rekeyed_pkey, ADD PRIMARY KEY (v, id)",
        "DROP CONSTRAINT rekeyed_pkey, ADD PRIMARY KEY (v)",
    ),
}
"""Of each table its columns, and two changes that no target can follow in place."""


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return f"e{abs(hash(request.node.nodeid)) % 10**8}"


@pytest.fixture
def filled(stage: Stage, name: str) -> Iterator[Source]:
    odd = ", ".join(f'"{column}" int DEFAULT 1' for column in NAMES)
    tables = (
        "CREATE TYPE mood AS ENUM ('sad', 'ok')",
        "CREATE DOMAIN price AS numeric(10, 2)",
        "CREATE TABLE filled (id int PRIMARY KEY)",
        f"CREATE TABLE odd (id int PRIMARY KEY, {odd}, big text)",
        f"CREATE TABLE odd_log ({odd})",
        "CREATE TABLE turned (b int, a int, v int, PRIMARY KEY (a, b))",
    )
    with stage.source(name, *tables) as source:
        yield source


@FORMATS
def test_defaults_of_every_type_names_of_every_kind_and_a_key_in_another_order_are_followed(
    filled: Source, spark: SparkSession, tmp_path: Path, table_format: str
) -> None:
    source, job = filled, Job(spark, filled, tmp_path, table_format)
    # GIVEN mirrors with rows
    source.execute("INSERT INTO filled VALUES (1)")
    source.execute("INSERT INTO odd SELECT n FROM generate_series(1, 3) n")
    source.execute(
        "UPDATE odd SET big = (SELECT string_agg(md5(n::text), '') FROM generate_series(1, 300) n)"
    )
    source.execute("INSERT INTO odd_log DEFAULT VALUES")
    source.execute("INSERT INTO turned VALUES (1, 2, 3), (2, 1, 3)")
    source.deliver()
    assert job.once() == {}
    # WHEN columns with defaults come, keys change under values that are not sent, and the identity is another
    adds = ", ".join(
        f"ADD c{number} {type_} DEFAULT {value}" for number, (type_, value) in enumerate(DEFAULTS)
    )
    # In one transaction, so that now() is the same in both rows.
    source.execute(
        f"ALTER TABLE filled {adds}, ADD nan numeric(8,3) DEFAULT 'NaN'; INSERT INTO filled (id) VALUES (2)"
    )
    source.execute("UPDATE odd SET _offset = 2 WHERE id = 1")
    source.execute("UPDATE odd SET id = 4 WHERE id = 2")
    source.execute("DELETE FROM odd WHERE id = 3")
    source.execute("INSERT INTO odd_log DEFAULT VALUES")
    source.execute("ALTER TABLE turned REPLICA IDENTITY FULL")
    source.execute("UPDATE turned SET v = 4 WHERE a = 1")
    source.deliver()
    stopped = job.once()
    # THEN no table stops, and old rows have the same values in the new columns as a row that came by a record
    assert (stopped, job.all(TableFailed)) == ({}, [])
    rows = job.table(source, "filled").orderBy("id")
    # As text: Python has no infinite date.
    one, two = rows.select([sf.col(column).cast("string") for column in rows.columns]).collect()
    for number, (type_, _) in enumerate(DEFAULTS):
        column = f"c{number}"
        assert (type_, one[column]) == (type_, two[column])
        assert one[column] is not None, type_
    assert one["nan"] is two["nan"] is None
    equal = compare(source.dsn, spark, job.target, ["public.odd", "public.turned", "public.odd_log"])
    assert all(verdict.equal for verdict in equal), list(map(str, equal))


@pytest.fixture
def refused(stage: Stage, name: str) -> Iterator[Source]:
    with stage.source(
        name, *[f"CREATE TABLE {table} ({columns})" for table, (columns, *_) in CHANGES.items()]
    ) as made:
        yield made


@FORMATS
def test_a_change_that_no_target_can_follow_has_the_table_read_again_and_where_it_stops_the_hint_works(
    refused: Source, spark: SparkSession, tmp_path: Path, table_format: str
) -> None:
    source, job = refused, Job(spark, refused, tmp_path, table_format)
    tables = [f"public.{table}" for table in CHANGES]

    def insert(*ids: int) -> None:
        for table in CHANGES:
            value = ", v" if table != "zoned" else ""
            for id_ in ids:
                source.execute(f"INSERT INTO {table} (id{value}) VALUES ({id_}{f', {id_}' if value else ''})")

    def alter(change: int) -> None:
        for table, changes in CHANGES.items():
            source.execute(f"ALTER TABLE {table} {changes[change]}")

    def is_equal() -> None:
        verdicts = compare(source.dsn, spark, job.target, tables)
        assert all(verdict.equal for verdict in verdicts), list(map(str, verdicts))

    # GIVEN mirrors of tables that change so
    insert(1, 2)
    source.deliver()
    assert job.once() == {}
    alter(1)
    insert(3)
    source.deliver()
    # WHEN they are to be read again
    stopped = job.once(tables={"on_incompatible": "reload"})
    # THEN they are, none stops, and nothing is left to do
    assert stopped == {}
    assert sorted(fact.table for fact in job.all(TableReloaded)) == sorted(tables)
    is_equal()
    assert job.once() == {}
    insert(4)
    source.deliver()
    assert job.once() == {}
    is_equal()
    # WHEN they are to stop, and the daemon is behind by rows of more than one form
    alter(2)
    insert(5)
    source.deliver()
    stopped = job.once(tables={"on_incompatible": "stop"})
    assert sorted(stopped) == sorted(table for table in tables)
    assert all(f"tables stop {fact.table} " in fact.hint for fact in job.all(TableFailed))
    source.daemon.kill()
    insert(6)
    for table in ("typed", "unscaled"):
        source.execute(f"ALTER TABLE {table} {CHANGES[table][1]}")
    insert(7)
    # THEN what the hint says brings them back, whatever the daemon delivers then
    job.load(tables)
    source.daemon.start()
    source.daemon.await_streaming()
    insert(8)
    source.deliver()
    assert job.once(tables={"on_incompatible": "stop"}) == {}
    is_equal()


KEYS = {
    "keyed": ("id int NOT NULL, v int", "ADD PRIMARY KEY (id)", "has a key now"),
    "unkeyed": ("id int PRIMARY KEY, v int", "DROP CONSTRAINT unkeyed_pkey", "has no key any more"),
}
"""Of each table its columns, a change, and what the mirror says of the table then."""


@FORMATS
def test_a_table_that_gets_or_loses_its_key_stops_until_its_target_is_dropped(
    stage: Stage, name: str, spark: SparkSession, tmp_path: Path, table_format: str
) -> None:
    tables = [f"CREATE TABLE {table} ({columns})" for table, (columns, *_) in KEYS.items()]
    with stage.source(name, *tables) as source:
        job, reload = Job(spark, source, tmp_path, table_format), {"on_incompatible": "reload"}
        for table in KEYS:
            source.execute(f"INSERT INTO {table} VALUES (1, 1), (2, 2)")
        source.deliver()
        assert job.once(tables=reload) == {}
        # WHEN one gets a key, and the other one loses its key
        for table, (_, change, _) in KEYS.items():
            source.execute(f"ALTER TABLE {table} {change}")
            source.execute(f"INSERT INTO {table} VALUES (3, 3)")
        source.deliver()
        # THEN both stop by name
        stopped = job.once(tables=reload)
        assert sorted(stopped) == ["public.keyed", "public.unkeyed"]
        for table, (*_, said) in KEYS.items():
            assert said in stopped[f"public.{table}"].message
            assert stopped[f"public.{table}"].hint.startswith("Rename or drop ")
        # AND what the hint says makes them equal
        for table in KEYS:
            job.drop(source, table)
        assert job.once(tables=reload) == {}
        verdicts = compare(source.dsn, job.spark, job.target, [f"public.{table}" for table in KEYS])
        assert all(verdict.equal for verdict in verdicts), list(map(str, verdicts))


@FORMATS
def test_a_table_that_stops_leaves_the_common_points_and_the_others_go_on(
    refused: Source, spark: SparkSession, tmp_path: Path, table_format: str
) -> None:
    source, job = refused, Job(spark, refused, tmp_path, table_format)
    both = {"include": ["public.typed", "public.scaled"]}
    source.execute("INSERT INTO typed VALUES (1, 1)")
    source.execute("INSERT INTO scaled VALUES (1, 1)")
    source.deliver()
    consistent = {"interval_s": 0, "consistent": True}
    assert job.once(batches=consistent, tables=both) == {}
    source.execute("ALTER TABLE typed ALTER v TYPE text")
    source.execute("INSERT INTO typed VALUES (2, 'two')")
    source.execute("INSERT INTO scaled VALUES (2, 2)")
    source.deliver()
    for _ in range(2):
        stopped = job.once(batches=consistent, tables={**both, "on_incompatible": "stop"})
        assert list(stopped) == ["public.typed"]
        points = job.points()
        assert points[0]["without"] == ["public.typed"]
        assert points[-1]["without"] == []
        (scaled,) = compare(source.dsn, spark, job.target, ["public.scaled"])
        assert scaled.equal, str(scaled)
    # Read again, it comes back with the first point after that.
    job.load(["public.typed"])
    source.execute("INSERT INTO scaled VALUES (3, 3)")
    source.deliver()
    assert job.once(batches=consistent, tables=both) == {}
    assert job.points()[0]["without"] == []
    verdicts = compare(source.dsn, spark, job.target, ["public.typed", "public.scaled"])
    assert all(verdict.equal for verdict in verdicts), list(map(str, verdicts))


@FORMATS
def test_a_changelog_has_every_change_of_a_form_that_came_back(
    stage: Stage, name: str, spark: SparkSession, tmp_path: Path, table_format: str
) -> None:
    with stage.source(name, "CREATE TABLE bare (id int, v int)") as source:
        job = Job(spark, source, tmp_path, table_format)
        # GIVEN one batch in which a column is integer, then text, then integer again
        source.execute("INSERT INTO bare VALUES (1, 1)")
        source.execute("ALTER TABLE bare ALTER v TYPE text")
        source.execute("INSERT INTO bare VALUES (2, 'two')")
        source.execute("ALTER TABLE bare ALTER v TYPE int USING 0")
        source.execute("INSERT INTO bare VALUES (3, 3)")
        source.deliver()
        # WHEN it is mirrored, and once more
        assert job.once() == {}
        assert job.once() == {}
        # THEN each change is there once
        assert sorted(row.id for row in job.table(source, "bare").collect()) == [1, 2, 3]
