"""ALTER statements of every kind over tables of every type, while the daemon runs and while it is down.

Each table is there twice. One is altered while the daemon runs, and the mirror takes each statement by itself. The
other is altered while the daemon is down, so that the daemon describes former forms by today's catalog, and the mirror
takes all statements in one batch. After each statement a row is inserted and one is updated, so that there are rows
that had each form last.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psycopg
import pytest
from pyspark.sql import SparkSession

from cdcd.cli.mirror import load_tables
from cdcd.formats.schemas import TableForm, read_form
from cdcd.spark.jars import DELTA, ICEBERG
from cdcd.spark.records.types import table_schema
from cdcd.spark.snapshot.reading import open_snapshot, read_snapshot
from cdcd.spark.targets.evolution import IncompatibleSchemaError, plan
from cdcd.spark.targets.same_columns import numbered
from cdcd.spark.targets.target import kind_of
from cdcd.spark.watching.progress import TableFailed
from tests.spark.jobs import Job
from tests.spark.over_connect import rows
from tests.spark.stage import Source, Stage
from tests.spark.test_mirror_no_dead_ends import DEFAULTS

LIVE, DOWN = "live", "down"
STOP: Final = {"on_incompatible": "stop"}


@dataclass(frozen=True, slots=True)
class Case:
    """A table and what happens to it. `{t}` is the table, `{s}` ends the names of its types.

    Attributes:
        first: statements before the table is made.
        then: statements after it is made.
        leaf: ends the name of the table that has the rows.
        steps: statements with semicolons between, without the words ALTER TABLE {t}.
    """

    columns: str
    steps: tuple[str, ...]
    first: tuple[str, ...] = ()
    then: tuple[str, ...] = ()
    tail: str = ""
    leaf: str = ""


EVERY: Final = tuple([(f"c{number}", type_, value) for number, (type_, value) in enumerate(DEFAULTS)])
HALF: Final = len(EVERY) // 2

FOLLOWED: Final = {
    "plain": Case(
        "id int PRIMARY KEY, n int DEFAULT 1, note text DEFAULT 'a', m int DEFAULT 2, o int DEFAULT 3",
        (
            "ADD a text; ADD b int NOT NULL DEFAULT 7; DROP note",
            "RENAME n TO p; ADD note text DEFAULT 'again'",
            "DROP a, ADD a int DEFAULT 3; RENAME m TO x; RENAME o TO m; RENAME x TO o",
            "DROP m; RENAME o TO m; ADD o int DEFAULT 9",
        ),
    ),
    "grown": Case(
        "id numeric(9,2) PRIMARY KEY, r real DEFAULT 0.1, p numeric(9,2) DEFAULT 1.5, s smallint DEFAULT 3,"
        " i int DEFAULT 4, c varchar(5) DEFAULT 'abc', u timestamp(3) DEFAULT '2024-02-29 01:02:03.456',"
        " z timestamptz(0) DEFAULT '2024-02-29 01:02:03+00', h time(3) DEFAULT '01:02:03.456',"
        " l varchar(3)[] DEFAULT '{a,NULL}', w numeric(50,2) DEFAULT 1.5, v bit varying(4) DEFAULT '101'",
        (
            "ALTER r TYPE double precision, ALTER p TYPE numeric(12,2), ALTER s TYPE int, ALTER i TYPE bigint",
            "ALTER c TYPE varchar(50), ALTER l TYPE text[], ALTER v TYPE bit varying(9), ALTER s TYPE bigint",
            "ALTER u TYPE timestamp, ALTER z TYPE timestamptz, ALTER h TYPE time, ALTER c TYPE text",
            "ALTER id TYPE numeric(12,2), ALTER c TYPE varchar, ALTER w TYPE numeric",
        ),
    ),
    "keys": Case(
        "a int, b text, at timestamptz, v int DEFAULT 0, PRIMARY KEY (b, at, a)",
        (
            "RENAME a TO c; RENAME at TO since",
            "REPLICA IDENTITY FULL",
            "ALTER c TYPE bigint",
            "REPLICA IDENTITY DEFAULT, ADD till timestamptz DEFAULT 'infinity'",
        ),
    ),
    "settings": Case(
        "id uuid PRIMARY KEY, n int DEFAULT 1, big text DEFAULT repeat('x', 9000)",
        (
            "ALTER n SET DEFAULT 5, ALTER n SET NOT NULL; ADD CONSTRAINT checked CHECK (n > 0) NOT VALID",
            "VALIDATE CONSTRAINT checked; RENAME CONSTRAINT checked TO check_n; RENAME big TO large",
            "DROP CONSTRAINT check_n, ALTER n DROP NOT NULL; ADD g int GENERATED ALWAYS AS (n * 2) STORED",
            "OWNER TO CURRENT_USER, DISABLE TRIGGER ALL, CLUSTER ON {t}_pkey; DROP g; RENAME id TO key",
        ),
        then=("ALTER TABLE {t} ALTER big SET STORAGE EXTERNAL",),
    ),
    "words": Case(
        "id int PRIMARY KEY, m mood{s} DEFAULT 'sad', l mood{s}[] DEFAULT '{sad}', p price{s} DEFAULT 1.5,"
        " k int[] DEFAULT '{1,NULL}'",
        (
            "ALTER TYPE mood{s} ADD VALUE 'great'",
            "ALTER TYPE mood{s} RENAME VALUE 'sad' TO 'blue'; ALTER DOMAIN price{s} ADD CHECK (VALUE > 0)",
            "ALTER TYPE mood{s} RENAME TO feeling{s}; ADD f feeling{s} DEFAULT 'great'",
            "ADD tags text[] NOT NULL DEFAULT '{}'; ADD u int[][] DEFAULT '{{1,2},{3,4}}'",
        ),
        first=("CREATE TYPE mood{s} AS ENUM ('sad', 'ok')", "CREATE DOMAIN price{s} AS numeric(10, 2)"),
    ),
    "every": Case(
        "id bigint PRIMARY KEY",
        (
            ", ".join([f"ADD {name} {type_} DEFAULT {value}" for name, type_, value in EVERY]),
            "; ".join([f"RENAME {name} TO d{name}" for name, *_ in EVERY[:HALF]]),
            ", ".join([f"DROP {name}" for name, type_, _ in EVERY[HALF:] if type_ != "int[][]"]),
        ),
    ),
    "nulls": Case(
        "id bigint PRIMARY KEY",
        (", ".join([f"ADD {name} {type_}" for name, type_, _ in EVERY]).replace(" NOT NULL", ""),),
    ),
    "parted": Case(
        "id smallint PRIMARY KEY, n int DEFAULT 1",
        (
            "ADD m int DEFAULT 4",
            "ATTACH PARTITION {t}_2 FOR VALUES FROM (1000) TO (2000)",
            "RENAME n TO o",
            "ADD n text DEFAULT 'n'",
        ),
        tail="PARTITION BY RANGE (id)",
        leaf="_1",
        then=(
            "CREATE TABLE {t}_1 PARTITION OF {t} FOR VALUES FROM (0) TO (1000)",
            "CREATE TABLE {t}_2 (id smallint PRIMARY KEY, m int, n int)",
        ),
    ),
    "bare": Case("n int DEFAULT 1", ("ADD m int DEFAULT 2", "ALTER n TYPE text", "RENAME n TO o", "DROP m")),
}  # fmt: skip
"""What a mirror follows."""

REFUSED: Final = {
    # By type of Spark, or by key.
    "texted": Case("id int PRIMARY KEY, v int DEFAULT 1", ("ALTER v TYPE text",)),
    "listed": Case("id int PRIMARY KEY, v int[] DEFAULT '{1}'", ("ALTER v TYPE bigint[]",)),
    "indexed": Case("id int PRIMARY KEY, v serial UNIQUE", ("REPLICA IDENTITY USING INDEX {t}_v_key",)),
    # One type in Spark, and other values in PostgreSQL.
    "rounded": Case(
        "id int PRIMARY KEY, v timestamp DEFAULT '2024-02-29 01:02:03.6', h time DEFAULT '01:02:03.6'",
        ("ALTER v TYPE timestamp(0), ALTER h TYPE time(0)",),
    ),
    "padded": Case("id int PRIMARY KEY, v char(3) DEFAULT 'a'", ("ALTER v TYPE char(6)",)),
    "trimmed": Case("id int PRIMARY KEY, v char(3) DEFAULT 'a'", ("ALTER v TYPE text",)),
    "normal": Case('id int PRIMARY KEY, v json DEFAULT \'{"b": 1,   "a": 2}\'', ("ALTER v TYPE jsonb",)),
    "hosts": Case("id int PRIMARY KEY, v cidr DEFAULT '10.0.0.1/32'", ("ALTER v TYPE inet",)),
    "scaled": Case("id int PRIMARY KEY, v numeric(50,2) DEFAULT 1.5", ("ALTER v TYPE numeric(50,4)",)),
    "unsigned": Case("id int PRIMARY KEY, v int DEFAULT -1", ("ALTER v DROP DEFAULT, ALTER v TYPE oid",)),
    "worded": Case(
        "id int PRIMARY KEY, m old{s} DEFAULT 'a'",
        ("ALTER m DROP DEFAULT, ALTER m TYPE new{s} USING (CASE m WHEN 'a' THEN 'b' END)::new{s}",),
        first=("CREATE TYPE old{s} AS ENUM ('a', 'b')", "CREATE TYPE new{s} AS ENUM ('a', 'b')"),
    ),
    # Values that were never sent.
    "expressed": Case(
        "id int PRIMARY KEY, n int DEFAULT 1, g int GENERATED ALWAYS AS (n * 2) STORED, z int DEFAULT 1",
        ("ALTER g DROP EXPRESSION",),
    ),
    # PostgreSQL has forgotten what older rows have, or never said it.
    "rewritten": Case("id int PRIMARY KEY, n int DEFAULT 1", ("ADD v int DEFAULT 7; ALTER n TYPE bigint",)),
    "renewed": Case(
        "id int PRIMARY KEY, n int DEFAULT 1", ("ADD g int GENERATED ALWAYS AS (n * 2) STORED; ADD v date",)
    ),
    "checked": Case(
        "id int PRIMARY KEY",
        ("ADD v cents{s} DEFAULT 2",),
        first=("CREATE DOMAIN cents{s} AS int CHECK (VALUE > 0)",),
    ),
    "volatile": Case("id int PRIMARY KEY", ("ADD v timestamptz DEFAULT clock_timestamp()",)),
    "counted": Case("id int PRIMARY KEY", ("ADD v int GENERATED BY DEFAULT AS IDENTITY",)),
}
"""What no target can follow: docs/mirror.md, "No dead ends"."""

UNSENT: Final = {
    "composed": Case(
        "id int PRIMARY KEY, v pair{s} DEFAULT '(1,2)'",
        ("ALTER TYPE pair{s} ADD ATTRIBUTE z int",),
        first=("CREATE TYPE pair{s} AS (x int, y int)",),
    ),
}
"""What PostgreSQL does not send: docs/mirror.md, "It does not promise"."""

UNCLEAR: Final = {DOWN: {"plain"}, LIVE: set[str]()}
"""The cases, by half, whose table has one form that stops a mirror which takes that form alone. When the row of that
form was written, two columns had each other's names. Before the daemon asked the catalog, one of the two was dropped
and the other renamed. A mirror that takes the next form in the same batch follows.
"""

CASES: Final = {**FOLLOWED, **REFUSED, **UNSENT}
STATEMENTS: Final = [
    statement for case in CASES.values() for step in case.steps for statement in step.split("; ")
]

_LITERALS: Final = {
    "uuid": "'00000000-0000-0000-0000-{:012d}'",
    "timestamp with time zone": "'2026-01-01 00:00:{:02d}+00'",
}


class Altered:
    """The tables of one half."""

    def __init__(self, connection: "psycopg.Connection[tuple[object, ...]]", half: str) -> None:
        self._connection = connection
        self.half = half
        self._rows = dict.fromkeys(CASES, 0)

    def name(self, case: str) -> str:
        return f"{case}_{self.half}"

    def run(self, case: str, statement: str) -> None:
        self._connection.execute(_filled(statement, case, self.half).encode())

    def step(self, case: str, number: int) -> None:
        """The case's step of that number, a new row, and an update of the first one."""
        for statement in CASES[case].steps[number].split("; "):
            whole = statement.startswith(("ALTER TYPE", "ALTER DOMAIN"))
            self.run(case, statement if whole else f"ALTER TABLE {{t}} {statement}")
        self.insert(case)
        self.update(case)

    def insert(self, case: str) -> None:
        self._rows[case] += 1
        values = self._key(case, self._rows[case])
        columns = (
            f"({', '.join(values)}) VALUES ({', '.join(values.values())})" if values else "DEFAULT VALUES"
        )
        self.run(case, f"INSERT INTO {{t}} {columns}")

    def update(self, case: str) -> None:
        values = self._key(case, 1)
        if values:
            sets = ", ".join(f"{name} = {name}" for name in values)
            self.run(case, f"UPDATE {{t}} SET {sets} WHERE {_where(values)}")

    def delete(self, case: str) -> None:
        values = self._key(case, 2)
        if values:
            self.run(case, f"DELETE FROM {{t}} WHERE {_where(values)}")

    def _key(self, case: str, number: int) -> dict[str, str]:
        """The columns of the primary key, and what the row of that number has in them."""
        found = self._connection.execute(
            """SELECT attname::text, format_type(atttypid, -1) FROM pg_index
                 JOIN pg_attribute ON attrelid = indrelid AND attnum = ANY (indkey)
                WHERE indrelid = %s::regclass AND indisprimary""",
            (self.name(case),),
        ).fetchall()
        return {str(name): _LITERALS.get(str(type_), "'{}'").format(number) for name, type_ in found}


def _filled(statement: str, case: str, half: str) -> str:
    return statement.replace("{t}", f"{case}_{half}").replace("{s}", f"_{half}")


def _where(values: dict[str, str]) -> str:
    return " AND ".join(f"{name} = {value}" for name, value in values.items())


@contextmanager
def altered(stage: Stage, name: str, cases: Mapping[str, Case]) -> "Iterator[Source]":
    """A source with both halves of the tables of `cases`."""
    made = ["CREATE TYPE mood AS ENUM ('sad', 'ok')", "CREATE DOMAIN price AS numeric(10, 2)"]
    for half in (LIVE, DOWN):
        for each, case in cases.items():
            table = f"CREATE TABLE {{t}} ({case.columns}) {case.tail}"
            made += [_filled(statement, each, half) for statement in (*case.first, table, *case.then)]
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
            assert (job.once(tables=STOP).stopped, job.all(TableFailed)) == ({}, [])
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
        stops = {f"{name}.public.{half.name(case)}" for case in REFUSED for half in (live, down)}
        for _ in range(2):
            assert job.once(tables=STOP).stopped.keys() == stops
            assert all(f"--snapshot {fact.table} " in fact.hint for fact in job.all(TableFailed))
        # AND that way makes them equal, and those whose changes PostgreSQL does not send; also with what comes then
        tables = [f"public.{half.name(case)}" for case in cases for half in (live, down)]
        load_tables(spark, job.settings(), job.target, job.database, tables, job.facts.append)
        for case in cases:
            for half in (live, down):
                half.insert(case)
                half.update(case)
        source.deliver()
        assert job.once(tables=STOP).stopped == {}
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
        # WHEN both get a column with a default, and one is written anew before a row tells of the column
        source.execute("ALTER TABLE p ADD c text DEFAULT 'x', ADD d int")
        source.execute("CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20)")
        source.execute("ALTER TABLE q ADD c text DEFAULT 'x'")
        source.execute("VACUUM FULL q1")
        source.execute("INSERT INTO p VALUES (11, 11, NULL, 5)")
        source.execute("INSERT INTO q VALUES (4, 4, NULL)")
        source.deliver()
        # THEN the one has the value in all rows, and the other stops by name
        assert job.once(tables=STOP).stopped.keys() == {f"{name}.public.q"}
        rows = job.table(source, "p").orderBy("id").select("id", "c", "d").collect()
        assert [tuple(row) for row in rows] == [(1, "x", None), (2, "x", None), (3, "x", None), (11, None, 5)]
        (stopped,) = job.all(TableFailed)
        assert "what the rows that are there have in it is not known" in stopped.message
        assert "--snapshot public.q" in stopped.hint


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
        assert job.once(tables=STOP).stopped.keys() == {f"{name}.public.t"}
        (stopped,) = job.all(TableFailed)
        assert "dropped and added again" in stopped.message
        # AND the way on makes the table equal
        load_tables(spark, job.settings(), job.target, job.database, ["public.t"], job.facts.append)
        source.execute("UPDATE t SET c = 5 WHERE id = 3")
        source.deliver()
        assert job.once(tables=STOP).stopped == {}
        found = job.table(source, "t").orderBy("id").select("id", "c").collect()
        assert [tuple(row) for row in found] == [(1, None), (2, None), (3, 5), (4, 4)]
