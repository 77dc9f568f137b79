"""Large transactions that arrive before their commit, with everything that their rows can depend on."""

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from deploy.local import KafkaBroker
from tests.integration.conftest import Database
from tests.integration.daemon import Daemon, configuration
from tests.integration.test_exactly_once import assert_equal

pytestmark = pytest.mark.postgres(every=True)

StartDaemon = Callable[[dict[str, Any]], Daemon]

ROWS = 1500


def fill(first: int, table: str = "t") -> str:
    return f"INSERT INTO {table} SELECT i, repeat('x', 60) || i FROM generate_series({first}, {first + ROWS - 1}) AS i"


def transaction(database: Database, *statements: str) -> None:
    """One transaction of these, much larger than what the server decodes in memory."""
    with psycopg.connect(database.dsn()) as connection:
        for statement in statements:
            connection.execute(statement.encode())


@pytest.fixture
def streaming(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str
) -> Callable[[], Daemon]:
    """Starts a daemon to which this database streams whatever is larger than 64 kB."""

    def start() -> Daemon:
        database.execute(f'ALTER DATABASE "{database.name}" SET logical_decoding_work_mem = 64')
        process = daemon(
            configuration(
                unique, database.dsn(), broker.bootstrap_servers, spool={"memory_bytes_max": 65_536}
            )
        )
        process.await_streaming()
        return process

    return start


@pytest.mark.postgres(only=[14, 16, 18], also=[15, 17])
def test_every_kind_of_change_in_large_transactions_is_there_once(
    database: Database, broker: KafkaBroker, streaming: Callable[[], Daemon], unique: str
):
    # GIVEN tables of which the daemon has heard nothing yet
    database.execute("CREATE TABLE t (id bigint PRIMARY KEY, note text)")
    database.execute("CREATE TABLE u (LIKE t INCLUDING ALL)")
    process = streaming()
    # WHEN transactions insert, update, delete, change keys and roll back to savepoints, in two tables in turn
    transaction(
        database,
        fill(1),
        fill(1, "u"),
        "SAVEPOINT a",
        fill(ROWS + 1),
        "ROLLBACK TO a",
        "UPDATE t SET note = note || '!' WHERE id % 2 = 0",
        "UPDATE t SET id = -id WHERE id % 3 = 0",
        "DELETE FROM u WHERE id % 5 = 0",
    )
    # AND one creates its table, one alters it, one empties it
    transaction(database, "CREATE TABLE v (LIKE t INCLUDING ALL)", fill(1, "v"))
    transaction(
        database, "ALTER TABLE t ADD COLUMN more int DEFAULT 7", "UPDATE t SET more = id", fill(ROWS + 1, "u")
    )
    transaction(database, fill(3 * ROWS, "u"), "TRUNCATE u", fill(1, "u"))
    # AND one is rolled back
    with psycopg.connect(database.dsn()) as connection:
        connection.execute(fill(9 * ROWS).encode())
        connection.rollback()
    # THEN the topics are the tables, without asking for anything again
    assert assert_equal(database.dsn(), broker, unique) > 8 * ROWS
    metrics = process.metrics()["cdcd_transactions_total"]
    assert sum(value for labels, value in metrics.items() if "streamed" in labels) >= 4
    assert not process.saw("streaming.paused", after=0)


@pytest.mark.postgres(only=18)
def test_a_key_that_a_large_transaction_gives_its_table_is_the_key_of_its_rows(
    database: Database, broker: KafkaBroker, streaming: Callable[[], Daemon], unique: str
):
    # GIVEN a table without a key, as the daemon knows it
    database.execute("CREATE TABLE t (id bigint NOT NULL, note text)")
    database.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    process = streaming()
    transaction(database, "INSERT INTO t VALUES (0, 'known')", "DELETE FROM t")
    process.await_metric("cdcd_events_total", lambda count: count == 1, "d", "public.t")
    # WHEN a large transaction gives it one after its first rows, which no message about the table shows
    transaction(database, fill(1), "ALTER TABLE t ADD PRIMARY KEY (id)", "UPDATE t SET note = 'short'")
    # THEN it is received once more, and its rows have the key
    process.await_event("streaming.paused")
    assert assert_equal(database.dsn(), broker, unique) > ROWS
