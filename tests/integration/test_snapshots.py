"""Rows that exist: read at the slot's snapshot or beside the stream, each once, whatever is killed meanwhile."""

import json
import random
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, Self

import psycopg
import pytest

from deploy.demo.fold import Report, await_flushed, compare
from deploy.demo.topics import Reader
from deploy.local import KafkaBroker
from tests.integration.conftest import Database
from tests.integration.daemon import Daemon, configuration

StartDaemon = Callable[[dict[str, Any]], Daemon]

ROWS = 20_000
PACE_S = 0.004
"""Between transactions of a session: a stream that is never caught up is another test's matter."""
SCHEMA = """
CREATE TABLE items (id bigint PRIMARY KEY, note text, n int NOT NULL DEFAULT 0);
CREATE TABLE parts (id bigint, region text, note text, PRIMARY KEY (id, region)) PARTITION BY LIST (region);
CREATE TABLE parts_a PARTITION OF parts FOR VALUES IN ('a');
CREATE TABLE parts_b PARTITION OF parts FOR VALUES IN ('b');
CREATE TABLE odd (id int PRIMARY KEY, body text, flag bool, price numeric(10,2), at timestamptz, tags text[],
                  doc jsonb);
CREATE TABLE nothing (id int PRIMARY KEY);
INSERT INTO odd VALUES (1, E'tab\\there\\\\ and\\nline \\r\\x07 "q" ü', true, 1.50, '2020-02-03 04:05:06+02',
                        '{a,"b c"}', '{"k": [1]}'),
                       (2, NULL, NULL, NULL, NULL, NULL, NULL), (3, '\\N', false, 'NaN', 'infinity', '{}', 'null');
"""


class Writers:
    """Sessions that change `items` and `parts` all the time, in transactions of their own."""

    def __init__(self, dsn: str, sessions: int = 2) -> None:
        self._dsn = dsn
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._write, args=(number,)) for number in range(sessions)]
        self.failures: list[Exception] = []
        self.commits = 0

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        assert not self.failures, self.failures

    def _write(self, number: int) -> None:
        dice = random.Random(number)
        try:
            with psycopg.connect(self._dsn, autocommit=True) as connection:
                fresh = 1_000_000 * (number + 1)
                connection.execute(f"SET synchronous_commit = {'off' if number else 'on'}")
                while not self._stop.wait(PACE_S):
                    with connection.transaction():
                        for _ in range(dice.randint(1, 4)):
                            fresh += 1
                            some = dice.randrange(ROWS)
                            match dice.randrange(5):
                                case 0:
                                    connection.execute("INSERT INTO items VALUES (%s, 'new')", (fresh,))
                                case 1:
                                    connection.execute("DELETE FROM items WHERE id = %s", (some,))
                                case 2:
                                    connection.execute(
                                        "UPDATE items SET id = %s WHERE id = %s", (fresh, some)
                                    )
                                case 3:
                                    connection.execute(
                                        "UPDATE parts SET note = 'x' WHERE id = %s", (some // 10,)
                                    )
                                case _:
                                    connection.execute(
                                        "UPDATE items SET n = n + 1, note = repeat('y', n %% 90) WHERE id = %s",
                                        (some,),
                                    )
                    self.commits += 1
        except (psycopg.Error, AssertionError) as failure:
            self.failures.append(failure)


def fill(database: Database) -> None:
    with database.connect() as connection:
        for statement in SCHEMA.split(";\n"):
            connection.execute(statement.encode())
        connection.execute(
            "INSERT INTO items SELECT g, repeat('r', g %% 50) FROM generate_series(0, %s - 1) g", (ROWS,)
        )
        connection.execute(
            "INSERT INTO parts SELECT g, CASE g %% 2 WHEN 0 THEN 'a' ELSE 'b' END, 'p' "
            "FROM generate_series(0, %s) g",
            (ROWS // 10,),
        )


def assert_equal(database: Database, broker: KafkaBroker, name: str, *, rows_before: bool = True) -> Report:
    await_flushed(database.dsn(), f"cdcd_{name}")
    report = compare(database.dsn(), broker.bootstrap_servers, name, rows_before=rows_before, tables=TABLES)
    assert report.equal, str(report)
    return report


TABLES = ["public.items", "public.parts_a", "public.parts_b", "public.odd", "public.nothing"]


def settings(name: str, database: Database, broker: KafkaBroker, **snapshot: Any) -> dict[str, Any]:
    return configuration(
        name,
        database.dsn(),
        broker.bootstrap_servers,
        snapshot={"mode": "initial", "chunk_bytes": 65_536, **snapshot},
        kafka={"transaction": {"bytes_max": 262_144}, "queue_bytes_max": 524_288},
    )


def rows_read(broker: KafkaBroker, name: str) -> list[dict[str, Any]]:
    """The envelopes with op r, in each partition's order."""
    with Reader(broker.bootstrap_servers, name) as reader:
        envelopes = [json.loads(raw.value) for raw in reader.read_all() if raw.value is not None]
    return [envelope for envelope in envelopes if envelope.get("op") == "r"]


def await_rows(process: Daemon, least: int) -> None:
    """So many rows are read, or all that there are."""
    process.await_metric("cdcd_snapshot_rows_total", lambda rows: rows > least)


def test_rows_that_exist_come_first_each_once_and_then_the_changes(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
):
    # GIVEN tables with rows, and sessions that change them all the time
    fill(database)
    process = daemon(settings(unique, database, broker))
    with Writers(database.dsn()) as writers:
        # WHEN a new pipeline starts
        finished = process.await_event("snapshot.finished")
        process.await_streaming()
        so_far = writers.commits
        while writers.commits < so_far + 50:
            process.await_metric("cdcd_streaming", lambda value: value == 1)
    # THEN the topics are the tables, and what was read came once, before every change of it
    report = assert_equal(database, broker, unique, rows_before=False)
    assert sum(table.ops["r"] for table in report.tables) == finished["rows"]
    sources = [envelope["source"] for envelope in rows_read(broker, unique)]
    markers = Counter(source["snapshot"] for source in sources)
    assert markers["first"] == markers["last"] == 1
    assert markers["last_in_data_collection"] == 3
    assert {source["txId"] for source in sources} == {None}
    assert process.stop() == 0


@pytest.mark.parametrize("method", ["exported", "incremental"])
def test_killed_in_the_middle_of_a_snapshot_it_goes_on_where_it_was(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str, method: str
):
    fill(database)
    process = daemon(settings(unique, database, broker, method=method))
    with Writers(database.dsn()):
        for number in range(3):
            process.await_event("snapshot.started" if number == 0 else "snapshot.resumed")
            await_rows(process, number * 3000)
            process.kill()
            process.start()
        process.await_event("snapshot.finished")
    report = assert_equal(database, broker, unique)
    # THEN nothing was read that had been delivered: a row comes twice only if it moved meanwhile
    items = report.tables[0]
    assert items.ops["r"] < ROWS * 1.2
    assert process.stop() == 0
