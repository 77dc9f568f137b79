"""Stage 6 for snapshots: makes records with op `r` from rows that COPY has read, in the same form as for changes.

Only the `source` differs from the record of a change: `snapshot` has Debezium's word for it
(`snapshot/markers.py`), `txId` is null, `lsn` is the WAL position up to which the row is valid, and `commit_lsn`
with `event_serial_no` order the row between the changes that were streamed before it and after it.

`convert_rows` is stage 4 for snapshots: it converts rows of `COPY … TO STDOUT` in text format into JSON values.
"""

from collections.abc import Sequence
from itertools import compress
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
from cdcd.core.records.debezium_json.encoder import DebeziumJsonEncoder
from cdcd.core.records.debezium_json.source_block import DELETED, OPS, processed_at
from cdcd.core.records.debezium_json.strings import escaped, has_escaped
from cdcd.core.records.debezium_json.table_fragments import TableFragments
from cdcd.core.records.encoder import Encoded, Record, SnapshotPosition
from cdcd.core.records.unwritable import Found, UnwritableError, named, stood_in

_DECIMAL: Final = b"0123456789.-"
_TRUE: Final = b"true"


def convert_rows(lines: list[bytes], converters: list[Converter]) -> list[tuple[list[bytes], bool]]:
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
    columns: list[tuple[list[bytes], bool]] = []
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


_ROW: Final = b"\0"
"""Byte in place of a row whose values are not known yet; JSON never has this byte."""

BLOCK: Final = 1024
"""Number of rows that are converted together."""


class SnapshotEncoder(DebeziumJsonEncoder):
    """Describes tables by `define`, like `DebeziumJsonEncoder`, and encodes rows of them."""

    def _rows(
        self,
        oid: int,
        lines: list[bytes],
        position: SnapshotPosition,
        now_us: int,
        out: list[Record],
        dropped: set[bytes],
    ) -> Encoded:
        """Append the records of rows whose key is not in `dropped`.

        Raises:
            ProtocolError: a row is malformed.
            SinkError: the table's topic name is too long, or equals another topic's name.
        """
        count = size = 0
        keys: list[bytes] | None = [] if self.has_key(oid) else None
        left_out: list[int] = []
        for begin, end, marker in runs(len(lines), position):
            self._source.begin(None, position.commit_lsn, now_us, None, snapshot=marker)
            self._transaction += 1
            table = self._table(oid, out)
            for at in range(begin, end, BLOCK):
                block = lines[at : min(at + BLOCK, end)]
                number = position.event_no + count
                known = len(left_out)
                records, appended = self._encode_block(
                    table, block, position, now_us, number, dropped, left_out
                )
                if len(left_out) > known:
                    left_out[known:] = [at + place for place in left_out[known:]]
                count += len(records)
                for _, key, value, _ in records:
                    size += len(value or b"") + len(key or b"")
                out.extend(records)
                if keys is not None and appended is not None:
                    keys += appended
        self.tables.fragments[oid].tally.counts[OPS.index(position.op)] += count
        return Encoded(count, size, keys, left_out)

    def encode_deletes(
        self,
        oid: int,
        keys: list[tuple[bytes, ...]],
        position: SnapshotPosition,
        now_us: int,
        out: list[Record],
    ) -> Encoded:
        """See `Encoder`. In `before`, only the columns of the key have values, as in a delete that was streamed."""
        self._source.begin(None, position.commit_lsn, now_us, None, snapshot=position.others)
        self._transaction += 1
        table = self._table(oid, out)
        lsn = str(int(position.lsn)).encode("ascii")
        at = {column: place for place, column in enumerate(table.key_columns)}
        size = 0
        for number, values in enumerate(keys, position.event_no + 1):
            key = b"".join(
                [f + value for f, value in zip(table.key_fragments, values, strict=True)] + [table.key_end]
            )
            row, start = [b'{"before":'], table.row_start
            for column, (name, shown) in enumerate(zip(table.names, table.visible, strict=True)):
                if shown:
                    row += (start, name, b":", values[at[column]] if column in at else b"null")
                    start = b","
            row += (b"}", b',"after":null')
            ending = table.source.ending(DELETED, processed_at(now_us))
            value = table.source.joined(row, lsn, str(number).encode("ascii"), ending)
            out.append((table.topic, key, value, None))
            size += len(key) + len(value)
            if self._settings.tombstones:
                out.append((table.topic, key, None, None))
                size += len(key)
        table.tally.counts[DELETED] += len(keys)
        return Encoded(len(keys), size, None)

    def _encode_block(
        self,
        table: TableFragments,
        lines: list[bytes],
        position: SnapshotPosition,
        now_us: int,
        event_no: int,
        dropped: set[bytes],
        left_out: list[int],
    ) -> tuple[list[Record], list[bytes] | None]:
        """Return records and keys of rows with the same marker; the number of the first is `event_no` plus 1.

        `left_out` gets the indexes of rows without a record.
        """
        try:
            columns = convert_rows(lines, table.converters)
        except (ValueError, IndexError) as cause:
            return self._encode_each(table, lines, position, now_us, event_no, dropped, left_out, cause)
        values = [column for (column, _), shown in zip(columns, table.visible, strict=True) if shown]
        keys = _keys(table, columns)
        if keys is not None and dropped:
            kept = [key not in dropped for key in keys]
            values = [list(compress(column, kept)) for column in values]
            keys = list(compress(keys, kept))
            number = len(keys)
            left_out += [place for place, stays in enumerate(kept) if not stays]
        else:
            number = len(lines)
        numbers = [b"%d" % each for each in range(event_no + 1, event_no + 1 + number)]
        form = self._form(table, columns, position, now_us)
        topic = table.topic
        rows = zip(*values, numbers, strict=True)
        records: list[Record]
        if keys is None:
            records = [(topic, None, form % row, None) for row in rows]
        else:
            records = [(topic, key, form % row, None) for key, row in zip(keys, rows, strict=True)]
        return self._completed(table, records, position, now_us, event_no), keys

    def _completed(
        self,
        table: TableFragments,
        records: list[Record],
        position: SnapshotPosition,
        now_us: int,
        event_no: int,
    ) -> list[Record]:
        """Return the finished records for rows that `_form` has written; the number of the first is
        `event_no` plus 1.
        """
        return records

    def _encode_each(  # noqa: PLR0917 - as `encode_rows`
        self,
        table: TableFragments,
        lines: list[bytes],
        position: SnapshotPosition,
        now_us: int,
        event_no: int,
        dropped: set[bytes],
        left_out: list[int],
        cause: Exception,
    ) -> tuple[list[Record], list[bytes] | None]:
        """Encode the rows one by one, because some have values without a form (`records/unwritable.py`)."""
        records: list[Record] = []
        keys: list[bytes] = []
        for place, line in enumerate(lines):
            refusal = explain_row(line, table.relation, table.converters)
            if refusal is not None:
                raise refusal from cause
            found = self.found_unwritable(table, row_of_line(line), position.lsn)
            assert found or len(lines) > 1, "a row was refused in which nothing is wrong"
            written = line_with(line, found, table.key_columns)
            number = event_no + len(records)
            gone: list[int] = []
            made, appended = self._encode_block(table, [written], position, now_us, number, dropped, gone)
            if gone:
                left_out.append(place)
            if found and made:
                names = self.note_unwritable(table, found, position.lsn, now_us)
                made = [named(record, names) for record in made]
            records += made
            keys += appended or []
        return records, keys if table.key_columns else None

    def _form(
        self,
        table: TableFragments,
        columns: list[tuple[list[bytes], bool]],
        position: SnapshotPosition,
        now_us: int,
    ) -> bytes:
        """Return a record with placeholders for the values of the columns and for the row's number."""
        row = b'{"before":null,"after":' + row_form(table, columns)
        lsn = str(int(position.lsn)).encode("ascii")
        op = OPS.index(position.op)
        before, after = table.source.around_number(_ROW, lsn, op, processed_at(now_us))
        begin, _, end = before.partition(_ROW)
        return _literal(begin) + row + _literal(end) + b"%b" + _literal(after)

    def has_key(self, oid: int) -> bool:
        """Return whether the table has a key, by which its rows are distinguished."""
        return bool(self.tables.fragments[oid].key_slots)


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


def row_form(table: TableFragments, columns: list[tuple[list[bytes], bool]]) -> bytes:
    """Return a row with placeholders for the values of the columns."""
    parts: list[bytes] = []
    for name, mode, shown, (_, whole) in zip(table.names, table.modes, table.visible, columns, strict=True):
        if not shown:
            continue
        start = b"," if parts else table.row_start
        parts.append(_literal(start + name + b":") + (b'"%b"' if mode in QUOTED and not whole else b"%b"))
    return (b"".join(parts) or _literal(table.empty_row)) + b"}"


def _keys(table: TableFragments, columns: list[tuple[list[bytes], bool]]) -> list[bytes] | None:
    """Return the key of each row; None if the table has no key."""
    if not table.key_columns:
        return None
    form = b""
    for fragment, index in zip(table.key_fragments, table.key_columns, strict=True):
        quoted = table.modes[index] in QUOTED and not columns[index][1]
        form += _literal(fragment) + (b'"%b"' if quoted else b"%b")
    form += table.key_end
    return [form % row for row in zip(*[columns[index][0] for index in table.key_columns], strict=True)]


def _literal(text: bytes) -> bytes:
    """Return the text for use in a format string, in which % stands for values."""
    return text.replace(b"%", b"%%")
