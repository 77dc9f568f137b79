"""What a real Debezium writes under each of its modes: `python -m tests.debezium.capture_modes`, into `golden/`.

One worker of Kafka Connect runs a connector for each set of modes (`VARIANTS`), all of them on the same changes: the
table with every type of `capture.py`, a table of values that are rare but legal, one value to a row, and a table whose
values are TOASTed and not sent. `test_debezium_modes.py` makes the same values and compares.
"""

import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import psycopg
from confluent_kafka import Consumer, TopicPartition

from deploy.local import KafkaBroker, PostgresServer
from deploy.local.process import Child
from tests.bench.debezium import VERSION, start_connectors
from tests.debezium.capture import CHANGES, LIMIT_S, SETUP, TYPES, settings

GOLDEN: Final = Path(__file__).parent / "golden" / "modes.json"
QUIET_S: Final = 20.0
"""Seconds without a record after which all of them are taken to be there."""

PINNED: Final = (
    "-c datestyle=ISO -c intervalstyle=postgres -c timezone=UTC -c bytea_output=hex -c extra_float_digits=1"
    " -c lc_monetary=C"
)
"""The settings of cdcd's sessions (`cdcd/adapters/postgres/connection.py`)."""

RARE: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "n": ("numeric", ("0", "-0.00", "NaN", "Infinity", "-Infinity", "1e30", "-128", "127.5", "255", "0.001",
                      "123456789012345678901234567890.123456789", "1e-20", "-32768", "1.50", "100", "-0.10")),
    "nd": ("numeric(12,3)", ("0", "-1.5", "NaN", "127", "-128", "-129", "123456789.123")),
    "nn": ("numeric(4,-2)", ("1200",)),
    "m": ("money", ("0", "-1234.56", "92233720368547758.07", "-92233720368547758.08")),
    "d": ("date", ("1969-12-31", "0044-03-15 BC", "infinity", "-infinity", "10000-01-01", "5874897-12-31", "0001-01-01",
                   "2262-04-12")),
    "t": ("time", ("00:00:00", "24:00:00", "23:59:59.999999", "10:00:00.1", "10:00:00", "10:30:00")),
    "t3": ("time(3)", ("00:00:00", "24:00:00", "23:59:59.999", "10:00:00.1")),
    "ts": ("timestamp", ("1969-12-31 23:59:59.999999", "0044-03-15 12:00:00.5 BC", "infinity", "-infinity",
                         "10000-01-01 00:00:00", "294246-12-31 23:59:59", "0001-01-01 00:00:00", "2262-04-12 00:00:00",
                         "2024-01-31 12:34:00", "2024-01-31 12:34:56", "2262-04-11 12:00:00",
                         "1677-09-21 12:00:00")),
    "ts3": ("timestamp(3)", ("1969-12-31 23:59:59.999", "0044-03-15 12:00:00.5 BC", "infinity", "-infinity",
                             "10000-01-01 00:00:00", "2024-01-31 12:34:56")),
    "tz": ("timestamptz", ("1969-12-31 23:59:59.999999+00", "0044-03-15 12:00:00.5+00 BC", "infinity", "-infinity",
                           "10000-01-01 00:00:00+00", "2024-01-31 12:34:56+02", "2024-01-31 12:34:00+00")),
    "tz3": ("timestamptz(3)", ("2024-01-31 12:34:56.5+02", "infinity")),
    "ttz": ("timetz", ("24:00:00+00", "24:00:00+02", "00:30:00+02", "23:59:59.999999-12", "12:34:00+00")),
    "iv": ("interval", ("0", "1 month", "-1 month", "1 year 2 months 3 days 04:05:06.789012", "-00:00:00.000001",
                        "00:00:00.1", "1 year -2 months +3 days -04:05:06.5", "infinity", "-infinity", "100 years",
                        "00:00:01.999999", "3 days", "178000000 years", "-178000000 years", "1 mon 1.5 sec")),
    "b": ("bytea", ("\\x", "\\xfbff", "\\x00", "\\xfffefdfc61")),
    "h": ("hstore", ("", "a=>NULL", '"k\\"1"=>"ü", b=>2')),
    "na": ("numeric(6,2)[]", ("{}", "{1.50,NULL,-0.01}", "{{1,2},{3,4}}")),
    "nna": ("numeric[]", ("{1.5,NULL}",)),
    "ba": ("bytea[]", ('{"\\\\xff00",NULL}',)),
    "da": ("date[]", ("{2024-01-31,NULL}", "{infinity}", "{0044-03-15 BC}")),
    "ta": ("time[]", ("{12:34:56.789012,24:00:00}",)),
    "tsa": ("timestamp[]", ("{2024-01-31 12:34:56.789012,NULL}", "{infinity}")),
    "tza": ("timestamptz[]", ("{2024-01-31 12:34:56.789012+02}", "{infinity}")),
    "iva": ("interval[]", ("{1 day}",)),
    "ha": ("hstore[]", ('{"a=>1"}',)),
    "vb": ("bit varying", ("", "0", "1", "1000000010000001")),
    "mo": ("money[]", ("{1.50}",)),
    "pt": ("point", ("(1,2)", "(-1.5,1e300)", "(Infinity,-Infinity)", "(NaN,-0)")),
    "bx": ("box", ("(1,1),(0,0)", "(0,3.5),(2,-1)", "(Infinity,1),(0,0)")),
    "ci": ("circle", ("<(1,2),3>", "<(0,-0.5),0>", "<(NaN,1),Infinity>")),
    "li": ("line", ("{1,2,3}", "{0,-1,0.5}")),
    "ls": ("lseg", ("[(0,1),(2,3.5)]",)),
    "pa": ("path", ("((0,0),(1,1),(2,0))", "[(0,0),(1,1)]", "((1,2))")),
    "pg": ("polygon", ("((0,0),(1,1),(2,0))", "((0,0),(1,1),(0,0))", "((1,2))")),
    "bxa": ("box[]", ("{(1,1),(0,0)}",)),
    "tza2": ("timetz[]", ("{12:34:56.7+02}",)),
}  # fmt: skip
"""Columns of the table `rare`: each with its type and values, one to a row, in this order."""

TOASTED: Final[tuple[str, ...]] = (
    "text", "varchar", "bytea", "jsonb", "xml", "hstore", "numeric", "bit varying", "text[]", "integer[]", "numeric[]",
    "bytea[]", "date[]", "hstore[]", "numeric(1000,2)", "citext", "double precision[]", "uuid[]", "timestamp[]",
    "timestamptz[]", "boolean[]", "time[]", "numeric(8,2)[]", "mood[]", "path", "polygon",
)  # fmt: skip
"""Columns of the table `toasted`, c0, c1 and so on, whose values an update does not send."""

_BIG: Final[dict[str, str]] = {
    "bytea": "decode(repeat('ab', 5000), 'hex')",
    "jsonb": "to_jsonb(repeat('x', 5000))",
    "xml": "xmlparse(content repeat('x', 5000))",
    "hstore": "hstore('a', repeat('x', 5000))",
    "numeric": "repeat('123456789', 1500)::numeric",
    "numeric(1000,2)": "repeat('1234567890', 90)::numeric",
    "bit varying": "repeat('10', 30000)::varbit",
    "bytea[]": "array_fill('\\xab'::bytea, ARRAY[2000])",
    "date[]": "array_fill('2024-01-31'::date, ARRAY[1000])",
    "hstore[]": "array_fill('a=>1'::hstore, ARRAY[2000])",
    "uuid[]": "array_fill('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::uuid, ARRAY[2000])",
    "timestamp[]": "array_fill('2024-01-31'::timestamp, ARRAY[500])",
    "timestamptz[]": "array_fill('2024-01-31'::timestamptz, ARRAY[500])",
    "boolean[]": "array_fill(true, ARRAY[9000])",
    "time[]": "array_fill('12:34:56'::time, ARRAY[500])",
    "mood[]": "array_fill('sad'::mood, ARRAY[2000])",
    "path": "path(polygon(1000, '<(0,0),5>'::circle))",
    "polygon": "polygon(1000, '<(0,0),5>'::circle)",
}


def big(kind: str) -> str:
    """SQL of a value that is stored out of line. All of them as objects must fit into a record of 1 MB."""
    if kind in _BIG:
        return _BIG[kind]
    if kind.endswith("[]"):
        return f"array_fill('7'::{kind.removesuffix('[]')}, ARRAY[3000])"
    return "repeat('x', 5000)"


MODE_SETUP: Final = (
    *SETUP[:-1],
    "CREATE TABLE rare (id bigint PRIMARY KEY, "
    + ", ".join(f"{name} {kind}" for name, (kind, _) in RARE.items())
    + ")",
    "CREATE TABLE toasted (id bigint PRIMARY KEY, n integer, "
    + ", ".join(f"c{number} {kind}" for number, kind in enumerate(TOASTED))
    + ")",
    *(f"ALTER TABLE toasted ALTER c{number} SET STORAGE EXTERNAL" for number in range(len(TOASTED))),
    'CREATE TABLE "1st-name_" (id integer PRIMARY KEY, v text)',
    "CREATE TABLE dated (day date, at timestamp(3), v text, PRIMARY KEY (day, at))",
    SETUP[-1],
)
MODE_CHANGES: Final = (
    *CHANGES,
    *(
        f"INSERT INTO rare (id, {name}) VALUES ({100 * column + row}, '{value.replace(chr(39), chr(39) * 2)}')"
        for column, (name, (_, values)) in enumerate(RARE.items())
        for row, value in enumerate(values)
    ),
    "INSERT INTO toasted VALUES (1, 1, " + ", ".join([big(kind) for kind in TOASTED]) + ")",
    "UPDATE toasted SET n = 2",
    """INSERT INTO "1st-name_" VALUES (1, 'a')""",
    "INSERT INTO dated VALUES ('2024-01-31', '2024-01-31 12:34:56.789', 'a'), ('infinity', '-infinity', 'b')",
    "UPDATE dated SET day = day + 1 WHERE v = 'a'",
    "DELETE FROM dated WHERE v = 'b'",
    """BEGIN; INSERT INTO orders VALUES (5, 1, 'x'); UPDATE orders SET note = 'y'; INSERT INTO log VALUES ('z');
       SELECT pg_logical_emit_message(true, 'in', 'side'); COMMIT""",
)

_UNWRAP: Final = {
    "transforms": "unwrap",
    "transforms.unwrap.type": "io.debezium.transforms.ExtractNewRecordState",
    "transforms.unwrap.add.fields": "op,table,source.lsn:pos,source.ts_ms",
    "transforms.unwrap.add.headers": "op,source.txId:tx",
    "table.include.list": "public.orders,public.log",
}

VARIANTS: Final[dict[str, dict[str, str]]] = {
    "adaptive": {"tombstones.on.delete": "false"},
    "a-1_x": {
        "time.precision.mode": "adaptive_time_microseconds",
        "decimal.handling.mode": "precise",
        "interval.handling.mode": "numeric",
        "binary.handling.mode": "base64",
        "hstore.handling.mode": "map",
        "unavailable.value.placeholder": "<gone>",
        "schema.name.adjustment.mode": "avro",
        "skipped.operations": "u",
    },
    "2-b_c": {
        "time.precision.mode": "connect",
        "decimal.handling.mode": "double",
        "interval.handling.mode": "numeric",
        "binary.handling.mode": "base64-url-safe",
        "hstore.handling.mode": "map",
        "schema.name.adjustment.mode": "avro_unicode",
        "skipped.operations": "d,t",
    },
    "isostring": {
        "time.precision.mode": "isostring",
        "decimal.handling.mode": "precise",
        "binary.handling.mode": "hex",
    },
    "microseconds": {
        "time.precision.mode": "microseconds",
        "decimal.handling.mode": "double",
        "interval.handling.mode": "numeric",
        "binary.handling.mode": "hex",
        "unavailable.value.placeholder": "hex:c3a4",
    },
    "nanoseconds": {"time.precision.mode": "nanoseconds", "provide.transaction.metadata": "true"},
    "precise": {
        "decimal.handling.mode": "precise",
        "interval.handling.mode": "numeric",
        "binary.handling.mode": "base64-url-safe",
        "hstore.handling.mode": "map",
    },
    "structured": {"time.precision.mode": "structured", "interval.handling.mode": "numeric"},
    "skip-c": {"skipped.operations": "c"},
    **{
        f"flat-{mode}": {**_UNWRAP, "transforms.unwrap.delete.tombstone.handling.mode": mode}
        for mode in ("drop", "tombstone", "rewrite", "rewrite-with-tombstone", "delete-to-tombstone")
    },
}
"""The connectors' settings beside those of `capture.py`, by their topic prefix; "2-b_c" is none for Avro."""


def capture() -> dict[str, Any]:
    """The records by variant and topic: key, value and headers, parsed."""
    with tempfile.TemporaryDirectory(prefix="cdcd-debezium-") as name:
        folder = Path(name)
        # PostgreSQL runs as another user where this one is root.
        folder.chmod(0o711)
        with PostgresServer(18, folder / "postgres") as server, KafkaBroker(folder / "kafka") as broker:
            return _captured(folder, server, broker)


def _captured(folder: Path, server: PostgresServer, broker: KafkaBroker) -> dict[str, Any]:
    for statement in MODE_SETUP:
        server.execute(statement)
    slots = {prefix: f"debezium_{number}" for number, prefix in enumerate(VARIANTS)}
    for slot in slots.values():
        server.execute(f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')")
    for statement in MODE_CHANGES:
        server.execute(statement)
    connectors = {
        prefix: {
            **settings(),
            "topic.prefix": prefix,
            "slot.name": slots[prefix],
            **modes,
        }
        for prefix, modes in VARIANTS.items()
    }
    worker = start_connectors(folder, "worker", server, broker, connectors)
    try:
        records = read(broker, worker, list(VARIANTS))
    finally:
        worker.kill()
    variants = {each: _compact(topics) for each, topics in records.items()}
    return {"debezium": VERSION, "sent": sent_texts(server), "variants": variants}


def sent_texts(server: PostgresServer) -> dict[str, dict[str, str]]:
    """The values of `types` by column and of `rare` by row, as the server writes them on connections of cdcd's."""
    with psycopg.connect(server.dsn(options=PINNED)) as connection:
        # A cast of boolean or char(n) is not what their output functions write.
        columns = ", ".join(f"format('%s', c{number})" for number in range(len(TYPES)))
        (row,) = connection.execute(f"SELECT {columns} FROM types").fetchall()
        rare = ", ".join(f"CASE WHEN {name} IS NOT NULL THEN format('%s', {name}) END" for name in RARE)
        rows = connection.execute(f"SELECT id, coalesce({rare}) FROM rare ORDER BY id").fetchall()
    return {
        "types": {f"c{number}": text for number, text in enumerate(row)},
        "rare": {str(number): text for number, text in rows},
    }


def _compact(topics: dict[str, list[Any]]) -> dict[str, Any]:
    """By topic: the schemas of key and value once, and what each record says without what differs from run to run.

    Of an envelope's schema, only its name and that of a row are kept: the rest is in `json_schema.json`.
    """
    found: dict[str, Any] = {}
    for topic, records in sorted(topics.items()):
        table: dict[str, Any] = {"records": []}
        for record in records[-4:] if topic.endswith(".transaction") else records:
            if topic.endswith(".toasted") and record["value"]["payload"]["op"] == "c":
                # Its values are long, and like those of any other table.
                continue
            said: dict[str, Any] = {"headers": record["headers"]} if record["headers"] else {}
            for part in ("key", "value"):
                data = record[part]
                if data is not None and data["payload"] is None:
                    # JsonConverter writes an envelope around a null that a transformation made.
                    data = None
                if data is not None:
                    schema = _short(data["schema"])
                    if table.setdefault(part, schema) != schema:
                        said[f"{part}_schema"] = schema
                said[part] = None if data is None else _said(topic, data["payload"])
            table["records"].append(said)
        found[topic] = table
    return found


def _short(schema: dict[str, Any]) -> dict[str, Any]:
    (row,) = [each for each in schema["fields"] if each["field"] == "after"] or [None]
    return schema if row is None else {"name": schema["name"], "fields": [row]}


def _said(topic: str, payload: dict[str, Any]) -> dict[str, Any]:
    """Of a row of `rare`, the one column that it has."""
    left = {
        name: value for name, value in payload.items() if name not in {"source", "ts_ms", "ts_us", "ts_ns"}
    }
    if topic.endswith(".rare") and payload.get("after"):
        number = payload["after"]["id"] // 100
        column = list(RARE)[number]
        after = payload["after"]
        left["after"] = {"id": after["id"], **({column: after[column]} if column in after else {})}
    return left


def read(
    broker: KafkaBroker,
    worker: Child,
    prefixes: Sequence[str],
    least: Mapping[str, int] | None = None,
    quiet_s: float = QUIET_S,
) -> dict[str, dict[str, list[Any]]]:
    """Key, value and headers of each record, parsed, by prefix and topic, when no more have come for a while.

    Args:
        least: how many records each topic must have first. Each prefix must have one.
        quiet_s: the reading ends when no record has come for so long after that.
    """
    found: dict[str, dict[str, list[Any]]] = {prefix: {} for prefix in prefixes}
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "capture"})
    deadline = time.monotonic() + LIMIT_S * 2
    quiet = time.monotonic() + LIMIT_S
    known: set[str] = set()
    try:
        while time.monotonic() < quiet:
            if time.monotonic() > deadline or not worker.is_running():
                raise SystemExit(
                    f"{[(each, len(topics)) for each, topics in found.items()]}: not all records came"
                )
            message = consumer.poll(1.0) if known else None
            if message is None:
                listed = consumer.list_topics(timeout=10).topics
                topics = {topic for topic in listed if topic.partition(".")[0] in found}
                if topics - known:
                    consumer.incremental_assign([TopicPartition(topic, 0, 0) for topic in topics - known])
                    known |= topics
                continue
            if message.error():
                continue
            headers: Any = message.headers() or ()
            topic, key, value = str(message.topic()), message.key(), message.value()
            found[topic.partition(".")[0]].setdefault(topic, []).append(
                {
                    "key": None if key is None else json.loads(key),
                    "value": None if value is None else json.loads(value),
                    "headers": {
                        str(name): None if data is None else bytes(data).decode()
                        for name, data in headers
                        if not name.startswith("__debezium.context")
                    },
                }
            )
            missing = any(
                len(found[topic.partition(".")[0]].get(topic, ())) < count
                for topic, count in (least or {}).items()
            )
            quiet = time.monotonic() + (quiet_s if all(found.values()) and not missing else LIMIT_S)
    finally:
        consumer.close()
    return found


def main() -> None:
    GOLDEN.parent.mkdir(exist_ok=True)
    captured = capture()
    GOLDEN.write_text(
        json.dumps(captured, separators=(",", ":"), ensure_ascii=False).replace('{"key"', '\n{"key"') + "\n"
    )
    sys.stdout.write(f"{GOLDEN}: Debezium {captured['debezium']}\n")


if __name__ == "__main__":
    main()
