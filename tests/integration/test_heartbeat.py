"""Heartbeats, from a real server to the broker, and the query that runs on the source."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from cdcd.adapters.postgres.connection import parse_dsn
from cdcd.adapters.postgres.heartbeat_query import HeartbeatQuery
from cdcd.cli.__main__ import main
from cdcd.core.errors import SourceError
from cdcd.core.protocol.lsn import Lsn
from deploy.demo.topics import Raw, Reader
from deploy.local import KafkaBroker
from tests.integration.conftest import Database
from tests.integration.daemon import Daemon, configuration, until

pytestmark = pytest.mark.postgres(only=18, also=[13, 14, 15, 16, 17])

StartDaemon = Callable[[dict[str, Any]], Daemon]

PREFIX = "__debezium-heartbeat"


def watermark(record: Raw) -> int:
    ((name, lsn),) = record.headers
    assert name == "cdcd.watermark"
    return int(lsn)


def await_heartbeat(reader: Reader, heartbeats: list[Raw], unique: str, lsn: int) -> None:
    """Until there is a heartbeat that names the LSN, or a later one."""

    def names_it() -> bool | None:
        reader.discover()
        heartbeats.extend(each for each in reader.poll() if each.topic == f"{PREFIX}.{unique}")
        return True if heartbeats and watermark(heartbeats[-1]) >= lsn else None

    until(names_it, f"no heartbeat came up to {Lsn(lsn)}", 120)


def wal_end(database: Database) -> int:
    ((text,),) = database.execute("SELECT pg_current_wal_lsn()::text")
    return Lsn.parse(str(text))


@pytest.mark.postgres(only=18)
def test_whoever_reads_a_heartbeat_can_read_everything_before_it_whatever_is_killed(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
):
    # GIVEN a pipeline with heartbeats
    database.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    process = daemon(
        configuration(unique, database.dsn(), broker.bootstrap_servers, heartbeat={"interval_s": 0.2})
    )
    process.await_streaming()
    heartbeats: list[Raw] = []
    with Reader(broker.bootstrap_servers, PREFIX) as beats:
        for number in range(3):
            # WHEN something is committed, the daemon is killed, and a heartbeat names what was committed
            database.execute(f"INSERT INTO orders SELECT {number * 100} + n FROM generate_series(1, 100) n")
            end = wal_end(database)
            process.kill()
            process.start()
            process.await_streaming()
            await_heartbeat(beats, heartbeats, unique, end)
            # THEN every record of it can be read
            with Reader(broker.bootstrap_servers, unique) as reader:
                ids = [json.loads(each.key or b"")["id"] for each in reader.read_all()]
            assert sorted(ids) == list(range(1, 101 + number * 100)), "once each"
        # AND WHEN nothing changes but what is not published
        database.execute("CREATE UNLOGGED TABLE others (id int); DROP TABLE others")
        await_heartbeat(beats, heartbeats, unique, wal_end(database))
    # THEN all heartbeats are Debezium's, and none names less than one before
    for each in heartbeats:
        assert json.loads(each.key or b"") == {"serverName": unique}
        assert list(json.loads(each.value or b"")) == ["ts_ms"]
    named = [watermark(each) for each in heartbeats]
    assert named == sorted(named)
    process.await_metric("cdcd_heartbeats_total", lambda count: count >= 1)
    assert process.stop() == 0


def test_the_query_moves_a_quiet_database_on_and_its_failures_hold_up_nothing(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
):
    # GIVEN a query on a table that is missing
    database.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    process = daemon(
        configuration(
            unique,
            database.dsn(),
            broker.bootstrap_servers,
            postgres={"tables": ["public.orders"]},
            heartbeat={"interval_s": 0.2, "action_query": "INSERT INTO public.beats VALUES (now())"},
        )
    )
    process.await_streaming()
    # WHEN it fails, THEN an event and a metric say so, and the stream goes on
    failed = process.await_event("heartbeat.failed")
    assert "beats" in failed["message"]
    assert "with its schema" in failed["hint"]
    process.await_metric("cdcd_heartbeat_queries_total", lambda count: count > 1, "failed")
    database.execute("INSERT INTO orders VALUES (1)")
    process.await_metric("cdcd_events_total", lambda count: count == 1, "c", "public.orders")
    # WHEN the table is there, THEN the query runs, and runs again
    database.execute("CREATE TABLE beats (at timestamptz)")
    process.await_event("heartbeat.runs")
    until(
        lambda: True if database.execute("SELECT count(*) > 2 FROM beats") == [(True,)] else None,
        "the query never ran three times",
        120,
    )
    # AND WHEN somebody locks the table, THEN the query gives up, and the stream goes on
    with database.connect(autocommit=False) as connection:
        connection.execute(b"LOCK TABLE beats")
        at = process.mark()
        locked = process.await_event("heartbeat.failed", after=at)
        assert "half of heartbeat.action_timeout_s" in locked["hint"]
        database.execute("INSERT INTO orders VALUES (2)")
        process.await_metric("cdcd_events_total", lambda count: count == 2, "c", "public.orders")
    assert process.stop() == 0


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("SELECT 1; SELECT 2", "multiple commands"),
        ("BEGIN", "leaves a transaction or a COPY open"),
        ("COPY public.beats FROM STDIN", "leaves a transaction or a COPY open"),
        ("SELECT pg_sleep(60)", "statement timeout"),
        ("INSERT INTO beats VALUES (now())", "does not exist"),
    ],
)
def test_what_is_no_query_costs_no_more_than_its_time(database: Database, query: str, says: str):
    database.execute("CREATE TABLE beats (at timestamptz)")

    # A machine that stands still for a moment must not be the reason.
    timeout_s = 0.5 if "sleep" in query else 60

    async def run() -> None:
        opened = await HeartbeatQuery.open(
            parse_dsn(database.dsn()), query, application_name="t", connect_timeout_s=30, timeout_s=timeout_s
        )
        try:
            await opened.run()
        finally:
            opened.close()

    with pytest.raises(SourceError, match=says):
        asyncio.run(run())


@pytest.mark.postgres(only=18)
def test_rows_are_dropped_as_they_come(database: Database):
    async def run() -> None:
        opened = await HeartbeatQuery.open(
            parse_dsn(database.dsn()),
            "SELECT n FROM generate_series(1, 20000) n",
            application_name="t",
            connect_timeout_s=30,
            timeout_s=60,
        )
        await opened.run()
        await opened.run()
        opened.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("query", "level", "says"),
    [
        ("INSERT INTO public.beats VALUES (now())", "ok", "the role may run it"),
        ("SELECT pg_logical_emit_message(false, 'beat', '')", "ok", "the role may run it"),
        ("CALL public.beat()", "unknown", "cannot plan it"),
        ("INSERT INTO beats VALUES (now())", "warning", "does not exist"),
        ("INSERT INTO public.closed VALUES (now())", "warning", "permission denied"),
        ("SELECT 1; DROP TABLE public.beats", "warning", "multiple commands"),
        ("INSRT INTO public.beats", "warning", "syntax error"),
    ],
)
def test_the_check_says_whether_the_query_would_run_and_runs_nothing(
    database: Database,
    broker: KafkaBroker,
    unique: str,
    tmp_path,
    capsys,
    *,
    query: str,
    level: str,
    says: str,
):
    role = f"{unique}_r"
    database.execute(
        "CREATE TABLE beats (at timestamptz); CREATE TABLE closed (at timestamptz); "
        "CREATE PROCEDURE beat() LANGUAGE sql AS 'INSERT INTO public.beats VALUES (now())'; "
        f"CREATE ROLE {role} LOGIN REPLICATION; GRANT INSERT, SELECT ON beats TO {role}"
    )
    try:
        config = configuration(
            unique,
            database.dsn(user=role),
            broker.bootstrap_servers,
            heartbeat={"interval_s": 1, "action_query": query},
        )
        file = tmp_path / "cdcd.yaml"
        file.write_text(yaml.safe_dump(config))
        with pytest.raises(SystemExit):
            main(["check", "--config", str(file), "--format", "json"])
        findings = json.loads(capsys.readouterr().out)["findings"]
        (found,) = [each for each in findings if each["code"] == "heartbeat.query"]
        assert found["level"] == level
        assert says in found["found"]
        assert (level == "ok") == (not found["fix"])
        assert database.execute("SELECT count(*) FROM beats") == [(0,)]
    finally:
        database.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
