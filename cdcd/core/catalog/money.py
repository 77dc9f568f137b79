"""Money: a whole number of minor units, whose number of decimal digits depends on a locale.

PostgreSQL stores 8 bytes. `lc_monetary` of the writing or reading session determines the number of decimal digits
(cash.c: frac_digits of the locale; two if the locale has none): none for Japan, three for Kuwait. Sessions of cdcd
pin lc_monetary to C, so the text has one form: `-$12,345.68` is the number -1234568.

The rule: a value is the result of `::numeric` in a session with the database's default of lc_monetary. So the
number is read from the text of C, and the point is set by the digits of the default, which a session reads when it
starts (`postgres/money.py`). Money within a composite, a range or an array of these is rewritten in their text, in
C's form.
"""

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from cdcd.core.catalog.relations import TypeDescription
from cdcd.core.catalog.types import BUILTIN_TYPES, MONEY, NESTING_MAX

DIGITS_OF_C: Final = 2
"""Number of decimal digits of money in lc_monetary C, which is also the default if the locale is not known."""

DIGITS_MAX: Final = 10
"""Maximum of decimal digits that PostgreSQL accepts from a locale (cash.c)."""

PRECISION: Final = 19
"""Decimal digits of the largest number in 8 bytes."""

Rewrite = Callable[[str], str]
"""Converts a value's text in lc_monetary C to the text with the digits of the database's default."""

_AMOUNT: Final = re.compile(r"([-(]?)\$?(\d[\d,]*)\.(\d\d)\)?", re.ASCII)
_SPACES: Final = r" \t\n\r\v\f"
_ROW_SPECIAL: Final = re.compile(rf'[{_SPACES}"\\(),]')
_RANGE_SPECIAL: Final = re.compile(rf'[{_SPACES}"\\()\[\],]')
_DOUBLED: Final = re.compile(r'(["\\])')


def minor_units(text: str) -> int:
    """Return the number of minor units in a text of lc_monetary C. ValueError: the text has another form."""
    match = _AMOUNT.fullmatch(text)
    if match is None:
        raise ValueError("it is not money in lc_monetary C")
    units = int(match[2].replace(",", "") + match[3])
    return -units if match[1] else units


def amount_of(units: int, digits: int) -> str:
    """Return the number with its point: `-12345.678` for -12345678 with three digits."""
    text = str(abs(units)).rjust(digits + 1, "0")
    sign = "-" if units < 0 else ""
    return f"{sign}{text[:-digits]}.{text[-digits:]}" if digits else f"{sign}{text}"


def amount(text: str, digits: int) -> str:
    """Return the number with `digits` decimal digits from a text of lc_monetary C. Raises as `minor_units`."""
    return amount_of(minor_units(text), digits)


def rewritten(text: str, digits: int) -> str:
    """Return the amount in C's form with `digits` digits: `-$1,234,568` for `-$12,345.68` with none."""
    units = minor_units(text)
    whole, point, fraction = amount_of(abs(units), digits).partition(".")
    return f"{'-' if units < 0 else ''}${int(whole):,}{point}{fraction}"


def rewrite_of(
    oid: int,
    types: Mapping[int, TypeDescription],
    digits: int,
    nesting: int = 0,
    known: dict[int, Rewrite | None] | None = None,
) -> Rewrite | None:
    """Return the function that rewrites the texts of a type.

    None: the type contains no money, or C has the same digits.

    Args:
        types: catalog descriptions of types that are not built in.
        digits: decimal digits of the database's default.
        known: functions of types that were looked at, so that each type is looked at once.
    """
    if digits == DIGITS_OF_C:
        return None
    if oid == MONEY:
        return partial(rewritten, digits=digits)
    known = {} if known is None else known
    if oid not in known:
        known[oid] = _rewrite_of(oid, types, digits, nesting, known)
    return known[oid]


def _rewrite_of(
    oid: int,
    types: Mapping[int, TypeDescription],
    digits: int,
    nesting: int,
    known: dict[int, Rewrite | None],
) -> Rewrite | None:
    description = types.get(oid) or BUILTIN_TYPES.get(oid)
    if description is None or nesting > NESTING_MAX:
        return None
    if description.kind == "d":
        return rewrite_of(description.base_oid, types, digits, nesting + 1, known)
    if description.is_array:
        element = rewrite_of(description.element_oid, types, digits, nesting + 1, known)
        return None if element is None else partial(_array, element=element, delimiter=description.delimiter)
    parts = [rewrite_of(part, types, digits, nesting + 1, known) for part in description.parts]
    first = next((part for part in parts if part is not None), None)
    if first is None:
        return None
    if description.kind == "c":
        return partial(_composite, parts=parts)
    # A range has one part, its subtype; a multirange has its range.
    return partial(_range if description.kind == "r" else _multirange, part=first)


def _array(text: str, *, element: Rewrite, delimiter: str) -> str:
    """Rewrite the text of array_out, where quoted elements escape quotes and backslashes with backslashes."""
    special = re.compile(rf'[{_SPACES}"\\{{}}{re.escape(delimiter)}]')
    token = re.compile(
        rf'"(?:[^"\\]|\\.)*"|[{{}}]|{re.escape(delimiter)}|[^"{{}}{re.escape(delimiter)}]+', re.DOTALL
    )
    bounds, equals, body = text.partition("={")
    head, rest = (f"{bounds}=", f"{{{body}") if equals and bounds[:1] == "[" else ("", text)
    parts = [head]
    for found in token.findall(rest):
        if found in ("{", "}", delimiter, "NULL"):
            parts.append(found)
            continue
        value = re.sub(r"\\(.)", r"\1", found[1:-1], flags=re.DOTALL) if found[0] == '"' else found
        value = element(value)
        if special.search(value) is None and value:
            parts.append(value)
        else:
            escaped = _DOUBLED.sub(r"\\\1", value)
            parts.append(f'"{escaped}"')
    return "".join(parts)


def _composite(text: str, *, parts: list[Rewrite | None]) -> str:
    """Rewrite the text of record_out: only the fields that contain money."""
    fields = _split(text[1:-1], ",")
    if text[:1] + text[-1:] != "()" or len(fields) < len(parts):
        raise ValueError("it is not the text of its composite type")
    rewritten_fields = [
        field if part is None or not field else _quoted(part(_unquoted(field)), _ROW_SPECIAL)
        for part, field in zip(parts, fields, strict=False)
    ]
    return f"({','.join([*rewritten_fields, *fields[len(parts) :]])})"


def _range(text: str, *, part: Rewrite) -> str:
    """Rewrite the text of range_out: both bounds are money; an empty bound is infinite."""
    if text == "empty":
        return text
    bounds = _split(text[1:-1], ",")
    if text[:1] not in ("[", "(") or text[-1:] not in ("]", ")") or len(bounds) != 2:
        raise ValueError("it is not the text of its range type")
    lower, upper = [_quoted(part(_unquoted(bound)), _RANGE_SPECIAL) if bound else "" for bound in bounds]
    return f"{text[0]}{lower},{upper}{text[-1]}"


def _multirange(text: str, *, part: Rewrite) -> str:
    """Rewrite the text of multirange_out: ranges in braces. Each range contains a comma, too."""
    if text[:1] + text[-1:] != "{}":
        raise ValueError("it is not the text of its multirange type")
    pieces = _split(text[1:-1], ",") if text != "{}" else []
    if len(pieces) % 2:
        raise ValueError("it is not the text of its multirange type")
    ranges = [f"{lower},{upper}" for lower, upper in zip(pieces[::2], pieces[1::2], strict=True)]
    return f"{{{','.join([part(each) for each in ranges])}}}"


def _split(text: str, delimiter: str) -> list[str]:
    """Return the fields of a record or a range, still quoted."""
    fields, begin, quoted, at = [], 0, False, 0
    while at < len(text):
        char = text[at]
        if char == "\\":
            at += 1
        elif char == '"':
            quoted = not quoted
        elif char == delimiter and not quoted:
            fields.append(text[begin:at])
            begin = at + 1
        at += 1
    fields.append(text[begin:])
    return fields


def _unquoted(field: str) -> str:
    """Return the value of a field (rowtypes.c, rangetypes.c): in quotes, quotes and backslashes are doubled."""
    if field[:1] != '"':
        return field
    return re.sub(r'(""|\\\\)', lambda match: match[1][0], field[1:-1])


def _quoted(value: str, special: re.Pattern[str]) -> str:
    if value and special.search(value) is None:
        return value
    doubled = _DOUBLED.sub(r"\1\1", value)
    return f'"{doubled}"'
