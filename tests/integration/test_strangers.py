"""Whoever may connect can send requests: each attack that is known, one after the other, on one daemon that goes on.

The daemon follows requests with a condition here (`snapshot.signals: all`), which is more than it does by default.
"""

import json
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import psycopg
import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from deploy.demo.fold import await_flushed, compare
from deploy.demo.topics import Reader
from deploy.local import KafkaBroker
from tests.integration.conftest import Database
from tests.integration.daemon import Daemon, configuration
from tests.integration.hostile_conditions import ATTACKS, FUNCTIONS

StartDaemon = Callable[[dict[str, Any]], Daemon]

ROWS: Final = 2000
TENANT: Final = 1
"""The publication's row filter lets only this one's rows pass."""

LINE_MAX: Final = 2500
"""Maximum number of characters in a line of the log, because a stranger must not be able to fill it."""

CHECKPOINT_MAX: Final = 64_000
MEMORY_MAX: Final = 200 * 1000 * 1000

LONG: Final = "x" * 10_000

MALFORMED: Final[Mapping[str, bytes]] = {
    "empty": b"",
    "no JSON": b"start public.orders",
    "cut off": b'{"action": "start", "tables": ["public.ord',
    "a list": b'["start"]',
    "null": b"null",
    "a number with many digits": b"1" * 100_000,
    "a number without end": b"1e999999999",
    "not UTF-8": b"\xff\xfe\x00",
    "a NUL": b"\0",
    "NUL in a name": rb'{"action": "start", "tables": ["public.\u0000orders"]}',
    "half a character": rb'{"action": "start", "tables": ["public.\ud800"]}',
    "NUL in a where": rb'{"action": "start", "tables": ["public.orders"], "where": "true\u0000"}',
    "deep lists": b"[" * 200_000,
    "deep objects": b'{"tables":' * 100_000,
    "8 MB": b'{"action": "start", "id": "' + b"x" * 8_000_000 + b'"}',
    "no action": b"{}",
    "an unknown action": json.dumps({"action": LONG}).encode(),
    "unknown keys": json.dumps({"action": "pause", LONG: 1}).encode(),
    "an action of another type": b'{"action": {"start": true}, "tables": ["public.orders"]}',
    "tables of another type": b'{"action": "start", "tables": {"public.orders": 1}}',
    "a table of another type": b'{"action": "start", "tables": [["public.orders"]]}',
    "a where of another type": b'{"action": "start", "tables": ["public.orders"], "where": {"a": 1}}',
    "an id of another type": b'{"action": "start", "tables": ["public.orders"], "id": 7}',
    "no tables": b'{"action": "start"}',
    "too many tables": json.dumps(
        {"action": "start", "tables": [f"public.t{number}" for number in range(1001)]}
    ).encode(),
    "a thousand tables with long texts": json.dumps(
        {
            "action": "start",
            "tables": [f"public.t{number}" for number in range(1000)],
            "where": "w" * 4000,
            "id": "i" * 200,
        }
    ).encode(),
    "a long name": json.dumps({"action": "start", "tables": ["public." + LONG]}).encode(),
    "a long where": json.dumps({"action": "start", "tables": ["public.orders"], "where": LONG}).encode(),
    "a long id": json.dumps({"action": "start", "tables": ["public.orders"], "id": LONG}).encode(),
    "cancel with a where": b'{"action": "cancel", "where": "true"}',
}
"""Each is refused by an event."""

UNREADABLE: Final = (
    "public.missing",
    "public.secret",
    "public.hidden",
    "public.policed",
    "public.a_view",
    "pg_catalog.pg_authid",
    "information_schema.tables",
    'public."orders"; DROP TABLE loot; --',
    "a..b",
)
"""Tables that are not there, not published, or not for the daemon's role."""

READ_TIME: Final[Mapping[str, str]] = {
    "raises": "VOLATILE AS $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = 'P0001'; END $$",
    "shouts": "VOLATILE AS $$ BEGIN RAISE EXCEPTION '%', repeat('x', 5000000); END $$",
    "warns": "VOLATILE AS $$ BEGIN RAISE WARNING '%', repeat('x', 5000); RETURN true; END $$",
    "loses": "VOLATILE AS $$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()), pg_sleep(1); RETURN true; END $$",
    "pretends": "VOLATILE AS $$ BEGIN RAISE EXCEPTION 'gone' USING ERRCODE = '57P01'; END $$",
    "locked": "VOLATILE AS $$ BEGIN RAISE EXCEPTION 'busy' USING ERRCODE = '55P03'; END $$",
    "steals": "VOLATILE AS $$ BEGIN RETURN public.write_it(); END $$",
    "unlocks": "VOLATILE AS $$ BEGIN PERFORM set_config('transaction_read_only', 'off', true); "
    "RETURN public.write_it(); END $$",
}
"""Functions that do nothing before a row is read."""


@contextmanager
def writing(dsn: str) -> Iterator[None]:
    """A session that changes `orders` all the time."""
    stop, failures = threading.Event(), []

    def write() -> None:
        dice, fresh = random.Random(15), 1_000_000
        try:
            with psycopg.connect(dsn, autocommit=True) as connection:
                while not stop.wait(0.02):
                    fresh += 1
                    some = dice.randrange(ROWS)
                    connection.execute(
                        dice.choice(
                            (
                                f"INSERT INTO orders VALUES ({fresh}, {TENANT}, 'new')",
                                f"UPDATE orders SET note = 'n{fresh}' WHERE id = {some}",
                                f"DELETE FROM orders WHERE id = {some}",
                            )
                        )
                    )
        except psycopg.Error as failure:
            failures.append(failure)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert not failures, failures


def request(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def start(table: str, **fields: Any) -> bytes:
    return request(action="start", tables=[table], **fields)


class Stranger:
    """A role that may connect, and nothing else."""

    def __init__(self, dsn: str, process: Daemon) -> None:
        self._dsn = dsn
        self._process = process

    def send(self, content: bytes, *, prefix: str = "cdcd.snapshot", transactional: bool = True) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_logical_emit_message(%s, %s, %s::bytea)", (transactional, prefix, content)
            )

    def ask(self, **fields: Any) -> None:
        self.send(request(**fields))

    def flood(self, count: int, content: str, *, transactional: bool) -> None:
        """So many messages in one statement; `%` in the content is the message's number."""
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute(
                "SELECT count(pg_logical_emit_message(%s, 'cdcd.snapshot', replace(%s, '%%', g::text))) "
                "FROM generate_series(1, %s) g",
                (transactional, content, count),
            )

    def expect(self, event: str, content: bytes) -> dict[str, Any]:
        """Send it, and return the event that tells what became of it."""
        mark = self._process.mark()
        self.send(content)
        return self._process.await_event(event, after=mark)


def prepare(database: Database, role: str) -> None:
    """A published table with a row filter where there are any, tables that are none of the daemon's, functions."""
    filtered = f" WHERE (tenant = {TENANT})" if database.version >= 15 else ""
    for statement in (
        "CREATE TABLE orders (id int, tenant int, note text, PRIMARY KEY (id, tenant))",
        f"INSERT INTO orders SELECT g, {TENANT}, 'old' FROM generate_series(0, {ROWS} - 1) g",
        "CREATE TABLE hidden (id int PRIMARY KEY)",
        "INSERT INTO hidden VALUES (1)",
        "CREATE TABLE policed (id int PRIMARY KEY)",
        "INSERT INTO policed VALUES (1)",
        "ALTER TABLE policed ENABLE ROW LEVEL SECURITY",
        "CREATE TABLE secret (id int PRIMARY KEY)",
        "CREATE VIEW a_view AS SELECT * FROM orders",
        "CREATE TABLE loot (id int)",
        "CREATE SEQUENCE s",
        "CREATE FUNCTION rows_of() RETURNS SETOF bool LANGUAGE sql AS 'VALUES (true), (false)'",
        f"CREATE PUBLICATION p_{role} FOR TABLE orders{filtered}, hidden, policed",
        f"CREATE ROLE {role} LOGIN REPLICATION",
        f"CREATE ROLE {role}_x LOGIN",
        f"GRANT SELECT ON orders, policed TO {role}",
        # What it may write would be written, if a condition were not read-only.
        f"GRANT INSERT ON loot TO {role}",
        f"GRANT USAGE ON SEQUENCE s TO {role}",
        *(
            f"CREATE FUNCTION {name}() RETURNS bool LANGUAGE plpgsql {body}"
            for name, body in {**FUNCTIONS, **READ_TIME}.items()
        ),
    ):
        database.execute(statement)
    if filtered:
        database.execute(
            f"INSERT INTO orders SELECT g, {TENANT + 1}, 'not ours' FROM generate_series(0, 99) g"
        )


def checkpoint_sizes(broker: KafkaBroker, topic: str) -> list[int]:
    """Bytes of each record that was ever written to the checkpoint's topic."""
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": topic, "enable.partition.eof": True}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    sizes: list[int] = []
    try:
        while True:
            for message in consumer.consume(1000, 0.5):
                error = message.error()
                if error is None:
                    sizes.append(len(message.value() or b""))
                else:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    return sizes
    finally:
        consumer.close()


@pytest.mark.timeout(600)
@pytest.mark.postgres(only=18)
def test_no_stranger_ends_stalls_or_fills_the_daemon_or_makes_it_write(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
):
    # GIVEN one daemon that is reading its first snapshot, and somebody who writes all the time
    role = f"r{unique[-8:]}"
    prepare(database, role)
    config = configuration(
        unique,
        database.dsn(user=role),
        broker.bootstrap_servers,
        postgres={"publication": f"p_{role}"},
        snapshot={"mode": "initial", "method": "incremental", "chunk_bytes": 16_384, "signals": "all"},
    )
    config["snapshot"]["exclude"] = ["public.hidden", "public.policed"]
    process = daemon(config)
    stranger = Stranger(database.dsn(user=f"{role}_x"), process)
    with writing(database.dsn()), database.connect() as holder:
        # For what a condition waits.
        holder.execute("SELECT pg_advisory_lock(4711)")
        process.await_streaming()
        pid = process.pid
        # WHEN strangers try to call off what the configuration asks for
        for action in ("cancel", "pause", "resume", "cancel"):
            stranger.ask(action=action)
        stranger.ask(action="cancel", tables=["public.orders"])
        process.await_event("table.read", table="public.orders")
        # AND send what is no request
        for name, content in MALFORMED.items():
            refused = stranger.expect("snapshot.refused", content)
            assert len(refused["reason"]) <= 201, name
        for prefix in ("", "cdcd.watermark", "cdcd.Snapshot", "x" * 5000):
            stranger.send(b"\xff\0{", prefix=prefix, transactional=False)
        # AND strangers ask for tables that they may not read
        for table in UNREADABLE:
            stranger.expect("table.failed", start(table))
        # AND give conditions that are something else
        for where in filter(None, ATTACKS):
            is_text = "\0" not in where and "\ud800" not in where
            event = "table.failed" if is_text else "snapshot.refused"
            stranger.expect(event, start("public.orders", where=where))
        # AND ones that show what they are when a row is read
        for name in READ_TIME:
            event = "table.read" if name == "warns" else "table.failed"
            stranger.expect(event, start("public.orders", where=f"id > 0 AND public.{name}()"))
        # AND thousands of requests at once
        flood = (
            '{"action": "start", "tables": ["public.orders", "public.none%"], "id": "%", "where": "id = %"}'
        )
        for transactional in (True, False):
            stranger.flood(3000, flood, transactional=transactional)
            stranger.flood(3000, '{"action": "no%"}', transactional=transactional)
        stranger.flood(300, '{"action": "pause"}', transactional=True)
        stranger.flood(300, '{"action": "cancel"}', transactional=True)
        # THEN what is asked for in the end is done
        stranger.ask(action="cancel")
        stranger.ask(action="resume")
        mark = process.mark()
        stranger.send(start("public.orders", where="id % 2 = 0", id="last"))
        process.await_event("table.read", after=mark, table="public.orders")
    # AND it is the same process, in the same session
    assert process.is_running()
    assert process.pid == pid
    assert [event for event in process.events if event["event"] == "reconnect.scheduled"] == []
    await_flushed(database.dsn(), f"cdcd_{unique}", 120)
    # AND the topic has the published rows, value by value, and none that the publication leaves out
    database.execute(f"DELETE FROM orders WHERE tenant <> {TENANT}")
    await_flushed(database.dsn(), f"cdcd_{unique}", 120)
    report = compare(
        database.dsn(), broker.bootstrap_servers, unique, rows_before=True, tables=["public.orders"]
    )
    assert report.equal, str(report)
    with Reader(broker.bootstrap_servers, unique) as reader:
        assert not [raw for raw in reader.read_all() if b"not ours" in (raw.value or b"")]
    # AND nothing was written by a condition
    assert database.execute("SELECT * FROM loot") == []
    assert database.execute("SELECT is_called FROM s") == [(False,)]
    # AND neither the checkpoint nor the log nor the memory grew with what was sent
    sizes = checkpoint_sizes(broker, f"{unique}.checkpoint")
    assert max(sizes) < CHECKPOINT_MAX
    assert max(map(len, process.lines)) < LINE_MAX
    peak = process.peak_memory_bytes()
    print(f"checkpoint records up to {max(sizes)} bytes, peak memory {peak / 1e6:.0f} MB")
    assert peak < MEMORY_MAX
    assert process.stop() == 0
    database.execute(f"DROP OWNED BY {role}, {role}_x")
    database.execute(f"DROP ROLE {role}, {role}_x")


@pytest.mark.postgres(only=18)
def test_a_condition_that_sleeps_on_a_row_does_not_keep_the_readers(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
):
    # GIVEN as many conditions that sleep as there are readers
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    database.execute("INSERT INTO t VALUES (1)")
    for number in range(2):
        database.execute(f"CREATE TABLE t{number} (id int PRIMARY KEY)")
        database.execute(f"INSERT INTO t{number} VALUES (1)")
    config = configuration(
        unique,
        database.dsn(),
        broker.bootstrap_servers,
        snapshot={"mode": "never", "parallelism": 2, "signals": "all", "condition_timeout_s": 3},
    )
    process = daemon(config)
    process.await_streaming()
    began = time.monotonic()
    somebody = Stranger(database.dsn(), process)
    for number in range(2):
        somebody.send(start(f"public.t{number}", where="pg_sleep(3600) IS NULL"))
    # WHEN somebody asks for another table
    somebody.send(start("public.t"))
    # THEN they are given up, and it is read
    for number in range(2):
        failed = process.await_event("table.failed", table=f"public.t{number}")
        assert "statement timeout" in failed["error"]
    process.await_event("table.read", table="public.t")
    assert time.monotonic() - began > 3
    assert process.stop() == 0
