"""Kafka Connect's schemas of the data of events, with the names that Debezium's CloudEventsConverter gives them."""

from typing import Final

from cdcd.core.catalog.modes import Modes
from cdcd.core.records.debezium_json.connect_schema import Schema
from cdcd.core.records.debezium_json.message_content import message_schema as whole_message_schema

_NAME: Final = "io.debezium.connector.postgresql.Data"
_MESSAGE: Final = "message"


def data_schema(envelope: Schema) -> Schema:
    """Return the schema of changes: the rows before and after, from the schema of their envelopes."""
    return _data(envelope["fields"][:2])


def message_schema(modes: Modes) -> Schema:
    """Return the schema of logical messages, for which Debezium's converter has no event."""
    fields = whole_message_schema(modes)["fields"]
    return _data([field for field in fields if field["field"] == _MESSAGE])


def _data(fields: list[Schema]) -> Schema:
    return {"type": "struct", "fields": fields, "optional": False, "name": _NAME}
