"""Types with components, in binary form, converted to the text that the server would have sent.

Arrays, composites, ranges, multiranges and vectors contain values of other types, each in binary form. Their text
contains the texts of these values, quoted by separate rules (arrayfuncs.c, rowtypes.c, rangetypes.c,
multirangetypes.c). `reader_for` composes a reader from those of the components.
"""

import re
from collections.abc import Mapping
from typing import Final

from cdcd.core.catalog import binary
from cdcd.core.catalog.binary import BinaryFields
from cdcd.core.catalog.binary_text import Reader, WithoutReaderError, plain
from cdcd.core.catalog.relations import TypeDescription
from cdcd.core.catalog.types import BUILTIN_TYPES, EXTENSIONS, NESTING_MAX, READERS
from cdcd.core.pauses import PAUSE_ITEMS, pause

_SPACES: Final = r" \t\n\r\v\f"
_ROW_SPECIAL: Final = re.compile(rf'[{_SPACES}"\\(),]')
_RANGE_SPECIAL: Final = re.compile(rf'[{_SPACES}"\\()\[\],]')
_DOUBLED: Final = re.compile(r'(["\\])')

_EMPTY: Final = 0x01
_LOWER_INCLUSIVE: Final = 0x02
_UPPER_INCLUSIVE: Final = 0x04
_LOWER_INFINITE: Final = 0x08
_UPPER_INFINITE: Final = 0x10

_LOWER_BOUND: Final = 1
"""Lower bound of an array, unless its text has another one."""


class _Array:
    """Reader in the form of array_out: `[0:1]={…}`, with one pair of braces for each dimension."""

    def __init__(self, element: Reader, delimiter: str) -> None:
        self._element = element
        self._delimiter = delimiter
        self._special = re.compile(rf'[{_SPACES}"\\{{}}{re.escape(delimiter)}]')

    def text(self, data: bytes) -> str:
        lengths, bounds, elements = binary.read_array(data)
        if not elements:
            return "{}"
        texts: list[str] = []
        for number, each in enumerate(elements):
            if number % PAUSE_ITEMS == 0:
                pause()
            texts.append("NULL" if each is None else self._quoted(self._element(each)))
        for length in reversed(lengths):
            texts = [
                f"{{{self._delimiter.join(texts[at : at + length])}}}" for at in range(0, len(texts), length)
            ]
        text = texts[0]
        if any(bound != _LOWER_BOUND for bound in bounds):
            pairs = zip(bounds, lengths, strict=True)
            text = "".join([f"[{bound}:{bound + length - 1}]" for bound, length in pairs]) + f"={text}"
        return text

    def _quoted(self, text: str) -> str:
        if text and self._special.search(text) is None and text.upper() != "NULL":
            return text
        escaped = _DOUBLED.sub(r"\\\1", text)
        return f'"{escaped}"'


class _Composite:
    """Reader in the form of record_out: `(a,"b c",)`. A value contains the types of its attributes."""

    def __init__(self, readers: Mapping[int, Reader]) -> None:
        self._readers = readers

    def text(self, data: bytes) -> str:
        fields = BinaryFields(data)
        texts: list[str] = []
        for _ in range(fields.integer(4)):
            oid = fields.unsigned(4)
            value = fields.value()
            reader = self._readers.get(oid) or READERS.get(oid)
            if reader is None:
                # ALTER TYPE has added an attribute since the type was described.
                raise WithoutReaderError(f"the type with oid {oid} has no reader for its binary form")
            texts.append("" if value is None else _doubled(reader(value), _ROW_SPECIAL))
        fields.end()
        return f"({','.join(texts)})"


class _Range:
    """Reader in the form of range_out: `[1,6)`, `empty`, `(,infinity]`."""

    def __init__(self, subtype: Reader) -> None:
        self._subtype = subtype

    def text(self, data: bytes) -> str:
        fields = BinaryFields(data)
        flags = fields.unsigned(1)
        if flags & _EMPTY:
            fields.end()
            return "empty"
        lower = "" if flags & _LOWER_INFINITE else self._bound(fields)
        upper = "" if flags & _UPPER_INFINITE else self._bound(fields)
        fields.end()
        opening = "[" if flags & _LOWER_INCLUSIVE else "("
        closing = "]" if flags & _UPPER_INCLUSIVE else ")"
        return f"{opening}{lower},{upper}{closing}"

    def _bound(self, fields: BinaryFields) -> str:
        value = fields.value()
        if value is None:
            raise ValueError("a bound of a range is NULL")
        return _doubled(self._subtype(value), _RANGE_SPECIAL)


class _Multirange:
    """Reader in the form of multirange_out: ranges in braces."""

    def __init__(self, subrange: Reader) -> None:
        self._range = subrange

    def text(self, data: bytes) -> str:
        fields = BinaryFields(data)
        texts: list[str] = []
        for number in range(fields.integer(4)):
            if number % PAUSE_ITEMS == 0:
                pause()
            value = fields.value()
            if value is None:
                raise ValueError("a range of a multirange is NULL")
            texts.append(self._range(value))
        fields.end()
        return f"{{{','.join(texts)}}}"


def _doubled(text: str, special: re.Pattern[str]) -> str:
    """Return the text, quoted if necessary, with quotes and backslashes doubled."""
    if text and special.search(text) is None:
        return text
    escaped = _DOUBLED.sub(r"\1\1", text)
    return f'"{escaped}"'


def reader_for(oid: int, types: Mapping[int, TypeDescription]) -> Reader | None:
    """Return the reader of a type's binary form; None if there is none or the server cannot send the type as binary.

    Args:
        types: catalog descriptions of types that are not built in.
    """
    return READERS.get(oid) or _reader(oid, types, 0, {})


def _reader(
    oid: int, types: Mapping[int, TypeDescription], nesting: int, known: dict[int, Reader | None]
) -> Reader | None:
    """Return the reader, and remember it in `known`.

    Each type is looked at once. A type that has another one several times, which has a third one several times, and
    so on, would otherwise take time that doubles with each level.
    """
    if oid not in known:
        known[oid] = READERS.get(oid) or _made(oid, types, nesting, known)
    return known[oid]


def _made(
    oid: int, types: Mapping[int, TypeDescription], nesting: int, known: dict[int, Reader | None]
) -> Reader | None:
    description = BUILTIN_TYPES.get(oid) or types.get(oid)
    if description is None or nesting > NESTING_MAX or not description.sends:
        return None
    if description.kind == "e":
        return plain
    if description.kind == "d":
        return _reader(description.base_oid, types, nesting + 1, known)
    if description.is_array:
        element = _reader(description.element_oid, types, nesting + 1, known)
        return None if element is None else _Array(element, description.delimiter).text
    if description.kind == "b":
        extension = None if description.namespace == "pg_catalog" else EXTENSIONS.get(description.name)
        return None if extension is None else extension.read
    return _compound(description, types, nesting, known)


def _compound(
    description: TypeDescription,
    types: Mapping[int, TypeDescription],
    nesting: int,
    known: dict[int, Reader | None],
) -> Reader | None:
    parts: dict[int, Reader] = {}
    for oid in description.parts:
        reader = _reader(oid, types, nesting + 1, known)
        if reader is None:
            return None
        parts[oid] = reader
    if description.kind == "c":
        return _Composite(parts).text
    if not parts:
        return None
    part = parts[description.parts[0]]
    return _Range(part).text if description.kind == "r" else _Multirange(part).text
