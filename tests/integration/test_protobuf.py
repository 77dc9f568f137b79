"""Records in Protobuf through a daemon: kills lose and repeat nothing, whatever becomes of the table meanwhile."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from google.protobuf import message_factory

from deploy.local import KafkaBroker
from tests.integration.created_topics import create_topics
from tests.integration.daemon import Daemon, configuration
from tests.integration.visible_records import await_decided, messages
from tests.schema_registry import SchemaRegistry
from tests.unit.core.records.protobuf.reading import as_json, compiled


def pairs(servers: str, topic: str) -> list[tuple[bytes | None, bytes | None]]:
    """Keys and values that a `read_committed` consumer finds in a topic of one partition."""
    return [(message.key(), message.value()) for message in messages(servers, topic)]


def read(data: bytes | None, registry: SchemaRegistry) -> Any:
    """A record by the schema that it names; None: a tombstone."""
    if data is None:
        return None
    assert (data[0], data[5]) == (0, 0)
    text = registry.schemas[int.from_bytes(data[1:5], "big")]
    message = message_factory.GetMessageClass(compiled(text))()
    message.ParseFromString(data[6:])
    return as_json(message)


@pytest.mark.postgres(only=18)
def test_kills_and_altered_tables_lose_and_repeat_nothing(
    unique: str, database: Any, broker: KafkaBroker, daemon: Callable[[Any], Daemon]
):
    servers, topic = broker.bootstrap_servers, f"{unique}.public.t"
    with SchemaRegistry() as registry, psycopg.connect(database.dsn(), autocommit=True) as sql:
        sql.execute(
            "CREATE TABLE t (id int PRIMARY KEY, gone int, note text, tags text[], amount numeric(10,2))"
        )
        sql.execute("INSERT INTO t VALUES (0, NULL, 'before', '{a,NULL}', 12.50)")
        # GIVEN a daemon that has read a table, and streamed changes of it
        running = daemon(
            configuration(
                unique,
                database.dsn(),
                servers,
                format={"key": "protobuf", "value": "protobuf", "decimal_handling_mode": "precise"},
                registry={"url": registry.url},
                snapshot={"mode": "initial"},
            )
        )
        running.await_streaming()
        sql.execute("INSERT INTO t VALUES (1, 0, '', '{}', 'NaN')")
        running.await_metric("cdcd_events_total", lambda count: count == 1, "c", "public.t")
        assert {f"{topic}-key", f"{topic}-value"} <= set(registry.subjects)
        # WHEN the registry goes, the daemon is killed, and a known form goes on
        registry.stop()
        running.kill()
        running.start()
        running.await_streaming()
        sql.execute("UPDATE t SET note = 'known form' WHERE id = 1")
        running.await_metric("cdcd_events_total", lambda count: count >= 1, "u", "public.t")
        assert not running.saw("registry.unreachable")
        # AND a column is dropped, one renamed and one added, while no daemon is there
        running.kill()
        sql.execute("ALTER TABLE t DROP COLUMN gone")
        sql.execute("ALTER TABLE t RENAME COLUMN note TO remark")
        sql.execute("ALTER TABLE t ADD COLUMN late timestamptz")
        sql.execute("INSERT INTO t VALUES (2, 'new form', NULL, NULL, '2024-01-31 12:00:00+00')")
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
        # THEN each change is there once, in its order
        found = [(read(key, registry), read(value, registry)) for key, value in pairs(servers, topic)]
        assert [key["id"] for key, _ in found] == [0, 1, 1, 2, 1, 1]
        assert found[-1][1] is None
        values = [value for _, value in found[:-1]]
        assert [value["op"] for value in values] == ["r", "c", "u", "c", "d"]
        assert values[0]["after"] == {
            "id": 0,
            "gone": None,
            "note": "before",
            "tags": ["a", None],
            "amount": "BOI=",
        }
        assert values[1]["after"] == {"id": 1, "gone": 0, "note": "", "tags": [], "amount": None}
        assert values[3]["after"] == {
            "id": 2,
            "remark": "new form",
            "tags": None,
            "amount": None,
            "late": "2024-01-31T12:00:00.000000Z",
        }
        # AND numbers of columns are those of their attributes, of which no other column has one
        first, last = [registry.schemas[number] for number in registry.subjects[f"{topic}-value"]]
        numbers = [
            {
                field.json_name: field.number
                for field in compiled(text).fields_by_name["after"].message_type.fields
            }
            for text in (first, last)
        ]
        assert numbers == [
            {"id": 1, "gone": 2, "note": 3, "tags": 4, "amount": 5},
            {"id": 1, "remark": 3, "tags": 4, "amount": 5, "late": 6},
        ]
        assert "reserved 2;" in last


LARGE = "(SELECT string_agg(md5(i::text), '') FROM generate_series(1, 3000) i)"


@pytest.mark.postgres(only=18)
def test_keys_filters_rules_for_columns_dead_letters_and_binary_values_are_as_in_json(
    unique: str, database: Any, broker: KafkaBroker, daemon: Callable[[Any], Daemon], tmp_path: Path
):
    servers, topic = broker.bootstrap_servers, f"{unique}.public.t"
    (tmp_path / "key").write_bytes(b"k" * 32)
    with SchemaRegistry() as registry, psycopg.connect(database.dsn(), autocommit=True) as sql:
        sql.execute(
            "CREATE TABLE t (id int PRIMARY KEY, owner text, mail text, note text, at timestamp, tags int[])"
        )
        sql.execute("ALTER TABLE t REPLICA IDENTITY FULL")
        sql.execute(
            "INSERT INTO t SELECT i, NULL, 'mail', 'note', '2024-01-31', '{1}' FROM generate_series(1, 3) i"
        )
        create_topics(servers, topic, config={"max.message.bytes": "20000"})
        # GIVEN a daemon with much of what shapes records, and values in binary form
        running = daemon(
            configuration(
                unique,
                database.dsn(),
                servers,
                format={"key": "protobuf", "value": "protobuf"},
                registry={"url": registry.url, "compatibility": "FULL_TRANSITIVE"},
                key={"columns": {"public.t": ["owner", "id"]}},
                filters={"tables": {"public.t": {"keep": "row.note != 'hidden'"}}},
                columns={"hash": ["public.t.mail"], "hash_key_file": str(tmp_path / "key")},
                kafka={"bootstrap_servers": servers, "oversized": "dead_letter"},
                postgres={"dsn": database.dsn(), "binary": True},
                snapshot={"mode": "initial"},
            )
        )
        running.await_event("snapshot.finished")
        running.await_streaming()
        # WHEN rows come, change their key, leave the filter, are too large, and are deleted
        sql.execute("INSERT INTO t VALUES (4, 'me', 'mail', 'note', 'infinity', '{}')")
        sql.execute("INSERT INTO t VALUES (5, 'me', 'mail', 'hidden')")
        sql.execute("UPDATE t SET owner = '' WHERE id = 4")
        sql.execute("UPDATE t SET note = 'hidden' WHERE id = 4")
        sql.execute(f"INSERT INTO t VALUES (6, 'me', 'mail', {LARGE})")
        sql.execute("DELETE FROM t WHERE id < 2")
        running.await_metric("cdcd_lag_bytes", lambda lag: lag == 0)
        running.await_metric("cdcd_events_total", lambda count: count >= 3, "d", "public.t")
        assert running.stop() == 0
        await_decided(servers, topic)
    # THEN the topic has what it would have in JSON
    found = [(read(key, registry), read(value, registry)) for key, value in pairs(servers, topic)]
    ops = [(None if value is None else value["op"], key["owner"], key["id"]) for key, value in found]
    assert ops[:3] == [("r", None, 1), ("r", None, 2), ("r", None, 3)]
    assert ops[3:] == [
        ("c", "me", 4),
        ("d", "me", 4),
        (None, "me", 4),
        ("c", "", 4),
        ("d", "", 4),
        (None, "", 4),
        ("d", None, 1),
        (None, None, 1),
    ]
    created = found[3][1]["after"]
    assert (created["tags"], created["at"]) == ([], 9_223_372_036_825_200_000)
    hashed = {
        value["after"]["mail"] for _, value in found if value is not None and value["after"] is not None
    }
    assert len(hashed) == 1
    assert all(len(each) == 64 for each in hashed)
    ((key, value),) = pairs(servers, f"{unique}.dead_letter")
    assert read(key, registry) == {"owner": "me", "id": 6}
    assert len(read(value, registry)["after"]["note"]) == 96_000
    assert registry.compatibility == {f"{topic}-{part}": "FULL_TRANSITIVE" for part in ("key", "value")}
