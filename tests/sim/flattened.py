"""A pipeline with flattened records under the simulator: what its records say is put back into envelopes.

The oracle judges these as any others: order, positions, keys, and what became of each event. What a flattened record
does not say (the row before an update) is not there to be judged, so that no table has REPLICA IDENTITY FULL.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from cdcd.core.records.available import record_stream
from cdcd.core.records.encoder import EncoderSettings, Record
from cdcd.core.records.flattening import (
    DELETED_FIELD,
    REWRITE_WITH_TOMBSTONE,
    SOURCE_FIELDS,
    Flattening,
    read_added,
)
from cdcd.core.transactions.drafts import SpoolItem

_OP: Final = read_added("op", "__")
_SOURCE: Final = {each: read_added(f"source.{each}", "__") for each in SOURCE_FIELDS}
FLATTENING: Final = Flattening(REWRITE_WITH_TOMBSTONE, (_OP, *_SOURCE.values()))


class InflatedEncoder:
    """A `RecordStream`, whose records are made envelopes again. Everything else is the encoder's own."""

    def __init__(self, settings: EncoderSettings) -> None:
        self._inner = record_stream(replace(settings, flattening=FLATTENING))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def encode_all(self, kept: list[SpoolItem], in_stream: bool, now_us: int, out: list[Record]) -> int:
        return _inflated(out, lambda made: self._inner.encode_all(kept, in_stream, now_us, made))

    def encode(self, frame: bytes, in_stream: bool, now_us: int, out: list[Record]) -> int:
        return _inflated(out, lambda made: self._inner.encode(frame, in_stream, now_us, made))


def _inflated(out: list[Record], encode: Callable[[list[Record]], int]) -> int:
    made: list[Record] = []
    encode(made)
    records = [_envelope(record) for record in made]
    out += records
    return sum(len(key or b"") + len(value or b"") for _, key, value, _ in records)


def _envelope(record: Record) -> Record:
    topic, key, value, headers = record
    row = None if value is None else json.loads(value)
    if row is None or DELETED_FIELD not in row:
        # A tombstone or a logical message.
        return record
    is_deleted = row.pop(DELETED_FIELD) == "true"
    op = row.pop(_OP.name)
    source = {name: row.pop(field.name) for name, field in _SOURCE.items()}
    before, after = (row, None) if is_deleted else (None, row)
    fields = {"before": before, "after": after, "source": source, "op": op}
    return topic, key, json.dumps(fields).encode(), headers
