"""The owner against a whole pipeline: swaps under a request, and keys of the owner's types under load."""

import json
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import psycopg
import pytest

from deploy.local import KafkaBroker
from tests.attacks.owners import Stage, staged
from tests.integration.conftest import Database
from tests.integration.daemon import Daemon, configuration, until
from tests.integration.forked import run_cdcd

GAINS: Final = "the rows of other owners' tables, and columns that are hashed or left out"

StartDaemon = Callable[[dict[str, Any]], Daemon]


@pytest.fixture
def stage(database: Database, unique: str) -> Iterator[Stage]:
    with staged(database, unique) as stage:
        yield stage


def settings(stage: Stage, broker: KafkaBroker, unique: str, mode: str) -> dict[str, Any]:
    return configuration(
        unique,
        stage.dsn,
        broker.bootstrap_servers,
        postgres={"publication": "p"},
        snapshot={"mode": mode, "chunk_bytes": 65_536, "signals_from": "anybody"},
    )


def request(stage: Stage, table: str) -> None:
    """Ask for a snapshot, as any role can that may connect."""
    asked = json.dumps({"action": "start", "tables": [table]})
    stage.owner(f"SELECT pg_logical_emit_message(true, 'cdcd.snapshot', '{asked}')")


@pytest.mark.attack(gains=GAINS, before="failed")
@pytest.mark.postgres(since=14)
def test_a_view_in_place_of_a_table_that_was_asked_for_gives_nothing_and_the_stream_goes_on(
    stage: Stage, broker: KafkaBroker, daemon: StartDaemon, unique: str
):
    # GIVEN a pipeline that reads the owner's table in many chunks, which the owner asked for
    stage.owner(
        "CREATE TABLE own.t (id int PRIMARY KEY, note text)",
        "INSERT INTO own.t SELECT g, repeat('x', 400) FROM generate_series(1, 10000) g",
    )
    stage.publish()
    process = daemon(settings(stage, broker, unique, "never"))
    process.await_streaming()
    request(stage, "own.t")
    waiting = (
        f"SELECT FROM pg_stat_activity WHERE usename = '{stage.ops}' AND wait_event_type = 'Lock' "
        "AND query LIKE 'BEGIN%LOCK TABLE ONLY%'"
    )
    process.await_event("snapshot.started")
    with psycopg.connect(stage.database.dsn(user=stage.mallory)) as holder:
        # WHEN the reader waits for the owner's lock, and the owner puts a view in the place of the table
        holder.execute("LOCK TABLE own.t IN ACCESS EXCLUSIVE MODE")
        until(lambda: stage.database.execute(waiting) or None, "no reader waits for the lock")
        holder.execute("ALTER TABLE own.t RENAME TO t2")
        holder.execute(
            "CREATE VIEW own.t AS SELECT mal.evil(1) AS id, 'x'::text AS note, '(0,1)'::tid AS ctid"
        )
        holder.execute(f"GRANT SELECT ON own.t TO {stage.ops}")
        holder.commit()
    # THEN changes of the table are delivered, and nothing of the owner's has run
    stage.owner("INSERT INTO own.t2 VALUES (20001, 'b')")
    process.await_metric("cdcd_events_total", lambda count: count == 1, "c", "own.t2")
    assert process.is_running()
    assert stage.loot() == []


@pytest.mark.attack(gains="the end of the daemon, at every start", before="failed")
@pytest.mark.postgres(only=[13, 18])
def test_a_type_that_is_nested_too_deep_sets_its_table_aside_by_name(
    stage: Stage, broker: KafkaBroker, daemon: StartDaemon, unique: str
):
    # GIVEN a table whose column has a domain over a domain, 99 levels deep
    domains = [f"CREATE DOMAIN own.d{level} AS own.d{level - 1}" for level in range(1, 100)]
    stage.owner("CREATE DOMAIN own.d0 AS int", *domains, "CREATE TABLE own.u (id int PRIMARY KEY)")
    stage.owner("CREATE TABLE own.t (id int PRIMARY KEY, d own.d99)")
    stage.publish("own.u", "own.t")
    process = daemon(settings(stage, broker, unique, "never") | {"tables": {"on_error": "set_aside"}})
    process.await_streaming()
    # WHEN the owner writes a row
    stage.owner("INSERT INTO own.t VALUES (1, 1)", "INSERT INTO own.u VALUES (1)")
    # THEN that table alone stops, and the event has its name, the cause and the way back
    aside = process.await_event("table.aside")
    assert aside["table"] == "own.t"
    assert aside["command"] == "cdcd tables resume own.t"
    assert "64 levels" in aside["reason"]
    assert "tables.exclude" in aside["hint"]
    process.await_metric("cdcd_events_total", lambda count: count == 1, "c", "own.u")
    assert process.stop() == 0


@pytest.mark.attack(gains=GAINS, before="failed")
@pytest.mark.postgres(since=14)
@pytest.mark.parametrize("kind", ["composite", "enum"])
def test_rows_that_are_read_by_keys_of_the_owners_type_are_complete_and_nothing_of_it_runs(
    stage: Stage, broker: KafkaBroker, daemon: StartDaemon, unique: str, kind: str
):
    # GIVEN large values, which updates leave out, under keys of a type of the owner
    labels = ", ".join(f"'it''s {number}'" for number in range(300))
    types = {
        "composite": (
            "CREATE DOMAIN own.d AS int CHECK (mal.evil_check(VALUE))",
            "CREATE TYPE own.k AS (a own.d, b text)",
        ),
        "enum": (
            f"CREATE TYPE own.k AS ENUM ({labels})",
            (
                "CREATE FUNCTION own.cast_k(own.k) RETURNS text LANGUAGE plpgsql IMMUTABLE AS "
                "$$BEGIN PERFORM mal.steal(); RETURN 'x'; END$$"
            ),
            "CREATE CAST (own.k AS text) WITH FUNCTION own.cast_k(own.k) AS IMPLICIT",
        ),
    }
    value = {"composite": "ROW(g, 'it''s')::own.k", "enum": "(enum_range(NULL::own.k))[g]"}[kind]
    stage.owner(
        *types[kind],
        "CREATE TABLE own.t (id own.k PRIMARY KEY, big text, n int)",
        "ALTER TABLE own.t ALTER big SET STORAGE EXTERNAL",
        f"INSERT INTO own.t SELECT {value}, repeat(md5(g::text), 300), 0 FROM generate_series(1, 300) g",
    )
    stage.publish()
    process = daemon(settings(stage, broker, unique, "never"))
    process.await_streaming()
    # WHEN the table is read beside the stream, while its rows are updated
    request(stage, "own.t")
    with psycopg.connect(stage.database.dsn(user=stage.mallory), autocommit=True) as sql:
        for _ in range(200):
            sql.execute(
                "UPDATE own.t SET n = n + 1 WHERE ctid = ANY (ARRAY(SELECT ctid FROM own.t ORDER BY random() LIMIT 5))"
            )
            if process.saw("table.read"):
                break
            time.sleep(0.03)
    process.await_event("table.read", table="own.t")
    # THEN the topics have the table, with every value
    verified = run_cdcd("verify", "--config", str(process.config_path), environment={**os.environ})
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert stage.loot() == []
