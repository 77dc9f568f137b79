"""CloudEvents with data in Avro: `before` and `after` of Debezium's envelope, in Confluent's wire format.

The attribute `dataschema` is the URL of the schema in the registry. Rows of streamed transactions are not drafted.
"""

from typing import Final

from librt.strings import BytesWriter

from cdcd.core.catalog.modes import Modes
from cdcd.core.facts import Observer
from cdcd.core.protocol.messages import LogicalMessage
from cdcd.core.records.avro.converters import BinaryForm
from cdcd.core.records.avro.encoder import AVRO_ENCODING, BinaryEvents, RegistryFormat
from cdcd.core.records.avro.form import AVRO
from cdcd.core.records.avro.messages import MessageValues, write_content
from cdcd.core.records.cloudevents.attributes import MESSAGE, EventForm, Events
from cdcd.core.records.cloudevents.json_events import json_events_format
from cdcd.core.records.cloudevents.tables import EventTables, content_type, message_schema
from cdcd.core.records.debezium_json.connect_schema import Schema
from cdcd.core.records.debezium_json.known_tables import KnownTables
from cdcd.core.records.debezium_json.source_block import TransactionFacts
from cdcd.core.records.debezium_json.table_fragments import Headers
from cdcd.core.records.debezium_json.transaction_metadata import TransactionMetadata
from cdcd.core.records.encoder import EncoderSettings
from cdcd.core.records.format import Current, Format

_MESSAGE_OP: Final = "m"


class AvroEventMessages(MessageValues):
    """Makes the events of logical messages."""

    def __init__(self, settings: EncoderSettings, form: BinaryForm, event_form: EventForm) -> None:
        self._registry = settings.schema_ids
        self._form = form
        self._events = Events(settings, event_form, MESSAGE)

    def schema(self, modes: Modes) -> Schema:
        """See `MessageValues`."""
        return message_schema(modes)

    def value(
        self,
        schema_id: int,
        message: LogicalMessage,
        data: bytes,
        facts: TransactionFacts,
        serial: int,
        now_us: int,
    ) -> tuple[bytes, Headers | None]:
        """See `MessageValues`."""
        buffer = BytesWriter()
        buffer.write(self._form.head(schema_id))
        write_content(message, data, buffer)
        self._events.data_schema = f"{self._registry.registry}/schemas/ids/{schema_id}".encode()
        self._events.renew(facts)
        value, headers = self._events.make(
            _MESSAGE_OP, _MESSAGE_OP, message.lsn, serial, [buffer.getvalue()], None
        )
        self.header_bytes = self._events.header_bytes
        return value, headers


def _events(
    settings: EncoderSettings, current: Current, form: BinaryForm, metadata: TransactionMetadata | None
) -> BinaryEvents:
    event_form = EventForm(settings, content_type(settings.events))
    return BinaryEvents(
        EventTables(settings, event_form, current, metadata), AvroEventMessages(settings, form, event_form)
    )


def cloudevents_format(
    settings: EncoderSettings, tables: KnownTables, current: Current, observe: Observer
) -> Format:
    """Return the format of events, with data in JSON or in Avro."""
    if settings.events.data == AVRO:
        return RegistryFormat(settings, tables, current, observe, AVRO_ENCODING, _events)
    return json_events_format(settings, tables, current, observe)
