"""A pipeline with CloudEvents under the simulator: what its events say is put back into envelopes.

The oracle judges these as any others. What it does not know is judged here: whenever cdcd makes an event again, after
whatever restart, it has the same `id` and the same data, and no other event has this `id`.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from cdcd.core.records.available import record_stream
from cdcd.core.records.cloud_events import CLOUDEVENTS, STRUCTURED, CloudEvents
from cdcd.core.records.debezium_json.transaction_metadata import TransactionMetadata
from cdcd.core.records.encoder import EncoderSettings, Record
from cdcd.core.records.flattening import SOURCE_FIELDS
from cdcd.core.records.stream import RecordStream
from cdcd.core.transactions.drafts import SpoolItem

_NAMES: Final = {each.replace("_", ""): each for each in SOURCE_FIELDS} | {"sourcetxid": "txId"}
_TEXTS: Final = {
    "version", "connector", "name", "snapshot", "db", "sequence", "schema", "table", "origin", "schema_id",
}  # fmt: skip
"""Fields of the source block that are no numbers."""

_CHANGE: Final = "io.debezium.connector.postgresql.DataChangeEvent"


class Seen:
    """The events of one simulation: what each `id` stands for."""

    def __init__(self) -> None:
        self.by_id: dict[str, Any] = {}

    def take(self, event_id: str, what: Any) -> None:
        """An event was made."""
        known = self.by_id.setdefault(event_id, what)
        assert known == what, f"two events have the id {event_id}: {known} and {what}"


class EnvelopedEncoder:
    """An encoder of events, whose records are made envelopes again. Everything else is the encoder's own."""

    def __init__(
        self,
        settings: EncoderSettings,
        seen: Seen,
        mode: str = STRUCTURED,
        make: Callable[[EncoderSettings], RecordStream] = record_stream,
    ) -> None:
        self._inner = make(replace(settings, value_format=CLOUDEVENTS, events=CloudEvents(mode)))
        self._seen = seen
        inner = self._inner.metadata
        self.metadata = None if inner is None else _Boundaries(inner, self._enveloped)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def encode_all(self, kept: list[SpoolItem], in_stream: bool, now_us: int, out: list[Record]) -> int:
        return self._made(out, lambda made: self._inner.encode_all(kept, in_stream, now_us, made))

    def encode(self, frame: bytes, in_stream: bool, now_us: int, out: list[Record]) -> int:
        return self._made(out, lambda made: self._inner.encode(frame, in_stream, now_us, made))

    def encode_message(
        self, frame: bytes, in_stream: bool, last_commit_lsn: int | None, now_us: int, out: list[Record]
    ) -> int:
        return self._made(
            out, lambda made: self._inner.encode_message(frame, in_stream, last_commit_lsn, now_us, made)
        )

    def encode_end_of_rows(
        self, oid: int, between: tuple[int, int] | None, now_us: int, out: list[Record]
    ) -> int:
        return self._made(out, lambda made: self._inner.encode_end_of_rows(oid, between, now_us, made))

    def _made(self, out: list[Record], encode: Callable[[list[Record]], int]) -> int:
        made: list[Record] = []
        encode(made)
        records = [self._enveloped(record) for record in made]
        out += records
        return sum(len(key or b"") + len(value or b"") for _, key, value, _ in records)

    def _enveloped(self, record: Record) -> Record:
        topic, key = record[:2]
        attributes, data, others = _read(record)
        if attributes is None:
            return record
        source: dict[str, Any] = dict.fromkeys(SOURCE_FIELDS)
        found = {name.removeprefix("iodebezium"): each for name, each in attributes.items()}
        for name, field in _NAMES.items():
            if name in found:
                source[field] = found[name] if field in _TEXTS else int(found[name])
        place = None
        if "txtotalorder" in found:
            place = {
                "id": found["txid"],
                "total_order": int(found["txtotalorder"]),
                "data_collection_order": int(found["txdatacollectionorder"]),
            }
        if found["type"] == _CHANGE or "op" in found:
            self._seen.take(found["id"], (topic, key, data))
            fields = {**data, "source": source, "transaction": place, "op": found["op"]}
        else:
            fields = data
        # Messages tell the schema and the table of no change.
        source["schema"] = source["schema"] or ""
        source["table"] = source["table"] or ""
        return topic, key, json.dumps(fields).encode(), others or None


def _read(record: Record) -> tuple[dict[str, str] | None, Any, list[tuple[str, bytes]]]:
    """Attributes, data and the other headers; None: the record is no event."""
    _, _, value, headers = record
    kinds = dict(headers or [])
    if value is None or "content-type" not in kinds:
        return None, None, []
    others = [each for each in headers or [] if not each[0].startswith(("ce_", "content-type"))]
    if kinds["content-type"].startswith(b"application/cloudevents"):
        event = json.loads(value)
        return event, event.pop("data"), others
    attributes = {name.removeprefix("ce_"): each.decode() for name, each in kinds.items()}
    return attributes, json.loads(value), others


class _Boundaries:
    """BEGIN and END as plain JSON."""

    def __init__(self, inner: TransactionMetadata, enveloped: Callable[[Record], Record]) -> None:
        self._inner = inner
        self._enveloped = enveloped

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def begun(self, records: list[Record]) -> int:
        if not self._inner.begun(records):
            return 0
        records[0] = self._enveloped(records[0])
        return _size(records[0])

    def ended(self, records: list[Record]) -> int:
        if not self._inner.ended(records):
            return 0
        records[-1] = self._enveloped(records[-1])
        return _size(records[-1])


def _size(record: Record) -> int:
    _, key, value, _ = record
    return len(key or b"") + len(value or b"")
