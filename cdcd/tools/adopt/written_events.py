"""A connector's own records: the events in its topics, and the position in its offset."""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cdcd.adapters.postgres.slot import (
    PendingTransaction,
)
from cdcd.core.bounded_json import is_deep
from cdcd.core.protocol.lsn import Lsn

POSITIONS: Final = ("lsn", "lsn_proc", "lsn_commit")
"""The LSNs in an offset of Debezium's: of the last event, of the last one that was processed, of the last commit."""

DIGITS_MAX: Final = 20
"""Digits of the largest LSN."""


@dataclass(frozen=True, slots=True)
class WrittenEvent:
    """An event in a topic, as its `source` says: the transaction's id, and the event's LSN."""

    xid: int
    lsn: int


@dataclass(frozen=True, slots=True)
class Twice:
    """Events that are in the topics already, and that the slot sends again.

    Attributes:
        events: number of these events.
        transactions: number of transactions that have such events.
        first, last: LSNs at which the first and the last of these transactions end; None: there is no such transaction.
        partly: LSN at which the last of these transactions ends, if the topics have only a part of it.
        pending: number of events of all transactions that the slot sends. At most these events come twice.
        is_complete: False: the slot has more transactions than were read, so more events may come twice.
        is_readable: False: the topics have records that cannot be read, so that `events` is None.
    """

    events: int
    transactions: int
    first: Lsn | None
    last: Lsn | None
    partly: Lsn | None
    pending: int
    is_complete: bool
    is_readable: bool


def twice(
    pending: Collection[PendingTransaction],
    written: Iterable[WrittenEvent],
    *,
    is_complete: bool = True,
    is_readable: bool = True,
) -> Twice:
    """Compare what the slot sends with what the topics have."""
    there = Counter(written)
    events, again = 0, []
    partly: int | None = None
    for transaction in pending:
        found = sum(
            min(count, there[WrittenEvent(transaction.xid, lsn)]) for lsn, count in transaction.events.items()
        )
        if found:
            events += found
            again.append(transaction.end_lsn)
            partly = transaction.end_lsn if found < sum(transaction.events.values()) else None
    return Twice(
        events,
        len(again),
        Lsn(min(again)) if again else None,
        Lsn(max(again)) if again else None,
        Lsn(partly) if partly is not None else None,
        sum(sum(transaction.events.values()) for transaction in pending),
        is_complete,
        is_readable,
    )


@dataclass(frozen=True, slots=True)
class OffsetGap:
    """Changes that committed between these positions may be in no topic: the slot was moved past them."""

    after: Lsn
    up_to: Lsn


def gap(offset: Mapping[str, Any], confirmed: int) -> OffsetGap | None:
    """Whether the slot is past the connector's offset. An offset without a position says nothing."""
    positions = [int(offset[name]) for name in POSITIONS if offset.get(name) is not None]
    if not positions or confirmed <= max(positions):
        return None
    return OffsetGap(Lsn(max(positions)), Lsn(confirmed))


def unfinished_snapshot(offset: Mapping[str, Any]) -> bool:
    """Whether the connector was still reading rows that existed before its stream."""
    return offset.get("snapshot") is not None and not _true(offset.get("snapshot_completed"))


def unfinished_tables(offset: Mapping[str, Any]) -> bool:
    """Whether an incremental snapshot was being read."""
    return bool(offset.get("incremental_snapshot_collections"))


def _true(value: object) -> bool:
    return str(value).lower() == "true"


class Tails:
    """What the ends of the topics have of some transactions.

    Attributes:
        events: of these transactions.
        unreadable: records that are not Debezium's JSON: Avro, Protobuf, CloudEvents without extension attributes, or
            what a transform has made.
    """

    def __init__(self, xids: frozenset[int]) -> None:
        self._xids = xids
        self.events: list[WrittenEvent] = []
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


def _event(source: dict[str, Any]) -> WrittenEvent | None:
    """None: it is a row of a snapshot."""
    if source.get("lsn") is None or str(source.get("snapshot", "false")).lower() != "false":
        return None
    return WrittenEvent(int(source.get("txId") or 0), int(source["lsn"]))


def _is_event(source: dict[str, Any]) -> bool:
    """Whether LSN and transaction are whole numbers, or missing. Anybody may have written the record."""
    texts = [str(source[name]) for name in ("lsn", "txId") if source.get(name) is not None]
    return all(len(text) <= DIGITS_MAX and text.isascii() and text.isdecimal() for text in texts)


def _source(value: bytes) -> dict[str, Any] | None:
    """The envelope's `source`, with a schema around the envelope or without."""
    try:
        found = None if is_deep(value) else json.loads(value)
    except ValueError:
        return None
    if isinstance(found, dict) and isinstance(found.get("payload"), dict):
        found = found["payload"]
    if isinstance(found, dict) and "specversion" in found:
        return _source_of_event(found)
    source = found.get("source") if isinstance(found, dict) else None
    return source if isinstance(source, dict) and _is_event(source) else None


def _source_of_event(event: dict[str, Any]) -> dict[str, Any] | None:
    """As far as the attributes of a CloudEvent have it: Debezium's, or cdcd's."""
    if "iodebeziumlsn" not in event:
        return None
    source = {
        "lsn": event["iodebeziumlsn"],
        "txId": event.get("iodebeziumtxId") or event.get("iodebeziumsourcetxid"),
        "snapshot": event.get("iodebeziumsnapshot", "false"),
    }
    return source if _is_event(source) else None
