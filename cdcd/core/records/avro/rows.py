"""A row in a format with a registry: value after value into a buffer, from a frame or from a line of COPY."""

from typing import TYPE_CHECKING, Final

from librt.strings import BytesWriter

from cdcd.core.catalog.copytext import NULL as COPY_NULL
from cdcd.core.catalog.copytext import OTHER_WIDTH, split_row, value_in
from cdcd.core.protocol.messages import Binary, Value
from cdcd.core.protocol.peek import BINARY, NULL, TEXT, UNCHANGED, VALUE_HEAD_BYTES, value_size
from cdcd.core.records.avro.converters import BinaryForm
from cdcd.core.records.avro.registered import RegisteredSchemas
from cdcd.core.records.avro.tables import AvroPlace, AvroTable
from cdcd.core.records.avro.writing import BUFFER_BYTES_MAX, append_slice
from cdcd.core.records.debezium_json.table_fragments import Headers, TableFragments
from cdcd.core.records.encoder import HEADER_UNCHANGED, EncoderSettings
from cdcd.core.records.unwritable import UnwritableError

if TYPE_CHECKING:
    from mypy_extensions import i64

NULL_IN_KEY: Final = (
    "it is NULL in a column of the key, where Avro has no null",
    "The key is that of now, and the row is older. format.value: json with format.key: json has null there.",
)


def write_row(
    frame: bytes,
    start: "i64",
    table: AvroTable,
    out: BytesWriter,
    unchanged: list[int],
    has_old: bool,
    whole: bool,
) -> "i64":
    """Append the row whose first value is at `start`, and return its end according to its own lengths.

    Args:
        unchanged: gets the column of each value that was not sent, and that the old row does not have either.
        has_old: whether the row that was written to `out` before is the old row of the same event.
        whole: whether the old row has all values; if not, it has those of the replica identity.

    Raises:
        ValueError, IndexError: the row is malformed, or has a value that cannot be represented (UnwritableError).
        SourceError: a value of the key is missing.
    """
    at: i64 = start
    limit: i64 = len(frame)
    if table.constants:
        out.write(table.constants)
    for place in table.places:
        kind = frame[at]
        begin: i64 = len(out)
        if kind in (TEXT, BINARY):
            size: i64 = value_size(frame, at)
            at += VALUE_HEAD_BYTES
            if size < 0 or size > limit - at:
                raise ValueError("a value ends after the frame")
            converter = place.converter
            if converter is not None:
                if place.branch is not None:
                    out.write(place.branch)
                if kind == TEXT:
                    converter.write(frame, at, at + size, out)
                else:
                    converter.write_binary(frame, at, at + size, out)
                place.usable = True
                if place.is_key:
                    place.data, place.kind = frame, kind
                    place.at, place.until = at, at + size
            at += size
        elif kind == NULL:
            at += 1
            write_null(table, place, out)
        elif kind == UNCHANGED:
            at += 1
            _write_unchanged(table, place, out, unchanged, has_old, whole)
        else:
            raise ValueError("unknown kind of value")
        place.begin, place.end = begin, len(out)
    return at


def _write_unchanged(
    table: AvroTable,
    place: AvroPlace,
    out: BytesWriter,
    unchanged: list[int],
    has_old: bool,
    whole: bool,
) -> None:
    """Append a value that was not sent, from the old row or as the placeholder."""
    if has_old and place.usable and (whole or table.fragments.identity[place.column]):
        old: i64 = place.begin
        if place.end - old > BUFFER_BYTES_MAX:
            append_slice(out.getvalue(), old, place.end, out)
            return
        while old < place.end:
            out.append(out[old])
            old += 1
    elif place.visible:
        if place.placeholder is None:
            _refuse(table, place)
        else:
            out.write(place.placeholder)
        unchanged.append(place.column)
        place.usable = False


def write_null(table: AvroTable, place: AvroPlace, out: BytesWriter) -> None:
    """Append NULL; UnwritableError if the column belongs to the key, and nothing may be written in
    place of NULL yet.
    """
    # An unchanged large value is never NULL, so a NULL in the old row means that PostgreSQL did not send the old
    # value.
    place.usable = False
    if not place.visible:
        return
    if place.is_key:
        place.kind = NULL
    if place.null is not None:
        out.write(place.null)
    elif table.takes_null:
        out.write(place.zero)
    else:
        raise UnwritableError(*NULL_IN_KEY)


def _refuse(table: AvroTable, place: AvroPlace) -> None:
    """Raise SourceError, because a value of the key was not sent."""
    fragments = table.fragments
    fragments.stand_in(fragments.event_template.copy(), [fragments.plan[place.column][0]])
    raise AssertionError("only a column of the key has no placeholder")


def named_unchanged(table: AvroTable, columns: list[int]) -> Headers:
    """Return the header with the names of columns whose value is missing, if there are any."""
    if not columns:
        return []
    names = table.fragments.names
    return [(HEADER_UNCHANGED, b"[%b]" % b",".join([names[column] for column in columns]))]


def write_fields(table: AvroTable, line: bytes, buffer: BytesWriter) -> None:
    fields = split_row(line)
    places = table.places
    if len(fields) != len(places):
        raise ValueError(OTHER_WIDTH)
    if table.constants:
        buffer.write(table.constants)
    for place, field in zip(places, fields, strict=True):
        begin = len(buffer)
        if field == COPY_NULL:
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


class BinarySchemas(RegisteredSchemas):
    """The schemas of tables whose values are binary.

    Attributes:
        rows: the tables as last described, with the converters of their columns.
    """

    def __init__(self, settings: EncoderSettings, form: BinaryForm) -> None:
        RegisteredSchemas.__init__(self, settings, form)
        self.rows: dict[int, AvroTable] = {}

    def describe_rows(self, table: AvroTable) -> None:
        """Take a table that is described anew."""
        self.describe(table)
        self.rows[table.fragments.relation.oid] = table

    def check(self, table: TableFragments, column: int, value: Value) -> None:
        """See `Schemas`."""
        place = self.rows[table.relation.oid].places[column]
        converter = place.converter
        if converter is None:
            return
        out = BytesWriter()
        if value is None:
            if place.null is None:
                raise UnwritableError(*NULL_IN_KEY)
        elif isinstance(value, Binary):
            converter.write_binary(value.data, 0, len(value.data), out)
        elif isinstance(value, bytes):
            converter.write(value, 0, len(value), out)
