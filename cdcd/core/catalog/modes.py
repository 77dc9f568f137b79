"""Modes: representations of the values of some types, with Debezium's names and values.

A mode changes the logical type of a column when the column is described. So each format implements it by a
converter and a schema for that logical type, without cost for each row. Types without a mode are as in `types.py`.

| mode | value | logical types |
|---|---|---|
| `decimal` | `string` | `decimal`, `money` |
| | `precise` | `decimal_bytes`, of a numeric without a declared precision `decimal_variable`; `money_bytes` |
| | `double` | `decimal_double`, `money_double` |
| `time_precision` | `adaptive` | `date`, `time`, `timestamp` |
| | `adaptive_time_microseconds` | `time_micros` |
| | `connect` | `date_connect`, `time_connect`, `timestamp_connect` |
| | `isostring` | `date_iso`, `time_iso`, `timestamp_iso` |
| | `microseconds` | `time_micros`, `timestamp_micros` |
| | `nanoseconds` | `time_nanos`, `timestamp_nanos` |
| | `structured` | `date_struct`, `time_struct`, `timetz_struct`, `timestamp_struct`, `timestamptz_struct`,
  `interval_struct` |
| `interval` | `string` | `interval` |
| | `numeric` | `interval_micros` |
| `binary` | `bytes` | `bytes` |
| | `base64`, `base64-url-safe`, `hex` | `bytes_base64`, `bytes_base64_url`, `bytes_hex` |
| `hstore` | `json` | `hstore` |
| | `map` | `hstore_map` |
| `geometry` | `text` | `text`, `geometry` |
| | `structured` | `box_struct`, `circle_struct`, `line_struct`, `lseg_struct`, `path_struct`, `polygon_struct`, of
  PostGIS `geometry_struct` |

`time_precision: structured` decides on intervals too, whatever `interval` says, as in Debezium.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from cdcd.core.catalog.logical import LogicalType, form_of_type, logical_type
from cdcd.core.catalog.money import DIGITS_OF_C, PRECISION
from cdcd.core.catalog.relations import TypeDescription
from cdcd.core.catalog.types import decimal_size
from cdcd.core.errors import SourceError


@dataclass(frozen=True, slots=True)
class Modes:
    """Value of each mode. The defaults are those of cdcd.

    Attributes:
        money_digits: number of decimal digits of money, from the server (`catalog/money.py`).
    """

    decimal: str = "string"
    time_precision: str = "adaptive"
    interval: str = "string"
    binary: str = "bytes"
    hstore: str = "json"
    geometry: str = "text"
    money_digits: int = DIGITS_OF_C


_Choice = tuple[str, str]
"""(name of a logical type, form of its values in JSON as in `LogicalType.form`)."""


def _decimal_bytes(logical: LogicalType) -> _Choice:
    size = decimal_size(logical.modifier)
    if size is None:
        return "decimal_variable", "decimal_variable"
    return "decimal_bytes", f"decimal_bytes({size[0]},{size[1]})"


def _money_bytes(logical: LogicalType) -> _Choice:
    return "money_bytes", f"decimal_bytes({PRECISION},{logical.modifier})"


def _named(name: str, form: str) -> Callable[[LogicalType], _Choice]:
    return lambda _: (name, form)


_CHOICES: Final[Mapping[tuple[str, str], Mapping[str, Callable[[LogicalType], _Choice]]]] = {
    ("decimal", "string"): {},
    ("decimal", "precise"): {
        "decimal": _decimal_bytes,
        "money": _money_bytes,
    },
    ("decimal", "double"): {
        "decimal": _named("decimal_double", "float64"),
        "money": _named("money_double", "float64"),
    },
    ("time_precision", "adaptive"): {},
    ("time_precision", "adaptive_time_microseconds"): {"time": _named("time_micros", "time")},
    ("time_precision", "connect"): {
        "date": _named("date_connect", "date_connect"),
        "time": _named("time_connect", "time_ms"),
        "timestamp": _named("timestamp_connect", "timestamp_connect"),
    },
    ("time_precision", "isostring"): {
        "date": _named("date_iso", "date_iso"),
        "time": _named("time_iso", "time_iso"),
        "timestamp": _named("timestamp_iso", "timestamp_iso"),
    },
    ("time_precision", "microseconds"): {
        "time": _named("time_micros", "time"),
        "timestamp": _named("timestamp_micros", "timestamp_us"),
    },
    ("time_precision", "nanoseconds"): {
        "time": _named("time_nanos", "time_ns"),
        "timestamp": _named("timestamp_nanos", "timestamp_ns"),
    },
    ("time_precision", "structured"): {
        name: _named(f"{name}_struct", f"{name}_struct")
        for name in ("date", "interval", "time", "timestamp", "timestamptz", "timetz")
    },
    ("interval", "string"): {},
    ("interval", "numeric"): {"interval": _named("interval_micros", "int64")},
    ("binary", "bytes"): {},
    ("binary", "base64"): {"bytes": _named("bytes_base64", "bytes")},
    ("binary", "base64-url-safe"): {"bytes": _named("bytes_base64_url", "bytes_base64_url")},
    ("binary", "hex"): {"bytes": _named("bytes_hex", "bytes_hex")},
    ("hstore", "json"): {},
    ("hstore", "map"): {"hstore": _named("hstore_map", "object")},
    ("geometry", "text"): {},
    ("geometry", "structured"): {
        **{
            name: _named(f"{name}_struct", "object")
            for name in ("box", "circle", "line", "lseg", "path", "polygon")
        },
        "geometry": _named("geometry_struct", "object"),
    },
}
"""For each value of a mode: the logical types that it changes, with their replacements."""

ADDED: Final[tuple[str, ...]] = tuple(
    sorted(
        {
            choice(LogicalType("", modifier=modifier))[0]
            for choices in _CHOICES.values()
            for choice in choices.values()
            for modifier in (-1, 4)
        }
    )
)
"""Logical types that exist only because of a mode."""


def under(modes: Modes, logical: LogicalType) -> LogicalType:
    """Return a logical type under modes; for an array, with its elements under modes."""
    if logical.element is not None:
        element = under(modes, logical.element)
        return logical if element is logical.element else replace(logical, element=element, form=element.form)
    for mode in (
        ("decimal", modes.decimal),
        ("time_precision", modes.time_precision),
        ("interval", modes.interval),
        ("binary", modes.binary),
        ("hstore", modes.hstore),
        ("geometry", modes.geometry),
    ):
        choice = _CHOICES[mode].get(logical.name)
        if choice is not None:
            name, form = choice(logical)
            return replace(logical, name=name, form=form)
    return logical


DEFAULTS: Final = Modes()


def logical_type_under(
    modes: Modes, oid: int, modifier: int, types: Mapping[int, TypeDescription]
) -> LogicalType:
    """Return the logical type of a column's type under modes. SourceError: see `logical_type`."""
    return under(modes, logical_type(oid, modifier, types, money_digits=modes.money_digits))


def form_under(
    modes: Modes, oid: int, modifier: int, types: Mapping[int, TypeDescription], *, dimensions: int = 1
) -> str:
    """Return the form as `logical.form_of`, under modes."""
    try:
        return form_of_type(logical_type_under(modes, oid, modifier, types), dimensions)
    except SourceError:
        return "text"
