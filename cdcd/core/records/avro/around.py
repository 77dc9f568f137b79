"""Writes the parts of a value around its rows: Debezium's envelope in Avro, the data of an event, or a flattened row.

The encoder writes the old row and the new row of an event into one buffer, after calling `before` or `after`, and
`end` makes the value. Protobuf's envelope is in `protobuf/encoder.py`. A flattened row is the same in all binary
formats: the row, followed by the added fields (`debezium_json/added_values.py`).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from librt.strings import BytesWriter

from cdcd.core.catalog.protection import ColumnRule
from cdcd.core.facts import Observer
from cdcd.core.records.avro.converters import BinaryForm
from cdcd.core.records.avro.source_block import times
from cdcd.core.records.avro.tables import AvroTable
from cdcd.core.records.avro.writing import BUFFER_BYTES_MAX, append_slice
from cdcd.core.records.debezium_json.added_values import FlatForm, FlatForms
from cdcd.core.records.debezium_json.connect_schema import Schema
from cdcd.core.records.debezium_json.source_block import DELETED
from cdcd.core.records.debezium_json.table_fragments import Headers, TableFragments
from cdcd.core.records.encoder import EncoderSettings
from cdcd.core.records.flattening import DELETED_FIELD
from cdcd.core.records.format import Current

if TYPE_CHECKING:
    from mypy_extensions import i64

_NONE: Final = 0
_SOME: Final = 2
"""Union branches of `before` and `after` in Avro: null, or a row."""

_DIGITS: Final = b"0123456789"


class Around:
    """Writes the parts of a value around its rows; the methods are called in the order in which they are defined here.

    Attributes:
        out: the buffer for the rows of a value.
    """

    def __init__(self) -> None:
        self.out = BytesWriter()

    def fresh(self) -> BytesWriter:
        """Return the buffer, emptied."""
        if len(self.out) > BUFFER_BYTES_MAX:
            self.out = BytesWriter()
        self.out.truncate(0)
        return self.out

    def begin(self, table: AvroTable) -> None:
        """Prepare a table for the open transaction."""

    def set_now(self, now_us: int) -> None:
        """Set the time at which values are made, in microseconds since 1970."""

    def open(self, table: AvroTable) -> BytesWriter:
        """Return the buffer with the part that precedes the rows of a value."""
        return self.fresh()

    def before(self, has_row: bool) -> None:
        """Note that the old row follows in the buffer, or (False) that there is no old row."""
        raise NotImplementedError

    def after(self, has_row: bool) -> None:
        """Note that the new row follows in the buffer, or (False) that there is no new row."""
        raise NotImplementedError

    def end(self, table: AvroTable, op: int, lsn: "i64", event_no: "i64") -> bytes:
        """Return the value whose rows are in the buffer."""
        raise NotImplementedError


class AvroEnvelope(Around):
    """Debezium's envelope in Avro."""

    def __init__(self) -> None:
        Around.__init__(self)
        self._times = b""

    def set_now(self, now_us: int) -> None:
        """See `Around`."""
        self._times = times(now_us)

    def open(self, table: AvroTable) -> BytesWriter:
        """See `Around`."""
        out = self.fresh()
        out.write(table.value_head)
        return out

    def before(self, has_row: bool) -> None:
        """See `Around`."""
        self.out.append(_SOME if has_row else _NONE)

    def after(self, has_row: bool) -> None:
        """See `Around`."""
        self.out.append(_SOME if has_row else _NONE)

    def end(self, table: AvroTable, op: int, lsn: "i64", event_no: "i64") -> bytes:
        """See `Around`."""
        table.source.write(op, lsn, event_no, self._times, self.out)
        return self.out.getvalue()


class EventRows(Around):
    """Writes the data of an event in Avro, which is both rows."""

    def open(self, table: AvroTable) -> BytesWriter:
        """See `Around`."""
        out = self.fresh()
        out.write(table.value_head)
        return out

    def before(self, has_row: bool) -> None:
        """See `Around`."""
        self.out.append(_SOME if has_row else _NONE)

    def after(self, has_row: bool) -> None:
        """See `Around`."""
        self.out.append(_SOME if has_row else _NONE)

    def end(self, table: AvroTable, op: int, lsn: "i64", event_no: "i64") -> bytes:
        """See `Around`."""
        return self.out.getvalue()


class FlatFields:
    """Makes the bytes of the fields that follow the columns in the flattened rows of one table."""

    def __init__(self, form: BinaryForm, flat: FlatForm, schema: Schema) -> None:
        fields = {field["field"]: field for field in schema["fields"]}
        self.flat = flat
        self.begin = form.root(schema)
        self._form = form
        self._deleted: list[bytes] = []
        if flat.has_deleted:
            self._deleted = [form.field(fields[DELETED_FIELD], each) for each in (b'"false"', b'"true"')]
        self._schemas: list[Schema] = [fields[name] for name in flat.fields.names]
        self._openings = [form.opening(each) or b"" for each in self._schemas]
        self._known: list[dict[bytes, bytes]] = [{} for _ in self._schemas]
        """The bytes of the last text or null, by field."""

    def write(self, op: int, lsn: int, event_no: int, now_us: int, out: BytesWriter) -> None:
        """Append the fields of one event."""
        if self._deleted:
            out.write(self._deleted[op == DELETED])
        if not self._schemas:
            return
        for place, value in enumerate(self.flat.fields.of_event(op, b"%d" % lsn, event_no, now_us)):
            if value[0] in _DIGITS:
                out.write(self._openings[place])
                self._form.put_number(int(value), out)
                continue
            known = self._known[place]
            written = known.get(value)
            if written is None:
                known.clear()
                written = known[value] = self._form.field(self._schemas[place], value)
            out.write(written)


class FlatRow(Around):
    """Writes flattened rows.

    Attributes:
        forms: decides which records a delete has.
    """

    def __init__(
        self, settings: EncoderSettings, form: BinaryForm, current: Current, observe: Observer
    ) -> None:
        Around.__init__(self)
        self.forms = FlatForms(settings, observe)
        self._current = current
        self._form = form
        self._tables: dict[int, FlatFields] = {}
        self._now_us = 0
        self._record = BytesWriter()
        self._has_before = self._has_after = False
        self._split: i64 = 0
        """Where the old row ends in the buffer, and the new row begins."""

    def form_of(self, fragments: TableFragments, rules: Sequence[ColumnRule | None]) -> FlatForm:
        """Return what the table's rows have besides their columns; `describe` must be called afterwards."""
        return self.forms.of_table(fragments, rules)

    def describe(self, table: AvroTable, flat: FlatForm) -> None:
        """Take the new description of a table."""
        self._tables[table.fragments.relation.oid] = FlatFields(self._form, flat, table.schema)

    def headers(
        self, table: AvroTable, op: int, lsn: int, event_no: int, others: Headers | None
    ) -> Headers | None:
        """Return the headers of a record: `others`, and the added ones."""
        flat = self._tables[table.fragments.relation.oid].flat
        return [*(others or ()), *flat.headers.headers(op, b"%d" % lsn, event_no, self._now_us)] or None

    def begin(self, table: AvroTable) -> None:
        """See `Around`."""
        self._tables[table.fragments.relation.oid].flat.renew(self._current.facts)

    def set_now(self, now_us: int) -> None:
        """See `Around`."""
        self._now_us = now_us

    def before(self, has_row: bool) -> None:
        """See `Around`."""
        self._has_before = has_row

    def after(self, has_row: bool) -> None:
        """See `Around`."""
        self._has_after = has_row
        self._split = len(self.out)

    def end(self, table: AvroTable, op: int, lsn: "i64", event_no: "i64") -> bytes:
        """See `Around`. A deleted row is flattened with its old values, every other row with its new ones."""
        fields = self._tables[table.fragments.relation.oid]
        if len(self._record) > BUFFER_BYTES_MAX:
            self._record = BytesWriter()
        record = self._record
        record.truncate(0)
        record.write(table.value_head)
        record.write(fields.begin)
        rows = self.out.getvalue()
        if len(rows) > BUFFER_BYTES_MAX:
            # The row is copied, so this buffer is released, because two buffers would hold a large record.
            self.out = BytesWriter()
        append_slice(rows, self._split if self._has_before and self._has_after else 0, len(rows), record)
        rows = b""
        fields.write(op, lsn, event_no, self._now_us, record)
        return record.getvalue()
