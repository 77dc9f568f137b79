"""While Kafka is away, a durable log takes the stream, PostgreSQL forgets the WAL, and each row comes once in order."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deploy.demo.topics import Reader
from deploy.local import KafkaBroker
from tests.integration.conftest import Database
from tests.integration.daemon import Daemon, configuration, confirmed, until, wal_end

pytestmark = pytest.mark.postgres(only=18)

StartDaemon = Callable[[dict[str, Any]], Daemon]


def insert(database: Database, first: int, last: int) -> int:
    """A transaction for each of these rows; the WAL's end after them."""
    with database.connect() as connection:
        for number in range(first, last + 1):
            connection.execute("INSERT INTO t VALUES (%s, 'one of them')", (number,))
    return wal_end(database.dsn())


def await_confirmed(database: Database, slot: str, position: int) -> None:
    until(
        lambda: True if confirmed(database.dsn(), slot) >= position else None,
        f"{slot} is not confirmed up to {position:X}",
    )


def logged(unique: str, database: Database, broker: KafkaBroker, folder: Path) -> dict[str, Any]:
    return configuration(
        unique,
        database.dsn(),
        broker.bootstrap_servers,
        spool={"durable": True, "durable_directory": str(folder), "durable_after_s": 0.5},
    )


def ids(broker: KafkaBroker, unique: str) -> list[int]:
    """Of all rows in the topic, in its order."""
    with Reader(broker.bootstrap_servers, unique) as reader:
        return [json.loads(record.value)["after"]["id"] for record in reader.read_all() if record.value]


def test_an_outage_of_kafka_is_bridged_by_the_log_through_two_kills(
    unique: str,
    database: Database,
    private_broker: Callable[..., KafkaBroker],
    daemon: StartDaemon,
    tmp_path: Path,
):
    # GIVEN a daemon that streams
    broker, slot = private_broker(), f"cdcd_{unique}"
    folder = tmp_path / "log"
    database.execute("CREATE TABLE t (id bigint PRIMARY KEY, note text)")
    process = daemon(logged(unique, database, broker, folder))
    process.await_streaming()
    await_confirmed(database, slot, insert(database, 1, 20))
    # WHEN Kafka is away, and writes go on
    broker.stop()
    process.await_event("durable.started")
    # THEN PostgreSQL may forget what is written meanwhile
    await_confirmed(database, slot, insert(database, 21, 60))
    assert process.metrics()["cdcd_durable_spool_bytes"][()] > 0
    assert process.metrics()["cdcd_lag_bytes"][()] > 0
    # AND also after the daemon was killed, twice
    for first, last in ((61, 80), (81, 100)):
        process.kill()
        end = insert(database, first, last)
        process.start()
        process.await_event("durable.started")
        await_confirmed(database, slot, end)
        # AND the log goes on without waiting for the end of an attempt to reach Kafka
        assert not process.saw("reconnect.scheduled")
    # AND also if the process would give up for an outage before the log may go on
    process.kill()
    process.config |= {"startup_timeout_s": 0, "spool": {**process.config["spool"], "durable_after_s": 3}}
    end = insert(database, 101, 105)
    process.start()
    process.await_event("durable.started")
    await_confirmed(database, slot, end)
    # WHEN Kafka is back
    broker.start()
    process.await_event("durable.delivered")
    process.await_streaming()
    await_confirmed(database, slot, insert(database, 106, 110))
    # THEN each row is there once, in order
    assert ids(broker, unique) == list(range(1, 111))
    assert process.stop() == 0
    assert not list(folder.glob("*.cdcdrec"))


@pytest.mark.long
def test_a_log_in_which_a_byte_is_flipped_is_refused_by_name(
    unique: str,
    database: Database,
    private_broker: Callable[..., KafkaBroker],
    daemon: StartDaemon,
    tmp_path: Path,
):
    # GIVEN a log of which PostgreSQL was told
    broker, slot = private_broker(), f"cdcd_{unique}"
    folder = tmp_path / "log"
    database.execute("CREATE TABLE t (id bigint PRIMARY KEY, note text)")
    process = daemon(logged(unique, database, broker, folder))
    process.await_streaming()
    await_confirmed(database, slot, insert(database, 1, 5))
    broker.stop()
    process.await_event("durable.started")
    await_confirmed(database, slot, insert(database, 6, 40))
    process.kill()
    # WHEN a byte of it is altered
    (segment,) = folder.glob("*.cdcdrec")
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    broker.start()
    process.start()
    # THEN the start is refused, and says which file is damaged, and what can be done
    assert process.wait() == 6
    failed = process.await_event("fatal")
    assert str(segment) in failed["message"]
    assert "checksum" in failed["message"]
    assert str(folder) in failed["hint"]
    assert not process.saw("stream.started")


def test_a_log_that_is_full_stops_the_confirming_and_loses_nothing(
    unique: str,
    database: Database,
    private_broker: Callable[..., KafkaBroker],
    daemon: StartDaemon,
    tmp_path: Path,
):
    # GIVEN a log that may have 1 MiB
    broker, slot = private_broker(), f"cdcd_{unique}"
    database.execute("CREATE TABLE t (id bigint PRIMARY KEY, note text)")
    config = logged(unique, database, broker, tmp_path / "log")
    process = daemon({**config, "spool": {**config["spool"], "durable_bytes_max": 1 << 20}})
    process.await_streaming()
    await_confirmed(database, slot, insert(database, 1, 5))
    broker.stop()
    process.await_event("durable.started")
    await_confirmed(database, slot, insert(database, 6, 10))
    # WHEN more is written than that
    with database.connect() as connection:
        connection.execute(
            "INSERT INTO t SELECT number, string_agg(md5((10000 * number + part)::text), '') "
            "FROM generate_series(11, 50) number, generate_series(1, 2000) part GROUP BY number ORDER BY number"
        )
    # THEN that is told, PostgreSQL keeps the rest, and all of it is delivered when Kafka is back
    stopped = process.await_event("durable.stopped")
    assert "spool.durable_bytes_max" in stopped["reason"]
    end = insert(database, 51, 60)
    assert confirmed(database.dsn(), slot) < end
    broker.start()
    process.await_event("durable.delivered")
    await_confirmed(database, slot, end)
    assert ids(broker, unique) == list(range(1, 61))
    assert process.stop() == 0
