"""The Connect schema of a JSON text, as Debezium's outbox event router derives it (`JsonSchemaData` of Debezium 3.7).

The rules are Debezium's: every schema is optional. A whole number is int32, or int64 if 32 bits do not hold it. Any
other number is a double. An object is a struct whose name is its path from the payload's column on. A field that is
null, or an empty array, is left out, or gets the type that `JsonRecords` gives it.

The elements of an array have one schema, which holds all of them: the wider of two types of numbers, and a struct with
the fields of all objects. If objects in an array differ, their struct is not optional. Debezium does the same for the
fields of objects. Its task fails where the numbers differ, or where objects in objects differ.

Anybody who may write into the outbox chooses the text, so its bytes, depth and fields are limited, and a text without a
schema raises ValueError, whose text repeats nothing of it. Time and memory are in proportion to the text.
"""

from dataclasses import dataclass
from typing import Any, Final

from cdcd.core import bounded_json
from cdcd.core.records.debezium_json.connect_schema import Schema, primitive, struct

PAYLOAD_BYTES_MAX: Final = 4 << 20
"""Maximum number of bytes of a text whose schema is derived. Its parsed form may take thirty times the memory."""

FIELDS_MAX: Final = 5_000
"""Maximum number of fields of all objects together. A table has at most 1,600 columns."""

VALUES_MAX: Final = 1_000_000
"""Maximum number of fields in all objects, with the fields that only other objects of their array have. A record has a
byte for each of these, so without a limit a text of 4 MiB would become a record of a gigabyte."""

_NUMBERS: Final = ("int32", "int64", "double")
"""Types of numbers; each holds the ones before it."""
_INT32_BITS: Final = 31
_INT64_BITS: Final = 63
_NULL: Final = "bytes"
"""Type of a null that has one; any other type replaces it."""


@dataclass(frozen=True, slots=True)
class JsonRecords:
    """What becomes of values of JSON that have no type.

    Attributes:
        null_fields: whether a field that is null is there, as optional bytes (`table.json.payload.null.behavior`).
        empty_arrays: whether a field that is an empty array is there, as an array of optional texts
            (`table.json.payload.empty.array.behavior`).
    """

    null_fields: bool = False
    empty_arrays: bool = False

    def read(self, text: bytes, name: str) -> tuple[Schema, Any]:
        """Return the schema and the value of a JSON text.

        Args:
            name: name of the struct of the text's object.

        Raises:
            ValueError: the text is no object and no array of JSON, is too long or too deep, or has no schema.
        """
        try:
            value = bounded_json.parse(text, PAYLOAD_BYTES_MAX)
        except UnicodeError:
            raise ValueError("it names a half of a character") from None
        if not isinstance(value, (dict, list)):
            raise ValueError("it is neither an object nor an array of JSON")  # noqa: TRY004  of the row, not our call
        kinds = _Kinds(self)
        root = _Kind()
        if not kinds.has_kind(value):
            raise ValueError("it is an empty array, which has no type")
        kinds.take(root, value)
        if _values(root) > VALUES_MAX:
            raise ValueError(f"its record would have more than {VALUES_MAX} fields")
        return _schema(root, name), value


class _Kind:
    """The type of the values at one place of a text.

    Attributes:
        name: type of Connect; empty before the first value.
        fields: the types of an object's fields.
        items: type of an array's elements; None if it is no array, or an empty one.
        differs: whether the place is an array's element, and the types of its objects differ.
        has_null: whether the place is an array's element, and one of the elements is null.
        count: number of objects at the place.
    """

    __slots__ = ("count", "differs", "fields", "has_null", "items", "name")

    def __init__(self) -> None:
        self.name = ""
        self.fields: dict[str, _Kind] = {}
        self.items: _Kind | None = None
        self.differs = False
        self.has_null = False
        self.count = 0


class _Kinds:
    """Collects the types of the values of one text."""

    def __init__(self, records: JsonRecords) -> None:
        self._records = records
        self._fields = 0

    def has_kind(self, value: Any) -> bool:
        """Return whether the value of a field has a type."""
        if value is None:
            return self._records.null_fields
        return value != [] or self._records.empty_arrays

    def take(self, kind: _Kind, value: Any) -> bool:
        """Add a value to the type of its place. Returns whether the type held it before, or had no value yet."""
        name = _name_of(value)
        same = kind.name in ("", name)
        if kind.name in ("", _NULL):
            kind.name = name
        elif not same and name != _NULL:
            if name not in _NUMBERS or kind.name not in _NUMBERS:
                raise ValueError("it has an array whose elements are of different types")
            kind.name = max(name, kind.name, key=_NUMBERS.index)
        if name == "struct":
            return self._take_fields(kind, value) and same
        if name == "array":
            return self._take_items(kind, value) and same
        return same

    def _take_fields(self, kind: _Kind, value: dict[str, Any]) -> bool:
        is_first = kind.count == 0
        kind.count += 1
        same = True
        count = 0
        for field, each in value.items():
            if not self.has_kind(each):
                continue
            count += 1
            known = kind.fields.get(field)
            if known is None:
                self._fields += 1
                if self._fields > FIELDS_MAX:
                    raise ValueError(f"it has more than {FIELDS_MAX} fields")
                same = same and is_first
                known = kind.fields[field] = _Kind()
            same = self.take(known, each) and same
        return same and count == len(kind.fields)

    def _take_items(self, kind: _Kind, values: list[Any]) -> bool:
        if not values:
            return True
        is_first = kind.items is None
        items = _Kind() if kind.items is None else kind.items
        kind.items = items
        same = True
        for value in values:
            if value is None:
                items.has_null = True
            elif value == []:
                raise ValueError("it has an empty array in an array, which has no type")
            elif not self.take(items, value):
                items.differs = True
                same = False
        if not items.name:
            if not self._records.null_fields:
                raise ValueError("it has an array with no other elements than null, which has no type")
            items.name = _NULL
        return same or is_first


def _name_of(value: Any) -> str:
    """Return the type of Connect for a value that has one."""
    if value is None:
        return _NULL
    if isinstance(value, str):
        return "string"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, float):
        return "double"
    if isinstance(value, list):
        return "array"
    if isinstance(value, dict):
        return "struct"
    if -1 <= value >> _INT32_BITS <= 0:
        return "int32"
    if -1 <= value >> _INT64_BITS <= 0:
        return "int64"
    raise ValueError("it has a whole number that 64 bits do not hold")


def _values(kind: _Kind) -> int:
    """Return the number of fields in all objects at the place and below."""
    below = sum([_values(each) for each in kind.fields.values()])
    return kind.count * len(kind.fields) + below + (0 if kind.items is None else _values(kind.items))


def _schema(kind: _Kind, name: str) -> Schema:
    """Return the schema of a place; `name` is its path, and empty for an array in an array."""
    if kind.name == "struct":
        if not name:
            raise ValueError("it has an object in an array of arrays, which has no name in Avro")
        optional = not kind.differs or kind.has_null
        fields = {field: _schema(each, f"{name}.{field}") for field, each in kind.fields.items()}
        return struct(fields, name, optional=optional)
    if kind.name != "array":
        return primitive(kind.name)
    items = kind.items
    if items is None:
        return {"type": "array", "optional": True, "items": primitive("string")}
    inner = "" if items.name == "array" else name
    return {"type": "array", "optional": True, "items": _schema(items, inner if name else "")}
