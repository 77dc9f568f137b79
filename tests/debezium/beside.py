"""A real Debezium and cdcd on one WAL, with the same settings, record by record: `python -m tests.debezium.beside`.

One worker of Kafka Connect runs a connector for each variant of `capture_modes.py`, on the changes of that module. Each
slot is copied before. `cdcd adopt` makes a configuration of each connector, and `cdcd run` reads the copy of its slot,
to topics of the same names on a broker of its own. Key, value, schema and headers of each record must be the same, but
for what the tests list with reasons: `DIFFERENCES` and `DIFFERENT` by type and value, `FIELDS` below by name.

cdcd then reads the same WAL in Avro, in Protobuf and as CloudEvents. Google's runtime, fastavro, Java's Avro and the
CNCF's SDK must read the values that JSON has. For this, the tables of `tests/altered_tables.py` are altered in all
their ways, with rows between.

    python -m tests.debezium.beside [--variants adaptive isostring …] [--formats avro protobuf cloudevents]
"""

import argparse
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psycopg
import yaml

from deploy.demo.fold import await_flushed
from deploy.demo.topics import Raw, Reader
from deploy.local import KafkaBroker, PostgresServer
from deploy.local.cache import REPOSITORY
from tests.altered_tables import CASES, LIVE, Altered, created
from tests.bench.debezium import VERSION, start_connectors
from tests.debezium import java_avro
from tests.debezium.capture import TYPES, settings
from tests.debezium.capture_modes import MODE_CHANGES, MODE_SETUP, RARE, TOASTED, VARIANTS, read, sent_texts
from tests.integration.daemon import Daemon
from tests.schema_registry import SchemaRegistry
from tests.scratch import scratch_folder
from tests.unit.formats.avro import reading as avro
from tests.unit.formats.cloudevents import reading as cloudevents
from tests.unit.formats.debezium_json.test_debezium_modes import DIFFERENCES, MODES
from tests.unit.formats.debezium_json.test_debezium_schemas import DIFFERENT
from tests.unit.formats.protobuf import reading as protobuf

FIELDS: Final[dict[str, str]] = {
    **dict.fromkeys(
        ("source.commit_lsn", "source.event_serial_no", "source.schema_id", "headers.cdcd.unchanged"),
        "Only cdcd has it.",
    ),
    "headers.cdcd.unwritable": "Only cdcd has it: the null has a reason.",
    "source.version": "The version of the program.",
    "source.sequence": "Its first element is the last commit before, which Debezium forgets at a start.",
    **dict.fromkeys(("ts_ms", "ts_us", "ts_ns"), "When the record was made."),
    **dict.fromkeys(
        ("headers.__debezium.newkey", "headers.__debezium.oldkey"),
        "With the schema of the key, if that has one. Debezium's depend on the worker's header.converter.",
    ),
    "transaction.id": "One for the whole transaction. Debezium has the LSN of each event in it.",
    **dict.fromkeys(
        ("transaction", "transaction.total_order", "event_count", "data_collections"),
        "Logical messages have no place in a transaction, and are not counted.",
    ),
    "data_collections.items.optional": "An element of the list in END is never null. Debezium 3.7 says that it may be.",
}
"""Fields that are not compared, each with the reason. docs/from-debezium.md has them for people."""

OF_TOPIC: Final = {"transaction": "message", "event_count": "transaction", "data_collections": "transaction"}
"""Of these fields, the topic in which they are not compared."""

WITHOUT_RECORDS: Final = "BEGIN and END of a transaction without records"
PLACEHOLDER: Final = "a value that was not sent, of a type for which Debezium has no placeholder"
ENVELOPE_OF_NULL: Final = "JsonConverter's envelope around a value that a transformation made null"

LIMIT_S: Final = 300.0
QUIET_S: Final = 3.0
"""So long no record of Debezium's must come when there are as many as cdcd has."""
FORMATS: Final = ("avro", "protobuf", "cloudevents")
VOLATILE: Final = frozenset({"ts_ms", "ts_us", "ts_ns", "tsMs", "tsUs", "tsNs"})
"""When a record was made, by the names of JSON and of Protobuf."""
NO_ROOM: Final = (
    "a placeholder in a type without room for it, such as boolean[], is null; cdcd.unchanged names it"
)
OF_A_RUN: Final = frozenset({"name", "schema_id", "schemaId"})
"""Fields of `source` that differ from pipeline to pipeline."""

Records = dict[str, list[dict[str, Any]]]
"""By topic: key, value and headers of each record, parsed, where null stands for none."""


@dataclass
class Compared:
    """What was compared, and what is different though no list says so."""

    records: int = 0
    values: int = 0
    listed: Counter[str] = field(default_factory=Counter)
    """How many values of each entry of the lists were different."""
    wrong: list[str] = field(default_factory=list)


class Comparing:
    """The records of one variant, theirs beside ours."""

    def __init__(self, variant: str, sent: dict[str, dict[str, str]], found: Compared) -> None:
        self._variant = variant
        self._sent = sent
        self._found = found

    def compare(self, theirs: Records, ours: Records) -> None:
        for topic in sorted(topic for topic in {*theirs, *ours} if not is_altered(topic)):
            left, right = theirs.get(topic, []), ours.get(topic, [])
            if topic == f"{self._variant}.transaction":
                left, right = by_transaction(left), by_transaction(right)
                known = {record["key"]["payload"]["id"] for record in right}
                more = [record for record in left if record["key"]["payload"]["id"] not in known]
                left = [record for record in left if record not in more]
                self._found.listed[WITHOUT_RECORDS] += len(more)
            if len(left) != len(right):
                self._found.wrong.append(
                    f"{topic}: {len(left)} records of Debezium's, {len(right)} of cdcd's"
                )
                continue
            for place, pair in enumerate(zip(left, right, strict=True)):
                self._found.records += 1
                table = topic.rpartition(".")[2]
                if (pair[0]["value"] or {}).get("payload", "") is None:
                    self._found.listed[ENVELOPE_OF_NULL] += 1
                    pair[0]["value"] = None
                for path, their_value, our_value in differences("", *pair):
                    if not self._is_listed(table, pair, path, their_value):
                        self._found.wrong.append(
                            f"{topic}[{place}]: {path}: {their_value!r} of Debezium's, {our_value!r} of cdcd's"
                        )
                self._found.values += sum(1 for _ in leaves(pair[1]))

    def _is_listed(self, table: str, pair: tuple[Any, Any], path: str, theirs: Any) -> bool:
        name = ".".join(each for each in path.split(".") if each not in PARTS)
        is_field = name in FIELDS and OF_TOPIC.get(name, table) == table
        entry = name if is_field else self._reason(table, pair, name, theirs)
        if entry is not None:
            self._found.listed[entry] += 1
        return entry is not None

    def _reason(self, table: str, pair: tuple[Any, Any], name: str, theirs: Any) -> str | None:
        """The entry of the lists that says why a column is different."""
        image, _, column = name.partition(".")
        column = column.partition(".")[0]
        if image not in {"before", "after"}:
            return None
        kind, text = self._value(table, pair[0], column)
        if kind in DIFFERENT:
            return kind
        if theirs is None and column in json.loads(pair[1]["headers"].get("cdcd.unchanged", "[]")):
            return PLACEHOLDER
        modes = MODES.get(self._variant)
        if modes is None or table == "toasted":
            return None
        return next(
            (entry for entry, (_, applies) in DIFFERENCES.items() if applies(kind, text, modes)), None
        )

    def _value(self, table: str, record: Any, column: str) -> tuple[str, str]:
        """The type of a column, and its value as the server sends it."""
        if table == "types" and column in self._sent["types"]:
            return TYPES[int(column[1:])][0], self._sent["types"][column]
        if table == "rare" and column in RARE:
            number = (record["value"]["payload"].get("after") or {}).get("id")
            return RARE[column][0], self._sent["rare"].get(str(number), "")
        if table == "toasted" and column not in {"id", "n"}:
            return TOASTED[int(column[1:])], ""
        return "", ""


def by_transaction(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Records of BEGIN and END, with the number of the transaction as `id`."""
    for record in records:
        for part in ("key", "value"):
            payload = record[part]["payload"]
            payload["id"] = payload["id"].partition(":")[0]
    return records


def differences(path: str, theirs: Any, ours: Any) -> Iterator[tuple[str, Any, Any]]:
    """Where two values differ: the path, and both. Schemas are compared by the names of their fields."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for name in {**theirs, **ours}:
            yield from differences(
                f"{path}.{name}".lstrip("."), theirs.get(name, MISSING), ours.get(name, MISSING)
            )
    elif are_fields(theirs) and are_fields(ours):
        by_name = [{each["field"]: each for each in side} for side in (theirs, ours)]
        yield from differences(path, *by_name)
    elif theirs != ours:
        yield path, theirs, ours


MISSING: Final = "(missing)"
PARTS: Final = frozenset({"key", "value", "schema", "payload", "fields"})
"""Of a path, what says nothing of the field."""


def are_fields(value: Any) -> bool:
    """Whether it is the list of a schema's fields."""
    return isinstance(value, list) and all(isinstance(each, dict) and "field" in each for each in value)


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from leaves(each)
    else:
        yield value


def is_altered(topic: str) -> bool:
    """Whether it is of a table that is altered. Those are compared between formats only."""
    return topic.rpartition(".")[2].startswith(tuple(f"{name}_{LIVE}" for name in CASES))


def alter(server: PostgresServer) -> None:
    """Each of the altered tables gets rows, and goes through all its steps."""
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        altered = Altered(connection, LIVE)
        for name, case in CASES.items():
            for _ in range(3):
                altered.insert(name)
            for number in range(len(case.steps)):
                altered.step(name, number)
            altered.delete(name)


def slot_of(variant: str, reader: str) -> str:
    """The slot by which a reader has the changes."""
    return f"{reader}_{list(VARIANTS).index(variant)}"


def connector(variant: str, server: PostgresServer) -> dict[str, str]:
    """What `start_connectors` tells the connector of a variant, as its file has it."""
    return {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "database.hostname": "127.0.0.1",
        "database.port": str(server.port),
        "database.user": "postgres",
        "plugin.name": "pgoutput",
        "publication.autocreate.mode": "disabled",
        "snapshot.mode": "no_data",
        **connector_settings(variant),
    }


def connector_settings(variant: str) -> dict[str, str]:
    return {
        **settings(),
        "topic.prefix": variant,
        "slot.name": slot_of(variant, "debezium"),
        **VARIANTS[variant],
    }


def adopted(variant: str, server: PostgresServer, broker: KafkaBroker, folder: Path) -> dict[str, Any]:
    """The configuration that `cdcd adopt` writes. The publication that it asks for is made."""
    source, written = folder / f"{variant}.json", folder / f"{variant}.yaml"
    source.write_text(json.dumps({"name": variant, "config": connector(variant, server)}))
    command = [sys.executable, "-m", "cdcd.cli", "adopt", str(source), "--output", str(written)]
    done = subprocess.run(
        [*command, "--kafka", broker.bootstrap_servers, "--format", "json"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    publication = json.loads(done.stdout)["publication"]
    if publication is not None:
        server.execute(publication["statement"])
    found: dict[str, Any] = yaml.safe_load(written.read_text())
    return found


def records(config: Mapping[str, Any], dsn: str, folder: Path) -> list[Raw]:
    """What a run with this configuration writes until its slot has confirmed everything, but for its own topics."""
    with Daemon(folder / config["name"], {**config, "http": {"port": 0}}) as daemon:
        daemon.start()
        daemon.await_streaming()
        try:
            await_flushed(dsn, config["postgres"]["slot"], LIMIT_S)
        except TimeoutError as error:
            raise AssertionError(daemon.last_words()) from error
        assert daemon.stop() == 0, daemon.last_words()
    with Reader(config["kafka"]["bootstrap_servers"], config["topics"]["prefix"]) as reader:
        return list(reader.read_all(LIMIT_S))


def parsed(raws: list[Raw]) -> Records:
    found: Records = {}
    for raw in raws:
        found.setdefault(raw.topic, []).append(
            {
                "key": None if raw.key is None else json.loads(raw.key),
                "value": None if raw.value is None else json.loads(raw.value),
                "headers": {name: (data or b"").decode() for name, data in raw.headers},
            }
        )
    return found


def compare_formats(in_json: list[Raw], in_format: list[Raw], read: "Read", found: Compared) -> None:
    """Every value in the format is the one that JSON has."""
    if len(in_json) != len(in_format):
        found.wrong.append(f"{len(in_json)} records in JSON, {len(in_format)} in the format")
        return
    by_topic: tuple[dict[str, list[Raw]], dict[str, list[Raw]]] = ({}, {})
    for side, raws in zip(by_topic, (in_json, in_format), strict=True):
        for raw in raws:
            side.setdefault(raw.topic.partition(".")[2], []).append(raw)
    for topic, left in by_topic[0].items():
        right = by_topic[1].get(topic, [])
        if len(left) != len(right):
            found.wrong.append(f"{topic}: {len(left)} records in JSON, {len(right)} in the format")
            continue
        for ours, other in zip(left, right, strict=True):
            found.records += 1
            headers = dict(other.headers)
            unwritable, unchanged = (
                json.loads(headers.get(f"cdcd.{name}") or b"[]") for name in ("unwritable", "unchanged")
            )
            for part in ("key", "value"):
                text, data = getattr(ours, part), getattr(other, part)
                if text is None or data is None:
                    if text is not data:
                        found.wrong.append(f"{topic}: {part} is {text!r} in JSON, and {data!r} in the format")
                    continue
                payload = json.loads(text)["payload"]
                if part == "value":
                    payload = without(payload, unwritable)
                expected, there = read(payload, data, other.headers)
                found.values += sum(1 for _ in leaves(there))
                for path, theirs, value in differences("", steady(expected), steady(there)):
                    if value is None and path.rpartition(".")[2] in unchanged:
                        found.listed[NO_ROOM] += 1
                    else:
                        found.wrong.append(
                            f"{topic}: {part}.{path}: {theirs!r} in JSON, {value!r} in the format"
                        )


Headers = tuple[tuple[str, bytes], ...]
Read = Callable[[Any, bytes, Headers], tuple[Any, Any]]
"""What a value of JSON is in the format, and what the record has there, as key or value with these headers."""


def without(payload: Any, columns: list[str]) -> Any:
    """The payload with null for these columns."""
    for image in ("before", "after"):
        for column in columns if payload.get(image) else ():
            payload[image][column] = None
    for column in columns if "before" not in payload else ():
        payload[column] = None
    return payload


def steady(value: Any, name: str = "") -> Any:
    """Without what differs from run to run."""
    if not isinstance(value, dict):
        return value
    left_out = VOLATILE if name != "source" else OF_A_RUN
    return {key: steady(each, key) for key, each in value.items() if key not in left_out}


def reading(form: str, registry: SchemaRegistry) -> Read:
    """How the format's own library reads what the registry describes."""
    if form == "avro":
        in_avro = avro.Schemas()

        def read_avro(value: Any, data: bytes, _: Headers) -> tuple[Any, Any]:
            schema_id = int.from_bytes(data[1:5], "big")
            # Without logical types, fastavro gives the numbers and bytes that JSON has.
            in_avro.texts[schema_id] = json.dumps(plain(json.loads(registry.schemas[schema_id])))
            found = in_avro.read(data)[1]
            return avro.as_avro_would(value, json.loads(registry.schemas[schema_id])), found

        return read_avro
    if form == "cloudevents":
        return read_event
    in_protobuf = protobuf.Schemas(in_order=False)
    in_protobuf.texts = registry.schemas

    def read_protobuf(value: Any, data: bytes, _: Headers) -> tuple[Any, Any]:
        schema_id, found = in_protobuf.read(data)
        return protobuf.expected(value, in_protobuf.descriptor(schema_id)), found

    return read_protobuf


def read_event(value: Any, data: bytes, headers: Headers) -> tuple[Any, Any]:
    """Of an event, its data are compared: rows, a message, or BEGIN and END. Of a key, all."""
    if not {"op", "status"} & set(value):
        return value, json.loads(data)
    event = cloudevents.read_event(("", None, data, list(headers)))
    names = set(value) if "status" in value else {"message"} if value["op"] == "m" else {"before", "after"}
    return {name: value[name] for name in names}, event.get_data()


def compare_java(raws: list[Raw], schemas: dict[int, str], found: Compared) -> None:
    """Java's Avro reads what fastavro reads."""
    values = [value for raw in raws for value in (raw.key, raw.value) if value is not None]
    # The registry has those of other formats, too.
    used = {int.from_bytes(value[1:5], "big") for value in values}
    texts = {number: json.dumps(plain(json.loads(schemas[number]))) for number in used}
    by_fastavro = avro.Schemas()
    by_fastavro.texts = texts
    found.records = len(raws)
    for value, there in zip(values, java_avro.read(values, texts), strict=True):
        _, expected = by_fastavro.read(value)
        found.values += sum(1 for _ in leaves(expected))
        found.wrong += [
            f"{path}: {theirs!r} by fastavro, {ours!r} by Java"
            for path, theirs, ours in differences("", expected, avro.json_of(there))
        ]


def plain(schema: Any) -> Any:
    """The schema without logical types."""
    if isinstance(schema, dict):
        return {key: plain(value) for key, value in schema.items() if key != "logicalType"}
    return [plain(each) for each in schema] if isinstance(schema, list) else schema


def run(variants: Sequence[str], formats: Sequence[str], folder: Path) -> dict[str, Compared]:
    """What was compared, by variant and format."""
    found: dict[str, Compared] = {}
    more = {"max_replication_slots": "80", "max_wal_senders": "80"}
    with (
        PostgresServer(18, folder / "postgres", settings=more) as server,
        KafkaBroker(folder / "kafka") as theirs,
        KafkaBroker(folder / "kafka-cdcd") as ours,
        SchemaRegistry() as registry,
    ):
        for statement in (*MODE_SETUP, *(created(LIVE, CASES) if formats else ())):
            server.execute(statement)
        readers = ["debezium", "cdcd", *formats]
        for slot in (slot_of(variant, reader) for variant in variants for reader in readers):
            server.execute(f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')")
        configs = {variant: adopted(variant, server, ours, folder) for variant in variants}
        for statement in MODE_CHANGES:
            server.execute(statement)
        if formats:
            alter(server)
        sent = sent_texts(server)
        in_json: dict[str, list[Raw]] = {}
        for variant, config in configs.items():
            config["postgres"]["slot"] = slot_of(variant, "cdcd")
            in_json[variant] = records(config, server.dsn(), folder)
            # Flattened records are JSON.
            for form in formats if "transforms" not in VARIANTS[variant] else ():
                other = in_form(config, form, slot_of(variant, form), registry.url)
                in_format = records(other, server.dsn(), folder)
                found[f"{variant}, {form}"] = compared = Compared()
                compare_formats(in_json[variant], in_format, reading(form, registry), compared)
                if form == "avro" and java_avro.has_compiler():
                    in_java = Compared()
                    found[f"{variant}, {form} in Java"] = in_java
                    compare_java(in_format, registry.schemas, in_java)
        least = Counter(raw.topic for raws in in_json.values() for raw in raws if not is_altered(raw.topic))
        each = {variant: connector_settings(variant) for variant in variants}
        worker = start_connectors(folder, "worker", server, theirs, each)
        try:
            captured = read(theirs, worker, variants, least, QUIET_S)
        finally:
            worker.kill()
        for variant, raws in in_json.items():
            found[variant] = Compared()
            Comparing(variant, sent, found[variant]).compare(captured[variant], parsed(raws))
    return found


def in_form(config: Mapping[str, Any], form: str, slot: str, url: str) -> dict[str, Any]:
    """The configuration with another format, as a pipeline of its own."""
    return {
        **config,
        "name": f"{config['name']}_{form}",
        "postgres": {**config["postgres"], "slot": slot},
        "topics": {**config["topics"], "prefix": f"{config['topics']['prefix']}-{form}"},
        "format": {**config["format"], "key": "json" if form == "cloudevents" else form, "value": form},
        "registry": {"url": url},
    }


def main() -> int:
    """0 if nothing is different but what the lists name."""
    parser = argparse.ArgumentParser(prog="python -m tests.debezium.beside")
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--formats", nargs="*", choices=FORMATS, default=list(FORMATS))
    options = parser.parse_args()
    with scratch_folder("debezium") as folder:
        found = run(options.variants, options.formats, folder)
    print(f"Debezium {VERSION}, PostgreSQL 18, on one WAL")
    if not java_avro.has_compiler():
        print("NOT TESTED Java's Avro: it needs a JDK (Debian: default-jdk-headless)")
    for name, compared in found.items():
        listed = ", ".join(f"{entry}: {count}" for entry, count in sorted(compared.listed.items()))
        print(
            f"{name}: {compared.records} records, {compared.values} values, {len(compared.wrong)} wrong; "
            f"listed: {listed or 'nothing'}"
        )
        for line in compared.wrong[:40]:
            print("   ", line[:300])
    return 1 if any(compared.wrong for compared in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
