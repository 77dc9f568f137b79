"""Flattened records through a daemon: a snapshot, changes of each kind, and a kill, in every format."""

import json
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest

from deploy.demo.fold import await_flushed
from deploy.demo.topics import Reader
from deploy.local import KafkaBroker
from tests.integration.daemon import Daemon, configuration
from tests.integration.visible_records import await_decided
from tests.schema_registry import SchemaRegistry
from tests.unit.core.records.avro.reading import Schemas as AvroSchemas
from tests.unit.core.records.protobuf.reading import Schemas as ProtobufSchemas

FORMATS: dict[str, dict[str, Any]] = {
    "json": {},
    "avro": {"format": {"key": "avro", "value": "avro"}},
    "protobuf": {"format": {"key": "protobuf", "value": "protobuf"}},
    "cloudevents": {"format": {"value": "cloudevents"}, "cloudevents": {"mode": "binary"}},
    "cloudevents-avro": {
        "format": {"value": "cloudevents"},
        "cloudevents": {"mode": "binary", "data": "avro"},
    },
}


def read(value: bytes, name: str, registry: SchemaRegistry | None) -> Any:
    """The row in a value, as a consumer of the format has it."""
    if registry is None:
        return json.loads(value)
    schemas = ProtobufSchemas(in_order=False) if name == "protobuf" else AvroSchemas()
    schemas.texts = dict(registry.schemas)
    row = schemas.read(value)[1]
    return row if name != "protobuf" else {names.get(field, field): each for field, each in row.items()}


names = {"_Deleted": "__deleted", "_Op": "__op", "_No": "__no"}
"""Fields of the row by their names in Protobuf's JSON."""


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.postgres(only=18)
def test_rows_come_once_and_in_order_over_a_kill_and_truncate_leaves_no_record(
    unique: str, database: Any, broker: KafkaBroker, daemon: Callable[[Any], Daemon], name: str
):
    servers, topic = broker.bootstrap_servers, f"{unique}.public.t"
    more = FORMATS[name]
    with ExitStack() as stack, psycopg.connect(database.dsn(), autocommit=True) as sql:
        registry = None
        if name not in {"json", "cloudevents"}:
            registry = stack.enter_context(SchemaRegistry())
            more = {**more, "registry": {"url": registry.url}}
        sql.execute("CREATE TABLE t (id int PRIMARY KEY, note text)")
        sql.execute("ALTER TABLE t ALTER note SET STORAGE EXTERNAL")
        sql.execute("INSERT INTO t VALUES (1, repeat('x', 9000))")
        # GIVEN a daemon that flattens, and has read the table
        running = daemon(
            configuration(
                unique,
                database.dsn(),
                servers,
                event_flattening={
                    "enabled": True,
                    "delete_tombstone_handling_mode": "rewrite-with-tombstone",
                    "add_fields": ["op", "source.event_serial_no:no"],
                },
                snapshot={"mode": "initial"},
                **more,
            )
        )
        running.await_streaming()
        running.await_event("snapshot.finished")
        # WHEN a transaction has each kind of change, and the daemon is killed before another one
        with sql.transaction():
            sql.execute("INSERT INTO t VALUES (2, 'b')")
            sql.execute("UPDATE t SET id = 3 WHERE id = 2")
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
    # THEN each is there once, as Debezium's transform would have it
    with Reader(servers, unique) as reader:
        records = [each for each in reader.read_all() if each.topic == topic]
    rows = [None if each.value is None else read(each.value, name, registry) for each in records]
    kept = {"__deleted": "false"}
    gone = {"__deleted": "true"}
    assert rows == [
        {"id": 1, "note": "x" * 9000, **kept, "__op": "r", "__no": 1},
        {"id": 2, "note": "b", **kept, "__op": "c", "__no": 1},
        {"id": 2, "note": None, **gone, "__op": "d", "__no": 2},
        None,
        {"id": 3, "note": "b", **kept, "__op": "c", "__no": 2},
        {"id": 3, "note": None, **gone, "__op": "d", "__no": 3},
        None,
        {"id": 4, "note": "d", **kept, "__op": "c", "__no": 1},
    ]
