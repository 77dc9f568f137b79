r"""Stage 4 for snapshots: a row of `COPY … TO STDOUT` in text format -> JSON values.

With the same settings of the session, COPY writes each value in the text that pgoutput sends for it (both call the
type's output function), so the converters are the same, and so are the bytes that come out. Around the values
COPY has tabs, `\N` for NULL and backslash escapes (copyto.c, CopyAttributeOutText).
"""

import re
from typing import Final

from cdcd.errors import ProtocolError
from cdcd.protocol.messages import Relation
from cdcd.records.changes import HINT, HINT_ENCODING, NOT_UTF8
from cdcd.records.converter import AS_IS, BOOLEAN, DECIMAL, FLOAT, STRING, Converter
from cdcd.records.wiretext import escaped, find_escaped

_ESCAPE: Final = re.compile(rb"\\(.)", re.DOTALL)
_MEANING: Final = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}
_BACKSLASH: Final = b"\\"
_DECIMAL: Final = b"0123456789.-"
_TRUE: Final = b"true"

OTHER_WIDTH: Final = "the row has another number of columns than the relation"

NULL: Final = rb"\N"


def split_row(line: bytes) -> list[bytes]:
    """The fields of a row with its newline, as they stand: not unescaped. A row without columns has none."""
    return line[:-1].split(b"\t") if len(line) > 1 else []


def unescape(field: bytes) -> bytes:
    """The value of a field that is not NULL."""
    return _ESCAPE.sub(_meaning, field)


def _meaning(match: re.Match[bytes]) -> bytes:
    letter = match[1]
    return _MEANING.get(letter, letter)


def escape(value: bytes) -> bytes:
    """The field of a value, as the server writes it."""
    text = value.replace(_BACKSLASH, _BACKSLASH * 2)
    for letter, meaning in _MEANING.items():
        text = text.replace(meaning, _BACKSLASH + letter)
    return text


def convert_rows(lines: list[bytes], converters: list[Converter]) -> list[tuple[list[bytes], bool]]:
    """Convert rows, each with its newline, column by column: a call of a type's converter is the exception, and what
    has to be looked at in each value is looked at once for all of them.

    Returns:
        For each column the JSON of its values, in the rows' order; and whether that is all of it. Else (only where the
        mode is one of `QUOTED`) quotes belong around each.

    Raises:
        ValueError, IndexError: a row is malformed; `explain_row` says how.
    """
    width = len(converters)
    raw = b"".join(lines)
    if not raw.isascii():
        raw.decode("utf-8")
    if not width:
        if len(raw) != len(lines):
            raise ValueError(OTHER_WIDTH)
        return []
    tabs = width - 1
    for line in lines:
        if line.count(b"\t") != tabs:
            raise ValueError(OTHER_WIDTH)
    # All fields of all rows in one list: the columns are slices of it.
    fields = raw[:-1].replace(b"\n", b"\t").split(b"\t")
    has_escapes = _BACKSLASH in raw
    columns: list[tuple[list[bytes], bool]] = []
    for column, converter in enumerate(converters):
        values = fields[column::width]
        if has_escapes and _BACKSLASH in b"".join(values):
            columns.append(([_whole(value, converter) for value in values], True))
        else:
            columns.append(_convert(values, converter))
    return columns


def _whole(field: bytes, converter: Converter) -> bytes:
    if field == NULL:
        return b"null"
    if _BACKSLASH in field:
        field = unescape(field)
    return converter.wire(field)


def _convert(values: list[bytes], converter: Converter) -> tuple[list[bytes], bool]:
    """Fields of a column that hold neither NULL nor escapes."""
    mode = converter.mode
    if mode == AS_IS:
        return values, True
    if mode == STRING:
        if find_escaped(b"".join(values)) is None:
            return values, False
        return [escaped(value) for value in values], False
    if mode == DECIMAL and not b"".join(values).translate(None, _DECIMAL):
        return values, False
    wire = converter.wire
    if mode == FLOAT:
        return [value if b"." in value else wire(value) for value in values], True
    if mode == BOOLEAN:
        return [_TRUE if value == b"t" else wire(value) for value in values], True
    return [wire(value) for value in values], True


def explain_row(line: bytes, relation: Relation, converters: list[Converter]) -> ProtocolError:
    """Why a row was refused, to be raised; no value is shown, it may be somebody's secret."""
    where = f"A row of {relation.schema}.{relation.name} read by COPY"
    fields = split_row(line)
    if len(fields) != len(converters):
        return ProtocolError(
            f"{where} has {len(fields)} columns, but {len(converters)} were asked for.", hint=HINT
        )
    for converter, column, field in zip(converters, relation.columns, fields, strict=True):
        what = f"{where}: column {column.name!r} of type {column.type_oid}"
        if field == NULL:
            continue
        value = unescape(field)
        try:
            value.decode("utf-8")
            converter.wire(value)
        except UnicodeDecodeError:
            return ProtocolError(f"{what}: {NOT_UTF8}.", hint=HINT_ENCODING)
        except (ValueError, IndexError):
            return ProtocolError(
                f"{what}: a text of {len(value)} bytes is not of its type's form.", hint=HINT
            )
    raise AssertionError("a row was refused in which nothing is wrong")
