r"""Stage 4 for snapshots: a row of `COPY … TO STDOUT` in text format -> JSON values.

With the same settings of the session, COPY writes each value in the text that pgoutput sends for it (both call the
type's output function), so the converters are the same, and so are the bytes that come out. Around the values
COPY has tabs, `\N` for NULL and backslash escapes (copyto.c, CopyAttributeOutText).
"""

import re
from typing import Final

from cdcd.errors import ProtocolError
from cdcd.protocol.messages import Relation
from cdcd.records.changes import HINT, HINT_ENCODING, NOT_UTF8, Plan, put_whole
from cdcd.records.converter import AS_IS, BOOLEAN, DECIMAL, FLOAT, QUOTED, STRING, Converter
from cdcd.records.wiretext import escaped

_ESCAPE: Final = re.compile(rb"\\(.)", re.DOTALL)
_MEANING: Final = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}
_BACKSLASH: Final = b"\\"
_NINE: Final = ord("9")
_POINT: Final = ord(".")
_TRUE: Final = b"t"

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


def convert_row(line: bytes, plan: Plan, converters: list[Converter], values: list[bytes]) -> None:
    """Convert a row, with its newline, into the slots of `values`.

    Raises:
        ValueError, IndexError: the row is malformed; `explain_row` says how.
    """
    fields = line[:-1].split(b"\t")
    if len(fields) != len(plan) and (plan or len(line) > 1):
        raise ValueError("the row has another number of columns than the relation")
    has_escapes = _BACKSLASH in line
    for slot, mode, column in plan:
        value = fields[column]
        if has_escapes and _BACKSLASH in value:
            if value == NULL:
                if mode in QUOTED:
                    put_whole(values, slot, b"null")
                else:
                    values[slot] = b"null"
                continue
            value = unescape(value)
        if mode == STRING:
            values[slot] = escaped(value)
        elif mode == AS_IS:
            values[slot] = value
        elif mode == DECIMAL:
            if value[-1] <= _NINE:
                values[slot] = value
            else:
                put_whole(values, slot, converters[column].wire(value))
        elif mode == FLOAT:
            values[slot] = value if _POINT in value else converters[column].wire(value)
        elif mode == BOOLEAN:
            values[slot] = b"true" if value == _TRUE else converters[column].wire(value)
        else:
            values[slot] = converters[column].wire(value)


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
