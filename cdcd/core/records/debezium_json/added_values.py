"""The values of the fields and headers that flattened records have beside their row."""

import json
from collections.abc import Mapping, Sequence
from typing import Final

from cdcd.core.records.debezium_json.source_block import OPS
from cdcd.core.records.flattening import AddedField

_OF_EVENT: Final = (
    "op", "ts_ms", "ts_us", "ts_ns", "source.lsn", "source.sequence", "source.event_serial_no",
)  # fmt: skip
"""Fields that differ from event to event. All others are the same for a table's events in a transaction."""

_NULL: Final = b"null"


class AddedValues:
    """Values for one list of fields: what a transaction decides is kept, so that an event costs only what is its own.

    The caller owes `renew` before the first event of a transaction.

    Args:
        constants: JSON of the fields of `source` that never change.
        as_text: the values are those of headers: text without quotes.
    """

    def __init__(self, fields: Sequence[AddedField], constants: Mapping[str, bytes], as_text: bool) -> None:
        self.names = [field.name for field in fields]
        self._fields = [field.field for field in fields]
        self._constants = constants
        self._as_text = as_text
        self._values: list[bytes] = []
        self._events = [(place, field) for place, field in enumerate(self._fields) if field in _OF_EVENT]
        self._absent: set[str] = set()
        """Names of the fields that are null in this transaction."""
        self._last = b""

    def renew(self, values: Mapping[str, bytes]) -> None:
        """Take the values of `source` that a transaction decides (`SourceBlock.values`)."""
        known = {**self._constants, **values}
        self._last = known["last"]
        found: list[bytes] = []
        self._absent.clear()
        for name, field in zip(self.names, self._fields, strict=True):
            value = b"" if field in _OF_EVENT else known[field.removeprefix("source.")]
            if value == _NULL:
                self._absent.add(name)
            found.append(_text(value) if self._as_text else value)
        self._values = found

    def of_event(self, op: int, lsn: bytes, event_no: int, now_us: int) -> list[bytes]:
        """The values for one event, in the order of the fields; `null` where there is none."""
        values = self._values.copy()
        for place, field in self._events:
            values[place] = self._of_event(field, op, lsn, event_no, now_us)
        return values

    def _of_event(self, field: str, op: int, lsn: bytes, event_no: int, now_us: int) -> bytes:
        if field == "source.lsn":
            return lsn
        if field == "source.event_serial_no":
            return b"%d" % event_no
        if field == "op":
            return (OPS[op] if self._as_text else f'"{OPS[op]}"').encode("ascii")
        if field == "source.sequence":
            value = b'"[%b,\\"%b\\"]"' % (self._last, lsn)
            return _text(value) if self._as_text else value
        if field == "ts_ms":
            return b"%d" % (now_us // 1000)
        return b"%d" % (now_us if field == "ts_us" else now_us * 1000)

    def headers(self, op: int, lsn: bytes, event_no: int, now_us: int) -> list[tuple[str, bytes]]:
        """The headers of one event. A field without a value has none."""
        values = self.of_event(op, lsn, event_no, now_us)
        return [
            (name, value) for name, value in zip(self.names, values, strict=True) if name not in self._absent
        ]


def _text(value: bytes) -> bytes:
    """A header's text of a JSON value."""
    return str(json.loads(value)).encode() if value.startswith(b'"') else value
