"""Rows read by COPY -> records in Avro with op `r`.

What differs from a change's record is in `debezium_json/snapshot_rows.py`.
"""

from librt.strings import BytesWriter

from cdcd.core.catalog.copytext import NULL, OTHER_WIDTH, split_row, value_in
from cdcd.core.protocol.peek import TEXT
from cdcd.core.records.avro.encoder import AvroEncoder, size_of, write_null
from cdcd.core.records.avro.tables import AvroTable
from cdcd.core.records.debezium_json.copy_rows import explain_row, line_with, row_of_line
from cdcd.core.records.debezium_json.snapshot_rows import runs
from cdcd.core.records.debezium_json.source_block import READ
from cdcd.core.records.encoder import Encoded, Record, SnapshotPosition
from cdcd.core.records.unwritable import Found, named


class AvroSnapshotEncoder(AvroEncoder):
    """Describes tables as `AvroEncoder` does, by `define`, and encodes rows of them. See `Encoder`."""

    def encode_rows(  # noqa: PLR0917 - as `encode`, which has most of these
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
            SinkError: the topic of the table is too long, or collides with another one.
        """
        count = size = 0
        keys: list[bytes] = []
        left_out: list[int] = []
        self._set_now(now_us)
        self._lsn = int(position.lsn)
        for begin, end, marker in runs(len(lines), position):
            self._block.begin(None, position.commit_lsn, now_us, None, snapshot=marker)
            flat = self._flat
            if flat is not None:
                flat.source.begin(None, position.commit_lsn, now_us, None, snapshot=marker)
            self._transaction += 1
            self._table(oid, out)
            table = self._latest
            assert table is not None, "`_table` made it"
            for place, line in enumerate(lines[begin:end], begin):
                key, found = self._copy_row(table, line, position.lsn)
                if key is not None:
                    if key in dropped:
                        left_out.append(place)
                        continue
                    keys.append(key)
                count += 1
                self._serial = position.event_no + count
                headers = None if flat is None else flat.headers(table, READ, self._lsn, self._serial, None)
                record = self._record(table, READ, key, headers)
                size += size_of(record) + self._header_bytes
                if found:
                    names = self.note_unwritable(table.fragments, found, position.lsn, now_us)
                    out.append(named(record, names))
                else:
                    out.append(record)
        return Encoded(count, size, keys if self._avro[oid].key_places else None, left_out)

    def _copy_row(self, table: AvroTable, line: bytes, lsn: int) -> tuple[bytes | None, list[Found]]:
        """Write a row into the buffer up to its source block; its key, and its values that have no form."""
        try:
            return self._write_line(table, line), []
        except (ValueError, IndexError) as cause:
            fragments = table.fragments
            refusal = explain_row(line, fragments.relation, fragments.converters)
            if refusal is not None:
                raise refusal from cause
        found = self.found_unwritable(fragments, row_of_line(line), lsn)
        assert found, "a row was refused in which nothing is wrong"
        table.takes_null = True
        try:
            return self._write_line(table, line_with(line, found, fragments.key_columns)), found
        finally:
            table.takes_null = False

    def _write_line(self, table: AvroTable, line: bytes) -> bytes | None:
        """Write a row; its key. ValueError, IndexError: see `write_row`."""
        buffer = self._around.open(table)
        self._around.before(False)
        self._around.after(True)
        _write_fields(table, line, buffer)
        return table.key(buffer, self._part)


def _write_fields(table: AvroTable, line: bytes, buffer: BytesWriter) -> None:
    fields = split_row(line)
    places = table.places
    if len(fields) != len(places):
        raise ValueError(OTHER_WIDTH)
    if table.constants:
        buffer.write(table.constants)
    for place, field in zip(places, fields, strict=True):
        begin = len(buffer)
        if field == NULL:
            write_null(table, place, buffer)
        elif place.converter is not None:
            value, at = value_in(field)
            if place.branch is not None:
                buffer.write(place.branch)
            place.converter.write(value, at, len(value), buffer)
            if place.is_key:
                place.data, place.kind = value, TEXT
                place.at, place.until = at, len(value)
        place.begin, place.end = begin, len(buffer)
