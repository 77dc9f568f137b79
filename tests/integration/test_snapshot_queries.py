"""`snapshot.queries`: tables are read by a query, which must return the columns of the table."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deploy.demo.fold import await_flushed
from deploy.demo.topics import Reader
from deploy.local import KafkaBroker
from tests.integration.conftest import Database
from tests.integration.daemon import Daemon, configuration
from tests.integration.forked import run_cdcd

pytestmark = pytest.mark.postgres(only=18, also=[13])

StartDaemon = Callable[[dict[str, Any]], Daemon]

QUERIES = {
    "public.t": "SELECT r.id, pg_catalog.upper(r.note)::varchar(20) AS note, r.kind FROM {rows} AS r "
    "WHERE r.kind <> 'old' -- the archive",
    "public.p": "SELECT * FROM {rows} AS r WHERE r.id > 150",
}


def read_rows(broker: KafkaBroker, name: str, topic: str) -> list[dict[str, Any]]:
    """Return the rows that snapshots read into a topic."""
    with Reader(broker.bootstrap_servers, name) as reader:
        found = [json.loads(raw.value) for raw in reader.read_all() if raw.topic == topic and raw.value]
    return [value["after"] for value in found if value["op"] == "r"]


def created(database: Database, unique: str) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, note varchar(20), kind text)")
    database.execute(
        "INSERT INTO t SELECT g, 'note ' || g, CASE g % 3 WHEN 0 THEN 'old' ELSE 'new' END "
        "FROM generate_series(1, 3000) g"
    )
    database.execute("CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    database.execute("CREATE TABLE p_1 PARTITION OF p FOR VALUES FROM (0) TO (100)")
    database.execute("CREATE TABLE p_2 PARTITION OF p FOR VALUES FROM (100) TO (1000)")
    database.execute("INSERT INTO p SELECT generate_series(1, 200)")
    database.execute(
        f'CREATE PUBLICATION "cdcd_{unique}" FOR TABLE t, p WITH (publish_via_partition_root = true)'
    )


def settings(unique: str, database: Database, broker: KafkaBroker, queries: dict[str, str]) -> dict[str, Any]:
    snapshot = {"mode": "initial", "chunk_bytes": 16_384, "queries": queries}
    return configuration(unique, database.dsn(), broker.bootstrap_servers, snapshot=snapshot)


def test_tables_are_read_by_their_queries_and_changes_come_as_ever(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
) -> None:
    # GIVEN two tables with queries
    created(database, unique)
    process = daemon(settings(unique, database, broker, QUERIES))
    # WHEN they are read at the slot's snapshot
    process.await_event("snapshot.finished")
    process.await_streaming()
    # THEN the topics have the rows of the queries
    wanted = {
        (row[0], row[1]) for row in database.execute("SELECT id, upper(note) FROM t WHERE kind <> 'old'")
    }
    topic = f"{unique}.public.t"
    first = read_rows(broker, unique, topic)
    assert len(first) == len(wanted) == 2000
    assert {(row["id"], row["note"]) for row in first} == wanted
    assert sorted(row["id"] for row in read_rows(broker, unique, f"{unique}.public.p")) == [*range(151, 201)]
    # AND check and verify say how they treat the tables
    checked = run_cdcd("check", "--format", "json", "--config", str(process.config_path))
    assert '"snapshot.query"' in checked.stdout, checked.stdout
    verified = run_cdcd("verify", "--config", str(process.config_path))
    assert verified.returncode == 2
    assert "snapshot.queries" in verified.stdout + verified.stderr
    if database.version < 14:
        # PostgreSQL 13 sends no logical messages, so nothing can be asked for on demand.
        return
    # AND a change of a row that the query left out has its record, and a table that is read again has the query's rows
    database.execute("UPDATE t SET note = 'changed' WHERE id = 3")
    started = run_cdcd(
        "snapshot", "start", "--table", "public.t", "--wait", "--config", str(process.config_path)
    )
    assert started.returncode == 0, started.stderr
    await_flushed(database.dsn(), f"cdcd_{unique}")
    again = read_rows(broker, unique, topic)[len(first) :]
    assert {(row["id"], row["note"]) for row in again} == wanted
    # WHEN the owner gives a column another type
    database.execute("ALTER TABLE t ALTER note TYPE text")
    database.execute("INSERT INTO t VALUES (5000, 'behind', 'new')")
    run_cdcd("snapshot", "start", "--table", "public.t", "--config", str(process.config_path))
    # THEN reading the table fails by name, and nothing is read
    failed = process.await_event("table.failed", table="public.t")
    assert "gives note the type character varying(20), and the column has text" in failed["error"]
    assert process.stop() == 0


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELECT r.id, r.note FROM {rows} AS r", "kind"),
        ("SELECT r.id, r.kind::text AS note, r.kind FROM {rows} AS r", "gives note the type text"),
        ("SELECT * FROM {rows} AS r WHERE later(r.kind)", "later"),
        ("SELECT * FROM {rows} AS r) AS x; DROP TABLE public.t; --", "syntax|multiple commands"),
        ("DELETE FROM public.t RETURNING {rows}", "syntax|RETURNING"),
        ("SELECT r.*, 1 AS extra FROM {rows} AS r", "returns extra, which is no published column"),
        ("SELECT * FROM {rows} AS r FOR UPDATE", "25006|read-only"),
        (
            "SELECT r.* FROM {rows} AS r JOIN (SELECT id FROM public.p FOR SHARE) AS s USING (id)",
            "25006|read-only",
        ),
    ],
    ids=[
        "a column is missing",
        "another type",
        "no such function",
        "two commands",
        "no select",
        "one column more",
        "rows are locked",
        "rows of another table are locked",
    ],
)
def test_a_query_that_does_not_fit_its_table_is_foreseen_and_refused(
    database: Database, broker: KafkaBroker, unique: str, tmp_path: Path, *, query: str, said: str
) -> None:
    created(database, unique)
    process = Daemon(tmp_path, settings(unique, database, broker, {"public.t": query}))
    process.write_config()
    checked = run_cdcd("check", "--format", "json", "--config", str(process.config_path))
    findings = {finding["code"]: finding for finding in json.loads(checked.stdout)["findings"]}
    assert (checked.returncode, findings["snapshot.query"]["level"]) == (10, "error")
    ran = run_cdcd("run", "--config", str(process.config_path))
    assert ran.returncode == 2, ran.stderr
    assert "public.t cannot be read: the query in snapshot.queries" in ran.stdout + ran.stderr
    assert any(word in ran.stdout + ran.stderr for word in said.split("|"))
    assert database.execute("SELECT count(*) FROM t") == [(3000,)]


def test_a_query_that_locks_rows_sets_its_table_aside_and_the_other_table_is_read(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
) -> None:
    # GIVEN a table whose query was not refused at the start
    created(database, unique)
    config = settings(unique, database, broker, {"public.t": "SELECT * FROM {rows} AS r FOR UPDATE"})
    config["tables"]["on_error"] = "set_aside"
    # WHEN both tables are read, THEN one is set aside by name, and the topic of the other one has its rows
    process = daemon(config)
    told = process.await_event("table.aside")
    assert (told["table"], told["fault"]) == ("public.t", "snapshot")
    assert "the query in snapshot.queries fails" in told["reason"]
    assert "FOR UPDATE" in told["hint"]
    process.await_event("snapshot.finished")
    assert len(read_rows(broker, unique, f"{unique}.public.p")) == 200
    assert process.stop() == 0
