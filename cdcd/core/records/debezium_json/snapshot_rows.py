"""Stage 4 for snapshots: converts rows of `COPY … TO STDOUT` in text format into JSON values."""

from collections.abc import Sequence
from typing import Final

from cdcd.core.catalog.copytext import BACKSLASH, NULL, OTHER_WIDTH, escape, fields_of, split_row, unescape
from cdcd.core.catalog.hints import HINT
from cdcd.core.errors import CdcdError, ProtocolError
from cdcd.core.protocol.messages import Relation, TupleData
from cdcd.core.records.debezium_json.converter import (
    AS_IS,
    ASCII,
    BOOLEAN,
    DECIMAL,
    FLOAT,
    QUOTED,
    STRING,
    Converter,
)
from cdcd.core.records.debezium_json.strings import escaped, has_escaped
from cdcd.core.records.debezium_json.table_fragments import TableFragments
from cdcd.core.records.encoder import SnapshotPosition
from cdcd.core.records.unwritable import Found, UnwritableError, stood_in

_DECIMAL: Final = b"0123456789.-"
_TRUE: Final = b"true"


Columns = list[tuple[list[bytes], bool]]
"""For each column: the JSON of its values, in the order of the rows, and whether the JSON is complete. If it is not,
quotes must be put around each value."""


def convert_rows(lines: list[bytes], converters: list[Converter]) -> Columns:
    """Convert rows, which are lines with their newlines, column by column.

    The values of a column are examined together, so a converter is called only for values that need it.

    Returns:
        For each column: the JSON of its values, in the order of the rows; and whether the JSON is complete. If it is
        not, which happens only where the mode is one of `QUOTED`, quotes must be put around each value.

    Raises:
        ValueError, IndexError: a row is malformed; `explain_row` says how.
    """
    width = len(converters)
    if not width:
        if any(line != b"\n" for line in lines):
            raise ValueError(OTHER_WIDTH)
        return []
    # All fields of all rows are in one list, of which a column is a slice.
    fields, has_escapes = fields_of(lines, width)
    columns: Columns = []
    for column, converter in enumerate(converters):
        values = fields[column::width]
        if has_escapes and BACKSLASH in b"".join(values):
            columns.append(([_whole(value, converter) for value in values], True))
        else:
            columns.append(_convert(values, converter))
    return columns


def _whole(field: bytes, converter: Converter) -> bytes:
    if field == NULL:
        return b"null"
    return converter.wire_of_copy(field) if BACKSLASH in field else converter.wire(field)


def _convert(values: list[bytes], converter: Converter) -> tuple[list[bytes], bool]:
    """Convert the fields of a column, which have neither NULL nor escapes."""
    mode = converter.mode
    if mode == AS_IS:
        return values, True
    if mode == STRING:
        if not has_escaped(b"".join(values)):
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


def explain_row(line: bytes, relation: Relation, converters: list[Converter]) -> CdcdError | None:
    """Return the error that says why a row was refused; None if the row is not malformed.

    The error shows no value, because a value may be secret.
    """
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
        except UnwritableError:
            continue
        except (ValueError, IndexError) as error:
            if isinstance(error, UnicodeDecodeError) and converter.mode not in ASCII:
                continue
            return ProtocolError(
                f"{what}: a text of {len(value)} bytes is not of its type's form.", hint=HINT
            )
    return None


def row_of_line(line: bytes) -> TupleData:
    """Return the values of a row in text form."""
    return tuple([None if field == NULL else unescape(field) for field in split_row(line)])


def line_with(line: bytes, found: Sequence[Found], key: Sequence[int]) -> bytes:
    """Return the row with replacements for the values that were found; `key` has the indexes of the key's columns."""
    (row,) = stood_in([row_of_line(line)], [found], key)
    fields = split_row(line)
    for column, _ in found:
        value = row[column]
        fields[column] = escape(value) if isinstance(value, bytes) else NULL
    return b"\t".join(fields) + b"\n"


def runs(count: int, position: SnapshotPosition) -> list[tuple[int, int, str]]:
    """Return the runs of rows with the same marker: begin, end (not included), marker."""
    runs: list[tuple[int, int, str]] = []
    if not count:
        return runs
    for begin, end, marker in (
        (0, min(1, count - 1), position.first),
        (min(1, count - 1), count - 1, position.others),
        (count - 1, count, position.last),
    ):
        if begin < end:
            if runs and runs[-1][2] == marker:
                runs[-1] = (runs[-1][0], end, marker)
            else:
                runs.append((begin, end, marker))
    return runs


def row_form(table: TableFragments, columns: Columns) -> bytes:
    """Return a row with placeholders for the values of the columns."""
    parts: list[bytes] = []
    for name, mode, shown, (_, whole) in zip(table.names, table.modes, table.visible, columns, strict=True):
        if not shown:
            continue
        start = b"," if parts else table.row_start
        parts.append(literal(start + name + b":") + (b'"%b"' if mode in QUOTED and not whole else b"%b"))
    return (b"".join(parts) or literal(table.empty_row)) + b"}"


def literal(text: bytes) -> bytes:
    """Return the text for use in a format string, in which % stands for values."""
    return text.replace(b"%", b"%%")
