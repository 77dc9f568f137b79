"""The parts of a table's records in Avro that are made once: its schemas, and the converters of its columns."""

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from librt.strings import BytesWriter

from cdcd.core.catalog.field_names import Pairs
from cdcd.core.protocol.peek import NULL, TEXT
from cdcd.core.records.avro.arrays import AvroConverter
from cdcd.core.records.avro.converters import BinaryForm
from cdcd.core.records.avro.registered import RegisteredTable
from cdcd.core.records.avro.source_block import BinaryTableSource
from cdcd.core.records.debezium_json.added_values import FlatForm
from cdcd.core.records.debezium_json.connect_schema import (
    Schema,
    envelope_schema,
    flat_schema,
)
from cdcd.core.records.debezium_json.known_tables import KnownTables
from cdcd.core.records.debezium_json.table_fragments import TableFragments
from cdcd.core.records.encoder import EncoderSettings

if TYPE_CHECKING:
    from mypy_extensions import i64


class AvroPlace:
    """A column of the relation, in the relation's order.

    Attributes:
        column: index of the column.
        visible: whether it is in the records.
        converter: converts values into Avro.
        branch: bytes before a value that is not NULL; None if there are none, because the column is never NULL.
        null: bytes for NULL; None if the column belongs to the key, which cannot be null.
        zero: bytes in place of a value of the key that cannot be represented (`unwritable.py`).
        placeholder: bytes in place of a value that the server did not send; None if it cannot be missing.
        begin, end: where its value is in the last written row. If `usable` is false, there is none.
        data, at, until, kind: the value as it arrived, if the column belongs to the key: it is `data[at:until]`,
            and its kind is `kind`.
    """

    __slots__ = (
        "at",
        "begin",
        "branch",
        "column",
        "converter",
        "data",
        "end",
        "is_key",
        "kind",
        "null",
        "placeholder",
        "until",
        "usable",
        "visible",
        "zero",
    )

    def __init__(self, column: int, visible: bool, converter: AvroConverter | None) -> None:
        self.column = column
        self.visible = visible
        self.converter = converter
        self.branch: bytes | None = None
        self.null: bytes | None = None
        self.placeholder: bytes | None = None
        self.zero = b""
        self.is_key = False
        self.usable = False
        self.begin: i64 = 0
        self.end: i64 = 0
        self.data = b""
        self.at: i64 = 0
        self.until: i64 = 0
        self.kind = TEXT


class AvroTable(RegisteredTable):
    """A relation with its latest description, prepared for writing its rows.

    Attributes:
        schema: the Connect schema of values.
        places: the columns; `key_places` has those of the key, in the key's order.
        source: writes what follows the rows in its records.
        constants: beginning of each row: the values of constant fields.
        key_constants: end of each key: the values of its constant fields.
        takes_null: whether NULL in a column of the key is written as the zero of its type; if not, it is refused.
    """

    def __init__(
        self,
        settings: EncoderSettings,
        form: BinaryForm,
        fragments: TableFragments,
        *,
        tables: KnownTables,
        source: BinaryTableSource,
        value_schema: Callable[[Schema], Schema],
        flat: FlatForm | None = None,
    ) -> None:
        relation, keys, topic = fragments.relation, fragments.key_columns, fragments.named
        types, rules = fragments.described.types, fragments.described.rules
        columns = tables.told_forms[relation.oid].columns
        modes = settings.modes
        shown = fragments.shown
        fields = dict(
            zip([each.name for each in relation.columns], [each.name for each in shown.columns], strict=True)
        )
        numbers = {fields[column.name]: column.id for column in columns}
        value: Schema
        if flat is None:
            envelope = envelope_schema(
                shown, keys, types, topic, rules, modes=modes, constants=fragments.constants
            )
            value = form.of_value(value_schema(envelope), numbers)
            fields_of_row = value["fields"][0]["fields"]
        else:
            # A flattened row has the numbers of its columns, as a key has.
            value = form.of_key(
                flat_schema(
                    shown,
                    keys,
                    types,
                    topic,
                    rules,
                    modes=modes,
                    constants=fragments.constants,
                    added=flat.added,
                    has_deleted=flat.has_deleted,
                ),
                numbers,
            )
            fields_of_row = value["fields"]
        self.schema = value
        key: Schema | None = None
        if keys and settings.key_format == form.format:
            key = form.of_key(fragments.key_schema(settings, topic), numbers)
        RegisteredTable.__init__(
            self, settings, form, fragments, topics=tables.row_topics(relation.oid), key=key, value=value
        )
        self.takes_null = False
        self.source = source
        row = {field["field"]: field for field in fields_of_row}
        self.places: list[AvroPlace] = []
        self.constants = _texts(form, fields_of_row, fragments.constants)
        for column, described in enumerate(shown.columns):
            schema = row.get(described.name) if fragments.visible[column] else None
            if schema is None:
                self.places.append(AvroPlace(column, False, None))
                continue
            place = AvroPlace(column, True, form.converter(fragments.converters[column], schema))
            place.branch = form.opening(schema)
            place.null = form.null(schema)
            place.placeholder = form.placeholder(schema, fragments.placeholders[column])
            self.places.append(place)
        self.key_constants = (
            b""
            if key is None
            else _texts(form, key.get("fields", []), fragments.described.table.key_constants)
        )
        self.key_places = [self.places[column] for column in keys]
        for place in self.key_places:
            place.is_key = True
            place.placeholder = None
            place.zero = form.zero(row[shown.columns[place.column].name])

    def key(self, out: BytesWriter, part: BytesWriter) -> bytes | None:
        """Return the key of the last row that was written to `out`; None if the table has no key."""
        if not self.key_places:
            return None
        part.truncate(0)
        if self.key_use is None:
            self._json_key(part)
            return self.fragments.finished_key(part.getvalue())
        part.write(self.key_head)
        for place in self.key_places:
            at: i64 = place.begin
            while at < place.end:
                part.append(out[at])
                at += 1
        part.write(self.key_constants)
        return part.getvalue()

    def _json_key(self, part: BytesWriter) -> None:
        fragments = self.fragments
        for place, fragment in zip(self.key_places, fragments.key_fragments, strict=True):
            part.write(fragment)
            converter = fragments.converters[place.column]
            if place.kind == NULL:
                part.write(b"null")
            elif place.kind == TEXT:
                converter.write(place.data, place.at, place.until, part)
            else:
                converter.write_binary(place.data, place.at, place.until, part)
        part.write(fragments.key_end)


def _texts(form: BinaryForm, fields: list[Schema], pairs: Pairs) -> bytes:
    """Return the bytes of fields with constant texts, each with what precedes its value."""
    by_name = {field["field"]: field for field in fields}
    return b"".join(
        [
            (form.opening(by_name[name]) or b"") + form.encoded(by_name[name], json.dumps(text).encode())
            for name, text in pairs
        ]
    )
