"""Stage 6 for snapshots: makes records with op `r` from rows that COPY has read, in the same form as for changes.

Only the `source` differs from the record of a change: `snapshot` has Debezium's word for it
(`records/markers.py`), `txId` is null, `lsn` is the WAL position up to which the row is valid, and `commit_lsn`
with `event_serial_no` order the row between the changes that were streamed before it and after it.
"""

from itertools import compress
from typing import Final

from cdcd.core.records.debezium_json.around import JsonAround
from cdcd.core.records.debezium_json.converter import QUOTED
from cdcd.core.records.debezium_json.snapshot_rows import (
    Columns,
    convert_rows,
    explain_row,
    line_with,
    literal,
    row_of_line,
)
from cdcd.core.records.debezium_json.source_block import DELETED, OPS, processed_at
from cdcd.core.records.debezium_json.table_fragments import TableFragments
from cdcd.core.records.encoder import Record, SnapshotPosition
from cdcd.core.records.format import CopiedRows
from cdcd.core.records.unwritable import named

BLOCK: Final = 1024
"""Number of rows that are converted together."""


def add_lines(
    around: JsonAround, table: TableFragments, lines: list[bytes], first: int, rows: CopiedRows, now_us: int
) -> None:
    """Add the records of rows with the same marker. See `Format.lines`."""
    known = rows.count
    for at in range(0, len(lines), BLOCK):
        block = lines[at : at + BLOCK]
        try:
            columns = convert_rows(block, table.converters)
        except (ValueError, IndexError) as cause:
            for place, line in enumerate(block, first + at):
                _add_line(around, table, line, place, rows, now_us, cause)
        else:
            _add(rows, _records(around, table, columns, range(first + at, first + at + len(block)), rows))
    table.tally.counts[OPS.index(rows.position.op)] += rows.count - known


def _add_line(
    around: JsonAround,
    table: TableFragments,
    line: bytes,
    place: int,
    rows: CopiedRows,
    now_us: int,
    cause: Exception,
) -> None:
    """Add one of the rows among which some have values without a form (`records/unwritable.py`)."""
    refusal = explain_row(line, table.relation, table.converters)
    if refusal is not None:
        raise refusal from cause
    lsn = rows.position.lsn
    found = rows.stand_ins.found(table, row_of_line(line), lsn)
    columns = convert_rows([line_with(line, found, table.key_columns)], table.converters)
    made = _records(around, table, columns, range(place, place + 1), rows)
    if found and made:
        names = rows.stand_ins.note(table, found, lsn, now_us)
        made = [named(record, names) for record in made]
    _add(rows, made)


def _add(rows: CopiedRows, records: list[Record]) -> None:
    size = 0
    for _, key, value, _ in records:
        size += len(value or b"") + len(key or b"")
    rows.count += len(records)
    rows.size += size
    rows.out.extend(records)


def _records(
    around: JsonAround, table: TableFragments, columns: Columns, places: range, rows: CopiedRows
) -> list[Record]:
    """Return the records of converted rows, which are at these places among all of them. Their keys are added."""
    values = [column for (column, _), shown in zip(columns, table.visible, strict=True) if shown]
    keys = _keys(table, columns)
    count = len(places)
    if keys is not None:
        if rows.dropped:
            kept = [key not in rows.dropped for key in keys]
            values = [list(compress(column, kept)) for column in values]
            keys = list(compress(keys, kept))
            count = len(keys)
            rows.left_out += [place for place, stays in zip(places, kept, strict=True) if not stays]
        rows.keys += keys
    event_no = rows.position.event_no + rows.count
    numbers = [b"%d" % each for each in range(event_no + 1, event_no + 1 + count)]
    form = around.form(table, columns, rows.position)
    topic = table.topic
    texts = zip(*values, numbers, strict=True)
    records: list[Record]
    if keys is None:
        records = [(topic, None, form % text, None) for text in texts]
    else:
        records = [(topic, key, form % text, None) for key, text in zip(keys, texts, strict=True)]
    return around.completed(table, records, rows, event_no)


def _keys(table: TableFragments, columns: Columns) -> list[bytes] | None:
    """Return the key of each row; None if the table has no key."""
    if not table.key_columns:
        return None
    form = b""
    for fragment, index in zip(table.key_fragments, table.key_columns, strict=True):
        quoted = table.modes[index] in QUOTED and not columns[index][1]
        form += literal(fragment) + (b'"%b"' if quoted else b"%b")
    form += literal(table.key_end)
    keys = [form % row for row in zip(*[columns[index][0] for index in table.key_columns], strict=True)]
    return [table.finished_key(key) for key in keys] if table.has_text_key else keys


def add_deletes(
    table: TableFragments,
    keys: list[tuple[bytes, ...]],
    position: SnapshotPosition,
    now_us: int,
    out: list[Record],
) -> None:
    """Append a delete for each key. In `before`, only the columns of the key have values, as in a delete that was
    streamed.
    """
    lsn = str(int(position.lsn)).encode("ascii")
    at = {column: place for place, column in enumerate(table.key_columns)}
    ending = table.source.ending(DELETED, processed_at(now_us))
    for number, values in enumerate(keys, position.event_no + 1):
        key = table.finished_key(
            b"".join(
                [f + value for f, value in zip(table.key_fragments, values, strict=True)] + [table.key_end]
            )
        )
        row, start = [b'{"before":'], table.row_start
        for column, (name, shown) in enumerate(zip(table.names, table.visible, strict=True)):
            if shown:
                row += (start, name, b":", values[at[column]] if column in at else b"null")
                start = b","
        row += (b"}", b',"after":null')
        value = table.source.joined(row, lsn, str(number).encode("ascii"), ending)
        out.append((table.topic, key, value, None))
