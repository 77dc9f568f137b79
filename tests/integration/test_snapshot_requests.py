"""Tables read on demand and what may come in between: nothing is lost, and what cannot be done says so."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.demo.fold import await_flushed, compare
from deploy.demo.topics import Reader
from deploy.local import KafkaBroker
from tests.integration.conftest import Database
from tests.integration.daemon import WAIT_S, Daemon, configuration, drop_slot, until
from tests.integration.forked import run_cdcd
from tests.integration.visible_records import await_readable

StartDaemon = Callable[[dict[str, Any]], Daemon]

ROWS = 3000


def settings(name: str, database: Database, broker: KafkaBroker, **snapshot: Any) -> dict[str, Any]:
    return configuration(
        name,
        database.dsn(),
        broker.bootstrap_servers,
        snapshot={"mode": "never", "chunk_bytes": 16_384, "signals": "all", **snapshot},
    )


def create(database: Database, rows: int = ROWS) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, note text)")
    database.execute(f"INSERT INTO t SELECT g, 'row' FROM generate_series(1, {rows}) g")


def ask(database: Database, **fields: Any) -> None:
    content = json.dumps(fields).replace("'", "''")
    database.execute(f"SELECT pg_logical_emit_message(true, 'cdcd.snapshot', '{content}')")


def cdcd(process: Daemon, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_cdcd("snapshot", *arguments, "--config", str(process.config_path))


def command_of(process: Daemon, *arguments: str) -> list[str]:
    command = [sys.executable, "-m", "cdcd.cli", "snapshot", *arguments]
    return [*command, "--config", str(process.config_path)]


def start_cdcd(process: Daemon, *arguments: str) -> subprocess.Popen[str]:
    # Whoever runs the tests in the background has them ignore SIGINT.
    command = ["env", "--default-signal=INT", *command_of(process, *arguments)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
    )


def rows_of(broker: KafkaBroker, name: str, table: str = "t") -> list[dict[str, Any]]:
    with Reader(broker.bootstrap_servers, name) as reader:
        envelopes = [
            json.loads(raw.value)
            for raw in reader.read_all()
            if raw.value is not None and raw.topic == f"{name}.public.{table}"
        ]
    return [envelope["after"] for envelope in envelopes if envelope["op"] == "r"]


@pytest.mark.postgres(only=18, also=[14])
def test_a_table_is_read_when_somebody_asks_for_it(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
):
    create(database)
    process = daemon(settings(unique, database, broker))
    process.await_streaming()
    # WHEN it is asked for, whole and in part, and something that makes no sense
    asked = cdcd(process, "start", "--table", "public.t", "--where", "id % 2 = 0 OR note = ')'", "--id", "me")
    assert asked.returncode == 0, asked.stderr
    process.await_event("table.read", table="public.t", rows=ROWS // 2)
    process.await_event("snapshot.finished")
    mark = process.mark()
    ask(database, action="start", tables=["public.t", "public.missing"])
    process.await_event("table.failed", table="public.missing")
    process.await_event("snapshot.finished", after=mark)
    ask(database, action="start", tables=["public.t"], where="id = 1) UNION SELECT 1, 'x' WHERE (true")
    process.await_event("table.failed", table="public.t")
    ask(database, action="start")
    process.await_event("snapshot.refused")
    # THEN the rows are there, twice where they were asked for twice, and the tables fold to themselves
    await_flushed(database.dsn(), f"cdcd_{unique}")
    rows = rows_of(broker, unique)
    assert sorted(row["id"] for row in rows) == sorted([*range(1, ROWS + 1), *range(2, ROWS + 1, 2)])
    report = compare(database.dsn(), broker.bootstrap_servers, unique, rows_before=True)
    assert report.equal, str(report)
    status = cdcd(process, "status")
    assert re.search(r"public\.t +complete +1,500 .* me$", status.stdout, re.MULTILINE), (
        status.stdout + status.stderr
    )
    assert "4,500 rows were read" in status.stdout
    assert process.stop() == 0


@pytest.mark.postgres(only=18, also=[14])
def test_what_the_daemon_would_refuse_is_refused_before_it_is_asked(
    database: Database, broker: KafkaBroker, unique: str, tmp_path: Path
):
    create(database, 10)
    database.execute("CREATE TABLE keyless (note text)")
    database.execute("CREATE TABLE aside (id int PRIMARY KEY)")
    database.execute("CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    database.execute("CREATE TABLE p_1 PARTITION OF p FOR VALUES FROM (0) TO (10)")
    database.execute("CREATE TABLE hidden (id int PRIMARY KEY)")
    database.execute("CREATE VIEW seen AS SELECT * FROM t")
    database.execute(f'CREATE PUBLICATION "cdcd_{unique}" FOR TABLE t, keyless, p, hidden')
    database.execute(f"CREATE ROLE {unique} LOGIN REPLICATION PASSWORD 'secret'")
    database.execute(f"GRANT SELECT ON t, keyless, p_1 TO {unique}")
    limited = Daemon(tmp_path / "limited", settings(unique, database, broker))
    limited.config["postgres"]["dsn"] = database.dsn(user=unique, password="secret")
    limited.config_path.write_text(yaml.safe_dump(limited.config))

    def refused(*arguments: str) -> tuple[int, str]:
        made = cdcd(limited, "start", *arguments)
        assert made.stdout == "", "nothing was asked"
        return made.returncode, made.stderr

    for arguments, code, message, hint in (
        (["--table", "public.u"], 2, "There is no table public.u", "public.t"),
        (["--table", "other.t"], 2, "There is no table other.t", "--table public.t"),
        (["--table", "t"], 2, "There is no table t", "--table public.t"),
        (["--table", "public.aside"], 2, "public.aside is not in publication", "ADD TABLE public.aside"),
        (["--table", "public.seen"], 2, "public.seen is not a table", "have the rows"),
        (
            ["--table", "public.keyless", "--where", "true"],
            2,
            "public.keyless has no primary key",
            "without --where",
        ),
        (
            ["--table", "public.hidden"],
            3,
            "permission denied",
            f'GRANT SELECT ON public.hidden TO "{unique}"',
        ),
        (["--table", "public.t", "--where", "id >"], 2, "syntax error", "after WHERE"),
        (["--table", "public.t", "--where", "no = 1"], 2, 'column "no" does not exist', "after WHERE"),
        (["--table", "public.t", "--where", "true) OR (true"], 2, "syntax error", "after WHERE"),
    ):
        got, text = refused(*arguments)
        assert (got, message in text, hint in text) == (code, True, True), text
    database.execute(f"DROP OWNED BY {unique}")
    database.execute(f"DROP ROLE {unique}")


@pytest.mark.parametrize("via_root", [False, True])
@pytest.mark.postgres(only=18)
def test_a_partitioned_table_is_read_by_its_published_name_or_through_its_leaves(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str, via_root: bool
):
    database.execute("CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    database.execute("CREATE TABLE p_1 PARTITION OF p FOR VALUES FROM (0) TO (10)")
    database.execute("CREATE TABLE p_2 PARTITION OF p FOR VALUES FROM (10) TO (30)")
    database.execute("INSERT INTO p SELECT generate_series(0, 29)")
    database.execute(
        f'CREATE PUBLICATION "cdcd_{unique}" FOR TABLE p WITH (publish_via_partition_root = {via_root})'
    )
    process = daemon(settings(unique, database, broker))
    process.await_streaming()
    asked = cdcd(process, "start", "--table", "public.p", "--wait", "--timeout", "100")
    assert asked.returncode == 0, asked.stderr + process.last_words()
    expanded = "public.p is published through its partitions, so they are read: public.p_1, public.p_2"
    assert (expanded in asked.stderr) is not via_root
    assert f"complete: {'1 table' if via_root else '2 tables'}, 30 rows" in asked.stdout
    tables = ["p"] if via_root else ["p_1", "p_2"]
    assert sorted(row["id"] for table in tables for row in rows_of(broker, unique, table)) == list(range(30))
    leaf = cdcd(process, "start", "--table", "public.p_1")
    assert leaf.returncode == (2 if via_root else 0)
    assert ("--table public.p;" in leaf.stderr) is via_root
    # A request by SQL means the same as the command.
    ask(database, action="start", tables=["public.p"], where="id > 20", id="sql")
    process.await_event("table.read", table=f"public.{tables[-1]}", rows=9)
    if not via_root:
        process.await_event("snapshot.partitions", table="public.p", partitions=["public.p_1", "public.p_2"])
    assert process.stop() == 0


@pytest.mark.postgres(only=[15, 16, 18])
def test_a_table_that_somebody_has_locked_keeps_no_other_one_waiting(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
):
    create(database, 10)
    database.execute("CREATE TABLE u (id int PRIMARY KEY)")
    database.execute("INSERT INTO u VALUES (1)")
    process = daemon(settings(unique, database, broker, parallelism=1))
    process.await_streaming()
    with database.connect(autocommit=False) as holder:
        holder.execute("LOCK TABLE t")
        ask(database, action="start", tables=["public.t", "public.u"])
        process.await_event("table.read", table="public.u", rows=1)
        waits = process.await_event("snapshot.waiting", table="public.t")
        assert waits["writers"] == [f"locked by server process {holder.info.backend_pid} (role postgres)"]
    process.await_event("table.read", table="public.t", rows=10)
    assert process.stop() == 0


@pytest.mark.long
@pytest.mark.postgres(only=18)
def test_whoever_waits_for_a_request_sees_its_end_also_across_a_kill(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
):
    create(database)
    database.execute("CREATE TABLE u (id int PRIMARY KEY)")
    process = daemon(settings(unique, database, broker))
    process.await_streaming()
    # GIVEN a daemon that shall not read, and somebody who waits for it
    assert cdcd(process, "pause").returncode == 0
    process.await_event("snapshot.signalled", action="pause")
    waiting = start_cdcd(
        process, "start", "--table", "public.t", "--table", "public.u", "--id", "me", "--wait"
    )
    process.await_event("snapshot.signalled", action="start")
    late = cdcd(process, "start", "--table", "public.t", "--wait", "--timeout", "3")
    assert late.returncode == 9
    assert "The time of --timeout is over. The request continues" in late.stderr
    # WHEN the daemon is killed and comes back, and may read
    process.kill()
    process.start()
    process.await_streaming()
    status = json.loads(cdcd(process, "status", "--format", "json").stdout)
    assert {(each["name"], each["state"]) for each in status["tables"]} == {
        ("public.t", "paused"),
        ("public.u", "paused"),
    }
    assert cdcd(process, "resume").returncode == 0
    out, err = waiting.communicate(timeout=WAIT_S)
    assert waiting.returncode == 0, err + process.last_words()
    assert f"me: complete: 2 tables, {ROWS:,} rows" in out
    assert "Snapshots are paused" in out
    status = json.loads(cdcd(process, "status", "--format", "json").stdout)
    (read,) = [each for each in status["tables"] if each["name"] == "public.t"]
    assert (read["state"], read["rows"], read["share"]) == ("complete", ROWS, 1.0)
    assert read["asked"] <= read["began"] <= read["ended"]
    (mine,) = [each for each in status["requests"] if each["id"] == "me"]
    assert (mine["state"], mine["tables"], mine["exit_code"]) == ("complete", 2, 0)
    # AND who waits for what is cancelled, or fails, is told so
    assert cdcd(process, "pause").returncode == 0
    mark = process.mark()
    waiting = start_cdcd(process, "start", "--table", "public.t", "--id", "given up", "--wait")
    process.await_event("snapshot.signalled", action="start", after=mark)
    assert cdcd(process, "cancel").returncode == 0
    _, err = waiting.communicate(timeout=WAIT_S)
    assert (waiting.returncode, "given up: not complete: 1 of 1 table" in err) == (9, True), err
    assert cdcd(process, "resume").returncode == 0
    failed = cdcd(process, "start", "--table", "public.t", "--where", "1 / (id - 1) > 0", "--wait")
    assert (failed.returncode, "SQLSTATE 22012" in failed.stderr) == (3, True), failed.stderr
    # AND an interrupted wait says that the request goes on
    assert cdcd(process, "pause").returncode == 0
    mark = process.mark()
    waiting = start_cdcd(process, "start", "--table", "public.t", "--wait")
    process.await_event("snapshot.signalled", action="start", after=mark)
    assert waiting.stdout is not None
    waiting.stdout.readline()
    waiting.send_signal(signal.SIGINT)
    _, err = waiting.communicate(timeout=WAIT_S)
    # `python -m` ends itself by SIGINT if the interrupt came out of an `exec`, which a dataclass calls when its module
    # is loaded. A shell gives 130 for either.
    assert (waiting.returncode in {130, -signal.SIGINT}, "goes on" in err) == (True, True), err
    assert process.stop() == 0


@pytest.mark.postgres(only=18)
def test_a_snapshot_is_paused_resumed_and_cancelled_also_across_a_kill(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
):
    create(database)
    process = daemon(settings(unique, database, broker))
    process.await_streaming()
    # GIVEN a daemon that shall not read, and a request
    assert cdcd(process, "pause").returncode == 0
    assert cdcd(process, "start", "--table", "public.t").returncode == 0
    process.await_event("snapshot.signalled", action="start")
    await_flushed(database.dsn(), f"cdcd_{unique}")
    # WHEN it is killed, it still knows of both, and reads when it may
    process.kill()
    process.start()
    process.await_event("snapshot.resumed")
    assert json.loads(cdcd(process, "status", "--format", "json").stdout)["paused"] is True
    assert not process.saw("snapshot.started")
    assert cdcd(process, "resume").returncode == 0
    process.await_event("table.read", table="public.t", rows=ROWS)
    # AND what is cancelled is not read
    mark = process.mark()
    for action in ("pause", "start", "cancel", "resume"):
        assert cdcd(process, action, *(["--table", "public.t"] if action == "start" else [])).returncode == 0
    process.await_event("snapshot.signalled", action="resume", after=mark)
    await_flushed(database.dsn(), f"cdcd_{unique}")
    assert not process.saw("table.read", after=mark)
    assert len(rows_of(broker, unique)) == ROWS
    assert process.stop() == 0


@pytest.mark.postgres(only=13)
def test_postgresql_13_says_that_it_can_not_carry_a_request(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
):
    create(database)
    process = daemon(settings(unique, database, broker))
    process.await_streaming()
    asked = cdcd(process, "start", "--table", "public.t")
    assert asked.returncode == 2
    assert "PostgreSQL 13" in asked.stderr
    assert process.stop() == 0


@pytest.mark.postgres(only=[13, 18])
def test_a_table_that_is_added_to_the_publication_is_read_with_what_an_open_transaction_wrote(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
):
    create(database)
    database.execute("CREATE TABLE first (id int PRIMARY KEY)")
    database.execute(f'CREATE PUBLICATION "cdcd_{unique}" FOR TABLE first')
    process = daemon(settings(unique, database, broker, added_tables=True))
    process.await_streaming()
    process.await_metric("cdcd_snapshot_tables", lambda tables: tables == 0)
    with database.connect(autocommit=False) as writer:
        writer.execute("INSERT INTO t VALUES (0, 'open')")
        with database.connect() as other:
            other.execute("SET lock_timeout = '60s'")
            other.execute(f'ALTER PUBLICATION "cdcd_{unique}" ADD TABLE t'.encode())
        # WHEN somebody still writes to it, it waits for that, as it says
        process.await_event("snapshot.waiting", table="public.t")
        writer.commit()
    process.await_event("table.read", table="public.t")
    await_flushed(database.dsn(), f"cdcd_{unique}")
    assert sorted(row["id"] for row in rows_of(broker, unique)) == list(range(ROWS + 1))
    assert process.stop() == 0


@pytest.mark.postgres(only=18, also=[14])
def test_a_table_that_changes_before_its_turn_ends_as_it_is(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
):
    # GIVEN tables that wait for their turn, because somebody may be writing to them
    for name in ("b", "c", "d"):
        database.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, note text)")
        database.execute(f"INSERT INTO {name} SELECT g, 'row' FROM generate_series(1, {10 * ROWS}) g")
    with database.connect(autocommit=False) as writer:
        writer.execute("LOCK TABLE b, c, d IN ROW EXCLUSIVE MODE")
        process = daemon(settings(unique, database, broker, mode="initial", method="incremental"))
        process.await_streaming()
        ask(database, action="pause")
        process.await_event("snapshot.signalled")
    # WHEN one is dropped, one rewritten and altered, one emptied
    database.execute("DROP TABLE b")
    database.execute("VACUUM FULL c")
    database.execute("ALTER TABLE c ADD COLUMN more int DEFAULT 5")
    database.execute("TRUNCATE d")
    database.execute("INSERT INTO d VALUES (1, 'new')")
    ask(database, action="resume")
    # THEN those that are there are the topics, and the one that is not is told of
    process.await_event("table.gone", table="public.b")
    process.await_event("snapshot.finished")
    await_flushed(database.dsn(), f"cdcd_{unique}")
    report = compare(database.dsn(), broker.bootstrap_servers, unique, rows_before=True)
    assert report.equal, str(report)
    assert process.stop() == 0


@pytest.mark.postgres(only=18)
def test_without_truncate_records_a_table_without_a_key_is_read_at_the_slots_snapshot_only(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
):
    database.execute("CREATE TABLE t (note text)")
    database.execute("INSERT INTO t SELECT 'x' FROM generate_series(1, 50)")
    chosen = settings(unique, database, broker, mode="initial")
    chosen["topics"] = {**chosen.get("topics", {}), "truncate": False}
    process = daemon(chosen)
    process.await_event("table.read", table="public.t", rows=50)
    process.await_streaming()
    ask(database, action="start", tables=["public.t"])
    assert "no key" in process.await_event("table.failed", table="public.t")["error"]
    until(lambda: True if len(rows_of(broker, unique)) == 50 else None, "the rows are delivered")
    assert process.stop() == 0


@pytest.mark.parametrize("identity", ["DEFAULT", pytest.param("FULL", marks=pytest.mark.long)])
@pytest.mark.postgres(only=18, also=[14])
def test_a_table_without_a_key_is_read_again_while_it_changes_also_across_kills(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str, identity: str
):
    # GIVEN a table without a key, whose rows are not told apart by their values
    database.execute("CREATE TABLE t (n int, note text)")
    database.execute(f"ALTER TABLE t REPLICA IDENTITY {identity}")
    database.execute("INSERT INTO t SELECT g % 50, 'row' FROM generate_series(1, 4000) g")
    process = daemon(settings(unique, database, broker, mode="initial"))
    process.await_event("snapshot.finished")
    process.await_streaming()
    writing = threading.Event()

    def write() -> None:
        with database.connect() as connection:
            number = 0
            while not writing.is_set():
                number += 1
                connection.execute("INSERT INTO t VALUES (%s, 'more')", (number % 50,))
                if identity == "FULL" and number % 20 == 0:
                    connection.execute("UPDATE t SET note = 'changed' WHERE n = %s", (number % 50,))
                    connection.execute("DELETE FROM t WHERE n = %s", ((number + 7) % 50,))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        # WHEN it is read again three times, and the daemon is killed in the second reading
        for attempt in range(3):
            before = len(process.events)
            ask(database, action="start", tables=["public.t"], id=f"again {attempt}")
            process.await_event("snapshot.signalled", after=before)
            if attempt == 1:
                process.kill()
                process.start()
            process.await_event("table.read", after=before, table="public.t")
    finally:
        writing.set()
        writer.join()
    await_flushed(database.dsn(), f"cdcd_{unique}")
    # THEN the rows behind the last truncate record are the rows of the table, each as often as there
    assert multiset_of(broker, unique) == Counter(database.execute("SELECT n, note FROM t"))
    verified = run_cdcd("verify", "--config", str(process.config_path))
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert process.stop() == 0


def multiset_of(broker: KafkaBroker, name: str) -> Counter[tuple[Any, ...]]:
    """The rows of the topic of t, which has one partition."""
    found: Counter[tuple[Any, ...]] = Counter()
    with Reader(broker.bootstrap_servers, name) as reader:
        every = [json.loads(raw.value) for raw in reader.read_all() if raw.value is not None]
    for each in every:
        before, after = each["before"], each["after"]
        if each["op"] == "t":
            found.clear()
        if before is not None:
            found[before["n"], before["note"]] -= 1
        if after is not None:
            found[after["n"], after["note"]] += 1
    return +found


@pytest.mark.postgres(only=18)
def test_only_reads_the_rows_and_ends_and_a_later_run_goes_on_with_the_changes(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
):
    create(database)
    database.execute("CREATE TABLE huge (id int PRIMARY KEY)")
    database.execute("INSERT INTO huge SELECT generate_series(1, 100)")
    process = daemon(settings(unique, database, broker, mode="only", exclude=["public.h*"]))
    assert process.wait() == 0
    # A table that is excluded is not read, but when somebody asks for it.
    assert rows_of(broker, unique, "huge") == []
    database.execute("UPDATE t SET note = 'later' WHERE id <= 10")
    process.config["snapshot"]["mode"] = "initial"
    process.start()
    process.await_streaming()
    ask(database, action="start", tables=["public.huge"])
    process.await_event("table.read", table="public.huge", rows=100)
    await_flushed(database.dsn(), f"cdcd_{unique}")
    report = compare(database.dsn(), broker.bootstrap_servers, unique, rows_before=True)
    assert report.equal, str(report)
    assert {table.name: table.ops for table in report.tables} == {
        "public.huge": {"r": 100},
        "public.t": {"r": ROWS, "u": 10},
    }
    assert process.stop() == 0


@pytest.mark.postgres(only=18, also=[13])
def test_when_the_slot_is_lost_the_tables_are_read_again_if_that_is_wanted(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
):
    create(database)
    process = daemon(settings(unique, database, broker, mode="when_needed", lost_slot="read_again"))
    process.await_event("snapshot.finished")
    process.await_streaming()
    await_readable(broker.bootstrap_servers, f"{unique}.public.t", ROWS)
    assert process.stop() == 0
    drop_slot(database.dsn(), f"cdcd_{unique}")
    database.execute("UPDATE t SET note = 'unseen' WHERE id = 1")
    process.start()
    process.await_event("snapshot.needed")
    process.await_event("snapshot.finished")
    process.await_streaming()
    await_readable(broker.bootstrap_servers, f"{unique}.public.t", 2 * ROWS + 1)
    report = compare(database.dsn(), broker.bootstrap_servers, unique)
    assert report.equal, str(report)
    assert report.tables[0].ops == {"r": 2 * ROWS, "t": 1}
    assert process.stop() == 0


@pytest.mark.postgres(only=18, also=[13])
def test_rows_and_columns_are_those_that_the_publication_publishes(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
):
    database.execute(
        "CREATE TABLE p (id int, b text, region text, g int GENERATED ALWAYS AS (id * 2) STORED, "
        "PRIMARY KEY (id, region)) PARTITION BY LIST (region)"
    )
    database.execute("CREATE TABLE p_1 PARTITION OF p FOR VALUES IN ('x')")
    database.execute(
        "CREATE TABLE p_2 (region text NOT NULL, id int NOT NULL, b text, "
        "g int GENERATED ALWAYS AS (id * 2) STORED)"
    )
    database.execute("ALTER TABLE p ATTACH PARTITION p_2 FOR VALUES IN ('y')")
    database.execute(
        "INSERT INTO p (id, b, region) SELECT g, 'b', CASE g % 2 WHEN 0 THEN 'x' ELSE 'y' END "
        "FROM generate_series(1, 100) g"
    )
    narrowed = " (id, region) WHERE (id > 50)" if database.version >= 15 else ""
    database.execute(
        f'CREATE PUBLICATION "cdcd_{unique}" FOR TABLE p{narrowed} WITH (publish_via_partition_root = true)'
    )
    process = daemon(settings(unique, database, broker, mode="initial"))
    process.await_event("snapshot.finished")
    process.await_streaming()
    database.execute("INSERT INTO p (id, b, region) VALUES (101, 'c', 'y')")
    await_flushed(database.dsn(), f"cdcd_{unique}")
    rows = rows_of(broker, unique, "p")
    assert sorted(row["id"] for row in rows) == list(range(51 if narrowed else 1, 101))
    assert {tuple(row) for row in rows} == {("id", "region") if narrowed else ("id", "b", "region")}
    assert process.stop() == 0
