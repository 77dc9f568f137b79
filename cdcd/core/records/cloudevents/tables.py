"""Makes the events of all tables of an encoder, and those of the transaction topic."""

from collections.abc import Sequence
from typing import Final

from cdcd.core.catalog.modes import Modes
from cdcd.core.records.cloud_events import CloudEvents
from cdcd.core.records.cloudevents.attributes import (
    AVRO_DATA,
    DATA_CHANGE,
    JSON_DATA,
    TRANSACTION,
    EventForm,
    Events,
)
from cdcd.core.records.debezium_json.connect_schema import WITH_SCHEMA, Schema, opening
from cdcd.core.records.debezium_json.event_schemas import TRANSACTION_VALUE
from cdcd.core.records.debezium_json.messages import message_schema as whole_message_schema
from cdcd.core.records.debezium_json.pieces import Part
from cdcd.core.records.debezium_json.source_block import OPS
from cdcd.core.records.debezium_json.table_fragments import Headers, TableFragments
from cdcd.core.records.debezium_json.transaction_metadata import TransactionMetadata
from cdcd.core.records.encoder import EncoderSettings, Record
from cdcd.core.records.format import Current

_AVRO: Final = "avro"
_END: Final = "end"
"""Text in the `id` of a truncate record that cdcd makes itself, in place of the op, because the event before it may
be a TRUNCATE."""

_NAME: Final = "io.debezium.connector.postgresql.Data"
"""Name of the Connect schema of an event's data, as Debezium's CloudEventsConverter has it."""

_MESSAGE: Final = "message"


def content_type(events: CloudEvents) -> bytes:
    """Return the content type of the data of events."""
    return AVRO_DATA if events.data == _AVRO else JSON_DATA


def data_schema(envelope: Schema) -> Schema:
    """Return the schema of changes: the rows before and after, from the schema of their envelopes."""
    return _data(envelope["fields"][:2])


def message_schema(modes: Modes) -> Schema:
    """Return the schema of logical messages, for which Debezium's converter has no event."""
    fields = whole_message_schema(modes)["fields"]
    return _data([field for field in fields if field["field"] == _MESSAGE])


def _data(fields: list[Schema]) -> Schema:
    return {"type": "struct", "fields": fields, "optional": False, "name": _NAME}


class EventTables:
    """Makes the events of changes and of rows that snapshots read.

    Attributes:
        header_bytes: as in `Events`.
    """

    def __init__(
        self,
        settings: EncoderSettings,
        form: EventForm,
        current: Current,
        metadata: TransactionMetadata | None,
    ) -> None:
        self._settings = settings
        self._form = form
        self._current = current
        self._metadata = metadata
        self._tables: dict[int, Events] = {}
        self.header_bytes = 0

    def describe(self, fragments: TableFragments) -> None:
        """Take the new description of a table."""
        self._tables[fragments.relation.oid] = Events(
            self._settings, self._form, DATA_CHANGE, fragments, self._metadata
        )

    def name_schema(self, fragments: TableFragments, url: bytes) -> None:
        """Set the URL of the schema that a table's event data has."""
        self._tables[fragments.relation.oid].data_schema = url

    def make(
        self,
        fragments: TableFragments,
        op: int,
        event_no: int,
        data: Sequence[Part],
        others: Headers | None,
    ) -> tuple[bytes, Headers]:
        """Return the value and the headers of an event, as `Events.make` does."""
        events, current = self._tables[fragments.relation.oid], self._current
        if events.transaction != fragments.transaction:
            events.renew(current.facts)
            events.transaction = fragments.transaction
        text = OPS[op]
        mark = _END if current.ends_rows else text
        made = events.make(text, mark, current.lsn, event_no, data, others)
        self.header_bytes = events.header_bytes
        return made


class EventMetadata(TransactionMetadata):
    """Makes the BEGIN and END records of transactions as events."""

    def __init__(self, settings: EncoderSettings, topic: str, form: EventForm) -> None:
        TransactionMetadata.__init__(self, settings, topic)
        self._form = form
        self._extensions = settings.events.extensions
        if settings.events.data == WITH_SCHEMA:
            self._value_head = opening(TRANSACTION_VALUE)

    def _record(self, status: bytes, total: bytes, tables: bytes) -> tuple[Record, int]:
        (topic, key, data, _), _ = TransactionMetadata._record(self, status, total, tables)
        assert key is not None, "a transaction has an id"
        assert data is not None, "only tombstones have no value"
        xid = self.id[1:-1]
        attributes = [("id", b"transaction:%b;status:%b" % (xid, status))]
        attributes += self._form.begin(TRANSACTION, self._time_ms * 1000)
        if self._extensions:
            attributes.append(("iodebeziumtxid", xid))
        value, headers = self._form.event(attributes, data)
        size = len(key) + len(value)
        if not self._form.is_structured:
            size += sum([len(name) + len(text) for name, text in headers])
        return (topic, key, value, headers), size
