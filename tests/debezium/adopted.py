"""Connectors of the corpus at a real Debezium, and cdcd with what `cdcd adopt` makes of them: on one WAL, by record.

`python -m tests.debezium.adopted`. The connectors are those of `tests/unit/tools/adopt/corpus`, with the options that
`ADJUSTED` replaces for all of them and `CONNECTORS` for each: addresses, the slot, the publication and the prefix of
topics. Key, value, schema and headers of each record must be the same but for `FIELDS` of `comparing.py`, and `OWN`.

A connector that writes Avro has Kafka's JsonConverter with schemas here, because Confluent's converters are not in
Maven's central repository. cdcd writes Avro with a registry, and fastavro reads the records. Each value must be that of
Debezium's JSON. The Avro schema must follow from Debezium's Connect schema by Confluent's rules (`avro_schema`).
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from cdcd.core.records.avro.schemas import avro_schema
from deploy.demo.topics import Raw
from deploy.local import KafkaBroker, PostgresServer
from tests.bench.debezium import VERSION, connector_config, start_connectors
from tests.debezium.beside import QUIET_S, adopted, parsed, records
from tests.debezium.capture_modes import read
from tests.debezium.comparing import Compared, Comparing, Records, print_compared
from tests.debezium.formats import avro_schemas, plain
from tests.schema_registry import SchemaRegistry
from tests.scratch import scratch_folder
from tests.unit.core.records.avro.reading import as_avro_would
from tests.unit.tools.adopt.corpus import connectors

JSON: Final = "org.apache.kafka.connect.json.JsonConverter"
AVRO: Final = "io.confluent.connect.avro.AvroConverter"


@dataclass(frozen=True)
class Adopted:
    """A connector of the corpus.

    Attributes:
        what: what it shows.
        made_after: its name in the corpus, if two connectors here are made after one there.
        topics: what its topics begin with, before the first point.
        replaced: options with other values than in the corpus.
        loses_tombstones: True if a transform fails at a tombstone, and `errors.tolerance: all` skips it.
        signals: the topic that has the rows of the signal table, which Debezium captures though no list has it.
    """

    what: str
    topics: str
    replaced: Mapping[str, str] = field(default_factory=dict)
    made_after: str = ""
    loses_tombstones: bool = False
    signals: str = ""


CONNECTORS: Final[dict[str, Adopted]] = {
    "connect-120": Adopted(
        "flattened Avro with RegexRouter",
        "raw",
        # The configuration has the transform under names that nothing reads, to be put in by hand.
        {
            "topic.prefix": "raw",
            "transforms": "unwrap,addTopicSuffix",
            "transforms.unwrap.type": "io.debezium.transforms.ExtractNewRecordState",
        },
    ),
    "connect-108": Adopted(
        "RegexRouter for one schema, MaskField, transaction metadata",
        "shop",
        # Debezium 3.7 refuses `minimal`.
        {"snapshot.locking.mode": "none"},
        loses_tombstones=True,
        signals="shop.signals",
    ),
    "connect-013": Adopted(
        "masked columns, transaction metadata",
        "masked",
        # The configuration has `length` in the option's name, where Debezium wants the number, and so masks nothing.
        {"topic.prefix": "masked", "column.mask.with.12.chars": "app.customers.phone"},
    ),
    "connect-035": Adopted("an outbox with a JSON payload and a header", "dev"),
    "outbox-avro": Adopted(
        "the same outbox with keys and payloads in Avro",
        "avro",
        {
            "topic.prefix": "second",
            "key.converter": AVRO,
            "value.converter": AVRO,
            "transforms.outbox.route.topic.replacement": "avro.${routedByValue}",
        },
        made_after="connect-035",
    ),
    "connect-128": Adopted("flattened JSON with schemas, tombstones", "flat", {"topic.prefix": "flat"}),
}

ADJUSTED: Final[dict[str, str]] = {
    "database.dbname": "postgres",
    "publication.name": "p",
    "publication.autocreate.mode": "disabled",
    "snapshot.mode": "no_data",
    "topic.creation.default.partitions": "1",
}
LEFT_OUT: Final = (
    *("name", "database.hostname", "database.port", "database.user", "database.password"),
    *("heartbeat.interval.ms", "heartbeat.action.query"),
)
"""Options that are left out: the server's address and login, and heartbeats, whose records are of another moment."""

OWN: Final[dict[str, str]] = {
    ".schema.namespace": "Schemas have the names of the new topics, in Debezium those of the former ones.",
    ".schema.connect.name": "Schemas have the names of the new topics, in Debezium those of the former ones.",
    ".name.optional": "A column is optional unless it is in the key.",
    ".name.type": "A column is optional unless it is in the key.",
    ".name.default": "A column is optional unless it is in the key.",
    "key": "The key of an event is its text. Debezium's JsonConverter writes the text in quotes.",
    "key.schema.optional": "The key of an event in Avro is not optional.",
    "value.of": "A field of an event's JSON payload that is null is there.",
    "value.none": "A field of an event's JSON payload that is an empty array is there.",
    "value.lines": "A field that other objects of an array have is not added to an event's JSON payload.",
    "headers.x-request-id": "A header whose field is null is left out.",
    "value.before.phone": "A masked NULL is NULL.",
    "value.after.phone": "A masked NULL is NULL.",
}
"""Ends of the paths of fields that differ, each with the reason. docs/from-debezium.md has them for people."""
MASKED: Final = "*" * 12

_COLUMNS: Final = (
    "id bigint PRIMARY KEY, name text NOT NULL, email varchar(80), phone varchar(20), enabled boolean, status text[], "
    "total numeric(10,2), created_at timestamptz, updated_at timestamp(3), born date, payload jsonb, picture bytea"
)
_TABLES: Final = (
    "public.customers",
    "public.t1",
    "app.customers",
    "app.t1",
    "app.orders",
    "app.t2",
    "app.inventory",
    "app.signals",
)
SETUP: Final = (
    "CREATE SCHEMA app",
    *(f"CREATE TABLE {table} ({_COLUMNS})" for table in _TABLES),
    *(f"ALTER TABLE {table} REPLICA IDENTITY FULL" for table in _TABLES if table.startswith("app.")),
    (
        "CREATE TABLE public.outbox (id uuid PRIMARY KEY, aggregate_type text, aggregate_id text, type text, "
        "payload jsonb, request_id text)"
    ),
    # The topics of an outbox without a list are those that its rows name.
    "INSERT INTO public.outbox VALUES ('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', 'order', '0', 'Placed', '{}', 'r')",
    "INSERT INTO public.outbox VALUES ('b0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', 'payment', '0', 'Paid', '{}', 'r')",
    "CREATE PUBLICATION p FOR ALL TABLES",
)


def _changes(table: str) -> tuple[str, ...]:
    return (
        (
            f"INSERT INTO {table} VALUES (1, 'Ada', 'ada@example.com', '+49 170 1234567', true, '{{new,NULL}}', 12.50, "
            "'2024-01-31 12:34:56.789012+02', '2024-01-31 12:34:56.789', '1815-12-10', '{\"a\": [1]}', '\\xff00'), "
            "(2, 'Ünal', NULL, NULL, NULL, NULL, -0.01, NULL, NULL, NULL, NULL, NULL)"
        ),
        f"UPDATE {table} SET phone = '1', total = NULL WHERE id = 1",
        f"UPDATE {table} SET id = 3 WHERE id = 2",
        (
            f"BEGIN; INSERT INTO {table} (id, name) VALUES (4, ''); UPDATE {table} SET name = 'Grace' WHERE id = 4; "
            f"DELETE FROM {table} WHERE id = 4; COMMIT"
        ),
        f"DELETE FROM {table} WHERE id = 3",
    )


CHANGES: Final = (
    *(change for table in _TABLES for change in _changes(table)),
    (
        "BEGIN; INSERT INTO app.orders (id, name) VALUES (7, 'two'); INSERT INTO app.t2 (id, name) VALUES (7, 'two'); "
        "INSERT INTO public.outbox VALUES ('c0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', 'order', '7', 'Placed', "
        '\'{"total": 12.5, "lines": [{"n": 1}]}\', \'req-1\'); COMMIT'
    ),
    (
        "INSERT INTO public.outbox VALUES ('d0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', 'payment', '8', 'Paid', "
        '\'{"note": "ü", "of": null}\', NULL)'
    ),
    (
        "INSERT INTO public.outbox VALUES ('e0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', 'order', '9', 'Placed', "
        '\'{"id": 5000000000, "paid": true, "lines": [{"n": 1, "sku": "a"}, {"n": 2}], "tags": ["x"], "none": [], '
        '"to": {"zip": "1", "at": [[1.5]], "in": {"x": -1}}}\', NULL)'
    ),
    "DELETE FROM public.outbox WHERE aggregate_id = '8'",
)


def options(name: str, reader: str, registry: str) -> dict[str, str]:
    """The options of a connector, for cdcd (`reader` "cdcd") or Debezium."""
    corpus = connectors()[CONNECTORS[name].made_after or name]
    given = {key: value for key, value in corpus.items() if key not in LEFT_OUT}
    found = {**given, **ADJUSTED, **CONNECTORS[name].replaced, "slot.name": slot(name, reader)}
    for part in ("key", "value"):
        if found.get(f"{part}.converter") == AVRO:
            if reader == "cdcd":
                found[f"{part}.converter.schema.registry.url"] = registry
            else:
                found |= {f"{part}.converter": JSON, f"{part}.converter.schemas.enable": "true"}
    return found


def slot(name: str, reader: str) -> str:
    return f"{reader}_{name.replace('-', '_')}"


def from_avro(raws: list[Raw], registry: SchemaRegistry) -> Records:
    """Records in Avro, each part with its Avro schema beside its value."""
    schemas = avro_schemas(registry)

    def part(data: bytes | None) -> Any:
        if data is None:
            return None
        number, value = schemas.read(data)
        return {"schema": json.loads(registry.schemas[number]), "payload": value}

    found: Records = {}
    for raw in raws:
        headers = {name: (data or b"").decode() for name, data in raw.headers}
        record = {"key": part(raw.key), "value": part(raw.value), "headers": headers}
        found.setdefault(raw.topic, []).append(record)
    return found


def as_avro(theirs: Records, ours: Records) -> tuple[Records, Records]:
    """Debezium's records as Confluent's converter would write them in Avro, beside cdcd's.

    Fields of a schema are by their names, so that a difference names its field.
    """
    for topic, records_of in ours.items():
        for left, right in zip(theirs.get(topic, []), records_of, strict=False):
            for part in ("key", "value"):
                if left[part] is not None and left[part]["payload"] is None:
                    left[part] = None
                if left[part] is None or right[part] is None:
                    continue
                schema = right[part]["schema"]
                left[part] = {
                    "schema": _described(avro_schema(left[part]["schema"])),
                    "payload": as_avro_would(left[part]["payload"], plain(schema)),
                }
                right[part]["schema"] = _described(schema)
    return theirs, ours


def _described(schema: Any) -> Any:
    """The schema of a key or value, as a record's that may be optional."""
    is_optional = isinstance(schema, list)
    (record,) = [each for each in schema if each != "null"] if is_optional else [schema]
    named = _by_name(record)
    return {**(named if isinstance(named, dict) else {"type": named}), "optional": is_optional}


def _by_name(schema: Any) -> Any:
    if isinstance(schema, list):
        if all(isinstance(each, dict) and "name" in each and "type" in each for each in schema):
            return {each["name"]: _by_name(each) for each in schema}
        return [_by_name(each) for each in schema]
    if isinstance(schema, dict):
        return {key: _by_name(value) for key, value in schema.items()}
    return schema


class ComparingAdopted(Comparing):
    """As `Comparing`, with the fields of `OWN`."""

    def _is_listed(self, table: str, pair: tuple[Any, Any], path: str, theirs: Any) -> bool:
        entry = next(
            (why for end, why in OWN.items() if path == end or (end[0] == "." and path.endswith(end))), None
        )
        if entry is None or (path.endswith(".phone") and theirs != MASKED):
            return super()._is_listed(table, pair, path, theirs)
        self._found.listed[entry] += 1
        return True


def run(names: list[str], folder: Path) -> dict[str, Compared]:
    """The comparisons, by connector."""
    found: dict[str, Compared] = {}
    more = {"max_replication_slots": "20", "max_wal_senders": "20"}
    with (
        PostgresServer(18, folder / "postgres", settings=more) as server,
        KafkaBroker(folder / "kafka") as theirs,
        KafkaBroker(folder / "kafka-cdcd") as ours,
        SchemaRegistry() as registry,
    ):
        for statement in SETUP:
            server.execute(statement)
        for each in (slot(name, reader) for name in names for reader in ("debezium", "cdcd")):
            server.execute(f"SELECT pg_create_logical_replication_slot('{each}', 'pgoutput')")
        configs = {
            name: adopted(
                name, connector_config(server, options(name, "cdcd", registry.url)), server, ours, folder
            )
            for name in names
        }
        for statement in CHANGES:
            server.execute(statement)
        made: dict[str, Records] = {}
        for name, config in configs.items():
            raws = records(config, server.dsn(), folder, CONNECTORS[name].topics)
            is_avro = config["format"].get("value") == "avro"
            made[name] = from_avro(raws, registry) if is_avro else parsed(raws)
        given = {name: options(name, "debezium", registry.url) for name in names}
        least = Counter(
            topic
            for name in names
            for topic, some in made[name].items()
            for record in some
            if record["value"] is not None
        )
        prefixes = [CONNECTORS[name].topics for name in names]
        worker = start_connectors(folder, "worker", server, theirs, given)
        try:
            captured = read(theirs, worker, prefixes, least, QUIET_S)
        except SystemExit as error:
            log = (folder / "worker.log").read_text().splitlines()
            said = [line for line in log if "ERROR" in line or not line.startswith(("[", "\t"))]
            raise AssertionError(f"{error}\n{chr(10).join(said[-40:])}") from None
        finally:
            worker.kill()
        for name in names:
            topics = CONNECTORS[name].topics
            left, right = captured[topics], made[name]
            assert CONNECTORS[name].signals not in right
            left.pop(CONNECTORS[name].signals, None)
            if configs[name]["format"].get("value") == "avro":
                left, right = as_avro(left, right)
            if CONNECTORS[name].loses_tombstones:
                right = {
                    topic: [each for each in some if each["value"] is not None]
                    for topic, some in right.items()
                }
            found[name] = ComparingAdopted(topics, {}).compare(left, right)
    return found


def main() -> int:
    """0 if nothing is different but what the lists name."""
    parser = argparse.ArgumentParser(prog="python -m tests.debezium.adopted")
    parser.add_argument("--connectors", nargs="+", choices=list(CONNECTORS), default=list(CONNECTORS))
    names = parser.parse_args().connectors
    with scratch_folder("adopted") as folder:
        found = run(names, folder)
    print(f"Debezium {VERSION}, PostgreSQL 18, on one WAL")
    for name, compared in found.items():
        print_compared(f"{name} ({CONNECTORS[name].what})", compared)
    return 1 if any(compared.wrong for compared in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
