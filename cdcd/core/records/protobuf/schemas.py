"""The .proto text (proto3) for a Connect schema: one file with one message, in which all others are nested.

The rules are those of Confluent's ProtobufConverter (`io.confluent.connect.protobuf.ProtobufData`) with
`optional.for.nullables`, except where these would lose something; docs/protobuf.md has the list:

- A struct becomes a message. The part of its name before the last dot is the package. Fields are numbered from 1.
- A column has its attribute number in PostgreSQL, which is never reused and stays the same when the column is
  renamed. Numbers in between that no column has are reserved. A column whose attribute number is not known gets a
  number above `UNKNOWN`, which is computed from its name.
- Every column may be null, even in the key: a field that is missing is NULL, and a field that is there may be 0.
- An array becomes a message with `repeated elements`, so that NULL and an empty array are distinguished. An element
  that may be null is itself a message. A map becomes a message with `entries` in the same way.
- Connect's Decimal, Date, Time and Timestamp become `confluent.type.Decimal`, `google.type.Date`,
  `google.type.TimeOfDay` and `google.protobuf.Timestamp`.

Names of types begin with a dot. Without it, protoc would look for `google` in the package first, whose name comes
from a topic.
"""

from collections.abc import Collection, Mapping
from typing import Final
from urllib.parse import quote_plus
from zlib import crc32

from cdcd.core.records.avro.schemas import DECIMAL
from cdcd.core.records.debezium_json.connect_schema import Schema
from cdcd.core.records.protobuf.writing import DATE, NUMBER, TIME, TIMESTAMP, number_of

UNKNOWN: Final = 1_000_000
"""Number above which columns with an unknown attribute number are numbered; PostgreSQL's attribute numbers are below
1,601."""

_UNKNOWN_COUNT: Final = 500_000_000
"""How many numbers there are for such columns; Protobuf's greatest number is 536,870,911."""

_ELEMENTS: Final = "elements"
_ENTRIES: Final = "entries"

_LETTERS: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_")
_DIGITS: Final = frozenset("0123456789")

_SCALARS: Final[Mapping[str, str]] = {
    "int8": "int32",
    "int16": "int32",
    "int32": "int32",
    "int64": "int64",
    "float": "float",
    "double": "double",
    "boolean": "bool",
    "string": "string",
    "bytes": "bytes",
}
_LOGICAL: Final[Mapping[str, tuple[str, str]]] = {
    DECIMAL: (".confluent.type.Decimal", "confluent/type/decimal.proto"),
    DATE: (".google.type.Date", "google/type/date.proto"),
    TIME: (".google.type.TimeOfDay", "google/type/timeofday.proto"),
    TIMESTAMP: (".google.protobuf.Timestamp", "google/protobuf/timestamp.proto"),
}


def adjusted_name(name: str) -> str:
    """Return a name that Protobuf allows.

    Other names are adjusted in the same way as by `scrub.invalid.names` of ProtobufConverter.
    """
    if name and name[0] in _LETTERS and all(each in _LETTERS or each in _DIGITS for each in name):
        return name
    # Java's URLEncoder does the same, and its % and + are then replaced like all other characters.
    letters = [each if each in _LETTERS or each in _DIGITS else "_" for each in quote_plus(name, safe="*")]
    if not letters or letters[0] in _DIGITS or letters[0] == "_":
        letters.insert(0, "x")
    return "".join(letters)


def adjusted_full_name(name: str) -> str:
    """Return a name with a package in the form that Protobuf allows."""
    return ".".join([adjusted_name(part) for part in name.split(".")])


def json_name(name: str) -> str:
    """Return the name that a field has in Protobuf's JSON if the schema does not set one: letters after underscores
    become capitals.
    """
    letters: list[str] = []
    is_capital = False
    for each in name:
        if each == "_":
            is_capital = True
        else:
            letters.append(each.upper() if is_capital else each)
            is_capital = False
    return "".join(letters)


def with_numbers(schema: Schema, numbers: Mapping[str, int | None]) -> Schema:
    """Return the struct of a row or a key in which each column has its number and may be null."""
    taken: set[int] = {number for number in numbers.values() if number is not None}
    fields: list[Schema] = []
    for field in schema["fields"]:
        name: str = field["field"]
        number = numbers.get(name)
        if number is None:
            number = UNKNOWN + crc32(name.encode()) % _UNKNOWN_COUNT
            while number in taken:
                number += 1
            taken.add(number)
        fields.append({**field, NUMBER: number, "optional": True})
    return {**schema, "fields": fields}


def schema_text(schema: Schema) -> str:
    """Return the .proto text for a struct."""
    return _File(schema).text()


class _File:
    """Builds a .proto file: its imports, and the messages nested in its one message."""

    def __init__(self, root: Schema) -> None:
        self._full = adjusted_full_name(root["name"])
        self._imports: set[str] = set()
        self._nested: list[list[str]] = []
        self._known: dict[str, str] = {}
        """Names of nested messages, by their content."""
        self._taken: set[str] = {name for _, name in _names(root)}
        self._fields = self._message(root)

    def text(self) -> str:
        package, _, name = self._full.rpartition(".")
        lines = ['syntax = "proto3";']
        if package:
            lines.append(f"package {package};")
        lines += ["", *[f'import "{each}";' for each in sorted(self._imports)]]
        if self._imports:
            lines.append("")
        lines.append(f"message {name} {{")
        lines += [f"  {line}" for line in self._fields]
        for nested in self._nested:
            lines += ["", *[f"  {line}" for line in nested]]
        return "\n".join([*lines, "}", ""])

    def _message(self, schema: Schema) -> list[str]:
        """Return the lines of a struct's fields."""
        lines: list[str] = []
        numbers: list[int] = []
        for place, (field, name) in enumerate(_names(schema)):
            number = number_of(field, place)
            numbers.append(number)
            lines.append(self._field(field, name, number))
        reserved = _gaps(numbers)
        return [f"reserved {reserved};", *lines] if reserved else lines

    def _field(self, schema: Schema, name: str, number: int) -> str:
        kind = self._type(schema)
        label = "optional " if schema["optional"] and not kind.startswith(".") else ""
        return f"{label}{kind} {name} = {number}{_json_option(schema['field'], name)};{_comment(schema)}"

    def _type(self, schema: Schema) -> str:
        """Return the name of a field's type."""
        name: str = schema.get("name", "")
        if name in _LOGICAL:
            found, path = _LOGICAL[name]
            self._imports.add(path)
            return found
        kind = schema["type"]
        if kind in _SCALARS:
            return _SCALARS[kind]
        if kind == "struct":
            return self._nest(adjusted_name(name.rpartition(".")[2]), f"struct {name}", self._message(schema))
        if kind == "array":
            return self._array(schema)
        return self._map(schema)

    def _array(self, schema: Schema) -> str:
        items: Schema = schema["items"]
        element = self._type(items)
        name = schema.get("name")
        called = f"{_capital(element)}Array" if name is None else adjusted_name(name.rpartition(".")[2])
        if not items["optional"]:
            return self._nest(called, f"{element}[]", [f"repeated {element} {_ELEMENTS} = 1;"])
        label = "" if element.startswith(".") else "optional "
        body = [
            f"repeated Element {_ELEMENTS} = 1;",
            "message Element {",
            f"  {label}{element} value = 1;",
            "}",
        ]
        return self._nest(called, f"{element}?[]", body)

    def _map(self, schema: Schema) -> str:
        values: Schema = schema["values"]
        key, value = self._type(schema["keys"]), self._type(values)
        called = f"{_capital(value)}Map"
        if not values["optional"]:
            return self._nest(called, f"{key}:{value}", [f"map<{key}, {value}> {_ENTRIES} = 1;"])
        label = "" if value.startswith(".") else "optional "
        body = [
            f"repeated Entry {_ENTRIES} = 1;",
            "message Entry {",
            f"  {key} key = 1;",
            f"  {label}{value} value = 2;",
            "}",
        ]
        return self._nest(called, f"{key}:{value}?", body)

    def _nest(self, name: str, holds: str, body: list[str]) -> str:
        """Add a message to the file's message, unless the same one is already there, and return its name."""
        if holds not in self._known:
            while name in self._taken:
                name += "Message"
            self._taken.add(name)
            self._known[holds] = name
            self._nested.append([f"message {name} {{", *[f"  {line}" for line in body], "}"])
        return f".{self._full}.{self._known[holds]}"


def _names(schema: Schema) -> list[tuple[Schema, str]]:
    """Return the fields of a struct with their names.

    protoc requires that a name is unique, both as it is and in Protobuf's JSON. It must also not be the name of
    another column, because Google's runtimes read JSON by either name. Where a name would break these rules, the
    number of the field is appended.
    """
    columns = {field["field"] for field in schema["fields"]}
    taken: set[str] = set()
    found: list[tuple[Schema, str]] = []
    for place, field in enumerate(schema["fields"]):
        own: str = field["field"]
        name = adjusted_name(own)
        while (
            json_name(name) in taken
            or (name != own and name in columns)
            or (_is_bracketed(own) and json_name(name) in columns)
        ):
            name = f"{name}_{number_of(field, place)}"
        taken.add(json_name(name))
        found.append((field, name))
    return found


def _is_bracketed(name: str) -> bool:
    """Return whether the name is in brackets, which in Protobuf's JSON only extensions have, so no
    field may have it.
    """
    return name.startswith("[") and name.endswith("]")


def _json_option(name: str, field: str) -> str:
    """Return the option that gives a field the column's name in Protobuf's JSON, if it would have another one there."""
    if json_name(field) == name or _is_bracketed(name):
        return ""
    letters = [
        f"\\{each}" if each in '"\\' else each if each >= " " and each != "\x7f" else f"\\{ord(each):03o}"
        for each in name
    ]
    return f' [json_name = "{"".join(letters)}"]'


def _comment(schema: Schema) -> str:
    """Return a comment with the semantic type of the field, or of the elements of its array."""
    name = schema.get("name")
    if name is None and schema["type"] == "array":
        name = schema["items"].get("name")
    if name is None or schema["type"] == "struct" or name in _LOGICAL:
        return ""
    return f"  // {name}"


def _gaps(numbers: Collection[int]) -> str:
    """Return the numbers below the greatest that no field has, in the syntax of `reserved`; those above UNKNOWN are
    ignored.
    """
    known = sorted([number for number in numbers if number < UNKNOWN])
    ranges: list[str] = []
    last = 0
    for number in known:
        if number - last == 2:
            ranges.append(str(last + 1))
        elif number - last > 2:
            ranges.append(f"{last + 1} to {number - 1}")
        last = number
    return ", ".join(ranges)


def _capital(name: str) -> str:
    """Return the last part of a type's name, capitalized."""
    last = name.rpartition(".")[2]
    return last[0].upper() + last[1:]
