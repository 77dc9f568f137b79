"""What stands around the rows of records in JSON: Debezium's envelope here, a flattened row in `flat_rows.py`, the data
of an event in `cloudevents/json_events.py`.
"""

from typing import Final

from cdcd.core.catalog.wiretext import checked
from cdcd.core.records.debezium_json.connect_schema import Schema
from cdcd.core.records.debezium_json.drafting import finish
from cdcd.core.records.debezium_json.row_writer import RowWriter
from cdcd.core.records.debezium_json.snapshot_rows import Columns, literal, row_form
from cdcd.core.records.debezium_json.source_block import DELETED, EVENT_NOS, OPS, SourceBlock, processed_at
from cdcd.core.records.debezium_json.table_fragments import Headers, TableFragments
from cdcd.core.records.encoder import EncoderSettings, Record, SnapshotPosition
from cdcd.core.records.format import CopiedRows, Current
from cdcd.core.transactions.drafts import Draft, row_count

_ROW: Final = b"\0"
"""Byte in place of a row whose values are not known yet; JSON never has this byte."""


class JsonAround:
    """Writes what stands around rows in JSON, counts the records and appends them."""

    def describe(self, table: TableFragments) -> None:
        """Take the new description of a table."""

    def schema(self, table: TableFragments) -> Schema:
        """Return the Connect schema of the values of a table that was described."""
        raise NotImplementedError

    def begin(self, table: TableFragments) -> None:
        """Prepare a table for the open transaction."""

    def written(self, table: TableFragments, op: int, writer: RowWriter, out: list[Record]) -> int:
        """Append the records of the row that `writer` has, and return their bytes."""
        raise NotImplementedError

    def changed(
        self,
        table: TableFragments,
        op: int,
        key: bytes | None,
        parts: list[bytes],
        headers: Headers | None,
        out: list[Record],
    ) -> int:
        """Append the record of a row or of a TRUNCATE; `parts` is an envelope up to its source block.

        UnicodeDecodeError: a part is not UTF-8.
        """
        raise NotImplementedError

    def deleted(
        self,
        table: TableFragments,
        key: bytes | None,
        before: bytes,
        headers: Headers | None,
        out: list[Record],
    ) -> int:
        """Append the records of a deleted row, whose JSON is `before`, and return their bytes."""
        raise NotImplementedError

    def finish(self, draft: Draft, table: TableFragments, op: int, out: list[Record]) -> int:
        """Append the records of a draft, and return their bytes. The rows get the next numbers."""
        raise NotImplementedError

    def form(self, table: TableFragments, columns: Columns, position: SnapshotPosition) -> bytes:
        """Return what `completed` takes, with placeholders for the values of columns and for the row's number."""
        raise NotImplementedError

    def completed(
        self, table: TableFragments, records: list[Record], rows: CopiedRows, event_no: int
    ) -> list[Record]:
        """Return the finished records of rows that `form` has written; the number of the first is `event_no` plus 1."""
        raise NotImplementedError


class JsonEnvelope(JsonAround):
    """Debezium's envelope."""

    def __init__(self, settings: EncoderSettings, current: Current) -> None:
        self._current = current
        self._settings = settings
        self._source = SourceBlock(settings)
        self._tombstones = settings.tombstones
        self._now_us = -1
        self._processed_at = b""
        self._lsn = -1
        self._lsn_text = b""

    def schema(self, table: TableFragments) -> Schema:
        """See `JsonAround`."""
        return table.envelope(self._settings)

    def begin(self, table: TableFragments) -> None:
        """See `JsonAround`."""
        table.source.renew(self._source, self._current.facts)

    def _times(self) -> bytes:
        """Return the times at the end of an envelope."""
        now_us = self._current.now_us
        if now_us != self._now_us:
            self._now_us = now_us
            self._processed_at = processed_at(now_us)
        return self._processed_at

    def written(self, table: TableFragments, op: int, writer: RowWriter, out: list[Record]) -> int:
        """See `JsonAround`."""
        key, current = writer.key, self._current
        value = writer.record(table, op, current.lsn, current.serial, self._times())
        table.tally.counts[op] += 1
        out.append((table.topic, key, value, None))
        size = len(value)
        if key is not None:
            size += len(key)
            if op == DELETED and self._tombstones:
                out.append((table.topic, key, None, None))
                size += len(key)
        return size

    def changed(
        self,
        table: TableFragments,
        op: int,
        key: bytes | None,
        parts: list[bytes],
        headers: Headers | None,
        out: list[Record],
    ) -> int:
        """See `JsonAround`."""
        lsn, serial = self._current.lsn, self._current.serial
        if lsn != self._lsn:
            self._lsn, self._lsn_text = lsn, str(lsn).encode("ascii")
        number = EVENT_NOS[serial] if serial < len(EVENT_NOS) else str(serial).encode("ascii")
        source = table.source
        value = checked(source.joined(parts, self._lsn_text, number, source.ending(op, self._times())))
        table.tally.counts[op] += 1
        out.append((table.topic, key, value, headers))
        return len(value) if key is None else len(key) + len(value)

    def deleted(
        self,
        table: TableFragments,
        key: bytes | None,
        before: bytes,
        headers: Headers | None,
        out: list[Record],
    ) -> int:
        """See `JsonAround`."""
        size = self.changed(table, DELETED, key, deleted_parts(before), headers, out)
        return size + tombstone(self._tombstones, table, key, headers, out)

    def finish(self, draft: Draft, table: TableFragments, op: int, out: list[Record]) -> int:
        """See `JsonAround`."""
        count = row_count(draft)
        size = finish(draft, table, self._current.serial, self._times(), self._tombstones, out)
        self._current.serial += count
        table.tally.counts[op] += count
        return size

    def form(self, table: TableFragments, columns: Columns, position: SnapshotPosition) -> bytes:
        """See `JsonAround`."""
        row = b'{"before":null,"after":' + row_form(table, columns)
        lsn = str(int(position.lsn)).encode("ascii")
        op = OPS.index(position.op)
        before, after = table.source.around_number(_ROW, lsn, op, self._times())
        begin, _, end = before.partition(_ROW)
        return literal(begin) + row + literal(end) + b"%b" + literal(after)

    def completed(
        self, table: TableFragments, records: list[Record], rows: CopiedRows, event_no: int
    ) -> list[Record]:
        """See `JsonAround`."""
        return records


def deleted_parts(before: bytes) -> list[bytes]:
    """Return the parts of the envelope of a deleted row up to its source block."""
    return [b'{"before":', before, b',"after":null']


def tombstone(
    tombstones: bool, table: TableFragments, key: bytes | None, headers: Headers | None, out: list[Record]
) -> int:
    """Append the record without a value that follows a delete, if there are such records; returns its bytes."""
    if key is None or not tombstones:
        return 0
    out.append((table.topic, key, None, headers))
    return len(key)
