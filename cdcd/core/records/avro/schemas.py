"""The Avro schema for a Connect schema, as Confluent's AvroConverter derives it (`io.confluent.connect.avro.AvroData`).

The rules are those of `AvroData.fromConnectSchema` with `connect.meta.data=true` (the default):

- An optional schema becomes a union. `null` is its first branch and the field's default. If the schema has a
  default of its own, `null` is the last branch, and that default is the field's.
- int8 and int16 become `int` with `connect.type`. Name, version, parameters, documentation and default are written
  beside the type as `connect.name`, `connect.version`, `connect.parameters`, `connect.doc` and `connect.default`.
- A struct becomes a record. The part of its name before the last dot is the namespace. Where a record occurs a
  second time, only its name is written.
- A map whose keys are not strings becomes an array of records `MapEntry` with the fields `key` and `value`.
- Connect's Decimal, Date, Time and Timestamp become Avro's logical types.

Names are adjusted as by Debezium's `schema.name.adjustment.mode: avro` and `field.name.adjustment.mode: avro`:
characters that Avro does not allow in names become underscores.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from cdcd.core.errors import ConfigError
from cdcd.core.records.debezium_json.connect_schema import Schema

_NAMESPACE: Final = "io.confluent.connect.avro"
_MAP_ENTRY: Final = "MapEntry"
DECIMAL: Final = "org.apache.kafka.connect.data.Decimal"
_PRECISION_DEFAULT: Final = 64
_LETTERS: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_")
_DIGITS: Final = frozenset("0123456789")

_PRIMITIVES: Final[Mapping[str, str]] = {
    "int8": "int",
    "int16": "int",
    "int32": "int",
    "int64": "long",
    "float": "float",
    "double": "double",
    "boolean": "boolean",
    "string": "string",
    "bytes": "bytes",
}
_NARROW: Final = ("int8", "int16")
_LOGICAL: Final[Mapping[str, str]] = {
    "org.apache.kafka.connect.data.Date": "date",
    "org.apache.kafka.connect.data.Time": "time-millis",
    "org.apache.kafka.connect.data.Timestamp": "timestamp-millis",
}


def adjusted_name(name: str) -> str:
    """Return the name in the form that Avro allows for a field, or for one part of a record's name between dots."""
    letters = [each if each in _LETTERS or each in _DIGITS else "_" for each in name]
    if not letters or letters[0] in _DIGITS:
        letters.insert(0, "_")
    return "".join(letters)


def adjusted_full_name(name: str) -> str:
    """Return a name with a namespace in the form that Avro allows."""
    return ".".join([adjusted_name(part) for part in name.split(".")])


def avro_schema(schema: Schema) -> Any:
    """Return the Avro schema for a Connect schema, as a JSON object.

    Raises:
        ConfigError: two fields of a record, or two different records, have the same name after the adjustment.
    """
    return _any(schema, {})


def schema_text(schema: Schema) -> str:
    """Return the Avro schema for a Connect schema, as text."""
    return json.dumps(avro_schema(schema), ensure_ascii=False, separators=(",", ":"))


def is_string_map(schema: Schema) -> bool:
    """Return whether a Connect map becomes a map in Avro too."""
    return bool(schema["keys"]["type"] == "string" and not schema["keys"]["optional"])


def _any(schema: Schema, known: dict[str, Schema]) -> Any:
    base = _base(schema, known)
    if not schema["optional"]:
        return base
    return [base, "null"] if has_default(schema) else ["null", base]


def has_default(schema: Schema) -> bool:
    """Return whether a schema has a default that is not null."""
    return schema.get("default") is not None


def _base(schema: Schema, known: dict[str, Schema]) -> Any:
    kind = schema["type"]
    if kind in _PRIMITIVES:
        base: dict[str, Any] = {"type": _PRIMITIVES[kind]}
    else:
        made = _COMPOUND[kind](schema, known)
        if isinstance(made, str):
            return made
        base = made
    name = schema.get("name")
    if name == DECIMAL:
        base |= _decimal(schema)
    properties = {
        "connect.doc": schema.get("doc"),
        "connect.version": schema.get("version"),
        "connect.parameters": schema.get("parameters"),
        "connect.default": schema.get("default"),
        "connect.name": adjusted_full_name(name) if name is not None else None,
        "connect.type": kind if kind in _NARROW else None,
        "logicalType": _LOGICAL.get(name or ""),
    }
    base |= {each: value for each, value in properties.items() if value is not None}
    return base["type"] if len(base) == 1 else base


def _decimal(schema: Schema) -> dict[str, Any]:
    parameters = schema.get("parameters", {})
    scale = int(parameters.get("scale", 0))
    precision = int(parameters.get("connect.decimal.precision", _PRECISION_DEFAULT))
    size = {"scale": scale, "precision": precision}
    # Avro does not allow a decimal with a negative scale, or with a scale above the precision.
    return size | ({"logicalType": "decimal"} if 0 <= scale <= precision else {})


def _record(schema: Schema, known: dict[str, Schema]) -> Any:
    full = adjusted_full_name(schema["name"])
    if full in known:
        if known[full]["fields"] != schema["fields"]:
            raise ConfigError(
                f"Two records with different fields are both named {full!r} in Avro.",
                hint="Use format.value: json.",
            )
        return full
    known[full] = schema
    namespace, _, name = full.rpartition(".")
    fields = [_field(each["field"], each, known) for each in schema["fields"]]
    names: dict[str, str] = {}
    for each in schema["fields"]:
        adjusted = adjusted_name(each["field"])
        other = names.setdefault(adjusted, each["field"])
        if other != each["field"]:
            raise ConfigError(
                f"Columns {other!r} and {each['field']!r} of the records {schema['name']} are both {adjusted!r} in "
                "Avro, which allows letters, digits and underscores in names.",
                hint="Rename one of the two columns, leave one out (columns.exclude), or use format.value: json.",
            )
    return {"type": "record", "name": name, "namespace": namespace, "fields": fields}


def _field(name: str, schema: Schema, known: dict[str, Schema]) -> dict[str, Any]:
    field: dict[str, Any] = {"name": adjusted_name(name), "type": _any(schema, known)}
    if has_default(schema):
        field["default"] = schema["default"]
    elif schema["optional"]:
        field["default"] = None
    return field


def _array(schema: Schema, known: dict[str, Schema]) -> Any:
    return {"type": "array", "items": _any(schema["items"], known)}


def _map(schema: Schema, known: dict[str, Schema]) -> Any:
    if is_string_map(schema):
        return {"type": "map", "values": _any(schema["values"], known)}
    full = f"{_NAMESPACE}.{_MAP_ENTRY}"
    if full in known:
        return {"type": "array", "items": full}
    known[full] = schema
    fields = [_field("key", schema["keys"], known), _field("value", schema["values"], known)]
    entry = {"type": "record", "name": _MAP_ENTRY, "namespace": _NAMESPACE, "fields": fields}
    return {"type": "array", "items": entry}


_COMPOUND: Final[Mapping[str, Callable[[Schema, dict[str, Schema]], Any]]] = {
    "struct": _record,
    "array": _array,
    "map": _map,
}
