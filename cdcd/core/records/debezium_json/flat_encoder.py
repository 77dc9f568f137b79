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

from collections.abc import Mapping, Sequence
from typing import Final

from cdcd.core.catalog.wiretext import checked, wire
from cdcd.core.facts import Observer, unheard
from cdcd.core.protocol.messages import Relation
from cdcd.core.records.debezium_json.added_values import FlatForm, FlatForms
from cdcd.core.records.debezium_json.connect_schema import CLOSING, WITH_SCHEMA, flat_schema, opening
from cdcd.core.records.debezium_json.pieces import Part, checked_parts, part_of
from cdcd.core.records.debezium_json.row_writer import WITHOUT_OLD
from cdcd.core.records.debezium_json.snapshot_rows import SnapshotEncoder, row_form
from cdcd.core.records.debezium_json.source_block import DELETED, READ, TRUNCATED, SourceBlock
from cdcd.core.records.debezium_json.strings import quote
from cdcd.core.records.debezium_json.table_fragments import Headers, TableFragments
from cdcd.core.records.encoder import EncoderSettings, Record, SnapshotPosition
from cdcd.core.records.flattening import DELETED_FIELD
from cdcd.core.records.schema_names import adjusted
from cdcd.core.transactions.drafts import SpoolItem

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


class FlatEncoder(SnapshotEncoder):
    """Encodes rows of changes and of snapshots. See `Encoder` for the methods."""

    def __init__(
        self,
        settings: EncoderSettings,
        binary: bool = False,
        observe: Observer = unheard,
        source: SourceBlock | None = None,
        alone: SourceBlock | None = None,
    ) -> None:
        self._flat_forms = FlatForms(settings, observe)
        self._flat_tables: dict[int, FlatTable] = {}
        self._is_event = False
        """True if the row is the data of an event (`_event`)."""
        self._header_bytes = 0
        """Bytes of the headers of the last record, if they count (`Encoder.encode`)."""
        self._row_header_bytes = 0
        """Bytes of the headers of all snapshot rows that were encoded together, if they count."""
        SnapshotEncoder.__init__(self, settings, binary, observe, source, alone)

    def _drafts_of(
        self, frames: list[SpoolItem], relations: Mapping[int, tuple[int, Relation]]
    ) -> list[SpoolItem]:
        """Return the frames unchanged, because rows are not drafted."""
        return frames

    def _described(self, fragments: TableFragments) -> None:
        settings = self._settings
        described = fragments.described
        rules = described.rules
        form = self._flat_forms.of_table(fragments, rules)
        schema = b""
        if self._has_schema():
            schema = opening(
                flat_schema(
                    fragments.shown,
                    fragments.key_columns,
                    described.types,
                    adjusted(fragments.topic, settings.name_adjustment),
                    rules,
                    modes=settings.modes,
                    constants=fragments.constants,
                    added=form.added,
                    has_deleted=form.has_deleted,
                )
            )
        self._flat_tables[fragments.relation.oid] = FlatTable(form, schema)

    def _has_schema(self) -> bool:
        """Return whether values begin with their schema."""
        return self._settings.value_format == WITH_SCHEMA

    def _flat_table(self, table: TableFragments) -> FlatTable:
        """Return the values that are added to the table's records, renewed for the open transaction."""
        flat = self._flat_tables[table.relation.oid]
        if flat.form.transaction != self._transaction:
            flat.form.renew(self._source, self._transaction)
        return flat

    def _event(
        self,
        table: TableFragments,
        op: int,
        lsn: bytes,
        event_no: int,
        data: Sequence[Part],
        headers: Headers,
    ) -> tuple[bytes, Headers]:
        """Return the value and the headers of an event; `data` has the parts of the flattened row."""
        raise NotImplementedError

    def _append_written(self, table: TableFragments, op: int, out: list[Record]) -> int:
        writer = self._writer
        written = writer.draft()
        if op == DELETED:
            row = part_of(written, _BEFORE, len(written) - _NO_AFTER)
        elif written.startswith(WITHOUT_OLD):
            row = part_of(written, len(WITHOUT_OLD), len(written))
        else:
            row = part_of(written, writer.row_at, len(written))
        return self._append_row(table, op, writer.key, [row], None, out)

    def _append_delete(
        self,
        table: TableFragments,
        key: bytes | None,
        before: bytes,
        headers: Headers | None,
        out: list[Record],
    ) -> int:
        return self._append_row(table, DELETED, key, [checked(before)], headers, out)

    def _append(
        self,
        table: TableFragments,
        op: int,
        key: bytes | None,
        parts: list[bytes],
        headers: Headers | None,
        out: list[Record],
    ) -> int:
        if op == TRUNCATED:
            return 0
        first, *others = checked_parts(parts[2:])
        return self._append_row(table, op, key, [first[_AFTER:], *others], headers, out)

    def _append_row(
        self,
        table: TableFragments,
        op: int,
        key: bytes | None,
        row: Sequence[Part],
        headers: Headers | None,
        out: list[Record],
    ) -> int:
        """Append the records of an event: for a delete none, one or two, for other events one."""
        if self._skips[op]:
            return 0
        flat = self._flat_table(table)
        lsn, serial, now_us = self._lsn_bytes(), self._serial, self._now_us
        named = [*(headers or ()), *flat.form.headers.headers(op, lsn, serial, now_us)]
        known = len(out)
        size = 0
        if op != DELETED or self._flat_forms.rewrites:
            data = flat.parts(row, op, lsn, serial, now_us)
            if self._is_event:
                value, made = self._event(table, op, lsn, serial, data, named)
            else:
                value, made = b"".join(data), named
            out.append((table.topic, key, value, made or None))
            size = len(value) + len(key or b"") + self._header_bytes
        if op == DELETED and key is not None and self._flat_forms.has_tombstones:
            out.append((table.topic, key, None, named or None))
            size += len(key)
        if len(out) > known:
            table.tally.counts[op] += 1
        return size

    def _completed(
        self,
        table: TableFragments,
        records: list[Record],
        position: SnapshotPosition,
        now_us: int,
        event_no: int,
    ) -> list[Record]:
        flat = self._flat_table(table)
        lsn = b"%d" % int(position.lsn)
        made: list[Record] = []
        for number, (topic, key, written, _) in enumerate(records, event_no + 1):
            assert written is not None, "a row that is read has a value"
            # The row's number follows the row.
            row = [part_of(written, 0, written.rindex(b"}") + 1)]
            headers = flat.form.headers.headers(READ, lsn, number, now_us)
            data = flat.parts(row, READ, lsn, number, now_us)
            if self._is_event:
                value, headers = self._event(table, READ, lsn, number, data, headers)
                self._row_header_bytes += self._header_bytes
            else:
                value = b"".join(data)
            made.append((topic, key, value, headers or None))
        return made

    def _form(
        self,
        table: TableFragments,
        columns: list[tuple[list[bytes], bool]],
        position: SnapshotPosition,
        now_us: int,
    ) -> bytes:
        """Return a row and its number."""
        return row_form(table, columns) + b"%b"
