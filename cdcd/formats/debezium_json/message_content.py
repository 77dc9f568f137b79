"""The content of a logical message, which has the form of a bytea under `format.binary_handling_mode`.

Debezium's connector applies `binary.handling.mode` to it as well (LogicalDecodingMessageMonitor): base64 of bytes, or a
text in base64 or hex.
"""

from typing import Final

from cdcd.formats.debezium_json.connect_schema import Schema, message_value, schema_of
from cdcd.formats.debezium_json.converters import converter_of
from cdcd.rows.logical import LogicalType, logical_type
from cdcd.rows.modes import Modes, under
from cdcd.rows.types import BYTEA


def _form(modes: Modes) -> LogicalType:
    return under(modes, logical_type(BYTEA, -1, {}))


def message_schema(modes: Modes) -> Schema:
    """The schema of logical messages under these modes."""
    return message_value(schema_of(_form(modes)))


class MessageContent:
    """Makes contents under these modes."""

    def __init__(self, modes: Modes) -> None:
        self._converter: Final = converter_of(_form(modes))
        self._is_text = schema_of(_form(modes))["type"] == "string"

    def json(self, content: bytes) -> str:
        """As JSON has it."""
        return self._converter.binary(content)

    def data(self, content: bytes) -> bytes:
        """As a format has it that writes the length before the bytes of either a text or bytes."""
        return self.json(content)[1:-1].encode("ascii") if self._is_text else content
