"""CloudEvents through a daemon, read by the SDK of the CNCF: a snapshot, changes of each kind, and a kill."""

import json
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from deploy.demo.fold import await_flushed
from deploy.demo.topics import Reader
from deploy.local import KafkaBroker
from tests.integration.daemon import Daemon, configuration
from tests.integration.visible_records import await_decided
from tests.schema_registry import SchemaRegistry
from tests.unit.core.records.avro.reading import Schemas
from tests.unit.core.records.cloudevents.reading import extensions_of, read_event


def records_of(servers: str, prefix: str, topic: str) -> list[Any]:
    """What a `read_committed` consumer finds in a topic."""
    with Reader(servers, prefix) as reader:
        return [
            (each.topic, each.key, each.value, list(each.headers or ()))
            for each in reader.read_all()
            if each.topic == topic
        ]


@pytest.mark.postgres(only=18)
@pytest.mark.parametrize("mode", ["structured", "binary"])
def test_events_come_once_and_in_order_over_a_kill(
    unique: str, database: Any, broker: KafkaBroker, daemon: Callable[[Any], Daemon], mode: str
):
    servers, topic = broker.bootstrap_servers, f"{unique}.public.t"
    with psycopg.connect(database.dsn(), autocommit=True) as sql:
        sql.execute("CREATE TABLE t (id int PRIMARY KEY, note text)")
        sql.execute("ALTER TABLE t ALTER note SET STORAGE EXTERNAL")
        sql.execute("INSERT INTO t VALUES (1, repeat('x', 9000))")
        # GIVEN a daemon that writes events, and has read the table
        running = daemon(
            configuration(
                unique,
                database.dsn(),
                servers,
                format={"value": "cloudevents"},
                cloudevents={"mode": mode},
                topics={"transaction_metadata": True},
                postgres={"messages": True},
                snapshot={"mode": "initial"},
            )
        )
        running.await_streaming()
        # WHEN a transaction has each kind of change, and the daemon is killed before another one
        with sql.transaction():
            sql.execute("INSERT INTO t VALUES (2, 'b')")
            sql.execute("UPDATE t SET id = 3 WHERE id = 2")
            sql.execute("SELECT pg_logical_emit_message(true, 'audit', 'who')")
            sql.execute("DELETE FROM t WHERE id = 3")
        running.await_metric("cdcd_events_total", lambda count: count >= 1, "d", "public.t")
        running.kill()
        running.start()
        running.await_streaming()
        sql.execute("TRUNCATE t")
        sql.execute("INSERT INTO t VALUES (4, 'd')")
        await_flushed(database.dsn(), f"cdcd_{unique}")
        assert running.stop() == 0
        await_decided(servers, topic)
    # THEN each event is there once, and no two have one id
    records = records_of(servers, unique, topic)
    events = [None if record[2] is None else read_event(record) for record in records]
    gone = {"id": 2, "note": None}
    assert [None if event is None else event.get_data() for event in events] == [
        {"before": None, "after": {"id": 1, "note": "x" * 9000}},
        {"before": None, "after": {"id": 2, "note": "b"}},
        {"before": gone, "after": None},
        None,
        {"before": None, "after": {"id": 3, "note": "b"}},
        {"before": {"id": 3, "note": None}, "after": None},
        None,
        {"before": None, "after": None},
        {"before": None, "after": {"id": 4, "note": "d"}},
    ]
    found = [event for event in events if event is not None]
    assert "".join(extensions_of(event)["op"] for event in found) == "rcdcdtc"
    assert len({event.get_id() for event in found}) == len(found)
    places = [extensions_of(event).get("txtotalorder") for event in found]
    assert places == [None, "1", "2", "3", "4", "1", "1"]
    ((_, key, _, _),) = (message,) = records_of(servers, unique, f"{unique}.message")
    assert json.loads(key) == {"prefix": "audit"}
    assert read_event(message).get_data() == {"message": {"prefix": "audit", "content": "d2hv"}}
    told = [read_event(record) for record in records_of(servers, unique, f"{unique}.transaction")]
    assert [(event.get_data()["status"], event.get_data()["event_count"]) for event in told][:2] == [
        ("BEGIN", None),
        ("END", 4),
    ]
    assert extensions_of(told[1])["txid"] == extensions_of(found[1])["txid"]


@pytest.mark.postgres(only=18)
def test_data_in_avro_are_read_with_the_schema_that_the_event_names(
    unique: str, database: Any, broker: KafkaBroker, daemon: Callable[[Any], Daemon]
):
    servers, topic = broker.bootstrap_servers, f"{unique}.public.t"
    with SchemaRegistry() as registry, psycopg.connect(database.dsn(), autocommit=True) as sql:
        sql.execute("CREATE TABLE t (id int PRIMARY KEY, note text)")
        # GIVEN a daemon that writes data in Avro
        running = daemon(
            configuration(
                unique,
                database.dsn(),
                servers,
                format={"key": "avro", "value": "cloudevents"},
                cloudevents={"data": "avro"},
                registry={"url": registry.url},
            )
        )
        running.await_streaming()
        # WHEN the table is altered between two rows
        sql.execute("INSERT INTO t VALUES (1, 'a')")
        sql.execute("ALTER TABLE t ADD COLUMN more int")
        sql.execute("INSERT INTO t VALUES (2, 'b', 7)")
        await_flushed(database.dsn(), f"cdcd_{unique}")
        assert running.stop() == 0
        await_decided(servers, topic)
        # THEN each event names the schema of its data
        schemas = Schemas()
        schemas.texts = dict(registry.schemas)
        read: list[Any] = []
        for record in records_of(servers, unique, topic):
            event = read_event(record)
            data = event.get_data()
            schema_id, value = schemas.read(data.encode() if isinstance(data, str) else data)
            assert event.get_dataschema() == f"{registry.url}/schemas/ids/{schema_id}"
            read.append(value["after"])
        assert read == [{"id": 1, "note": "a"}, {"id": 2, "note": "b", "more": 7}]
