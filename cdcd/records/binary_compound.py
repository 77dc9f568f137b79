"""Types that are made of other types, in binary form, to the text that the server would have sent.

Arrays, composites, ranges, multiranges and the vectors hold values of other types, each in its own binary form, and
their text holds the text of these, quoted by rules of their own (arrayfuncs.c, rowtypes.c, rangetypes.c,
multirangetypes.c). `reader_for` puts a reader together from those of the parts.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final

from cdcd.records import binary
from cdcd.records.binary_text import READERS, Reader, int2_text, plain, uint4_text, versioned
from cdcd.records.converter import WithoutReaderError
from cdcd.records.fields import Fields
from cdcd.records.relations import BUILTIN_TYPES, TypeDescription

NESTING_MAX: Final = 64
"""Depth of types within types, beyond which they are taken for a circle."""

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
"""Where an array begins, unless its text says otherwise."""


class _Array:
    """array_out: `[0:1]={…}`, one pair of braces for each dimension."""

    def __init__(self, element: Reader, delimiter: str) -> None:
        self._element = element
        self._delimiter = delimiter
        self._special = re.compile(rf'[{_SPACES}"\\{{}}{re.escape(delimiter)}]')

    def text(self, data: bytes) -> str:
        lengths, bounds, elements = binary.read_array(data)
        if not elements:
            return "{}"
        texts = ["NULL" if each is None else self._quoted(self._element(each)) for each in elements]
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


class _Vector:
    """int2vector and oidvector: the binary form of an array, but `1 2 3` as text."""

    def __init__(self, element: Reader) -> None:
        self._element = element

    def text(self, data: bytes) -> str:
        _, _, elements = binary.read_array(data)
        return " ".join([self._element(each) for each in elements if each is not None])


class _Composite:
    """record_out: `(a,"b c",)`. A value says itself of which types its attributes are."""

    def __init__(self, readers: Mapping[int, Reader]) -> None:
        self._readers = readers

    def text(self, data: bytes) -> str:
        fields = Fields(data)
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
    """range_out: `[1,6)`, `empty`, `(,infinity]`."""

    def __init__(self, subtype: Reader) -> None:
        self._subtype = subtype

    def text(self, data: bytes) -> str:
        fields = Fields(data)
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

    def _bound(self, fields: Fields) -> str:
        value = fields.value()
        if value is None:
            raise ValueError("a bound of a range is NULL")
        return _doubled(self._subtype(value), _RANGE_SPECIAL)


class _Multirange:
    """multirange_out: ranges in braces."""

    def __init__(self, subrange: Reader) -> None:
        self._range = subrange

    def text(self, data: bytes) -> str:
        fields = Fields(data)
        texts: list[str] = []
        for _ in range(fields.integer(4)):
            value = fields.value()
            if value is None:
                raise ValueError("a range of a multirange is NULL")
            texts.append(self._range(value))
        fields.end()
        return f"{{{','.join(texts)}}}"


def _doubled(text: str, special: re.Pattern[str]) -> str:
    """The text in quotes where it needs them, and quotes and backslashes in it twice."""
    if text and special.search(text) is None:
        return text
    escaped = _DOUBLED.sub(r"\1\1", text)
    return f'"{escaped}"'


def hstore_text(data: bytes) -> str:
    """hstore_out: `"a"=>"1", "b"=>NULL`."""
    fields = Fields(data)
    pairs: list[str] = []
    for _ in range(fields.integer(4)):
        key, value = fields.value(), fields.value()
        if key is None:
            raise ValueError("a key of an hstore is NULL")
        pairs.append(f"{_hstore_quoted(key)}=>{'NULL' if value is None else _hstore_quoted(value)}")
    fields.end()
    return ", ".join(pairs)


def _hstore_quoted(data: bytes) -> str:
    escaped = _DOUBLED.sub(r"\\\1", data.decode("latin-1"))
    return f'"{escaped}"'


def cube_text(data: bytes) -> str:
    """cube_out: `(1, 2),(3, 4)`; a cube that is a point has its coordinates once (contrib/cube)."""
    fields = Fields(data)
    header = fields.unsigned(4)
    is_point, dimensions = bool(header >> 31), header & 0x7FFFFFFF
    count = dimensions if is_point else 2 * dimensions
    if 8 * count > len(data):
        raise ValueError("a cube's dimensions do not fit its coordinates")
    numbers = [binary.float8_text(fields.take(8)) for _ in range(count)]
    fields.end()
    lower, upper = numbers[:dimensions], numbers[dimensions:]
    text = f"({', '.join(lower)})"
    if is_point or all(float(one) == float(other) for one, other in zip(lower, upper, strict=True)):
        return text
    return f"{text},({', '.join(upper)})"


_VECTORS: Final[Mapping[int, Callable[[bytes], str]]] = {
    22: _Vector(int2_text).text,
    30: _Vector(uint4_text).text,
}

_EXTENSION_READERS: Final[Mapping[str, Reader]] = {
    "citext": plain,
    "cube": cube_text,
    "hstore": hstore_text,
    "lquery": versioned,
    "ltree": versioned,
    "ltxtquery": versioned,
}
"""Base types that extensions bring, by name: their oids differ from database to database."""


def reader_for(oid: int, types: Mapping[int, TypeDescription], nesting: int = 0) -> Reader | None:
    """The reader of a type's binary form; None: there is none, or the server cannot send the type in binary form.

    Args:
        types: what the catalog says about types that are not built in.
    """
    builtin = READERS.get(oid) or _VECTORS.get(oid)
    if builtin is not None:
        return builtin
    description = BUILTIN_TYPES.get(oid) or types.get(oid)
    if description is None or nesting > NESTING_MAX or not description.sends:
        return None
    if description.kind == "e":
        return plain
    if description.kind == "d":
        return reader_for(description.base_oid, types, nesting + 1)
    if description.is_array:
        element = reader_for(description.element_oid, types, nesting + 1)
        return None if element is None else _Array(element, description.delimiter).text
    if description.kind == "b":
        return None if description.namespace == "pg_catalog" else _EXTENSION_READERS.get(description.name)
    return _compound(description, types, nesting)


def _compound(
    description: TypeDescription, types: Mapping[int, TypeDescription], nesting: int
) -> Reader | None:
    parts: dict[int, Reader] = {}
    for oid in description.parts:
        reader = reader_for(oid, types, nesting + 1)
        if reader is None:
            return None
        parts[oid] = reader
    if description.kind == "c":
        return _Composite(parts).text
    if not parts:
        return None
    part = parts[description.parts[0]]
    return _Range(part).text if description.kind == "r" else _Multirange(part).text
