"""Debezium's events in topics, as far as a takeover needs them: whose transaction each is, and its LSN."""

import json
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from cdcd.adopt.overlap import Written


def written(value: bytes | None) -> Written | None:
    """The event of a record of JSON, with schemas or without; None: the record is of no event in the stream."""
    source = _source(value)
    if source is None or source.get("lsn") is None or source.get("snapshot") not in {None, "false", False}:
        return None
    return Written(int(source.get("txId") or 0), int(source["lsn"]))


def is_json(value: bytes) -> bool:
    """Whether a record may be one of Debezium's JSON."""
    return value.lstrip()[:1] == b"{"


def reaches_before(values: Sequence[bytes | None], xids: AbstractSet[int]) -> bool:
    """Whether the first event of these records is of another transaction than these.

    A partition has its events in the order of commits, so that nothing of these transactions is before it.
    """
    first = next((event for value in values if (event := written(value)) is not None), None)
    return first is not None and first.xid not in xids


def _source(value: bytes | None) -> dict[str, Any] | None:
    if not value:
        return None
    try:
        found = json.loads(value)
    except ValueError:
        return None
    if isinstance(found, dict) and isinstance(found.get("payload"), dict):
        found = found["payload"]
    source = found.get("source") if isinstance(found, dict) else None
    return source if isinstance(source, dict) else None
