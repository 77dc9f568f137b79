"""CloudEvents with data in Avro: `before` and `after` of Debezium's envelope, in Confluent's wire format.

The attribute `dataschema` is the URL of the schema in the registry. Rows of streamed transactions are not drafted.
"""

from dataclasses import replace
from typing import Final

from cdcd.core.facts import Observer, unheard
from cdcd.core.protocol.messages import LogicalMessage
from cdcd.core.records.avro.around import EventRows
from cdcd.core.records.avro.encoder import AVRO_FORMAT, RegistryEncoder
from cdcd.core.records.avro.source_block import AvroSourceBlock
from cdcd.core.records.avro.tables import AvroTable
from cdcd.core.records.avro.writing import optional, text, write_bytes
from cdcd.core.records.cloudevents.attributes import MESSAGE, EventForm, Events
from cdcd.core.records.cloudevents.blocks import AvroEventBlock, TransactionFacts
from cdcd.core.records.cloudevents.tables import EventTables, content_type, data_schema, message_schema
from cdcd.core.records.debezium_json.connect_schema import Schema
from cdcd.core.records.debezium_json.source_block import SourceBlock
from cdcd.core.records.debezium_json.table_fragments import Headers, TableFragments
from cdcd.core.records.encoder import EncoderSettings, Record
from cdcd.core.records.schema_registrations import SchemaUse

_MESSAGE_OP: Final = "m"
_SOME: Final = 2
"""A value that may be null is there."""


_EVENT_FORMAT: Final = replace(AVRO_FORMAT, source_block=AvroEventBlock, around=EventRows)


def _facts(block: AvroSourceBlock) -> TransactionFacts:
    assert isinstance(block, AvroEventBlock), "`_EVENT_FORMAT` makes it"
    return block.facts


class AvroEventsEncoder(RegistryEncoder):
    """Encodes rows of changes and of snapshots. See `Encoder` for the methods."""

    def __init__(self, settings: EncoderSettings, binary: bool = False, observe: Observer = unheard) -> None:
        form = EventForm(settings, content_type(settings.events))
        self._event_tables = EventTables(settings, form)
        self._message_events = Events(settings, form, MESSAGE)
        RegistryEncoder.__init__(self, settings, binary, observe, _EVENT_FORMAT)
        self._message_value_use = self._form.use(
            settings, self._message_topic, message_schema(settings.modes), "value"
        )
        uses = (self._message_key_use, self._message_value_use)
        self._message_uses = tuple([use for use in uses if use is not None])

    def _described(self, fragments: TableFragments) -> None:
        RegistryEncoder._described(self, fragments)
        self._event_tables.describe(fragments, self.metadata)

    def _value_schema(self, envelope: Schema) -> Schema:
        """See `RegistryEncoder`."""
        return data_schema(envelope)

    def _ready(self, table: AvroTable, out: list[Record]) -> None:
        RegistryEncoder._ready(self, table, out)
        self._event_tables.name_schema(table.fragments, self._url(table.value_use))

    def _url(self, use: SchemaUse) -> bytes:
        """Of a schema in the registry."""
        return f"{self._settings.schema_ids.registry}/schemas/ids/{self._id(use)}".encode()

    def _record(self, table: AvroTable, op: int, key: bytes | None, headers: Headers | None) -> Record:
        fragments = table.fragments
        fragments.tally.counts[op] += 1
        value, made = self._event_tables.make(
            fragments,
            _facts(self._block),
            op,
            self._lsn,
            self._serial,
            [self._around.end(table, op, self._lsn, self._serial)],
            headers,
        )
        self._header_bytes = self._event_tables.header_bytes
        return fragments.topic, key, value, made

    def _end_of_rows(self, oid: int, between: tuple[int, int] | None, now_us: int, out: list[Record]) -> int:
        """See `Encoder`."""
        self._event_tables.ends_rows = True
        try:
            return RegistryEncoder._end_of_rows(self, oid, between, now_us, out)
        finally:
            self._event_tables.ends_rows = False

    def _message(
        self,
        message: LogicalMessage,
        content: memoryview,
        source: SourceBlock,
        serial: int,
        out: list[Record],
    ) -> int:
        facts = _facts(self._block_alone if source is self._block_alone else self._block)
        buffer = self._around.fresh()
        buffer.write(self._form.head(self._id(self._message_value_use)))
        buffer.write(optional(text(message.prefix)))
        buffer.append(_SOME)
        write_bytes(self._content.data(content), buffer)
        self._message_events.data_schema = self._url(self._message_value_use)
        self._message_events.renew(facts)
        value, headers = self._message_events.make(
            _MESSAGE_OP, _MESSAGE_OP, message.lsn, serial, [buffer.getvalue()], None
        )
        return self._put_message(message, value, headers, out) + self._message_events.header_bytes
