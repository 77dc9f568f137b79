"""cdcd's other formats beside its JSON: what each format's own libraries read must be what JSON has."""

import json
from collections.abc import Callable
from typing import Any, Final

from deploy.demo.topics import Raw
from tests.debezium import java_avro
from tests.debezium.comparing import Compared, differences, leaves
from tests.schema_registry import SchemaRegistry
from tests.unit.core.records.avro import reading as avro
from tests.unit.core.records.cloudevents import reading as cloudevents
from tests.unit.core.records.protobuf import reading as protobuf

FORMATS: Final = ("avro", "protobuf", "cloudevents")
VOLATILE: Final = frozenset({"ts_ms", "ts_us", "ts_ns", "tsMs", "tsUs", "tsNs"})
"""When a record was made, by the names of JSON and of Protobuf."""
NO_ROOM: Final = (
    "a placeholder in a type without room for it, such as boolean[], is null; cdcd.unchanged names it"
)
OF_A_RUN: Final = frozenset({"name", "schema_id", "schemaId"})
"""Fields of `source` that differ from pipeline to pipeline."""


Headers = tuple[tuple[str, bytes], ...]
Read = Callable[[Any, bytes, Headers], tuple[Any, Any]]
"""What a value of JSON is in the format, and what the record has there, as key or value with these headers."""


def compare_formats(in_json: list[Raw], in_format: list[Raw], read: Read) -> Compared:
    """Compare the records of a format with those in JSON: each key and value must be the same."""
    found = Compared()
    plain, other = by_topic(in_json), by_topic(in_format)
    for topic in sorted({*plain, *other}):
        left, right = plain.get(topic, []), other.get(topic, [])
        if len(left) != len(right):
            found.wrong.append(f"{topic}: {len(left)} records in JSON, {len(right)} in the format")
            continue
        for pair in zip(left, right, strict=True):
            found.records += 1
            for part in ("key", "value"):
                compare_parts(topic, part, pair, read, found)
    return found


def by_topic(raws: list[Raw]) -> dict[str, list[Raw]]:
    """The records by their topics' names without the prefix."""
    found: dict[str, list[Raw]] = {}
    for raw in raws:
        found.setdefault(raw.topic.partition(".")[2], []).append(raw)
    return found


def compare_parts(topic: str, part: str, pair: tuple[Raw, Raw], read: Read, found: Compared) -> None:
    """Compare the keys, or the values, of a record in JSON and of one in the format."""
    text, data = (getattr(each, part) for each in pair)
    if text is None or data is None:
        if text is not data:
            found.wrong.append(f"{topic}: {part} is {text!r} in JSON, and {data!r} in the format")
        return
    headers = pair[1].headers
    payload = json.loads(text)["payload"]
    if part == "value":
        payload = avro.without(payload, columns_of(headers, "cdcd.unwritable"))
    expected, there = read(payload, data, headers)
    found.values += leaves(there)
    unchanged = columns_of(headers, "cdcd.unchanged")
    for path, theirs, value in differences("", steady(expected), steady(there)):
        if value is None and path.rpartition(".")[2] in unchanged:
            found.listed[NO_ROOM] += 1
        else:
            found.wrong.append(f"{topic}: {part}.{path}: {theirs!r} in JSON, {value!r} in the format")


def columns_of(headers: Headers, name: str) -> list[str]:
    """The columns that a header names."""
    columns: list[str] = json.loads(dict(headers).get(name) or b"[]")
    return columns


def steady(value: Any, name: str = "") -> Any:
    """Without what differs from run to run."""
    if not isinstance(value, dict):
        return value
    left_out = VOLATILE if name != "source" else OF_A_RUN
    return {key: steady(each, key) for key, each in value.items() if key not in left_out}


def reading(form: str, registry: SchemaRegistry) -> Read:
    """How the format's own library reads what the registry describes."""
    if form == "avro":
        schemas = avro_schemas(registry)

        def read_avro(value: Any, data: bytes, _: Headers) -> tuple[Any, Any]:
            schema_id, found = schemas.read(data)
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


def compare_java(raws: list[Raw], registry: SchemaRegistry) -> Compared:
    """Java's Avro must read what fastavro reads."""
    found = Compared(records=len(raws))
    values = [value for raw in raws for value in (raw.key, raw.value) if value is not None]
    schemas = avro_schemas(registry)
    for value, there in zip(values, java_avro.read(values, schemas.texts), strict=True):
        _, expected = schemas.read(value)
        found.values += leaves(expected)
        found.wrong += [
            f"{path}: {theirs!r} by fastavro, {ours!r} by Java"
            for path, theirs, ours in differences("", expected, avro.json_of(there))
        ]
    return found


def avro_schemas(registry: SchemaRegistry) -> avro.Schemas:
    """The schemas of Avro without logical types: fastavro then gives the numbers and bytes that JSON has."""
    found = avro.Schemas()
    # A schema of Protobuf is no JSON.
    found.texts = {
        number: json.dumps(plain(json.loads(text)))
        for number, text in registry.schemas.items()
        if text.startswith(("{", "[", '"'))
    }
    return found


def plain(schema: Any) -> Any:
    """The schema without logical types."""
    if isinstance(schema, dict):
        return {key: plain(value) for key, value in schema.items() if key != "logicalType"}
    return [plain(each) for each in schema] if isinstance(schema, list) else schema
