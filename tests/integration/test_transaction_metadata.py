"""Transaction metadata, from a real server to the broker: the counts are those of the records that a reader has."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from deploy.demo.fold import await_flushed
from deploy.demo.topics import Reader
from deploy.local import KafkaBroker
from tests.integration.conftest import Database
from tests.integration.daemon import Daemon, configuration
from tests.integration.test_protobuf import read as read_message
from tests.schema_registry import SchemaRegistry

StartDaemon = Callable[[dict[str, Any]], Daemon]

pytestmark = pytest.mark.postgres(only=18)


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as server:
        yield server


@pytest.mark.parametrize("written", ["json", "protobuf"])
def test_counts_are_those_of_the_records_whatever_is_killed(
    written: str,
    database: Database,
    broker: KafkaBroker,
    daemon: StartDaemon,
    unique: str,
    registry: SchemaRegistry,
):
    # GIVEN a daemon that cuts transactions into small parts, and a server that streams large ones
    database.execute("CREATE TABLE orders (id int PRIMARY KEY); CREATE TABLE lines (id int PRIMARY KEY)")
    process = daemon(
        configuration(
            unique,
            database.dsn(options="-c logical_decoding_work_mem=64kB"),
            broker.bootstrap_servers,
            postgres={"two_phase": True},
            kafka={"transaction": {"records_max": 50, "whole_bytes_max": 0}},
            topics={"transaction_metadata": True},
            format={"key": written, "value": written},
            registry={"url": registry.url},
        )
    )
    process.await_streaming()

    # WHEN transactions with rolled-back savepoints are committed, streamed and prepared, beside kills
    with database.connect(autocommit=False) as connection:
        connection.execute(
            b"INSERT INTO orders VALUES (-1); UPDATE orders SET id = -2; INSERT INTO lines VALUES (-1)"
        )
        connection.commit()
        connection.execute(f"INSERT INTO orders VALUES (-3); PREPARE TRANSACTION '{unique}'".encode())
        for number in range(0, 3000, 100):
            rows = f"SELECT n FROM generate_series({number}, {number + 99}) n"
            connection.execute(f"INSERT INTO orders {rows}; SAVEPOINT s; INSERT INTO lines {rows}".encode())
            connection.execute(b"ROLLBACK TO s" if number % 200 else b"RELEASE s")
        process.kill()
        process.start()
        process.await_streaming()
        connection.commit()
    process.await_metric("cdcd_events_total", lambda count: count > 100, "c", "public.lines")
    process.kill()
    process.start()
    process.await_streaming()
    database.execute(f"COMMIT PREPARED '{unique}'")
    await_flushed(database.dsn(), f"cdcd_{unique}")

    def read(data: bytes) -> Any:
        return json.loads(data) if written == "json" else read_message(data, registry)

    # THEN each transaction has BEGIN, its records with their places, and END with their counts
    begun: list[str] = []
    ended: dict[str, dict[str, Any]] = {}
    places: dict[str, list[int]] = {}
    tables: dict[str, dict[str, list[int]]] = {}
    with Reader(broker.bootstrap_servers, unique) as reader:
        for each in reader.read_all():
            if each.value is None or each.topic.endswith((".schemas", ".checkpoint")):
                continue
            fields = read(each.value)
            if each.topic == f"{unique}.transaction":
                assert read(each.key or b"") == {"id": fields["id"]}
                if fields["status"] == "BEGIN":
                    begun.append(fields["id"])
                else:
                    assert fields["id"] not in ended
                    ended[fields["id"]] = fields
                continue
            place = fields["transaction"]
            places.setdefault(place["id"], []).append(place["total_order"])
            table = f"{fields['source']['schema']}.{fields['source']['table']}"
            tables.setdefault(place["id"], {}).setdefault(table, []).append(place["data_collection_order"])
    assert len(begun) == 3
    assert set(begun) == set(ended) == set(places)
    assert sorted(len(found) for found in places.values()) == [1, 4, 4500]
    for name, end in ended.items():
        assert sorted(places[name]) == list(range(1, end["event_count"] + 1))
        counts = {one["data_collection"]: one["event_count"] for one in end["data_collections"]}
        assert tables[name] == {table: list(range(1, count + 1)) for table, count in counts.items()}
