"""`snapshot.lost_slot: heal`: after a lost slot, each topic gets a record for each difference from its table."""

import json
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg
import pytest

from cdcd.adapters.kafka.bounded_reading import BoundedReader
from cdcd.core.protocol.lsn import Lsn
from cdcd.core.records.gaps import is_gap
from deploy.demo.fold import await_flushed, compare
from deploy.demo.topics import Reader
from deploy.local import KafkaBroker
from tests.integration.conftest import Database
from tests.integration.daemon import Daemon, configuration, drop_slot, wal_end

StartDaemon = Callable[[dict[str, Any]], Daemon]

TABLE = "CREATE TABLE {} (id int PRIMARY KEY, note text, size numeric(10,2), at date, large text)"
SEEDS = range(3, 3 + int(os.environ.get("CDCD_TEST_SEEDS", "0")))
"""Further seeds of lost slots; `CDCD_TEST_SEEDS=18` makes them 20 with those of `make test`."""

WRITES_S = 200
"""Transactions a second of the writer. The writer catches up after a delay."""

LARGE = "repeat(md5(g::text), 300)"
"""A value that is stored out of line (TOAST) as it is, because the column's storage is EXTERNAL."""


def settings(name: str, database: Database, broker: KafkaBroker, **sections: Any) -> dict[str, Any]:
    snapshot = {"mode": "when_needed", "chunk_bytes": 16_384, **sections.pop("snapshot", {})}
    return configuration(name, database.dsn(), broker.bootstrap_servers, snapshot=snapshot, **sections)


def fill(database: Database, table: str, rows: int) -> None:
    database.execute(TABLE.format(table))
    database.execute(f"ALTER TABLE {table} ALTER COLUMN large SET STORAGE EXTERNAL")
    database.execute(
        f"INSERT INTO {table} SELECT g, 'row ' || g, g / 7.0, date '2020-01-01' + g % 900, {LARGE} "
        f"FROM generate_series(1, {rows}) g"
    )


def change(sql: Any, rng: random.Random, tables: list[str], serial: int) -> None:
    """Change a few rows in one transaction: inserts, updates with and without TOAST, deletes and changed keys."""
    with sql.transaction():
        for _ in range(rng.randint(1, 5)):
            table, row = rng.choice(tables), rng.randint(1, 1200)
            kind = rng.random()
            if kind < 0.25:
                sql.execute(f"DELETE FROM {table} WHERE id = {row}")
            elif kind < 0.4:
                sql.execute(
                    f"UPDATE {table} SET id = {row + 10_000} WHERE id = {row} "
                    f"AND NOT EXISTS (SELECT FROM {table} WHERE id = {row + 10_000})"
                )
            elif kind < 0.7:
                sql.execute(f"UPDATE {table} SET note = 'changed {serial}' WHERE id = {row}")
            elif kind < 0.8:
                sql.execute(f"UPDATE {table} SET large = repeat('{serial} ', 900) WHERE id = {row}")
            else:
                sql.execute(
                    f"INSERT INTO {table} VALUES ({row}, 'new {serial}', {serial % 1000}, '2024-02-29', NULL) "
                    "ON CONFLICT DO NOTHING"
                )


@contextmanager
def writing(database: Database, seed: int, tables: list[str]) -> Iterator[Counter[str]]:
    """Change rows in a thread of its own until the block ends."""
    stop, done = threading.Event(), Counter[str]()
    failures: list[BaseException] = []

    def write() -> None:
        rng, began = random.Random(seed), time.monotonic()
        try:
            with psycopg.connect(database.dsn(), autocommit=True) as sql:
                while not stop.wait(max(0.0, began + done["transactions"] / WRITES_S - time.monotonic())):
                    # A pipeline sends the statements of the transaction without waiting for each answer.
                    with sql.pipeline():
                        change(sql, rng, tables, done["transactions"])
                    done["transactions"] += 1
        except psycopg.Error as error:
            failures.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield done
    finally:
        stop.set()
        thread.join()
    assert not failures, failures


def await_transactions(done: Counter[str], count: int) -> None:
    deadline = time.monotonic() + 60
    while done["transactions"] < count:
        assert time.monotonic() < deadline, "the writer does not get on"
        time.sleep(0.01)


def records(broker: KafkaBroker, name: str, topic: str) -> list[tuple[Any, Any]]:
    """Return the keys and values of a topic's records, both decoded."""
    with Reader(broker.bootstrap_servers, name) as reader:
        return [
            (json.loads(raw.key or b"null"), json.loads(raw.value or b"null"))
            for raw in reader.read_all()
            if raw.topic == topic
        ]


def gaps(broker: KafkaBroker, name: str) -> list[dict[str, Any]]:
    """Return the gaps that the schemas topic tells of."""
    with closing(BoundedReader({"bootstrap.servers": broker.bootstrap_servers}, "gaps")) as reader:
        reader.add([f"{name}.schemas"])
        values = [message.value() for _, _, message in reader.read(reader.ends(), 30.0)]
    return [json.loads(value)["gap"] for value in values if value is not None and is_gap(bytes(value))]


def invalidate(database: Database, slot: str) -> None:
    database.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'")
    database.execute("SELECT pg_reload_conf()")
    try:
        for _ in range(60):
            database.execute("CREATE TABLE IF NOT EXISTS ballast (t text)")
            database.execute("INSERT INTO ballast SELECT repeat('x', 1000) FROM generate_series(1, 20000)")
            database.execute("SELECT pg_switch_wal()")
            database.execute("CHECKPOINT")
            with psycopg.connect(database.dsn(), autocommit=True) as sql:
                found = sql.execute(
                    "SELECT wal_status FROM pg_replication_slots WHERE slot_name = %s", (slot,)
                ).fetchone()
            if found is not None and found[0] == "lost":
                return
        raise AssertionError("the slot was not invalidated")
    finally:
        database.execute("ALTER SYSTEM RESET max_slot_wal_keep_size")
        database.execute("SELECT pg_reload_conf()")


def lose(database: Database, slot: str, how: str) -> None:
    if how == "dropped":
        drop_slot(database.dsn(), slot)
    elif how == "advanced":
        end = Lsn(wal_end(database.dsn()))
        database.execute(f"SELECT pg_replication_slot_advance('{slot}', '{end}')")
    else:
        invalidate(database, slot)


@pytest.mark.postgres(only=18, also=[13])
def test_each_difference_has_one_ordinary_record_and_the_gap_is_told(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
) -> None:
    # GIVEN a pipeline that has delivered a table, with one update that left a large value out
    fill(database, "t", 300)
    database.execute("CREATE TABLE same (id int PRIMARY KEY); INSERT INTO same VALUES (1)")
    process = daemon(settings(unique, database, broker))
    process.await_event("snapshot.finished")
    process.await_streaming()
    database.execute("UPDATE t SET note = 'its large value is left out' WHERE id = 10")
    await_flushed(database.dsn(), f"cdcd_{unique}")
    assert process.stop() == 0
    before = len(records(broker, unique, f"{unique}.public.t"))
    # WHEN the slot is lost while rows are deleted, changed, moved and inserted
    database.execute("DELETE FROM t WHERE id IN (1, 2)")
    database.execute("UPDATE t SET note = 'other' WHERE id = 3")
    database.execute("UPDATE t SET id = 400 WHERE id = 4")
    database.execute("INSERT INTO t VALUES (401, 'new', 1, '2024-01-01', 'x')")
    database.execute("INSERT INTO t VALUES (402, 'gone again', 1, '2024-01-01', 'x')")
    database.execute("DELETE FROM t WHERE id = 402")
    drop_slot(database.dsn(), f"cdcd_{unique}")
    process.start()
    # THEN the event and the record of the gap have the numbers
    healed = process.await_event("gap.healed")
    assert {name: healed[name] for name in ("tables", "deletes", "updates", "inserts")} == {
        "tables": 2,
        "deletes": 3,
        "updates": 1,
        "inserts": 2,
    }
    process.await_streaming()
    database.execute("INSERT INTO t VALUES (403, 'behind the gap', 1, '2024-01-01', 'x')")
    await_flushed(database.dsn(), f"cdcd_{unique}")
    gap = gaps(broker, unique)
    assert len(gap) == 1
    assert gap[0]["healed"] == [{"table": "public.t", "deletes": 3, "updates": 1, "inserts": 2}]
    assert gap[0]["begins"] < gap[0]["ends"]
    # AND the topic has one record for each difference, with a tombstone behind each delete
    came = records(broker, unique, f"{unique}.public.t")[before:]
    ops = {(key["id"], "tombstone" if value is None else value["op"]) for key, value in came}
    deletes = {(row, op) for row in (1, 2, 4) for op in ("d", "tombstone")}
    assert ops == deletes | {(3, "u"), (400, "c"), (401, "c"), (403, "c")}
    assert len(came) == len(ops)
    deleted = next(value for key, value in came if key["id"] == 1 and value is not None)
    assert deleted["before"] == {"id": 1, "note": None, "size": None, "at": None, "large": None}
    assert (deleted["after"], deleted["source"]["snapshot"], deleted["source"]["txId"]) == (
        None,
        "false",
        None,
    )
    report = compare(
        database.dsn(), broker.bootstrap_servers, unique, rows_before=True, tables=["public.t", "public.same"]
    )
    assert report.equal, str(report)
    assert process.stop() == 0


def heals(
    database: Database,
    broker: KafkaBroker,
    daemon: StartDaemon,
    unique: str,
    *,
    seed: int,
    how: str,
    kills: int,
    **sections: Any,
) -> Daemon:
    rng = random.Random(seed)
    tables = [f"t{number}" for number in range(rng.randint(1, 4))]
    for table in tables:
        fill(database, table, 1000)
    process = daemon(settings(unique, database, broker, **sections))
    process.await_event("snapshot.finished")
    process.await_streaming()
    with writing(database, seed, tables) as done:
        await_transactions(done, 50)
    await_flushed(database.dsn(), f"cdcd_{unique}")
    process.kill() if rng.random() < 0.5 else process.stop()
    with psycopg.connect(database.dsn(), autocommit=True) as sql:
        for serial in range(rng.randint(1, 200)):
            change(sql, rng, tables, 100_000 + serial)
    lose(database, f"cdcd_{unique}", how)
    began = time.monotonic()
    with writing(database, seed + 1, tables) as done:
        process.start()
        process.await_event("gap.accepted")
        for number in range(kills):
            # The attempt may have ended before an earlier kill, and then no event tells of the gap.
            event = rng.choice(["gap.accepted", "table.healed"])
            process.await_event("checkpoint.read" if number else event)
            threading.Event().wait(rng.random() / 10 * (number + 1))
            process.kill()
            process.start()
        process.await_streaming()
        await_transactions(done, done["transactions"] + 20)
    print(f"seed {seed}: {done['transactions'] / (time.monotonic() - began):.0f} transactions a second")
    await_flushed(database.dsn(), f"cdcd_{unique}")
    names = [f"public.{table}" for table in tables]
    report = compare(database.dsn(), broker.bootstrap_servers, unique, rows_before=True, tables=names)
    assert report.equal, str(report)
    return process


@pytest.mark.postgres(only=[18])
@pytest.mark.parametrize(
    ("seed", "how", "kills"),
    [
        (1, "dropped", 2),
        (2, "invalidated", 1),
        *[(seed, ("dropped", "advanced", "invalidated")[seed % 3], seed % 4) for seed in SEEDS],
    ],
)
def test_topics_equal_their_tables_after_a_lost_slot_under_writers_and_kills(
    database: Database,
    broker: KafkaBroker,
    daemon: StartDaemon,
    unique: str,
    *,
    seed: int,
    how: str,
    kills: int,
) -> None:
    process = heals(database, broker, daemon, unique, seed=seed, how=how, kills=kills)
    assert process.stop() == 0
