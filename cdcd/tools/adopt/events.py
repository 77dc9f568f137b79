"""Debezium's events in topics, as far as a takeover needs them: whose transaction each is, and its LSN."""

import json
from collections.abc import Sequence
from typing import Any

from cdcd.tools.adopt.overlap import Written


class Tails:
    """What the ends of the topics have of some transactions.

    Attributes:
        events: of these transactions.
        unreadable: records that are not Debezium's JSON: Avro, Protobuf, CloudEvents without extension attributes, or
            what a transform has made.
    """

    def __init__(self, xids: frozenset[int]) -> None:
        self._xids = xids
        self.events: list[Written] = []
        self.unreadable = 0

    def take(self, value: bytes | None) -> None:
        """A record's value. One without a value is a tombstone, which belongs to the event before it."""
        if not value:
            return
        source = _source(value)
        if source is None:
            self.unreadable += 1
        elif (event := _event(source)) is not None and event.xid in self._xids:
            self.events.append(event)

    def reach_before(self, values: Sequence[bytes | None]) -> bool:
        """Whether nothing of these transactions can be before these records of a partition, or none can be read.

        A partition has its events in the order of commits, so that the first one decides.
        """
        sources = [_source(value) for value in values if value]
        first = next((event for source in sources if source and (event := _event(source)) is not None), None)
        if first is None:
            return any(source is None for source in sources)
        return first.xid not in self._xids


def _event(source: dict[str, Any]) -> Written | None:
    """None: it is a row of a snapshot."""
    if source.get("lsn") is None or str(source.get("snapshot", "false")).lower() != "false":
        return None
    return Written(int(source.get("txId") or 0), int(source["lsn"]))


def _source(value: bytes) -> dict[str, Any] | None:
    """The envelope's `source`, with a schema around the envelope or without."""
    try:
        found = json.loads(value)
    except ValueError:
        return None
    if isinstance(found, dict) and isinstance(found.get("payload"), dict):
        found = found["payload"]
    if isinstance(found, dict) and "specversion" in found:
        return _source_of_event(found)
    source = found.get("source") if isinstance(found, dict) else None
    return source if isinstance(source, dict) else None


def _source_of_event(event: dict[str, Any]) -> dict[str, Any] | None:
    """As far as the attributes of a CloudEvent have it: Debezium's, or cdcd's."""
    if "iodebeziumlsn" not in event:
        return None
    return {
        "lsn": event["iodebeziumlsn"],
        "txId": event.get("iodebeziumtxId") or event.get("iodebeziumsourcetxid"),
        "snapshot": event.get("iodebeziumsnapshot", "false"),
    }
