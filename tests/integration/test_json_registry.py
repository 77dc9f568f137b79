"""Records in JSON with a registry through a daemon: kills lose and repeat nothing, whatever becomes of the table."""

import json
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from deploy.local import KafkaBroker
from tests.integration.daemon import Daemon, configuration
from tests.integration.test_protobuf import pairs
from tests.integration.visible_records import await_decided
from tests.schema_registry import SchemaRegistry
from tests.unit.core.records.json_registry.reading import misfits


def read(data: bytes | None, registry: SchemaRegistry) -> Any:
    """A record that fits the schema that it names; None: a tombstone."""
    if data is None:
        return None
    assert data[0] == 0
    value = json.loads(data[5:])
    schema = json.loads(registry.schemas[int.from_bytes(data[1:5], "big")])
    assert list(misfits(value, schema)) == []
    return value


@pytest.mark.postgres(only=18)
def test_kills_altered_tables_and_a_registry_that_is_away_lose_and_repeat_nothing(
    unique: str, database: Any, broker: KafkaBroker, daemon: Callable[[Any], Daemon]
):
    servers, topic = broker.bootstrap_servers, f"{unique}.public.t"
    with SchemaRegistry() as registry, psycopg.connect(database.dsn(), autocommit=True) as sql:
        sql.execute(
            "CREATE TABLE t (id int PRIMARY KEY, gone int, note text, tags text[], amount numeric(10,2), raw bytea)"
        )
        sql.execute("INSERT INTO t VALUES (0, NULL, 'before', '{a,NULL}', 12.50, '\\x00ff')")
        # GIVEN a daemon that has read a table, and streamed changes of it
        running = daemon(
            configuration(
                unique,
                database.dsn(),
                servers,
                format={"key": "json_registry", "value": "json_registry", "decimal_handling_mode": "precise"},
                registry={"url": registry.url, "compatibility": "FULL"},
                snapshot={"mode": "initial"},
            )
        )
        running.await_streaming()
        sql.execute("INSERT INTO t VALUES (1, 0, '', '{}', 'NaN', NULL)")
        running.await_metric("cdcd_events_total", lambda count: count == 1, "c", "public.t")
        assert {f"{topic}-key", f"{topic}-value"} <= set(registry.subjects)
        assert registry.compatibility[f"{topic}-value"] == "FULL"
        # WHEN the registry goes, the daemon is killed, and a known form goes on
        registry.stop()
        running.kill()
        running.start()
        running.await_streaming()
        sql.execute("UPDATE t SET note = 'known form' WHERE id = 1")
        running.await_metric("cdcd_events_total", lambda count: count >= 1, "u", "public.t")
        assert not running.saw("registry.unreachable")
        # AND the table is altered while no daemon is there, and a key changes
        running.kill()
        sql.execute("ALTER TABLE t DROP COLUMN gone")
        sql.execute("ALTER TABLE t RENAME COLUMN note TO remark")
        sql.execute("ALTER TABLE t ADD COLUMN late timestamptz")
        sql.execute("INSERT INTO t VALUES (2, 'new form', NULL, NULL, NULL, '2024-01-31 12:00:00+00')")
        sql.execute("UPDATE t SET id = 3 WHERE id = 2")
        running.start()
        running.await_event("registry.unreachable")
        registry.start()
        running.await_event("registry.registered", subject=f"{topic}-value")
        # AND the daemon is killed between registration and commit, or after it
        running.kill()
        running.start()
        running.await_streaming()
        sql.execute("DELETE FROM t WHERE id = 1")
        running.await_metric("cdcd_events_total", lambda count: count >= 1, "d", "public.t")
        running.await_metric("cdcd_lag_bytes", lambda lag: lag == 0)
        assert running.stop() == 0
        await_decided(servers, topic)
        # THEN each change is there once, in its order, and fits its schema
        found = [(read(key, registry), read(value, registry)) for key, value in pairs(servers, topic)]
        assert [(key["id"], value and value["op"]) for key, value in found] == [
            (0, "r"),
            (1, "c"),
            (1, "u"),
            (2, "c"),
            (2, "d"),
            (2, None),
            (3, "c"),
            (1, "d"),
            (1, None),
        ]
        rows = [value and value["after"] for _, value in found]
        assert rows[0] == {
            "id": 0,
            "gone": None,
            "note": "before",
            "tags": ["a", None],
            "amount": "BOI=",
            "raw": "AP8=",
        }
        assert rows[1] == {"id": 1, "gone": 0, "note": "", "tags": [], "amount": None, "raw": None}
        assert rows[6] == {
            "id": 3,
            "remark": "new form",
            "tags": None,
            "amount": None,
            "raw": None,
            "late": "2024-01-31T12:00:00.000000Z",
        }
        # AND a schema is registered once for each form of the table
        assert [len(registry.subjects[f"{topic}-{part}"]) for part in ("key", "value")] == [1, 2]


@pytest.mark.postgres(only=18)
def test_a_registry_that_refuses_a_schema_sets_its_table_aside_alone(
    unique: str, database: Any, broker: KafkaBroker, daemon: Callable[[Any], Daemon]
):
    servers = broker.bootstrap_servers
    with SchemaRegistry() as registry, psycopg.connect(database.dsn(), autocommit=True) as sql:
        sql.execute("CREATE TABLE refused (id int PRIMARY KEY); CREATE TABLE other (id int PRIMARY KEY)")
        registry.refusing.add(f"{unique}.public.refused-value")
        # GIVEN a registry that refuses the schema of a table
        running = daemon(
            configuration(
                unique,
                database.dsn(),
                servers,
                format={"value": "json_registry"},
                registry={"url": registry.url},
                tables={"on_error": "set_aside"},
            )
        )
        running.await_streaming()
        # WHEN both tables have rows
        sql.execute("INSERT INTO refused VALUES (1); INSERT INTO other VALUES (1)")
        # THEN the table is set aside, with the subject and what to do, and the other one goes on
        told = running.await_event("table.aside", table="public.refused")
        assert f"{unique}.public.refused-value" in json.dumps(told)
        running.await_metric("cdcd_events_total", lambda count: count == 1, "c", "public.other")
        assert running.stop() == 0
    ((key, value),) = pairs(servers, f"{unique}.public.other")
    assert key == b'{"id":1}'
    assert value is not None
    assert value[0] == 0
