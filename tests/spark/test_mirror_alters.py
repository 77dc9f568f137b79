"""ALTER statements of every kind over tables of every type, while the daemon runs and while it is down.

Each table is there twice. One is altered while the daemon runs, and the mirror takes each statement by itself. The
other is altered while the daemon is down, so that the daemon describes former forms by today's catalog, and the mirror
takes all statements in one batch. After each statement a row is inserted and one is updated, so that there are rows
that had each form last.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession

from cdcd.core.records.schemas import TableForm, read_form
from cdcd.mirror.jars import DELTA, ICEBERG
from cdcd.mirror.records.types import table_schema
from cdcd.mirror.snapshot.reading import open_snapshot, read_snapshot
from cdcd.mirror.targets.evolution import IncompatibleSchemaError, plan
from cdcd.mirror.targets.same_columns import numbered
from cdcd.mirror.targets.target import kind_of
from cdcd.mirror.watching.progress import TableFailed
from tests.altered_tables import (
    CASES,
    DOWN,
    FOLLOWED,
    LIVE,
    REFUSED,
    SETUP,
    STATEMENTS,
    UNSENT,
    Altered,
    Case,
    created,
)
from tests.spark.jobs import Job
from tests.spark.over_connect import rows
from tests.spark.stage import Source, Stage

STOP: Final = {"on_incompatible": "stop"}


UNCLEAR: Final = {DOWN: {"plain"}, LIVE: set[str]()}
"""The cases, by half, whose table has one form that stops a mirror which takes that form alone. When the row of that
form was written, two columns had each other's names. Before the daemon asked the catalog, one of the two was dropped
and the other renamed. A mirror that takes the next form in the same batch follows.
"""


@contextmanager
def altered(stage: Stage, name: str, cases: Mapping[str, Case]) -> "Iterator[Source]":
    """A source with both halves of the tables of `cases`."""
    made = [*SETUP, *[statement for half in (LIVE, DOWN) for statement in created(half, cases)]]
    with stage.source(name, *made) as source:
        yield source


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return f"al{abs(hash(request.node.nodeid)) % 10**8}"


def different(spark: SparkSession, source: Source, job: Job, cases: Sequence[str]) -> dict[str, object]:
    """The tables whose rows in the mirror are not those that the database has now, read by Spark at a snapshot."""
    tables = [f"public.{case}_{half}{CASES[case].leaf}" for half in (LIVE, DOWN) for case in cases]
    found: dict[str, object] = {}
    with open_snapshot(spark, job.database, tables) as snapshot:
        for table in tables:
            truth = read_snapshot(spark, snapshot, table)
            want = rows(truth)
            have = rows(job.table(source, table.removeprefix("public.")).select(truth.columns))
            if want != have:
                found[table] = (
                    [row for row in want if row not in have],
                    [row for row in have if row not in want],
                )
    return found


def test_there_are_forty_statements() -> None:
    assert len(STATEMENTS) >= 40


def run(
    source: Source, cases: Mapping[str, Case], live: Altered, down: Altered, mirror: Callable[[], object]
) -> None:
    """All tables get rows; then half of them is altered while the daemon runs, with a `mirror` after each step, and the
    other half while the daemon is down."""
    for name in cases:
        for half in (live, down):
            for _ in range(3):
                half.insert(name)
    source.deliver()
    mirror()
    for number in range(max(len(case.steps) for case in cases.values())):
        for name, case in cases.items():
            if number < len(case.steps):
                live.step(name, number)
        source.deliver()
        mirror()
    source.daemon.kill()
    for name, case in cases.items():
        for number in range(len(case.steps)):
            down.step(name, number)
        live.delete(name)
        down.delete(name)
    source.daemon.start()
    source.daemon.await_streaming()
    source.deliver()


def is_refused(forms: Sequence[TableForm]) -> bool:
    """Whether a mirror is stopped that takes one form after the other, or all of them in one batch."""
    schemas = [table_schema(str(number), form) for number, form in enumerate(forms)]
    has = schemas[0]
    kind = kind_of(has)
    try:
        for schema in schemas[1:]:
            new = numbered(has, schema)
            plan(has, new, kind)
            has = new
        for schema in schemas:
            plan(schema, has, kind)
    except IncompatibleSchemaError:
        return True
    return False


def test_what_the_daemon_describes_stops_the_tables_that_cannot_be_followed_and_no_other(
    stage: Stage, name: str
) -> None:
    # Without a mirror: what would differ here, would differ there.
    with altered(stage, name, CASES) as source, source.connect() as connection:
        live, down = Altered(connection, LIVE), Altered(connection, DOWN)
        run(source, CASES, live, down, lambda: None)
        described = [read_form(record.value or b"")[1] for record in source.topic("schemas")]
        for half in (live, down):
            forms = {
                case: [form for form in described if form.table == half.name(case) + CASES[case].leaf]
                for case in CASES
            }
            refused = {case for case, mine in forms.items() if is_refused(mine)}
            assert refused == REFUSED.keys() | UNCLEAR[half.half]


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("table_format", [ICEBERG, DELTA])
def test_tables_that_are_altered_as_a_target_can_follow_are_equal(
    stage: Stage, name: str, spark: SparkSession, tmp_path: Path, table_format: str
) -> None:
    with altered(stage, name, FOLLOWED) as source, source.connect() as connection:
        job = Job(spark, source, tmp_path, table_format)
        # WHEN the tables are altered in every way that a target can follow
        live, down = Altered(connection, LIVE), Altered(connection, DOWN)
        run(source, FOLLOWED, live, down, lambda: job.once(tables=STOP))
        # THEN none stops, and once more
        for _ in range(2):
            assert (job.once(tables=STOP), job.all(TableFailed)) == ({}, [])
        # AND every table is equal, and the changelog has each change once
        assert different(spark, source, job, [each for each in FOLLOWED if each != "bare"]) == {}
        for half in (LIVE, DOWN):
            (counted,) = connection.execute(f"SELECT count(*) FROM bare_{half}".encode()).fetchall()
            assert (job.table(source, f"bare_{half}").count(),) == counted


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("table_format", [ICEBERG, DELTA])
def test_tables_that_are_altered_otherwise_stop_by_name_and_the_way_on_makes_them_equal(
    stage: Stage, name: str, spark: SparkSession, tmp_path: Path, table_format: str
) -> None:
    cases = {**REFUSED, **UNSENT}
    with altered(stage, name, cases) as source, source.connect() as connection:
        job = Job(spark, source, tmp_path, table_format)
        live, down = Altered(connection, LIVE), Altered(connection, DOWN)
        # WHEN the tables are altered as no target can follow
        run(source, cases, live, down, lambda: job.once(tables=STOP))
        # THEN they stop, and once more, each with the command that reads it again
        stops = {f"public.{half.name(case)}" for case in REFUSED for half in (live, down)}
        for _ in range(2):
            assert job.once(tables=STOP).keys() == stops
            assert all(f"tables stop {fact.table} " in fact.hint for fact in job.all(TableFailed))
        # AND that way makes them equal, and those whose changes PostgreSQL does not send; also with what comes then
        tables = [f"public.{half.name(case)}" for case in cases for half in (live, down)]
        job.load(tables)
        for case in cases:
            for half in (live, down):
                half.insert(case)
                half.update(case)
        source.deliver()
        assert job.once(tables=STOP) == {}
        assert different(spark, source, job, list(cases)) == {}


@pytest.mark.parametrize("table_format", [ICEBERG, DELTA])
def test_older_rows_of_a_partitioned_table_get_the_default_of_its_partitions(
    stage: Stage, name: str, spark: SparkSession, tmp_path: Path, table_format: str
) -> None:
    made = (
        "CREATE TABLE p (id int PRIMARY KEY, n int) PARTITION BY RANGE (id)",
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE q (id int PRIMARY KEY, n int) PARTITION BY RANGE (id)",
        "CREATE TABLE q1 PARTITION OF q FOR VALUES FROM (0) TO (10)",
        "INSERT INTO p SELECT g, g FROM generate_series(1, 3) g",
        "INSERT INTO q SELECT g, g FROM generate_series(1, 3) g",
        f"CREATE PUBLICATION cdcd_{name} FOR ALL TABLES WITH (publish_via_partition_root = true)",
    )
    # GIVEN two partitioned tables that are published as such
    with stage.source(name, *made) as source:
        job = Job(spark, source, tmp_path, table_format)
        source.deliver()
        job.once(tables=STOP)
        # WHEN both get a column with a default, and one is written again before a row tells of the column
        source.execute("ALTER TABLE p ADD c text DEFAULT 'x', ADD d int")
        source.execute("CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20)")
        source.execute("ALTER TABLE q ADD c text DEFAULT 'x'")
        source.execute("VACUUM FULL q1")
        source.execute("INSERT INTO p VALUES (11, 11, NULL, 5)")
        source.execute("INSERT INTO q VALUES (4, 4, NULL)")
        source.deliver()
        # THEN the one has the value in all rows, and the other stops by name
        assert job.once(tables=STOP).keys() == {"public.q"}
        rows = job.table(source, "p").orderBy("id").select("id", "c", "d").collect()
        assert [tuple(row) for row in rows] == [(1, "x", None), (2, "x", None), (3, "x", None), (11, None, 5)]
        (stopped,) = job.all(TableFailed)
        assert "its values in existing rows are not known" in stopped.message
        assert "tables stop public.q" in stopped.hint


@pytest.mark.parametrize("table_format", [ICEBERG, DELTA])
def test_a_column_is_followed_if_a_truncate_ended_the_rows_that_are_older(
    stage: Stage, name: str, spark: SparkSession, tmp_path: Path, table_format: str
) -> None:
    made = [f"CREATE TABLE {table} (id int PRIMARY KEY, n int)" for table in ("ended", "again")]
    with stage.source(name, *made) as source:
        job = Job(spark, source, tmp_path, table_format)
        for table in ("ended", "again"):
            source.execute(f"INSERT INTO {table} VALUES (1, 1), (2, 2)")
        source.deliver()
        job.once(tables=STOP)
        # WHEN tables get a column with a default, and PostgreSQL writes them again before a row tells of the column
        for table, last in (("ended", "TRUNCATE ended"), ("again", "VACUUM FULL again")):
            source.execute(f"INSERT INTO {table} VALUES (3, 3)")
            source.execute(f"ALTER TABLE {table} ADD c text DEFAULT 'x'")
            source.execute(last)
            source.execute(f"INSERT INTO {table} VALUES (4, 4, NULL), (5, 5, DEFAULT)")
        source.deliver()
        # THEN `ended`, which has no older rows, is equal, and `again` stops
        assert job.once(tables=STOP).keys() == {"public.again"}
        rows = job.table(source, "ended").orderBy("id").select("id", "n", "c").collect()
        assert [tuple(row) for row in rows] == [(4, 4, None), (5, 5, "x")]
        # AND `ended` goes on
        source.execute("INSERT INTO ended VALUES (6, 6)")
        source.deliver()
        assert job.once(tables=STOP).keys() == {"public.again"}
        assert job.table(source, "ended").count() == 3


@pytest.mark.parametrize("table_format", [ICEBERG, DELTA])
def test_a_column_that_was_dropped_and_added_again_while_the_daemon_was_behind_stops_its_table(
    stage: Stage, name: str, spark: SparkSession, tmp_path: Path, table_format: str
) -> None:
    with stage.source(name, "CREATE TABLE t (id int PRIMARY KEY, n int)") as source:
        job = Job(spark, source, tmp_path, table_format)
        source.execute("INSERT INTO t VALUES (1, 1)")
        source.deliver()
        job.once(tables=STOP)
        # WHEN rows are written before, between and after
        source.daemon.kill()
        source.execute("ALTER TABLE t ADD c int")
        source.execute("INSERT INTO t VALUES (2, 2, 2)")
        source.execute("ALTER TABLE t DROP c")
        source.execute("INSERT INTO t VALUES (3, 3)")
        source.execute("ALTER TABLE t ADD c int")
        source.execute("INSERT INTO t VALUES (4, 4, 4)")
        source.daemon.start()
        source.daemon.await_streaming()
        source.deliver()
        # THEN the second row, which has NULL by now, is not shown with its former value
        assert job.once(tables=STOP).keys() == {"public.t"}
        (stopped,) = job.all(TableFailed)
        assert "dropped and added again" in stopped.message
        # AND the way on makes the table equal
        job.load(["public.t"])
        source.execute("UPDATE t SET c = 5 WHERE id = 3")
        source.deliver()
        assert job.once(tables=STOP) == {}
        found = job.table(source, "t").orderBy("id").select("id", "c").collect()
        assert [tuple(row) for row in found] == [(1, None), (2, None), (3, 5), (4, 4)]
