"""Serialization of the engine's arguments, for everything in a recording besides frames.

The rule: reading creates only objects of the classes in `CLASSES`, because a recording may be untrusted. A
dataclass is written with the names of its fields, so a version with an additional field, which has a default, can
read the recordings of a former version. A field that this version does not know is refused.
"""

from array import array
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from struct import Struct
from typing import Any, Final

from cdcd.adapters.recording.blocks import RecordingError
from cdcd.core.catalog.field_names import FieldRule
from cdcd.core.catalog.modes import Modes
from cdcd.core.catalog.patterns import TableSelection
from cdcd.core.catalog.relations import CatalogColumn, ColumnForm, TableDescription, TypeDescription
from cdcd.core.catalog.routing import RoutedTopics
from cdcd.core.catalog.table_rules import KeyFormRule, KeyRule, PartitionRule
from cdcd.core.engine import actions
from cdcd.core.engine.session_start import ExportedTables
from cdcd.core.engine.settings import (
    BatchSettings,
    ContextSettings,
    EngineSettings,
    HeartbeatSettings,
    SnapshotSettings,
)
from cdcd.core.errors import TransientError
from cdcd.core.protocol.messages import Column, Relation
from cdcd.core.records.cloud_events import CloudEvents
from cdcd.core.records.encoder import EncoderSettings
from cdcd.core.records.flattening import AddedField, Flattening
from cdcd.core.records.shaping.expressions import DEPTH_MAX, CelCall, CelColumn, CelList, CelLiteral
from cdcd.core.records.shaping.json_records import JsonRecords
from cdcd.core.records.shaping.settings import (
    Outbox,
    OutboxTable,
    Route,
    TableComputed,
    TableFilter,
    TableRoutes,
)
from cdcd.core.snapshot import reading
from cdcd.core.snapshot.reading import Visibility
from cdcd.core.snapshot.table_task import Part

CLASSES: Final[Mapping[str, type[Any]]] = {
    each.__name__: each
    for each in (
        actions.Look, actions.FindWriters, actions.Read, actions.TakeSnapshot, actions.LetGo, actions.ListPublished,
        actions.FindEnums, actions.Looked, actions.Writers, actions.Taken, actions.Gone,
        actions.Compare, actions.NextDifferences, actions.Compared, actions.NotComparable, actions.Differences,
        actions.Published, actions.Enums, actions.Busy,
        reading.SourcePart, reading.SourceTable, reading.PageQuery, reading.KeyQuery, reading.Rows,
        reading.TooLarge, reading.Changed, reading.Refused, Part, Visibility, ExportedTables,
        EngineSettings, BatchSettings, SnapshotSettings, HeartbeatSettings, ContextSettings,
        EncoderSettings, Modes, Column, Relation, CatalogColumn, ColumnForm, TableDescription,
        TypeDescription, Outbox, OutboxTable, JsonRecords, Flattening, AddedField, CloudEvents, TableFilter, CelLiteral,
        CelColumn, CelList, CelCall, TableSelection, KeyRule, KeyFormRule, PartitionRule,
        FieldRule, TableComputed, RoutedTopics, Route, TableRoutes,
    )
}  # fmt: skip
"""Dataclasses that a recording may contain, by name."""

_SIZE: Final = Struct("<I")
_DOUBLE: Final = Struct("<d")
_DEPTH_MAX: Final = 2 * DEPTH_MAX + 20
"""Maximum depth: an expression takes two levels for each nested operator; no other value is nested as deeply."""


def write_value(value: object) -> bytes:
    """Return the bytes of a value. TypeError: its class is not in `CLASSES`."""
    parts: list[bytes] = []
    _write(value, parts.append)
    return b"".join(parts)


def _write(value: object, put: Callable[[bytes], None]) -> None:
    kind = type(value)
    # An LSN is an int of its own class.
    simple = _SIMPLE.get(int if isinstance(value, int) and kind is not bool else kind)
    if simple is not None:
        put(simple(value))
    elif isinstance(value, list) and value and all(type(each) is bytes for each in value):
        put(b"L")
        put(write_pieces(value))
    elif isinstance(value, tuple | list):
        put((b"t" if isinstance(value, tuple) else b"l") + _SIZE.pack(len(value)))
        for each in value:
            _write(each, put)
    elif isinstance(value, frozenset):
        put(b"f" + _SIZE.pack(len(value)))
        for each in sorted(value):
            _write(each, put)
    elif isinstance(value, Mapping):
        put(b"m" + _SIZE.pack(len(value)))
        for key, each in value.items():
            _write(key, put)
            _write(each, put)
    elif isinstance(value, actions.Lost):
        # The reason of a lost connection is an error of one of many classes; the engine treats them alike.
        put(b"x")
        _write(value.error.message, put)
    elif CLASSES.get(kind.__name__) is kind:
        # Fields that are not compared are not part of the value, such as the ids of schemas. A pipeline with such ids
        # is not recorded (`config/combinations.py`).
        named = [each for each in fields(value) if each.compare]  # type: ignore[arg-type]
        put(b"c" + _text(kind.__name__) + _SIZE.pack(len(named)))
        for field in named:
            put(_text(field.name))
            _write(getattr(value, field.name), put)
    else:
        raise TypeError(f"{kind.__name__} is not recorded")


def _text(text: str) -> bytes:
    # In text from an SQL_ASCII catalog, some characters stand for bytes that are not UTF-8.
    encoded = text.encode("utf-8", "surrogateescape")
    return _SIZE.pack(len(encoded)) + encoded


def _integer(value: int) -> bytes:
    encoded = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"i" + _SIZE.pack(len(encoded)) + encoded


_SIMPLE: Final[dict[type, Callable[[Any], bytes]]] = {
    type(None): lambda _: b"n",
    bool: lambda value: b"1" if value else b"0",
    int: _integer,
    float: lambda value: b"d" + _DOUBLE.pack(value),
    str: lambda value: b"s" + _text(value),
    bytes: lambda value: b"b" + _SIZE.pack(len(value)) + value,
}


def write_pieces(pieces: list[bytes]) -> bytes:
    """Return a list of bytes as one object: the count, the sizes, and the contents.

    This is the hot path, without Python code for each piece.
    """
    sizes = array("I", map(len, pieces))
    return b"".join((_SIZE.pack(len(pieces)), sizes.tobytes(), *pieces))


class Reader:
    """Sequential reader of values from bytes.

    Every method raises RecordingError if the bytes end too early, or were not written by `write_value`.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._depth = 0

    @property
    def is_done(self) -> bool:
        """True if all bytes are read."""
        return self._at == len(self._data)

    def take(self, size: int) -> bytes:
        """Return the next `size` bytes."""
        end = self._at + size
        if end > len(self._data):
            raise RecordingError("A recorded value ends too early.")
        taken = self._data[self._at : end]
        self._at = end
        return taken

    def size(self) -> int:
        """Return a count of following items, which never exceeds the bytes left."""
        (size,) = _SIZE.unpack(self.take(_SIZE.size))
        if size > len(self._data) - self._at:
            raise RecordingError("A recorded value ends too early.")
        return int(size)

    def text(self) -> str:
        """Return a string without a tag."""
        return self.take(self.size()).decode("utf-8", "surrogateescape")

    def double(self) -> float:
        """Return a float without a tag."""
        return float(_DOUBLE.unpack(self.take(_DOUBLE.size))[0])

    def pieces(self) -> list[bytes]:
        """Return the list that `write_pieces` wrote."""
        sizes = array("I")
        sizes.frombytes(self.take(self.size() * sizes.itemsize))
        return [self.take(size) for size in sizes]

    def value(self) -> Any:
        """Return the value that `write_value` wrote."""
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise RecordingError("A recorded value is nested too deeply.")
        tag = self.take(1)
        read = _READERS.get(tag)
        if read is None:
            raise RecordingError(f"A recorded value has the unknown tag {tag!r}.")
        try:
            found = read(self)
        except (ValueError, TypeError, UnicodeError) as error:
            raise RecordingError(f"A recorded value cannot be read: {error}.") from error
        self._depth -= 1
        return found

    def _object(self) -> Any:
        name = self.text()
        made = CLASSES.get(name)
        if made is None:
            raise RecordingError(
                f"The recording has a {name}, which this version does not know.", hint=VERSION
            )
        given = {self.text(): self.value() for _ in range(self.size())}
        if made is EngineSettings:
            _group(given)
        known = {field.name: field for field in fields(made)}
        missing = [
            name
            for name, field in known.items()
            if name not in given and field.default is MISSING and field.default_factory is MISSING
        ]
        if missing or given.keys() - known.keys():
            raise RecordingError(f"The recording has another form of {name} than this version.", hint=VERSION)
        return made(**given)


_GROUPS: Final[Mapping[str, tuple[type, Mapping[str, str]]]] = {
    "batches": (
        BatchSettings,
        {name: name for name in ("bytes_max", "records_max", "queue_bytes_max", "whole_bytes_max")},
    ),
    "snapshot": (
        SnapshotSettings,
        {
            name: name
            for name in (
                "chunk_bytes", "parallelism", "added_tables", "signals", "rereads_per_hour_max", "tables_ahead",
            )
        }
        | {"snapshot_mode": "mode"},
    ),
    "heartbeat": (
        HeartbeatSettings,
        {"heartbeat_s": "interval_s", "heartbeat_query": "has_query", "watermark_s": "watermark_s"},
    ),
}  # fmt: skip
"""Groups of `EngineSettings`, and the fields that former versions recorded in their place."""


def _group(given: dict[str, Any]) -> None:
    """Replace the fields of `EngineSettings` in recordings of former versions, which had no groups, by groups."""
    for group, (made, former) in _GROUPS.items():
        taken = {field: given.pop(name) for name, field in former.items() if name in given}
        if taken:
            given[group] = made(**taken)
    # The mode says so.
    given.pop("snapshot_only", None)


VERSION: Final = "Replay it with the version of cdcd that recorded it; `cdcd replay` names that version."

_READERS: Final[Mapping[bytes, Callable[[Reader], Any]]] = {
    b"n": lambda _: None,
    b"1": lambda _: True,
    b"0": lambda _: False,
    b"i": lambda its: int.from_bytes(its.take(its.size()), "little", signed=True),
    b"d": Reader.double,
    b"s": Reader.text,
    b"b": lambda its: its.take(its.size()),
    b"L": Reader.pieces,
    b"t": lambda its: tuple([its.value() for _ in range(its.size())]),
    b"l": lambda its: [its.value() for _ in range(its.size())],
    b"f": lambda its: frozenset([its.value() for _ in range(its.size())]),
    b"m": lambda its: {its.value(): its.value() for _ in range(its.size())},
    b"x": lambda its: actions.Lost(TransientError(its.value())),
    b"c": Reader._object,
}
