"""Rows of the real tables in the form that records give them.

This is a second implementation of the rules in `core/records/debezium_json/converters.py`, on purpose: what compares
must not share the mistakes of what it compares. Values are taken as the text that PostgreSQL sends, with settings
pinned as the daemon's are, and turned into what `json.loads` makes of a record.
"""

import base64
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import sql

SETTINGS: Final = (
    "-c datestyle=ISO -c intervalstyle=postgres -c timezone=UTC -c bytea_output=hex -c extra_float_digits=3 "
    "-c lc_monetary=C"
)

COLUMNS: Final = """
    WITH RECURSIVE resolved AS (
        SELECT a.attrelid, a.attnum, a.atttypid AS oid, a.atttypmod AS modifier, 0 AS depth
          FROM pg_attribute a WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped
         UNION ALL
        SELECT r.attrelid, r.attnum, t.typbasetype, t.typtypmod, r.depth + 1
          FROM resolved r JOIN pg_type t ON t.oid = r.oid WHERE t.typtype = 'd')
    SELECT DISTINCT ON (a.attnum) a.attname, t.typname, coalesce(e.typname, ''), r.modifier, a.attgenerated <> '',
           pg_get_expr(d.adbin, d.adrelid)
      FROM resolved r
      JOIN pg_attribute a ON a.attrelid = r.attrelid AND a.attnum = r.attnum
      JOIN pg_type t ON t.oid = r.oid
      LEFT JOIN pg_type e ON e.oid = t.typelem AND t.typcategory = 'A'
      LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
     ORDER BY a.attnum, r.depth DESC"""

TABLES: Final = """
    SELECT c.oid, n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE c.relkind = 'r' AND c.relpersistence = 'p' AND n.nspname <> 'information_schema' AND n.nspname !~ '^pg_'
     ORDER BY 2, 3"""

Convert = Callable[[str], Any]


@dataclass(frozen=True, slots=True)
class Column:
    """A column and how its text becomes JSON. `default`: what rows have that are older than the column."""

    name: str
    convert: Convert
    generated: bool
    default: Any


@dataclass(frozen=True, slots=True)
class Table:
    """A table's rows now, each a dict in the columns' order."""

    schema: str
    name: str
    columns: tuple[Column, ...]
    rows: list[dict[str, Any]]


def read_tables(dsn: str, only: Sequence[str] | None = None) -> list[Table]:
    """All ordinary tables (a partitioned one's partitions) or those named `schema.table`, at one moment."""
    with psycopg.connect(dsn, options=SETTINGS) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        found = connection.execute(TABLES).fetchall()
        return [
            _read(connection, oid, schema, name)
            for oid, schema, name in found
            if only is None or f"{schema}.{name}" in only
        ]


def _read(connection: psycopg.Connection, oid: int, schema: str, name: str) -> Table:
    columns = []
    for column, kind, element, modifier, generated, default in connection.execute(COLUMNS, (oid,)).fetchall():
        convert = converter(kind, element, modifier)
        value = None
        if default is not None and not generated and "nextval(" not in default:
            text = _texts(connection, f"SELECT {default}")[0][0]
            value = None if text is None else convert(text)
        columns.append(Column(column, convert, generated, value))
    names = [column.name for column in columns]
    what = sql.SQL(", ").join(map(sql.Identifier, names))
    query = sql.SQL("SELECT {} FROM {}").format(what, sql.Identifier(schema, name)).as_string(connection)
    rows = [
        {
            column.name: None if text is None else column.convert(text)
            for column, text in zip(columns, texts, strict=True)
        }
        for texts in _texts(connection, query)
    ]
    return Table(schema, name, tuple(columns), rows)


def _texts(connection: psycopg.Connection, query: str) -> list[list[str | None]]:
    """The values as the server wrote them, before anybody makes Python objects of them."""
    cursor = connection.execute(query.encode())
    result = cursor.pgresult
    assert result is not None
    return [
        [_decoded(result.get_value(row, column)) for column in range(result.nfields)]
        for row in range(result.ntuples)
    ]


def _decoded(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


def converter(kind: str, element: str, modifier: int) -> Convert:
    """How the text of a type becomes JSON; types without a rule are their text."""
    if element and kind.startswith("_"):
        inner = converter(element, "", modifier)
        return lambda text: _array(text, inner)
    if kind in ("time", "timestamp") and 0 <= modifier <= 3:
        micros = _CONVERTERS[kind]
        return lambda text: micros(text) // 1000
    if kind == "timestamptz" and 0 <= modifier < 6:
        return lambda text: _timestamptz(text, modifier)
    return _CONVERTERS.get(kind, str)


def _boolean(text: str) -> bool:
    return text == "t"


def _float(text: str) -> float | str:
    return text if text in ("NaN", "Infinity", "-Infinity") else float(text)


def _numeric(text: str) -> str:
    return {"NaN": "NAN", "Infinity": "POSITIVE_INFINITY", "-Infinity": "NEGATIVE_INFINITY"}.get(text, text)


def _money(text: str) -> str:
    return text.replace("$", "").replace(",", "")


def _bytea(text: str) -> str:
    return base64.b64encode(bytes.fromhex(text.removeprefix("\\x"))).decode()


def _day_number(year: int, month: int, day: int) -> int:
    """Days since 1970-01-01 (Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", days_from_civil)."""
    year -= month <= 2
    era = year // 400
    of_era = year - era * 400
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


def _parts(text: str) -> tuple[int, int, int, str]:
    """Astronomical year, month, day and the rest of a date or timestamp."""
    text, bc = text.removesuffix(" BC"), text.endswith(" BC")
    day, _, rest = text.partition(" ")
    year, month, number = map(int, day.split("-"))
    return 1 - year if bc else year, month, number, rest


def _date(text: str) -> int:
    special = {"infinity": -2147472692, "-infinity": -2147472691}.get(text)
    return special if special is not None else _day_number(*_parts(text)[:3])


def _time(text: str) -> int:
    clock, _, fraction = text.partition(".")
    hours, minutes, seconds = map(int, clock.split(":"))
    return ((hours * 60 + minutes) * 60 + seconds) * 1_000_000 + int(fraction.ljust(6, "0"))


def _timestamp(text: str) -> int:
    special = {"infinity": 9223372036825200000, "-infinity": -9223372036832400000}.get(text)
    if special is not None:
        return special
    year, month, day, clock = _parts(text)
    return _day_number(year, month, day) * 86_400_000_000 + _time(clock)


def _timestamptz(text: str, digits: int = 6) -> str:
    if text in ("infinity", "-infinity"):
        return text
    year, month, day, clock = _parts(text)
    clock, _, fraction = clock.removesuffix("+00").partition(".")
    sign = "-" if year < 0 else "+" if year > 9999 else ""
    second = f"{clock}.{fraction.ljust(digits, '0')}" if digits else clock
    return f"{sign}{abs(year):04}-{month:02}-{day:02}T{second}Z"


_UNITS: Final = re.compile(r"(-?\+?\d+) (year|mon|day)s?")


def _interval(text: str) -> str:
    if "infinity" in text:
        return text
    units = {unit: int(number) for number, unit in _UNITS.findall(text)}
    clock = text.rsplit(" ", maxsplit=1)[-1]
    hours = minutes = 0
    seconds = "0"
    if ":" in clock:
        sign = "-" if clock.startswith("-") else ""
        parts = clock.lstrip("+-").split(":")
        hours, minutes = int(sign + parts[0]), int(sign + parts[1])
        second = (parts[2].rstrip("0").rstrip(".") if "." in parts[2] else parts[2]).lstrip("0")
        second = f"0{second}" if not second or second.startswith(".") else second
        seconds = second if second == "0" else sign + second
    years, months, days = (units.get(unit, 0) for unit in ("year", "mon", "day"))
    return f"P{years}Y{months}M{days}DT{hours}H{minutes}M{seconds}S"


_TOKEN: Final = re.compile(r'"((?:[^"\\]|\\.)*)"|([^{},"]+)|([{},])', re.DOTALL)


def _array(text: str, inner: Convert) -> list[Any]:
    stack: list[list[Any]] = [[]]
    for match in _TOKEN.finditer(text[text.index("{") :]):
        quoted, plain, mark = match.groups()
        if mark == "{":
            stack.append([])
        elif mark == "}":
            done = stack.pop()
            stack[-1].append(done)
        elif quoted is not None:
            stack[-1].append(inner(re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL)))
        elif plain is not None:
            stack[-1].append(None if plain == "NULL" else inner(plain))
    found: list[Any] = stack[0][0]
    return found


_CONVERTERS: Final[Mapping[str, Convert]] = {
    "int2": int,
    "int4": int,
    "int8": int,
    "oid": int,
    "float4": _float,
    "float8": _float,
    "numeric": _numeric,
    "money": _money,
    "bool": _boolean,
    "bytea": _bytea,
    "date": _date,
    "time": _time,
    "timestamp": _timestamp,
    "timestamptz": _timestamptz,
    "interval": _interval,
}
