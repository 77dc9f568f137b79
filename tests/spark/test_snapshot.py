"""Tables that Spark reads at a snapshot, into a mirror that goes on from there: nothing is missing or comes twice."""

import random
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import psycopg
import pytest
import yaml
from psycopg.conninfo import make_conninfo
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import DecimalType, StringType

from cdcd.adapters.postgres.connection import parse_dsn
from cdcd.adapters.postgres.readers import Access, Readers
from cdcd.core.errors import PositionError, SourceError, TransientError
from cdcd.mirror.base.given import reached
from cdcd.mirror.kafka import KafkaSource
from cdcd.mirror.platform.tables import exists
from cdcd.mirror.targets.target import Kind, Target
from cdcd.spark import SnapshotSource, load_snapshot, open_snapshot, read_snapshot
from deploy.demo.mirrored import compare
from tests.spark.stage import Source, Stage, change, target_for
from tests.spark.workload import MIRRORED, TABLES
from tests.spark.writing import Writing

SEED = 20_261_122
ROWS = 8000

FILLED = (
    *TABLES,
    f"""INSERT INTO account (id, balance, note, big, flags, day, stamp, doc, raw, open)
        SELECT g + 1000, g / 3.0, E'tab\\tand "quote" ' || g, repeat('b', g % 5000), ARRAY[g, NULL],
               date '2020-01-01' + g % 999, timestamp '2020-01-01' + g * interval '1 us', jsonb_build_object('n', g),
               decode(lpad(to_hex(g), 8, '0'), 'hex'), g % 2 = 0
          FROM generate_series(1, {ROWS}) g""",
    "UPDATE account SET stamp = '1999-12-31 23:59:59.999999' WHERE id % 2 = 0",
    "INSERT INTO pair SELECT g % 9, 'row ' || g, g, ARRAY['x', NULL] FROM generate_series(1, 2000) g",
    "INSERT INTO whole SELECT g, 'NaN', repeat('w', 4000) FROM generate_series(1000, 1500) g",
)

PARTITIONED = """
CREATE TABLE p (id int, region text, price numeric(8, 2), secret text, PRIMARY KEY (id, region))
  PARTITION BY LIST (region);
CREATE TABLE p_1 PARTITION OF p FOR VALUES IN ('x');
CREATE TABLE p_2 (region text NOT NULL, secret text, price numeric(8, 2), id int NOT NULL);
ALTER TABLE p ATTACH PARTITION p_2 FOR VALUES IN ('y');
INSERT INTO p SELECT g, CASE g % 2 WHEN 0 THEN 'x' ELSE 'y' END, g / 4.0, 's' FROM generate_series(1, 900) g;
CREATE PUBLICATION roots FOR TABLE p (id, region, price) WHERE (id > 100) WITH (publish_via_partition_root = true)
""".strip().split(";\n")

WRITES = (
    "UPDATE account SET balance = balance + 1, note = 'changed' WHERE id = %(n)s + 1000",
    "UPDATE account SET id = -id WHERE id = %(n)s + 1000",
    "DELETE FROM account WHERE id = %(n)s + 1000",
    "INSERT INTO account (id, big) VALUES (%(n)s + 50000, repeat('n', 3000)) ON CONFLICT (id) DO UPDATE SET day = NULL",
    "UPDATE pair SET value = value + 1 WHERE a = %(m)s AND b < 'row 2'",
    "DELETE FROM pair WHERE b = 'row ' || %(n)s %% 2000",
    "INSERT INTO whole (id, price) VALUES (%(n)s + 9000, %(n)s) ON CONFLICT (id) DO UPDATE SET price = 1.5",
    "UPDATE whole SET price = %(n)s WHERE id = 1000 + %(n)s %% 500",
    "DELETE FROM whole WHERE id = 1000 + %(n)s %% 500",
)


@pytest.fixture
def source(stage: Stage, request: pytest.FixtureRequest) -> Iterator[Source]:
    with stage.source(f"s{abs(hash(request.node.nodeid)) % 10**8}", *FILLED) as source:
        yield source


def pipeline(source: Source, *, kafka: bool = True) -> SnapshotSource:
    name = f"cdcd_{source.name}"
    return SnapshotSource(source.dsn, name, name, source.name, KafkaSource(source.servers) if kafka else None)


def write(connection: "psycopg.Connection[tuple[Any, ...]]", dice: random.Random) -> None:
    """One transaction of the workload."""
    with connection.transaction():
        for _ in range(dice.randrange(1, 6)):
            statement = dice.choice(WRITES)
            connection.execute(statement.encode(), {"n": dice.randrange(ROWS), "m": dice.randrange(9)})


@pytest.mark.parametrize("table_format", ["iceberg", "delta"])
def test_a_table_that_spark_reads_under_writes_goes_on_from_its_lsn_and_equals_the_source(
    source: Source, spark: SparkSession, table_format: str
) -> None:
    # GIVEN tables whose rows are in no topic, and somebody who writes to them all the time
    file = source.folder / "cdcd.yaml"
    file.write_text(yaml.safe_dump(source.daemon.config))
    mirror = source.mirror(table_format)
    said: list[str] = []
    with Writing(source, SEED, write) as writing:
        # WHEN they are read into the mirror meanwhile
        tables = [part for table in MIRRORED for part in ("--snapshot", table)]
        assert mirror.once(*tables, "--source", str(file), say=said.append) == 0, mirror.errors()[-3000:]
        assert writing.rounds > 10
    # THEN each was read whole
    assert [line.split()[1] for line in said if line.startswith("snapshot:")] == list(MIRRORED)
    # AND the mirror equals the source when what was committed since is in, whose first half is in the topics twice
    source.deliver()
    assert source.repeat("public.account") > 0
    assert mirror.once() == 0, mirror.errors()[-3000:]
    target = target_for(spark, mirror, f"c_{source.name}")
    verdicts = compare(source.dsn, spark, target, MIRRORED)
    assert [str(verdict) for verdict in verdicts if not verdict.equal] == []
    assert not exists(spark, target.own_name("quarantine"))
    # WHEN one is read once more, in the place of what is there, and changes that it sees come after it
    source.daemon.kill()
    source.execute("UPDATE account SET note = 'again' WHERE id % 3 = 0")
    again = mirror.once("--snapshot", "public.account", "--source", str(file), say=said.append)
    assert again == 0, mirror.errors()[-3000:]
    source.daemon.start()
    source.deliver()
    assert mirror.once() == 0
    # THEN it is still the source
    fresh = target_for(spark, mirror, f"d_{source.name}")
    assert all(verdict.equal for verdict in compare(source.dsn, spark, fresh, MIRRORED))


def test_rows_are_read_with_the_role_of_the_tables_reader_and_with_no_other(
    source: Source, spark: SparkSession
) -> None:
    # GIVEN a role of the pipeline that may read no table, and a reader that may read one
    name = f"cdcd_{source.name}"
    main, reader = f"main_{source.name}", f"reader_{source.name}"
    with source.connect() as connection:
        try:
            connection.execute(f"CREATE ROLE {main} LOGIN REPLICATION; CREATE ROLE {reader} LOGIN".encode())
            connection.execute(f"GRANT SELECT ON pair TO {reader}".encode())
            access = [
                Access(None, main, (), lambda: parse_dsn(make_conninfo(source.dsn, user=main))),
                Access(
                    0, reader, ("public.pair",), lambda: parse_dsn(make_conninfo(source.dsn, user=reader))
                ),
            ]
            readers = Readers(access[0], access[1:])
            dsn = make_conninfo(source.dsn, user=main)
            given = SnapshotSource(dsn, name, name, source.name, readers=readers)
            # WHEN both tables are read
            with open_snapshot(spark, given, ["public.pair", "public.account"]) as snapshot:
                assert read_snapshot(spark, snapshot, "public.pair").count() == 2000
                # THEN the table without a reader is read by the pipeline's role, which is refused
                with pytest.raises(PySparkException, match="permission denied for table account"):
                    read_snapshot(spark, snapshot, "public.account").count()
        finally:
            for role in (main, reader):
                connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())


def test_rows_are_those_that_are_published_in_the_mirrors_types(source: Source, spark: SparkSession) -> None:
    # GIVEN a partitioned table that is published by its root, with a filter and some columns
    with source.connect() as connection:
        for statement in PARTITIONED:
            connection.execute(statement.encode())
        name = f"cdcd_{source.name}"
        dsn = make_conninfo(source.dsn, password="hunter2")
        roots = SnapshotSource(dsn, "roots", name, source.name)
        # WHEN it is read in tasks of a page, and changed by others before that
        with open_snapshot(spark, roots, ["public.p"]) as snapshot:
            connection.execute("DELETE FROM p WHERE id > 500")
            connection.execute("INSERT INTO p VALUES (5000, 'x', 1, 's')")
            rows = read_snapshot(spark, snapshot, "public.p", partition_bytes=8192)
            found = {row["id"]: row for row in rows.collect()}
            # THEN the rows are those of the snapshot, and the plan that Spark shows has no secret
            assert "hunter2" not in rows._jdf.queryExecution().toString()
            assert rows.rdd.getNumPartitions() >= 4
    assert sorted(found) == list(range(101, 901))
    assert rows.columns == ["id", "region", "price"]
    assert rows.schema["price"].dataType == DecimalType(8, 2)
    assert rows.schema["region"].dataType == StringType()
    assert found[103]["price"] == Decimal("25.75")


def test_rows_that_fit_no_type_are_in_quarantine_and_a_table_without_a_key_is_a_log(
    source: Source, spark: SparkSession, target: Target
) -> None:
    source.execute("INSERT INTO account (id, flags) VALUES (-7, '{{1,2},{3,4}}')")
    source.execute("INSERT INTO log (what) SELECT 'x' FROM generate_series(1, 50)")
    with open_snapshot(spark, pipeline(source), ["public.account", "public.log"]) as snapshot:
        loaded = load_snapshot(spark, snapshot, "public.account", target, history=True)
        assert (loaded.rows, loaded.quarantined) == (ROWS, 1)
        logged = load_snapshot(spark, snapshot, "public.log", target)
        assert (logged.rows, logged.quarantined) == (50, 0)
        with pytest.raises(PySparkException, match="its JSON is not that of a change"):
            read_snapshot(spark, snapshot, "public.account").count()
        form = snapshot.form("public.account").schema
        log = snapshot.form("public.log").schema
        at = snapshot.commit_lsn
    ((reason, table),) = [
        (row["reason"], row["table"]) for row in spark.table(target.own_name("quarantine")).collect()
    ]
    assert (reason, table) == ("its JSON is not that of a change", "public.account")
    # AND the form is the one that the daemon names in its changes
    source.deliver()
    assert change(source.records("public.account")[0])["source"]["schema_id"] == form.schema_id
    # AND every row stands at the snapshot's place, in the mirror and in its changelog
    mirror = spark.table(target.name_of(form, Kind.MIRROR))
    changes = spark.table(target.name_of(form, Kind.CHANGELOG))
    assert mirror.count() == changes.count() == ROWS
    assert {row[0] for row in mirror.select("_cdcd_commit_lsn").distinct().collect()} == {at}
    assert {tuple(row) for row in changes.select("_cdcd_op", "_cdcd_commit_lsn").distinct().collect()} == {
        ("r", at)
    }
    assert spark.table(target.name_of(log, Kind.CHANGELOG)).count() == 50


def test_what_is_wrong_is_told_and_the_mirror_keeps_what_it_had(
    source: Source, spark: SparkSession, target: Target
) -> None:
    # GIVEN a mirror that was loaded
    with open_snapshot(spark, pipeline(source), ["public.pair"]) as snapshot:
        assert load_snapshot(spark, snapshot, "public.pair", target).rows == 2000
        form = snapshot.form("public.pair").schema
        old = snapshot
    name = target.name_of(form, Kind.MIRROR)
    # WHEN the session that holds the snapshot is ended, THEN the load says so
    with open_snapshot(spark, pipeline(source), ["public.pair", "public.whole"]) as snapshot:
        source.execute("DELETE FROM pair WHERE a = 1")
        source.execute(
            "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity"
            " WHERE application_name = 'cdcd shared snapshot'"
        )
        with pytest.raises(TransientError, match="snapshot"):
            load_snapshot(spark, snapshot, "public.pair", target)
    # AND so it does when a table was altered, or dropped
    with open_snapshot(spark, pipeline(source, kafka=False), ["public.pair", "public.whole"]) as snapshot:
        source.execute("ALTER TABLE pair ALTER value TYPE text")
        source.execute("DROP TABLE whole")
        for table in ("public.pair", "public.whole"):
            with pytest.raises(TransientError, match="has changed since its snapshot"):
                load_snapshot(spark, snapshot, table, target)
    # AND the mirror is as it was
    assert spark.table(name).count() == 2000
    assert reached(spark, target, name).commit_lsn == old.commit_lsn
    # AND a mirror that has later changes is left alone
    source.execute("INSERT INTO log (what) VALUES ('x')")
    with open_snapshot(spark, pipeline(source), ["public.log"]) as earlier:
        with open_snapshot(spark, pipeline(source), ["public.log"]) as later:
            load_snapshot(spark, later, "public.log", target)
        with pytest.raises(PositionError, match="Another process"):
            load_snapshot(spark, earlier, "public.log", target)
    # AND without its slot, or for a table that is not published, there is no snapshot
    for wrong, words in (
        (SnapshotSource(source.dsn, f"cdcd_{source.name}", "nobody", source.name), "There is no slot nobody"),
        (pipeline(source), "does not publish public.missing"),
    ):
        with pytest.raises(SourceError, match=words), open_snapshot(spark, wrong, ["public.missing"]):
            pass
