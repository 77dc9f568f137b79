"""Converts the content of a logical message, which has the form of a bytea under `format.binary_handling_mode`.

Debezium's connector applies `binary.handling.mode` to it too (LogicalDecodingMessageMonitor): bytes in base64, or a
text in base64 or hex.
"""

from collections.abc import Iterable
from itertools import chain
from typing import Final

from cdcd.core.catalog.logical import LogicalType, logical_type
from cdcd.core.catalog.modes import Modes, under
from cdcd.core.catalog.types import BYTEA
from cdcd.core.catalog.wiretext import to_bytes
from cdcd.core.records.debezium_json.connect_schema import Schema, message_value, schema_of
from cdcd.core.records.debezium_json.converters import Bytea, converter_of
from cdcd.core.records.debezium_json.pieces import PIECE_BYTES, base64_pieces


def _form(modes: Modes) -> LogicalType:
    return under(modes, logical_type(BYTEA, -1, {}))


def message_schema(modes: Modes) -> Schema:
    """Return the schema of logical messages under these modes."""
    return message_value(schema_of(_form(modes)))


class MessageContent:
    """Converts contents under these modes."""

    def __init__(self, modes: Modes) -> None:
        self._converter: Final = converter_of(_form(modes))
        self._is_base64 = isinstance(self._converter, Bytea)
        self._is_text = schema_of(_form(modes))["type"] == "string"

    def json(self, content: memoryview) -> str:
        """Return the JSON of the content."""
        return self._converter.binary(bytes(content))

    def json_pieces(self, content: memoryview) -> Iterable[bytes]:
        """Return the JSON of the content in pieces, so that a large content is not copied more often than necessary."""
        if self._is_base64 and len(content) > PIECE_BYTES:
            return chain((b'"',), base64_pieces(content, 0, len(content)), (b'"',))
        return [to_bytes(self.json(content))]

    def data(self, content: memoryview) -> bytes:
        """Return the bytes of the content for a binary format, which are those of a text or of the content itself."""
        return self.json(content)[1:-1].encode("ascii") if self._is_text else bytes(content)
