"""Converts PostgreSQL's geometric types to Debezium 3.7's objects, under `geometry: structured` (`catalog/modes.py`).

- box, lseg, path and polygon: `{"wkb","srid","extensions"}`, where `wkb` is base64 of the well-known binary,
  `extensions` names the type, and of a path also says whether it is closed. `srid` is null. A box is the ring of its
  corners, from the upper right one by the lower right one; a polygon is the ring of its points, which ends with the
  first one again. lseg and path are lines of points.
- circle: `{"center","radius"}`, with the center as a point. line: `{"a","b","c"}`, the numbers of its equation.
- PostGIS's geometry is as without the mode, with `extensions` null.

In place of a value that the server did not send (path, polygon and geometry can be TOASTed), `wkb` has the bytes of
the placeholder. NaN and infinities are legal coordinates: in `wkb` they are doubles, elsewhere as in float8.
"""

import re
from collections.abc import Callable, Mapping
from struct import pack
from typing import Final

from cdcd.core.catalog.binary_text import (
    Reader,
    box_text,
    circle_text,
    line_text,
    lseg_text,
    path_text,
    polygon_text,
)
from cdcd.core.catalog.logical import LogicalType
from cdcd.core.pauses import PAUSE_ITEMS, pause
from cdcd.core.records.debezium_json.converter import base64_json, float_json
from cdcd.core.records.debezium_json.extension_types import Geometry
from cdcd.core.records.debezium_json.mode_types import TextReader

_POINT: Final = re.compile(r"\(([^(),]+),([^(),]+)\)")
_CIRCLE: Final = re.compile(r"<(\([^(),]+,[^(),]+\)),([^(),<>]+)>")
_LINE: Final = re.compile(r"\{([^,{}]+),([^,{}]+),([^,{}]+)\}")

_LITTLE_ENDIAN: Final = 1
_WKB_POINT: Final = 1
_WKB_LINE: Final = 2
_WKB_POLYGON: Final = 3

Points = list[tuple[float, float]]


def _points(text: str) -> Points:
    """Return the points of a text such as `(1,2),(3,4)`. ValueError: it is another text."""
    found: Points = []
    at = 0
    while True:
        match = _POINT.match(text, at)
        if match is None:
            raise ValueError("malformed points")
        found.append((float(match[1]), float(match[2])))
        at = match.end()
        if at == len(text):
            return found
        if text[at] != ",":
            raise ValueError("malformed points")
        at += 1
        if len(found) % PAUSE_ITEMS == 0:
            pause()


def _coordinates(points: Points) -> bytes:
    return pack("<I", len(points)) + b"".join([pack("<dd", x, y) for x, y in points])


def _line(points: Points) -> bytes:
    return pack("<BI", _LITTLE_ENDIAN, _WKB_LINE) + _coordinates(points)


def _ring(points: Points) -> bytes:
    return pack("<BII", _LITTLE_ENDIAN, _WKB_POLYGON, 1) + _coordinates(points)


def point_json(text: str) -> str:
    """Return the JSON of a point (`(1,2.5)`). ValueError: the text is no point."""
    match = _POINT.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a point")
    wkb = base64_json(pack("<BIdd", _LITTLE_ENDIAN, _WKB_POINT, float(match[1]), float(match[2])))
    return f'{{"x":{float_json(match[1])},"y":{float_json(match[2])},"wkb":{wkb},"srid":null}}'


def _geometry(wkb: bytes, extensions: str) -> str:
    return f'{{"wkb":{base64_json(wkb)},"srid":null,"extensions":{extensions}}}'


def _box(text: str) -> str:
    points = _points(text)
    if len(points) != 2:
        raise ValueError("malformed box")
    (right, upper), (left, lower) = points
    corners = [(right, upper), (right, lower), (left, lower), (left, upper), (right, upper)]
    return _geometry(_ring(corners), '{"type":"box"}')


def _segment(text: str) -> str:
    points = _points(_inside(text, "[", "]"))
    if len(points) != 2:
        raise ValueError("malformed lseg")
    return _geometry(_line(points), '{"type":"lseg"}')


def _path(text: str) -> str:
    is_closed = text.startswith("(")
    points = _points(_inside(text, "(", ")") if is_closed else _inside(text, "[", "]"))
    closed = "true" if is_closed else "false"
    return _geometry(_line(points), f'{{"type":"path","closed":"{closed}"}}')


def _polygon(text: str) -> str:
    points = _points(_inside(text, "(", ")"))
    ring = points if points[0] == points[-1] else [*points, points[0]]
    return _geometry(_ring(ring), '{"type":"polygon"}')


def _circle(text: str) -> str:
    match = _CIRCLE.fullmatch(text)
    if match is None:
        raise ValueError("malformed circle")
    return f'{{"center":{point_json(match[1])},"radius":{float_json(match[2])}}}'


def _equation(text: str) -> str:
    match = _LINE.fullmatch(text)
    if match is None:
        raise ValueError("malformed line")
    return f'{{"a":{float_json(match[1])},"b":{float_json(match[2])},"c":{float_json(match[3])}}}'


def _inside(text: str, opening: str, closing: str) -> str:
    if not (text.startswith(opening) and text.endswith(closing)):
        raise ValueError("malformed points")
    return text[1:-1]


class Geometric(TextReader):
    """Converts a geometric type by a function from its text to its JSON."""

    def __init__(self, write: Callable[[str], str], reader: Reader) -> None:
        TextReader.__init__(self, reader)
        self._write = write

    def json(self, text: str) -> str:
        return self._write(text)

    def unchanged(self, placeholder: str) -> str:
        return _geometry(placeholder.encode("utf-8"), "null")


class StructuredGeometry(Geometry):
    """Converts PostGIS's geometry to the object that has `extensions`."""

    def json(self, text: str) -> str:
        return f'{Geometry.json(self, text)[:-1]},"extensions":null}}'

    def unchanged(self, placeholder: str) -> str:
        return _geometry(placeholder.encode("utf-8"), "null")


_MADE: Final[Mapping[str, Geometric | StructuredGeometry]] = {
    "box_struct": Geometric(_box, box_text),
    "circle_struct": Geometric(_circle, circle_text),
    "geometry_struct": StructuredGeometry(),
    "line_struct": Geometric(_equation, line_text),
    "lseg_struct": Geometric(_segment, lseg_text),
    "path_struct": Geometric(_path, path_text),
    "polygon_struct": Geometric(_polygon, polygon_text),
}


def _always(
    converter: Geometric | StructuredGeometry,
) -> Callable[[LogicalType], Geometric | StructuredGeometry]:
    return lambda _: converter


GEOMETRIC_CONVERTERS: Final = {name: _always(converter) for name, converter in _MADE.items()}
"""The converter of each logical type that exists only under `geometry: structured`."""
