"""Kafka Connect's schemas of records, in the form of its JsonConverter with `schemas.enable`, and with Debezium's
names.

A record with a schema is `{"schema":…,"payload":…}`. The schema is made once for each description of a table, as
bytes with which every record of the table begins. Names, versions, documentation and parameters are Debezium's;
tests compare them with recordings of a real Debezium (`tests/debezium/`). There are these differences, because
cdcd's records need them:

- `source` also has `commit_lsn`, `event_serial_no` and `schema_id`.
- A column is optional unless it belongs to the record's key. Debezium goes by NOT NULL instead, and writes 0 or ""
  for such columns in a `before` that has the key only, where cdcd writes null.
- No field has a `default`, because cdcd does not know the defaults of columns.
- The labels of an enum are in the order in which they were added to the type.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from cdcd.core.catalog.field_names import Pairs
from cdcd.core.catalog.logical import LogicalType
from cdcd.core.catalog.modes import DEFAULTS, Modes, logical_type_under
from cdcd.core.catalog.protection import EXCLUDE, ColumnRule
from cdcd.core.catalog.relations import TypeDescription
from cdcd.core.catalog.types import GEOMETRIC, decimal_size
from cdcd.core.protocol.messages import Column, Relation
from cdcd.core.records.flattening import DELETED_FIELD, AddedField

WITH_SCHEMA: Final = "json_schema"
"""Name of the format whose records have a schema."""

Schema = dict[str, Any]

SINGLE: Final = 1
"""Declared length of a bit string that becomes a boolean."""
MILLIS_DIGITS: Final = 3
LENGTH_MAX: Final = 2_147_483_647
"""Length for a bit string without a declared length."""


def primitive(
    kind: str,
    *,
    optional: bool = True,
    name: str | None = None,
    doc: str | None = None,
    parameters: Mapping[str, str] | None = None,
) -> Schema:
    """Return the schema of a primitive type; with a name, it is a semantic type of version 1."""
    schema: Schema = {"type": kind, "optional": optional}
    if name is not None:
        schema |= {"name": name, "version": 1}
    if doc is not None:
        schema["doc"] = doc
    if parameters is not None:
        schema["parameters"] = dict(parameters)
    return schema


def struct(
    fields: Mapping[str, Schema],
    name: str,
    *,
    optional: bool = True,
    version: int | None = None,
    doc: str | None = None,
) -> Schema:
    """Return the schema of an object."""
    schema: Schema = {
        "type": "struct",
        "fields": [{**each, "field": field} for field, each in fields.items()],
        "optional": optional,
        "name": name,
    }
    if version is not None:
        schema["version"] = version
    if doc is not None:
        schema["doc"] = doc
    return schema


def _named(kind: str, name: str) -> Callable[[LogicalType], Schema]:
    return lambda _: primitive(kind, name=f"io.debezium.{name}")


def _plain(kind: str) -> Callable[[LogicalType], Schema]:
    return lambda _: primitive(kind)


def _bits(logical: LogicalType) -> Schema:
    if logical.modifier == SINGLE:
        return primitive("boolean")
    length = logical.modifier if logical.modifier > 0 else LENGTH_MAX
    return primitive("bytes", name="io.debezium.data.Bits", parameters={"length": str(length)})


def _enum(logical: LogicalType) -> Schema:
    allowed = ",".join([label for _, label in logical.labels])
    return primitive("string", name="io.debezium.data.Enum", parameters={"allowed": allowed})


def _is_millis(logical: LogicalType) -> bool:
    return 0 <= logical.modifier <= MILLIS_DIGITS


def _time(logical: LogicalType) -> Schema:
    if _is_millis(logical):
        return primitive("int32", name="io.debezium.time.Time")
    return primitive("int64", name="io.debezium.time.MicroTime")


def _timestamp(logical: LogicalType) -> Schema:
    return primitive("int64", name=f"io.debezium.time.{'' if _is_millis(logical) else 'Micro'}Timestamp")


_WKB: Final = primitive("bytes", optional=False)
_SRID: Final = primitive("int32")


_DOUBLE: Final = primitive("double", optional=False)
_POINT: Final = struct(
    {"x": _DOUBLE, "y": _DOUBLE, "wkb": primitive("bytes"), "srid": _SRID},
    "io.debezium.data.geometry.Point",
    version=1,
    doc="Geometry (POINT)",
)
_CIRCLE: Final = struct(
    {"center": {**_POINT, "optional": False}, "radius": _DOUBLE},
    "io.debezium.data.geometry.Circle",
    version=1,
    doc="Geometry (CIRCLE)",
)
_LINE: Final = struct(
    {"a": _DOUBLE, "b": _DOUBLE, "c": _DOUBLE},
    "io.debezium.data.geometry.Line",
    version=1,
    doc="Geometry (LINE)",
)
_TEXTS: Final[Schema] = {
    "type": "map",
    "keys": primitive("string", optional=False),
    "values": primitive("string", optional=False),
    "optional": True,
}
_EXTENDED: Final = struct(
    {"wkb": _WKB, "srid": _SRID, "extensions": _TEXTS},
    "io.debezium.data.geometry.Geometry",
    version=2,
    doc="Geometry",
)


def _same(schema: Schema) -> Callable[[LogicalType], Schema]:
    return lambda _: schema


def _geometry(name: str) -> Callable[[LogicalType], Schema]:
    fields = {"wkb": _WKB, "srid": _SRID}
    return _same(struct(fields, f"io.debezium.data.geometry.{name}", version=1, doc=name))


_DAY: Final = {"year": "int32", "month": "int8", "day": "int8"}
_CLOCK: Final = {"hour": "int8", "minute": "int8", "second": "int8", "nanos": "int32"}
_ZONE: Final = {"offsetSeconds": "int32"}
_SPECIAL: Final = {"specialValue": "string"}
_PRECISION: Final = {"precision": "int32"}
_DURATION: Final = {
    **dict.fromkeys(("years", "months", "days", "hours", "minutes"), "int32"),
    "seconds": "int64",
    "nanos": "int32",
}


def _structured(name: str, kinds: Mapping[str, str]) -> Callable[[LogicalType], Schema]:
    fields = {field: primitive(kind) for field, kind in kinds.items()}
    return _same(struct(fields, f"io.debezium.time.Structured{name}", version=1))


def _vector(name: str, kind: str) -> Callable[[LogicalType], Schema]:
    items = primitive(kind, optional=False)
    return lambda _: {
        "type": "array",
        "items": items,
        "optional": True,
        "name": f"io.debezium.data.{name}",
        "version": 1,
    }


def _sparse_vector(_: LogicalType) -> Schema:
    short = primitive("int16", optional=False)
    pairs = {
        "type": "map",
        "keys": short,
        "values": primitive("double", optional=False),
        "optional": False,
    }
    return struct({"dimensions": short, "vector": pairs}, "io.debezium.data.SparseDoubleVector", version=1)


def _array(logical: LogicalType) -> Schema:
    assert logical.element is not None, "an array has elements"
    return {"type": "array", "items": schema_of(logical.element), "optional": True}


def _connect(kind: str, name: str) -> Callable[[LogicalType], Schema]:
    return lambda _: primitive(kind, name=f"org.apache.kafka.connect.data.{name}")


def _decimal(logical: LogicalType) -> Schema:
    size = decimal_size(logical.modifier)
    assert size is not None, "one without a declared precision is decimal_variable"
    return _connect_decimal({"scale": str(size[1]), "connect.decimal.precision": str(size[0])})


def _money(logical: LogicalType) -> Schema:
    return _connect_decimal({"scale": str(logical.modifier)})


def _connect_decimal(parameters: Mapping[str, str]) -> Schema:
    return primitive("bytes", name="org.apache.kafka.connect.data.Decimal", parameters=parameters)


def _variable_decimal(_: LogicalType) -> Schema:
    fields = {"scale": primitive("int32", optional=False), "value": primitive("bytes", optional=False)}
    return struct(fields, "io.debezium.data.VariableScaleDecimal", version=1, doc="Variable scaled decimal")


def _text_map(_: LogicalType) -> Schema:
    return {
        "type": "map",
        "keys": primitive("string", optional=False),
        "values": primitive("string"),
        "optional": True,
    }


SCHEMAS: Final[Mapping[str, Callable[[LogicalType], Schema]]] = {
    "array": _array,
    "bits": _bits,
    "boolean": _plain("boolean"),
    "bytes": _plain("bytes"),
    "date": _named("int32", "time.Date"),
    "decimal": _plain("string"),
    "enum": _enum,
    "float32": _plain("float"),
    "float64": _plain("double"),
    **dict.fromkeys(GEOMETRIC, _plain("string")),
    "geography": _geometry("Geography"),
    "geometry": _geometry("Geometry"),
    "halfvec": _vector("FloatVector", "float"),
    "hstore": _named("string", "data.Json"),
    "int16": _plain("int16"),
    "int32": _plain("int32"),
    "int64": _plain("int64"),
    "interval": _named("string", "time.Interval"),
    "json": _named("string", "data.Json"),
    "jsonb": _named("string", "data.Json"),
    "ltree": _named("string", "data.Ltree"),
    "money": _plain("string"),
    "oid": _plain("int64"),
    "point": _same(_POINT),
    "sparsevec": _sparse_vector,
    "text": _plain("string"),
    "time": _time,
    "timestamp": _timestamp,
    "timestamptz": _named("string", "time.ZonedTimestamp"),
    "timetz": _named("string", "time.ZonedTime"),
    "tsvector": _named("string", "data.Tsvector"),
    "uuid": _named("string", "data.Uuid"),
    "vector": _vector("DoubleVector", "double"),
    "xml": _named("string", "data.Xml"),
    "box_struct": _same(_EXTENDED),
    "bytes_base64": _plain("string"),
    "bytes_base64_url": _plain("string"),
    "bytes_hex": _plain("string"),
    "circle_struct": _same(_CIRCLE),
    "date_connect": _connect("int32", "Date"),
    "date_iso": _named("string", "time.IsoDate"),
    "date_struct": _structured("Date", {**_DAY, **_SPECIAL}),
    "decimal_bytes": _decimal,
    "decimal_double": _plain("double"),
    "decimal_variable": _variable_decimal,
    "geometry_struct": _same(_EXTENDED),
    "hstore_map": _text_map,
    "interval_micros": _named("int64", "time.MicroDuration"),
    "interval_struct": _structured("Duration", {**_DURATION, **_PRECISION}),
    "line_struct": _same(_LINE),
    "lseg_struct": _same(_EXTENDED),
    "money_bytes": _money,
    "money_double": _plain("double"),
    "path_struct": _same(_EXTENDED),
    "polygon_struct": _same(_EXTENDED),
    "time_connect": _connect("int32", "Time"),
    "time_iso": _named("string", "time.IsoTime"),
    "time_micros": _named("int64", "time.MicroTime"),
    "time_nanos": _named("int64", "time.NanoTime"),
    "time_struct": _structured("Time", {**_CLOCK, **_PRECISION}),
    "timestamp_connect": _connect("int64", "Timestamp"),
    "timestamp_iso": _named("string", "time.IsoTimestamp"),
    "timestamp_micros": _named("int64", "time.MicroTimestamp"),
    "timestamp_nanos": _named("int64", "time.NanoTimestamp"),
    "timestamp_struct": _structured("Timestamp", {**_DAY, **_CLOCK, **_SPECIAL, **_PRECISION}),
    "timestamptz_struct": _structured(
        "ZonedTimestamp", {**_DAY, **_CLOCK, **_ZONE, "zoneId": "string", **_SPECIAL, **_PRECISION}
    ),
    "timetz_struct": _structured("ZonedTime", {**_CLOCK, **_ZONE, **_PRECISION}),
}
"""The schema of each logical type (`catalog/types.py`), for a column that may be NULL."""


def schema_of(logical: LogicalType) -> Schema:
    """Return the schema of values of a logical type that may be NULL."""
    return SCHEMAS[logical.name](logical)


_MARKERS: Final = "true,first,first_in_data_collection,last_in_data_collection,last,false,incremental"

NUMBER: Final = primitive("int64")
TEXT: Final = primitive("string", optional=False)
_SOURCE_FIELDS: Final[Mapping[str, Schema]] = {
    "version": TEXT,
    "connector": TEXT,
    "name": TEXT,
    "ts_ms": primitive("int64", optional=False),
    "snapshot": primitive("string", name="io.debezium.data.Enum", parameters={"allowed": _MARKERS})
    | {"default": "false"},
    "db": TEXT,
    "sequence": primitive("string"),
    "ts_us": NUMBER,
    "ts_ns": NUMBER,
    "schema": TEXT,
    "table": TEXT,
    "txId": NUMBER,
    "lsn": NUMBER,
    "xmin": NUMBER,
    "origin": primitive("string"),
    "origin_lsn": NUMBER,
    "commit_lsn": NUMBER,
    "event_serial_no": NUMBER,
    "schema_id": primitive("string"),
}
SOURCE: Final = struct(_SOURCE_FIELDS, "io.debezium.connector.postgresql.Source", optional=False, version=1)
_ENVELOPE: Final[Mapping[str, Schema]] = {"op": TEXT, "ts_ms": NUMBER, "ts_us": NUMBER, "ts_ns": NUMBER}
TRANSACTION: Final = struct(
    {
        "id": TEXT,
        "total_order": primitive("int64", optional=False),
        "data_collection_order": primitive("int64", optional=False),
    },
    "event.block",
    version=1,
)


def _column(
    column: Column, types: Mapping[int, TypeDescription], rule: ColumnRule | None, modes: Modes
) -> Schema:
    """Return the schema of a column's values, or of the texts that replace them under a rule."""
    if rule is not None:
        return primitive("string")
    return schema_of(logical_type_under(modes, column.type_oid, column.type_modifier, types))


def schema_of_key(
    relation: Relation,
    key: Collection[int],
    types: Mapping[int, TypeDescription],
    topic: str,
    rules: Sequence[ColumnRule | None] = (),
    *,
    modes: Modes = DEFAULTS,
    bare: bool = False,
    constants: Pairs = (),
) -> Schema:
    """Return the schema of a table's keys.

    Args:
        key: indexes of the key's columns in the relation, in the key's order.
        bare: whether a key is the value of its one column, without a struct around it.
        constants: fields that follow the columns in each key.
    """
    rules = rules or [None] * len(relation.columns)
    fields = {
        relation.columns[place].name: {
            **_column(relation.columns[place], types, rules[place], modes),
            "optional": False,
        }
        for place in key
    }
    if bare:
        (only,) = fields.values()
        return only
    return struct({**fields, **{name: TEXT for name, _ in constants}}, f"{topic}.Key", optional=False)


def envelope_schema(
    relation: Relation,
    key: Collection[int],
    types: Mapping[int, TypeDescription],
    topic: str,
    rules: Sequence[ColumnRule | None] = (),
    *,
    modes: Modes = DEFAULTS,
    constants: Pairs = (),
) -> Schema:
    """Return the schema of a table's envelopes; `rules` says how each column of the relation is protected."""
    row = struct(_columns(relation, key, types, rules, modes, constants), f"{topic}.Value")
    fields = {
        "before": row,
        "after": row,
        "source": SOURCE,
        "transaction": TRANSACTION,
        **_ENVELOPE,
    }
    return struct(fields, f"{topic}.Envelope", optional=False, version=2)


def flat_schema(
    relation: Relation,
    key: Collection[int],
    types: Mapping[int, TypeDescription],
    topic: str,
    rules: Sequence[ColumnRule | None] = (),
    *,
    modes: Modes = DEFAULTS,
    constants: Pairs = (),
    added: Sequence[AddedField] = (),
    has_deleted: bool = False,
) -> Schema:
    """Return the schema of a table's flattened records: the row, `__deleted` if `has_deleted`, and the added fields."""
    fields = _columns(relation, key, types, rules, modes, constants)
    if has_deleted:
        fields[DELETED_FIELD] = primitive("string")
    for each in added:
        known = _SOURCE_FIELDS if each.field.startswith("source.") else _ENVELOPE
        schema = known[each.field.removeprefix("source.")]
        fields[each.name] = {name: said for name, said in schema.items() if name != "default"} | {
            "optional": True
        }
    # ExtractNewRecordState copies the schema that the row has in the envelope, but not that it is optional there.
    return struct(fields, f"{topic}.Value", optional=False)


def _columns(
    relation: Relation,
    key: Collection[int],
    types: Mapping[int, TypeDescription],
    rules: Sequence[ColumnRule | None],
    modes: Modes,
    constants: Pairs,
) -> dict[str, Schema]:
    """Return the fields of a row. The columns of `relation` have the names of the fields."""
    return {name: TEXT for name, _ in constants} | {
        column.name: {**_column(column, types, rule, modes), "optional": place not in key}
        for place, (column, rule) in enumerate(
            zip(relation.columns, rules or [None] * len(relation.columns), strict=True)
        )
        if rule is None or rule.action != EXCLUDE
    }


def opening(schema: Schema) -> bytes:
    """Return the beginning of every record with this schema; the payload follows, and then `CLOSING`."""
    return b'{"schema":%b,"payload":' % json.dumps(schema, ensure_ascii=False, separators=(",", ":")).encode()


CLOSING: Final = b"}"
