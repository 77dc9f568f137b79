"""Stage 6, another way: rows -> flattened records, of which the value is the row (`records/flattening.py`).

The row is the one that the envelope has as `after`, or as `before` for a delete. Its JSON is not parsed: the bytes
are copied from the written envelope. A record keeps the headers that it would have with an envelope.

As with Debezium's transform, TRUNCATE has no record, and logical messages are unchanged. Differences:

- A delete in a table without a key has no tombstone, because it would have neither key nor value.
- A header whose field is null is left out.
- A field with the name of one of the table's columns is left out and reported. Debezium's connector stops in this
  case.

Rows are not drafted: rows of an open transaction are kept as frames.
"""

from collections.abc import Sequence
from typing import Final

from cdcd.core.catalog.wiretext import checked, wire
from cdcd.core.facts import Observer
from cdcd.core.records.cloudevents.tables import EventTables
from cdcd.core.records.debezium_json.added_values import FlatForm, FlatForms
from cdcd.core.records.debezium_json.around import JsonAround, tombstone
from cdcd.core.records.debezium_json.connect_schema import (
    CLOSING,
    WITH_SCHEMA,
    Schema,
    flat_schema,
    opening,
)
from cdcd.core.records.debezium_json.pieces import Part, checked_parts, part_of
from cdcd.core.records.debezium_json.row_writer import WITHOUT_OLD, RowWriter
from cdcd.core.records.debezium_json.snapshot_rows import Columns, row_form
from cdcd.core.records.debezium_json.source_block import DELETED, READ, TRUNCATED
from cdcd.core.records.debezium_json.strings import quote
from cdcd.core.records.debezium_json.table_fragments import Headers, TableFragments
from cdcd.core.records.encoder import EncoderSettings, Record, SnapshotPosition
from cdcd.core.records.flattening import DELETED_FIELD
from cdcd.core.records.format import CopiedRows, Current, size_of
from cdcd.core.records.schema_names import adjusted

_AFTER: Final = len(b',"after":')
_BEFORE: Final = len(b'{"before":')
_NO_AFTER: Final = len(b',"after":null')
_EMPTY: Final = b"{}"


class FlatTable:
    """The pieces of JSON that flattened records of one table have besides their row.

    Attributes:
        form: makes the added values.
        deleted: the field `__deleted` for rows that exist, and for deleted rows.
    """

    __slots__ = ("_closing", "_fragments", "_opening", "deleted", "form")

    def __init__(self, form: FlatForm, schema_opening: bytes) -> None:
        self.form = form
        self._opening = schema_opening
        self._closing = CLOSING if schema_opening else b""
        name = quote(DELETED_FIELD)
        self.deleted = [
            f',{name}:"{each}"'.encode() if form.has_deleted else b"" for each in ("false", "true")
        ]
        self._fragments = [f",{quote(wire(name))}:".encode("latin-1") for name in form.fields.names]

    def parts(self, row: Sequence[Part], op: int, lsn: bytes, event_no: int, now_us: int) -> list[Part]:
        """Return the parts of a record's value; `row` has those of a JSON object, the last of which ends with its
        brace.
        """
        pieces = [self.deleted[op == DELETED]]
        for fragment, value in zip(
            self._fragments, self.form.fields.of_event(op, lsn, event_no, now_us), strict=True
        ):
            pieces += (fragment, value)
        added = b"".join(pieces)
        if not added:
            return [self._opening, *row, self._closing]
        last = row[-1]
        if last == _EMPTY:
            added = added[1:]
        return [self._opening, *row[:-1], last[:-1], added, b"}", self._closing]


class FlatRows(JsonAround):
    """Writes flattened rows.

    Args:
        events: makes events of which the rows are the data; None if the rows are the values.
    """

    def __init__(
        self,
        settings: EncoderSettings,
        current: Current,
        observe: Observer,
        events: EventTables | None = None,
    ) -> None:
        self._settings = settings
        self._current = current
        self._events = events
        self._forms = FlatForms(settings, observe)
        self._tables: dict[int, FlatTable] = {}
        data = settings.value_format if events is None else settings.events.data
        self._has_schema = data == WITH_SCHEMA

    def describe(self, table: TableFragments) -> None:
        """See `JsonAround`."""
        form = self._forms.of_table(table, table.described.rules)
        schema = opening(self._schema(table, form)) if self._has_schema else b""
        self._tables[table.relation.oid] = FlatTable(form, schema)
        if self._events is not None:
            self._events.describe(table)

    def schema(self, table: TableFragments) -> Schema:
        """See `JsonAround`."""
        return self._schema(table, self._tables[table.relation.oid].form)

    def _schema(self, table: TableFragments, form: FlatForm) -> Schema:
        described = table.described
        return flat_schema(
            table.shown,
            table.key_columns,
            described.types,
            adjusted(table.named, self._settings.name_adjustment),
            described.rules,
            modes=self._settings.modes,
            constants=table.constants,
            added=form.added,
            has_deleted=form.has_deleted,
        )

    def begin(self, table: TableFragments) -> None:
        """See `JsonAround`."""
        self._tables[table.relation.oid].form.renew(self._current.facts)

    def written(self, table: TableFragments, op: int, writer: RowWriter, out: list[Record]) -> int:
        """See `JsonAround`."""
        written = writer.draft()
        if op == DELETED:
            row = part_of(written, _BEFORE, len(written) - _NO_AFTER)
        elif written.startswith(WITHOUT_OLD):
            row = part_of(written, len(WITHOUT_OLD), len(written))
        else:
            row = part_of(written, writer.row_at, len(written))
        return self._put(table, op, writer.key, [row], None, out)

    def changed(
        self,
        table: TableFragments,
        op: int,
        key: bytes | None,
        parts: list[bytes],
        headers: Headers | None,
        out: list[Record],
    ) -> int:
        """See `JsonAround`. A truncate has no record."""
        if op == TRUNCATED:
            return 0
        first, *others = checked_parts(parts[2:])
        return self._put(table, op, key, [first[_AFTER:], *others], headers, out)

    def deleted(
        self,
        table: TableFragments,
        key: bytes | None,
        before: bytes,
        headers: Headers | None,
        out: list[Record],
    ) -> int:
        """See `JsonAround`."""
        return self._put(table, DELETED, key, [checked(before)], headers, out)

    def _put(
        self,
        table: TableFragments,
        op: int,
        key: bytes | None,
        row: Sequence[Part],
        headers: Headers | None,
        out: list[Record],
    ) -> int:
        """Append the records of an event: for a delete none, one or two, for other events one."""
        flat, current = self._tables[table.relation.oid], self._current
        lsn, serial, now_us = str(current.lsn).encode("ascii"), current.serial, current.now_us
        made = [*(headers or ()), *flat.form.headers.headers(op, lsn, serial, now_us)] or None
        known = len(out)
        size = 0
        if op != DELETED or self._forms.rewrites:
            record = self._record(table, op, key, flat.parts(row, op, lsn, serial, now_us), serial, made)
            out.append(record)
            size = size_of(record) + self._header_bytes()
        if op == DELETED:
            size += tombstone(self._forms.has_tombstones, table, key, made, out)
        if len(out) > known:
            table.tally.counts[op] += 1
        return size

    def _record(
        self,
        table: TableFragments,
        op: int,
        key: bytes | None,
        data: Sequence[Part],
        serial: int,
        headers: Headers | None,
    ) -> Record:
        """Return a record; `data` has the parts of its flattened row."""
        if self._events is None:
            return table.topic, key, b"".join(data), headers
        value, headers = self._events.make(table, op, serial, data, headers)
        return table.topic, key, value, headers

    def _header_bytes(self) -> int:
        """Return the bytes of the last record's headers, if they count (`Encoder.encode`)."""
        return 0 if self._events is None else self._events.header_bytes

    def form(self, table: TableFragments, columns: Columns, position: SnapshotPosition) -> bytes:
        """See `JsonAround`."""
        return row_form(table, columns) + b"%b"

    def completed(
        self, table: TableFragments, records: list[Record], rows: CopiedRows, event_no: int
    ) -> list[Record]:
        """See `JsonAround`."""
        flat, now_us = self._tables[table.relation.oid], self._current.now_us
        lsn = b"%d" % int(rows.position.lsn)
        made: list[Record] = []
        for number, (_, key, written, _) in enumerate(records, event_no + 1):
            assert written is not None, "a row that is read has a value"
            # The row's number follows the row.
            row = [part_of(written, 0, written.rindex(b"}") + 1)]
            headers = flat.form.headers.headers(READ, lsn, number, now_us) or None
            data = flat.parts(row, READ, lsn, number, now_us)
            made.append(self._record(table, READ, key, data, number, headers))
            rows.size += self._header_bytes()
        return made
