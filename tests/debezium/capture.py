"""What a real Debezium writes with schemas: `python -m tests.debezium.capture`, into `golden/`.

Debezium's PostgreSQL connector in Kafka Connect, as `tests/bench/debezium.lock` pins it, reads the changes of tables
that have every type, with `schemas.enable=true` and the modes that cdcd has. `test_json_schema.py` makes the same
changes into records and compares key, value and schema.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, TopicPartition

from deploy.local import KafkaBroker, PostgresServer
from tests.bench.debezium import VERSION, start_connector

GOLDEN: Final = Path(__file__).parent / "golden" / "json_schema.json"
LIMIT_S: Final = 300.0
PREFIX: Final = "shop"

TYPES: Final[tuple[tuple[str, str], ...]] = (
    ("boolean", "true"), ("smallint", "1"), ("integer", "2"), ("bigint", "3"), ("oid", "4"),
    ("real", "1.5"), ("double precision", "2.5"), ("numeric", "1.25"), ("numeric(10,2)", "3.50"),
    ("money", "12.34"), ("text", "'a'"), ("varchar(10)", "'b'"), ("char(3)", "'c'"), ("name", "'n'"),
    ("bytea", "'\\xff00'"), ("bit(1)", "B'1'"), ("bit(9)", "B'100000001'"), ("bit varying(5)", "B'101'"),
    ("bit varying", "B'101'"), ("date", "'2024-01-31'"), ("time", "'12:34:56.789'"),
    ("timetz", "'12:34:56+02'"), ("timestamp", "'2024-01-31 12:34:56.789'"),
    ("timestamp(3)", "'2024-01-31 12:34:56.789'"), ("timestamptz", "'2024-01-31 12:34:56.789+00'"),
    ("interval", "'1 year 2 days'"), ("uuid", "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'"),
    ("json", "'{\"a\": 1}'"), ("jsonb", "'{\"a\": 1}'"), ("xml", "'<a/>'"), ("inet", "'10.0.0.1'"),
    ("cidr", "'10.0.0.0/8'"), ("macaddr", "'08:00:2b:01:02:03'"), ("macaddr8", "'08:00:2b:01:02:03:04:05'"),
    ("point", "'(1,2.5)'"), ("int4range", "'[1,5)'"), ("int8range", "'[1,5)'"), ("numrange", "'[1,5)'"),
    ("daterange", "'[2024-01-01,2024-02-01)'"), ("tsrange", "'[2024-01-01,2024-02-01)'"),
    ("tstzrange", "'[2024-01-01,2024-02-01)'"), ("tsvector", "'a:1 b:2'"), ("mood", "'happy'"),
    ("price", "9.99"), ("amount", "5"), ("hstore", "'a=>1'"), ("citext", "'Ci'"), ("ltree", "'a.b'"),
    ("integer[]", "'{1,NULL}'"), ("text[]", "'{a,b}'"), ("numeric(6,2)[]", "'{1.50}'"),
    ("numeric[]", "'{1.5}'"), ("boolean[]", "'{t}'"), ("bigint[]", "'{7}'"), ("smallint[]", "'{7}'"),
    ("real[]", "'{1.5}'"), ("double precision[]", "'{1.5}'"),
    ("uuid[]", "'{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}'"), ("date[]", "'{2024-01-31}'"),
    ("timestamp[]", "'{2024-01-31 12:34:56}'"), ("timestamptz[]", "'{2024-01-31 12:34:56+00}'"),
    ("time[]", "'{12:34:56}'"), ("timetz[]", "'{12:34:56+02}'"), ("mood[]", "'{sad}'"),
    ("varchar(9)[]", "'{x}'"), ("inet[]", "'{10.0.0.1}'"), ("jsonb[]", "'{1}'"), ("json[]", "'{1}'"),
    ("int4range[]", "'{\"[1,5)\"}'"), ("citext[]", "'{Ci}'"), ("hstore[]", "'{a=>1}'"),
    ("char(2)[]", "'{ab}'"), ("oid[]", "'{5}'"), ("bytea[]", "'{\"\\\\\\\\xff\"}'"),
    ("money[]", "'{1.50}'"), ("bit(3)[]", "'{101}'"), ("interval[]", "'{1 day}'"),
    ("macaddr[]", "'{08:00:2b:01:02:03}'"), ("xml[]", "'{<a/>}'"), ("point[]", "'{\"(1,2)\"}'"),
    ("numeric(5,0)", "5"), ("time(3)", "'12:34:56.789'"), ("timestamp(0)", "'2024-01-31 12:34:56'"),
    ("box", "'(1,1),(0,0)'"), ("circle", "'<(0,0),1>'"), ("line", "'{1,2,3}'"), ("lseg", "'[(0,0),(1,1)]'"),
    ("path", "'((0,0),(1,1))'"), ("polygon", "'((0,0),(1,1))'"), ("pg_lsn", "'0/10'"), ("xid", "'5'"),
    ("tsquery", "'a & b'"), ("integer NOT NULL", "8"), ("text NOT NULL", "'z'"),
)  # fmt: skip
"""Columns of the table `types`: each with the SQL of its one value. They are called c0, c1 and so on."""

SETUP: Final = (
    "CREATE EXTENSION hstore",
    "CREATE EXTENSION citext",
    "CREATE EXTENSION ltree",
    "CREATE TYPE mood AS ENUM ('sad', 'happy')",
    "CREATE DOMAIN price AS numeric(8,2)",
    "CREATE DOMAIN amount AS integer",
    "CREATE TABLE types (id bigint PRIMARY KEY, "
    + ", ".join(f"c{number} {kind}" for number, (kind, _) in enumerate(TYPES))
    + ")",
    'CREATE TABLE orders ("Order no" integer, line smallint, note text, PRIMARY KEY ("Order no", line))',
    "CREATE TABLE log (entry text)",
    "ALTER TABLE log REPLICA IDENTITY FULL",
    "CREATE PUBLICATION p FOR ALL TABLES",
)
CHANGES: Final = (
    "INSERT INTO types VALUES (1, " + ", ".join(value for _, value in TYPES) + ")",
    "INSERT INTO orders VALUES (1, 2, 'a')",
    "UPDATE orders SET note = 'b'",
    "UPDATE orders SET line = 3",
    "DELETE FROM orders",
    "INSERT INTO log VALUES ('x')",
    "UPDATE log SET entry = 'y'",
    "TRUNCATE log",
    "SELECT pg_logical_emit_message(true, 'prefix', 'content')",
)
RECORDS: Final = {"shop.public.types": 1, "shop.public.orders": 7, "shop.public.log": 3, "shop.message": 1}


def settings() -> dict[str, str]:
    """What the connector is told beside where the server is."""
    return {
        "database.dbname": "postgres",
        "topic.prefix": PREFIX,
        "slot.name": "debezium",
        "publication.name": "p",
        "key.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "key.converter.schemas.enable": "true",
        "value.converter.schemas.enable": "true",
        "decimal.handling.mode": "string",
        "interval.handling.mode": "string",
        "time.precision.mode": "adaptive",
        "hstore.handling.mode": "json",
        "include.unknown.datatypes": "true",
        "skipped.operations": "none",
    }


def capture() -> dict[str, Any]:
    """The records by topic, key and value parsed."""
    with tempfile.TemporaryDirectory(prefix="cdcd-debezium-") as name:
        folder = Path(name)
        # PostgreSQL runs as another user where this one is root.
        folder.chmod(0o711)
        with PostgresServer(18, folder / "postgres") as server, KafkaBroker(folder / "kafka") as broker:
            return _captured(folder, server, broker)


def _captured(folder: Path, server: PostgresServer, broker: KafkaBroker) -> dict[str, Any]:
    for statement in SETUP:
        server.execute(statement)
    server.execute("SELECT pg_create_logical_replication_slot('debezium', 'pgoutput')")
    for statement in CHANGES:
        server.execute(statement)
    connector = start_connector(folder, "debezium", server, broker, settings())
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "capture"})
    found: dict[str, Any] = {topic: [] for topic in RECORDS}
    consumer.assign([TopicPartition(topic, 0, 0) for topic in RECORDS])
    deadline = time.monotonic() + LIMIT_S
    try:
        while any(len(found[topic]) < count for topic, count in RECORDS.items()):
            if time.monotonic() > deadline or not connector.is_running():
                log = (folder / "debezium.log").read_text()
                raise SystemExit(f"{ {t: len(r) for t, r in found.items()} }\n{log[-6000:]}")
            message = consumer.poll(1.0)
            if message is None or message.error():
                continue
            topic, key, value = message.topic(), message.key(), message.value()
            assert topic is not None
            found[topic].append(
                {
                    "key": None if key is None else json.loads(key),
                    "value": None if value is None else json.loads(value),
                }
            )
    finally:
        consumer.close()
        connector.kill()
    return {"debezium": VERSION, "records": found}


def main() -> None:
    GOLDEN.parent.mkdir(exist_ok=True)
    captured = capture()
    GOLDEN.write_text(json.dumps(captured, indent=1, ensure_ascii=False) + "\n")
    sys.stdout.write(f"{GOLDEN}: Debezium {captured['debezium']}\n")


if __name__ == "__main__":
    main()
