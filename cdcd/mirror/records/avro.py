"""Keys and values in Avro as JSON, by Spark's reader of Avro and the schemas that the schemas topic has.

A daemon with `format.change_header` writes each schema to the schemas topic beside its id. The rule: only what the
daemon writes is taken from such a text, because Spark raises for a schema that is malformed. Logical types are left
out, so that a value has the form that it has in JSON: bytes, and whole numbers.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any, Final

from pyspark.sql import Column
from pyspark.sql import functions as sf
from pyspark.sql.avro.functions import from_avro

from cdcd.core import bounded_json
from cdcd.core.errors import ConfigError
from cdcd.core.records.avro.schemas import adjusted_full_name, adjusted_name

_PRIMITIVES: Final = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*").fullmatch
_IMAGES: Final = ("before", "after")
_SCHEMA_BYTES_MAX: Final = 1 << 20
_NO_JAR: Final = "'JavaPackage' object is not callable"
_WHOLE: Final = {"ignoreNullFields": "false"}


@dataclass(frozen=True, slots=True)
class AvroSchema:
    """The schema of keys or values of a table.

    Attributes:
        text: the schema for Spark, of a record.
        name: full name of the record at the registry: `<topic>.Key`, `.Value` or `.Envelope`.
        fields: names of the fields of a row.
        skipped: number of bytes before the record, which say that there is one.
    """

    text: str
    name: str
    fields: tuple[str, ...]
    skipped: int


def read_schema(text: str) -> AvroSchema:
    """Read a schema as the daemon registers it for a table. ValueError: it is another one."""
    try:
        return _read_schema(bounded_json.parse(text.encode(), _SCHEMA_BYTES_MAX))
    except KeyError as error:
        raise ValueError(f"it lacks {error}") from None


def _read_schema(data: Any) -> AvroSchema:
    skipped = 0
    if isinstance(data, list):
        branches = [each for each in data if each != "null"]
        if len(branches) != 1 or len(data) > 2:
            raise ValueError("it is a union of several types")
        # A row to which nothing is added: one byte names the branch of the union.
        (data,), skipped = branches, len(data) - 1
    known: dict[str, list[str]] = {}
    schema = _bare(data, known)
    if not isinstance(schema, dict) or schema["type"] != "record":
        raise ValueError("it is no record")
    name = _full_name(schema)
    fields = known[name]
    if name.endswith(".Envelope"):
        if not set(_IMAGES) <= set(fields):
            raise ValueError("it is an envelope without rows")
        fields = known.get(name.removesuffix("Envelope") + "Value", [])
    if not fields:
        raise ValueError("its rows have no fields")
    return AvroSchema(json.dumps(schema), name, tuple(fields), skipped)


def _bare(schema: object, known: dict[str, list[str]]) -> Any:
    """The schema without all that does not change how bytes are read.

    Args:
        known: names of fields by full name of a record, of the records so far.
    """
    if isinstance(schema, list):
        branches = [_bare(each, known) for each in schema]
        if len(branches) > 2 or (len(branches) == 2 and "null" not in branches):
            raise ValueError("it has a union of several types")
        return branches
    if isinstance(schema, str):
        if schema not in _PRIMITIVES and schema not in known:
            raise ValueError("it has a type that is not known")
        return schema
    data = bounded_json.fields(schema)
    kind = data.get("type")
    if kind == "record":
        name = _full_name(data)
        if name in known or not _NAME(name):
            raise ValueError("it has a record twice, or one without a name")
        known[name] = names = []
        fields = []
        for each in bounded_json.items(data["fields"]):
            field = bounded_json.fields(each)
            names.append(bounded_json.text(field["name"]))
            fields.append({"name": names[-1], "type": _bare(field["type"], known)})
        if len(set(names)) < len(names) or not all(map(_NAME, names)):
            raise ValueError("it has a field twice, or one without a name")
        return {"type": "record", "name": name, "fields": fields}
    if kind == "array":
        return {"type": kind, "items": _bare(data["items"], known)}
    if kind == "map":
        return {"type": kind, "values": _bare(data["values"], known)}
    return _bare(kind, known)


def _full_name(data: Mapping[str, Any]) -> str:
    name, namespace = bounded_json.text(data["name"]), bounded_json.text(data.get("namespace", ""))
    return f"{namespace}.{name}" if namespace and "." not in name else name


class AvroSchemas:
    """The schemas of the keys and values of one table, by the bytes before a key or value that name a schema."""

    def __init__(self) -> None:
        self._by_head: dict[bytes, AvroSchema] = {}

    def take(self, head: bytes, schema: AvroSchema) -> None:
        """Take a schema that the schemas topic has."""
        self._by_head[head] = schema

    def json_of(self, data: Column, names: Sequence[str], *, of_key: bool) -> Column:
        """The JSON of a key or value; of an envelope, its rows. NULL if the bytes name no known schema.

        Args:
            names: of the table's columns.

        Raises:
            ConfigError: Spark has no reader of Avro.
        """
        found = sf.lit(None).cast("string")
        by_field = {adjusted_name(name): name for name in names}
        for head, schema in self._by_head.items():
            if of_key == schema.name.endswith(".Key"):
                is_it = sf.substring(data, 1, len(head)) == sf.lit(head)
                found = sf.when(is_it, _read(data, len(head), schema, by_field)).otherwise(found)
        return found


def namespace(topic: str) -> str:
    """The namespace of the schemas of a topic's keys and values."""
    return adjusted_full_name(topic)


def _read(data: Column, head: int, schema: AvroSchema, names: Mapping[str, str]) -> Column:
    rest = sf.substring(data, head + schema.skipped + 1, 2**31 - 1)
    try:
        record = from_avro(rest, schema.text, {"mode": "PERMISSIVE"})
    except TypeError as error:
        if str(error) != _NO_JAR:
            raise
        raise ConfigError(
            "The records are in Avro, and Spark has no reader of Avro.",
            hint="Start Spark with the package org.apache.spark:spark-avro of its own version: "
            "python -c 'from cdcd.spark.jars import *; print(coordinates([AVRO]))'",
        ) from None

    # Each mention of a column is computed by itself in a branch of CASE. The variable of a lambda is computed once.
    return sf.get(sf.transform(sf.array(record), lambda each: _shown(each, schema, names)), sf.lit(0))


def _shown(record: Column, schema: AvroSchema, names: Mapping[str, str]) -> Column:
    """The JSON of a record, with the names of columns."""

    def row(value: Column) -> Column:
        return sf.struct(*[value[name].alias(names.get(name, name)) for name in schema.fields])

    if schema.name.endswith(".Envelope"):
        images = [sf.when(record[image].isNotNull(), row(record[image])).alias(image) for image in _IMAGES]
        return sf.to_json(sf.struct(*images), _WHOLE)
    # A record that cannot be read has null in all fields. A row has a value in its key.
    has_value = reduce(or_, [record[name].isNotNull() for name in schema.fields], sf.lit(False))
    return sf.when(has_value, sf.to_json(row(record), _WHOLE))
