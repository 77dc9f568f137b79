"""Records in Avro through a daemon: a registry that is away stops new forms only, and kills lose and repeat nothing."""

import io
import json
from collections.abc import Callable
from typing import Any

import fastavro
import psycopg
import pytest

from deploy.local import KafkaBroker
from tests.integration.daemon import Daemon, configuration
from tests.integration.visible_records import await_decided, messages
from tests.schema_registry import SchemaRegistry


def values(servers: str, topic: str, registry: SchemaRegistry) -> list[Any]:
    """What a `read_committed` consumer with the registry finds in a topic of one partition."""
    found: list[Any] = []
    for message in messages(servers, topic):
        data = message.value()
        assert data is not None
        assert data[0] == 0
        text = registry.schemas[int.from_bytes(data[1:5], "big")]
        schema = fastavro.parse_schema(json.loads(text))
        found.append(fastavro.schemaless_reader(io.BytesIO(data[5:]), schema, None))
    return found


def ids(servers: str, topic: str, registry: SchemaRegistry) -> list[int]:
    return [value["after"]["id"] for value in values(servers, topic, registry)]


@pytest.mark.postgres(only=18)
def test_a_registry_that_is_away_stops_new_forms_only_and_kills_lose_and_repeat_nothing(
    unique: str, database: Any, broker: KafkaBroker, daemon: Callable[[Any], Daemon]
):
    servers, topic = broker.bootstrap_servers, f"{unique}.public.t"
    with SchemaRegistry() as registry, psycopg.connect(database.dsn(), autocommit=True) as sql:
        sql.execute("CREATE TABLE t (id int PRIMARY KEY, note text, at timestamptz, amount numeric(10,2))")
        sql.execute("INSERT INTO t VALUES (1, 'before', '2024-01-31 12:00:00+00', 12.50)")
        # GIVEN a daemon that has read a table, and streamed a change of it
        running = daemon(
            configuration(
                unique,
                database.dsn(),
                servers,
                format={"key": "avro", "value": "avro"},
                registry={"url": registry.url},
                snapshot={"mode": "initial"},
            )
        )
        running.await_streaming()
        sql.execute("INSERT INTO t VALUES (2, 'streamed')")
        running.await_metric("cdcd_events_total", lambda count: count == 1, "c", "public.t")
        assert set(registry.subjects) == {f"{topic}-key", f"{topic}-value"}
        # WHEN the registry goes, and the daemon is killed and started again
        registry.stop()
        asked = len(registry.asked)
        running.kill()
        running.start()
        running.await_streaming()
        sql.execute("INSERT INTO t VALUES (3, 'known form')")
        running.await_metric("cdcd_lag_bytes", lambda lag: lag == 0)
        running.await_metric("cdcd_events_total", lambda count: count >= 1, "c", "public.t")
        # THEN the known form goes on
        assert not running.saw("registry.unreachable")
        # WHEN the table is altered
        sql.execute("ALTER TABLE t ADD COLUMN more int")
        sql.execute("INSERT INTO t VALUES (4, 'new form', NULL, NULL, 7)")
        told = running.await_event("registry.unreachable")
        assert registry.url in told["message"]
        running.await_metric("cdcd_registry_up", lambda up: up == 0)
        # THEN its new form waits, also over a kill, until the registry is back
        running.kill()
        running.start()
        running.await_event("registry.unreachable")
        assert len(registry.asked) == asked
        registry.start()
        running.await_event("registry.reachable")
        running.await_event("registry.registered", subject=f"{topic}-value")
        # AND a kill between registration and commit, or after it, leaves every row once
        running.kill()
        running.start()
        running.await_streaming()
        sql.execute("INSERT INTO t VALUES (5, 'last')")
        running.await_metric("cdcd_events_total", lambda count: count >= 1, "c", "public.t")
        running.await_metric("cdcd_lag_bytes", lambda lag: lag == 0)
        assert running.stop() == 0
        # A commit is answered before every topic has its marker.
        await_decided(servers, topic)
        assert ids(servers, topic, registry) == [1, 2, 3, 4, 5]
        first, *_, last = values(servers, topic, registry)
        assert (first["op"], last["op"]) == ("r", "c")
        assert first["after"] == {
            "id": 1,
            "note": "before",
            "at": "2024-01-31T12:00:00.000000Z",
            "amount": "12.50",
        }
        assert last["after"]["more"] is None
        assert len(registry.subjects[f"{topic}-value"]) == 2
