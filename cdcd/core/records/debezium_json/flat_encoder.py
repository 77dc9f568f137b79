"""Stage 6, another way: rows -> flattened records, of which the value is the row (`records/flattening.py`).

The row is what the envelope would have as `after`, or as `before` of a delete. Nothing is parsed again: it is cut
out of what is written anyway. A record keeps the headers that one with an envelope has.

As Debezium's transform does it, TRUNCATE has no record, and logical messages stay as they are. Differences:

- A delete in a table without a key has no tombstone, because it would have neither key nor value.
- A header whose field is null is left out.
- A field that has the name of one of the table's columns is left out, and a fact says so. Debezium stops there.

No row is drafted: rows of an open transaction wait as frames.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from cdcd.core.catalog.protection import EXCLUDE, ColumnRule
from cdcd.core.catalog.relations import TypeDescription
from cdcd.core.catalog.wiretext import checked, wire
from cdcd.core.facts import FlatteningCollision, Observer, unheard
from cdcd.core.protocol.messages import Relation
from cdcd.core.records.debezium_json.added_values import AddedValues
from cdcd.core.records.debezium_json.connect_schema import CLOSING, WITH_SCHEMA, flat_schema, opening
from cdcd.core.records.debezium_json.pieces import Part, checked_parts, part_of
from cdcd.core.records.debezium_json.row_writer import WITHOUT_OLD
from cdcd.core.records.debezium_json.snapshot_rows import SnapshotEncoder, row_form
from cdcd.core.records.debezium_json.source_block import DELETED, READ, TRUNCATED
from cdcd.core.records.debezium_json.strings import quote
from cdcd.core.records.debezium_json.table_fragments import Headers, TableFragments
from cdcd.core.records.encoder import EncoderSettings, Record, SnapshotPosition
from cdcd.core.records.flattening import DELETED_FIELD, Flattening
from cdcd.core.records.schema_names import adjusted
from cdcd.core.transactions.drafts import SpoolItem

_AFTER: Final = len(b',"after":')
_BEFORE: Final = len(b'{"before":')
_NO_AFTER: Final = len(b',"after":null')
_EMPTY: Final = b"{}"


class FlatTable:
    """What the flattened records of one table have beside their row.

    Attributes:
        opening: what a value begins with that has a schema; else empty.
        transaction: for which one the values were renewed.
        deleted: for rows that are there, and for those that are not.
    """

    __slots__ = ("closing", "deleted", "fields", "fragments", "headers", "opening", "transaction")

    def __init__(
        self, fields: AddedValues, headers: AddedValues, has_deleted: bool, schema_opening: bytes
    ) -> None:
        self.fields = fields
        self.headers = headers
        self.opening = schema_opening
        self.closing = CLOSING if schema_opening else b""
        self.transaction = -1
        name = quote(DELETED_FIELD)
        self.deleted = [f',{name}:"{each}"'.encode() if has_deleted else b"" for each in ("false", "true")]
        self.fragments = [f",{quote(wire(name))}:".encode("latin-1") for name in fields.names]

    def value(self, row: Sequence[Part], op: int, lsn: bytes, event_no: int, now_us: int) -> bytes:
        """Return the record's value. `row` has the parts of a JSON object; the last part ends with its brace."""
        parts = [self.deleted[op == DELETED]]
        for fragment, value in zip(
            self.fragments, self.fields.of_event(op, lsn, event_no, now_us), strict=True
        ):
            parts += (fragment, value)
        added = b"".join(parts)
        if not added:
            return b"".join((self.opening, *row, self.closing))
        last = row[-1]
        if last == _EMPTY:
            added = added[1:]
        return b"".join((self.opening, *row[:-1], last[:-1], added, b"}", self.closing))


class FlatEncoder(SnapshotEncoder):
    """Encodes rows of changes and of snapshots. See `RowEncoder` for the methods."""

    def __init__(self, settings: EncoderSettings, binary: bool = False, observe: Observer = unheard) -> None:
        flattening = settings.flattening
        assert flattening is not None, "only flattened records are made here"
        self._flat: Flattening = flattening
        self._flat_tables: dict[int, FlatTable] = {}
        self._heard = observe
        self._told: set[tuple[str, ...]] = set()
        self._has_tombstones = flattening.has_tombstones(settings.tombstones)
        SnapshotEncoder.__init__(self, settings, binary, observe)

    def draft_all(
        self, frames: list[SpoolItem], relations: Mapping[int, tuple[int, Relation]]
    ) -> list[SpoolItem]:
        """No row is drafted."""
        return frames

    def _described(
        self,
        fragments: TableFragments,
        types: Mapping[int, TypeDescription],
        rules: Sequence[ColumnRule | None],
    ) -> None:
        relation, settings, flat = fragments.relation, self._settings, self._flat
        columns = {
            column.name
            for column, rule in zip(fragments.shown.columns, rules, strict=True)
            if rule is None or rule.action != EXCLUDE
        } | {name for name, _ in fragments.constants}
        left_out = [field.name for field in flat.fields if field.name in columns]
        has_deleted = flat.rewrites and DELETED_FIELD not in columns
        if flat.rewrites and not has_deleted:
            left_out.append(DELETED_FIELD)
        if left_out and (fragments.topic, *left_out) not in self._told:
            self._told.add((fragments.topic, *left_out))
            self._heard(
                FlatteningCollision(
                    table=f"{relation.schema}.{relation.name}",
                    fields=", ".join(left_out),
                    topic=fragments.topic,
                )
            )
        fields = [field for field in flat.fields if field.name not in columns]
        schema = b""
        if settings.value_format == WITH_SCHEMA:
            schema = opening(
                flat_schema(
                    fragments.shown,
                    fragments.key_columns,
                    types,
                    adjusted(fragments.topic, settings.name_adjustment),
                    rules,
                    modes=settings.modes,
                    constants=fragments.constants,
                    added=fields,
                    has_deleted=has_deleted,
                )
            )
        constants = self._source.constants(settings) | {
            "schema": quote(wire(relation.schema)).encode("latin-1"),
            "table": quote(wire(relation.name)).encode("latin-1"),
            "schema_id": b"null" if fragments.schema_id is None else b'"%b"' % fragments.schema_id.encode(),
        }
        self._flat_tables[relation.oid] = FlatTable(
            AddedValues(fields, constants, as_text=False),
            AddedValues(flat.headers, constants, as_text=True),
            has_deleted,
            schema,
        )

    def _flat_table(self, table: TableFragments) -> FlatTable:
        """What is added to the table's records, renewed for the transaction that is open."""
        flat = self._flat_tables[table.relation.oid]
        if flat.transaction != self._transaction:
            values = self._source.values()
            flat.fields.renew(values)
            flat.headers.renew(values)
            flat.transaction = self._transaction
        return flat

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

    def _append(  # noqa: PLR0917  as in `DebeziumJsonEncoder`
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

    def _append_row(  # noqa: PLR0917  as `_append`
        self,
        table: TableFragments,
        op: int,
        key: bytes | None,
        row: Sequence[Part],
        headers: Headers | None,
        out: list[Record],
    ) -> int:
        """Append the records of an event: of a delete none, one or two, of any other one."""
        if self._skips[op]:
            return 0
        flat = self._flat_table(table)
        lsn = self._lsn_bytes()
        named = [*(headers or ()), *flat.headers.headers(op, lsn, self._serial, self._now_us)] or None
        known = len(out)
        size = 0
        if op != DELETED or self._flat.rewrites:
            value = flat.value(row, op, lsn, self._serial, self._now_us)
            out.append((table.topic, key, value, named))
            size = len(value) + len(key or b"")
        if op == DELETED and key is not None and self._has_tombstones:
            out.append((table.topic, key, None, named))
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
            # The row's number is behind it.
            row = [part_of(written, 0, written.rindex(b"}") + 1)]
            headers = flat.headers.headers(READ, lsn, number, now_us) or None
            made.append((topic, key, flat.value(row, READ, lsn, number, now_us), headers))
        return made

    def _form(
        self,
        table: TableFragments,
        columns: list[tuple[list[bytes], bool]],
        position: SnapshotPosition,
        now_us: int,
    ) -> bytes:
        """A row and its number."""
        return row_form(table, columns) + b"%b"
