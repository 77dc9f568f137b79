"""Descriptions of tables: what a reader of their records needs to know of the columns, which no record says.

The topic `topics.schemas` (compacted) has one record for each form of each table. The key is `{"table", "schema"}`,
where `schema` is the fingerprint of the description, and so the same whenever and by whomever it is made. Every change
names it in `source.schema_id`. A description stands in the Kafka transaction of the first change that names it, before
it; each life of the daemon writes those that it meets again, and compaction removes the repeats.

The value:

```
{"schema":"public","table":"orders","topic":"shop.public.orders","fingerprint":"0f3a…","key":["id"],"columns":[
 {"name":"id","id":1,"type":"bigint","type_oid":20,"modifier":-1,"form":"int64","default":null},…]}
```

`id` is `pg_attribute.attnum`, which tells a renamed column from a new one; null where the catalog had moved on before
it was asked. `default` is what rows hold that are older than the column (ADD COLUMN … DEFAULT), as a record would have
it; null for NULL. Descriptions of older daemons have PostgreSQL's text of it instead, as `missing`. `form` says how
values are written, after domains, enums and arrays are looked through:

| form | JSON |
|---|---|
| `boolean`, `int16`, `int32`, `int64`, `float32`, `float64` | boolean, number; "NaN", "Infinity", "-Infinity" |
| `decimal(p,s)`, `decimal` | text of a number; "NAN", "POSITIVE_INFINITY", "NEGATIVE_INFINITY" |
| `bytes`, `bits` | base64; of a bit string as a little-endian number |
| `date` | days since 1970 |
| `time`, `timestamp` | microseconds; milliseconds as `time_ms`, `timestamp_ms` |
| `timestamptz` | ISO 8601 text |
| `point`, `object` | an object |
| `json` | text that is JSON |
| `text` | text |
| any with `[]` | arrays of it, `[][]` for as many dimensions as are declared |

The finer rules are those of `values.py`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

from cdcd.protocol.messages import Column, Relation
from cdcd.records.relations import (
    BUILTIN_TYPES,
    CatalogColumn,
    TableDescription,
    TypeDescription,
    key_columns,
)
from cdcd.records.values import converter_for
from cdcd.records.wiretext import to_bytes, wire

FINGERPRINT_DIGITS: Final = 16

_NESTING_MAX: Final = 64

_FORMS: Final[Mapping[int, str]] = {
    16: "boolean",
    17: "bytes",
    20: "int64",
    21: "int16",
    23: "int32",
    26: "int64",  # oid, without a sign
    114: "json",
    600: "point",
    700: "float32",
    701: "float64",
    790: "decimal(19,2)",  # money
    1082: "date",
    3802: "json",  # jsonb
}
_EXTENSION_FORMS: Final[Mapping[str, str]] = {
    "geography": "object",
    "geometry": "object",
    "halfvec": "float64[]",
    "hstore": "json",
    "sparsevec": "object",
    "vector": "float64[]",
}


@dataclass(frozen=True, slots=True)
class ColumnForm:
    """A column as it is described; the module's head says what the fields hold."""

    name: str
    id: int | None
    type: str
    type_oid: int
    modifier: int
    form: str
    missing: str | None = None
    default: str | None = None
    """The JSON text of the description's `default`."""


@dataclass(frozen=True, slots=True)
class TableForm:
    """A table as it is described."""

    schema: str
    table: str
    topic: str
    key: tuple[str, ...]
    columns: tuple[ColumnForm, ...]

    @property
    def fingerprint(self) -> str:
        """Of everything that is in it; the same text each time."""
        return sha256(_json(self._data()).encode()).hexdigest()[:FINGERPRINT_DIGITS]

    def record(self) -> tuple[bytes, bytes]:
        """Key and value of the description's record."""
        fingerprint = self.fingerprint
        key = {"table": f"{self.schema}.{self.table}", "schema": fingerprint}
        return _json(key).encode(), _json({**self._data(), "fingerprint": fingerprint}).encode()

    def _data(self) -> dict[str, Any]:
        columns = [
            {
                "name": column.name,
                "id": column.id,
                "type": column.type,
                "type_oid": column.type_oid,
                "modifier": column.modifier,
                "form": column.form,
                "default": None if column.default is None else json.loads(column.default),
            }
            for column in self.columns
        ]
        return {
            "schema": self.schema,
            "table": self.table,
            "topic": self.topic,
            "key": list(self.key),
            "columns": columns,
        }


def _json(data: object) -> str:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))


def read_form(value: bytes) -> tuple[str, TableForm]:
    """The fingerprint in a description's record, and the description.

    Raises:
        ValueError: it is no description.
    """
    try:
        data = json.loads(value)
        form = TableForm(
            schema=data["schema"],
            table=data["table"],
            topic=data["topic"],
            key=tuple(data["key"]),
            columns=tuple([_read_column(column) for column in data["columns"]]),
        )
        return str(data["fingerprint"]), form
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not the description of a table: {error}") from None


def _read_column(data: dict[str, Any]) -> ColumnForm:
    default = data.get("default")
    return ColumnForm(**{**data, "default": None if default is None else _json(default)})


def table_form(
    relation: Relation, table: TableDescription, types: Mapping[int, TypeDescription], topic: str
) -> TableForm:
    """Describe a relation as a Relation message and the catalog have it."""
    found = _in_catalog(relation, table)
    columns = [_column_form(column, found[index], types) for index, column in enumerate(relation.columns)]
    return TableForm(relation.schema, relation.name, topic, key_columns(relation, table), tuple(columns))


def _in_catalog(relation: Relation, table: TableDescription) -> list[CatalogColumn | None]:
    """For each column what the catalog has, if that is certain.

    The message is as of its place in the WAL, the catalog as of now. A column that has its name and type is the same.
    Where no column was ever dropped and none came since, those with other names were renamed.
    """
    columns, known = relation.columns, table.columns
    by_name = {(column.name, column.type_oid): column for column in known}
    found = [by_name.get((column.name, column.type_oid)) for column in columns]
    if None in found and [column.id for column in known] == list(range(1, len(columns) + 1)):
        return list(known)
    return found


def _column_form(
    column: Column, known: CatalogColumn | None, types: Mapping[int, TypeDescription]
) -> ColumnForm:
    oid, modifier = column.type_oid, column.type_modifier
    form = form_of(oid, modifier, types, dimensions=1 if known is None else known.dimensions)
    if known is None:
        described = types.get(oid) or BUILTIN_TYPES.get(oid)
        name = f"oid {oid}" if described is None else described.name
        return ColumnForm(column.name, None, name, oid, modifier, form)
    default = _default(column, known, types)
    return ColumnForm(column.name, known.id, known.type, oid, modifier, form, default=default)


def _default(column: Column, known: CatalogColumn, types: Mapping[int, TypeDescription]) -> str | None:
    """What a record would have for the value of rows that are older than the column, as JSON."""
    if known.missing is None:
        return None
    converter = converter_for(column.type_oid, column.type_modifier, types)
    try:
        return _json(json.loads(to_bytes(converter.json(wire(known.missing)))))
    except ValueError:
        # The catalog is as of now: the text is of another type than the column had then, so it is not its default.
        return None


def form_of(
    oid: int, modifier: int, types: Mapping[int, TypeDescription], *, dimensions: int = 1, nesting: int = 0
) -> str:
    """How values of a type are written. The same way through domains and arrays as `values.converter_for` goes."""
    form = _FORMS.get(oid) or _form_by_modifier(oid, modifier)
    if form is not None:
        return form
    description = BUILTIN_TYPES.get(oid) or types.get(oid)
    if description is None or nesting > _NESTING_MAX:
        return "text"
    if description.kind == "d":
        return form_of(
            description.base_oid,
            description.base_modifier,
            types,
            dimensions=dimensions,
            nesting=nesting + 1,
        )
    if description.is_array:
        element = form_of(description.element_oid, modifier, types, nesting=nesting + 1)
        return element + "[]" * max(1, dimensions)
    if description.kind == "b" and description.namespace != "pg_catalog":
        return _EXTENSION_FORMS.get(description.name, "text")
    return "text"


def _form_by_modifier(oid: int, modifier: int) -> str | None:
    """Types whose form depends on what stands in the parentheses behind their name."""
    match oid:
        case 1083:
            return "time_ms" if 0 <= modifier <= 3 else "time"
        case 1114:
            return "timestamp_ms" if 0 <= modifier <= 3 else "timestamp"
        case 1184:
            return "timestamptz"
        case 1560:
            return "boolean" if modifier == 1 else "bits"
        case 1562:
            # Of one bit it is a boolean, of none an empty text.
            return "text" if modifier == 1 else "bits"
        case 1700:
            if modifier < 4:
                return "decimal"
            packed = modifier - 4
            # numeric.c, make_numeric_typmod: since 15 the scale has 11 bits and a sign.
            return f"decimal({packed >> 16 & 0xFFFF},{((packed & 0x7FF) ^ 1024) - 1024})"
    return None
