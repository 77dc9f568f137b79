"""The topics judged by themselves: what every record must be, whatever the tables hold.

A record's place is `(commit_lsn, event_serial_no)`: the position of its transaction and its number in it. From that
follows what `examine` looks for: no place twice in all topics together; places that only rise in each partition; the
numbers of a transaction without a gap; one partition for a key; a tombstone right after its delete. A change of a key
is a delete and a create that share a place, and so do the records of one TRUNCATE of several tables.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from deploy.demo.topics import Raw

SHOWN_MAX: Final = 5

NEW_KEY: Final = "__debezium.newkey"
OLD_KEY: Final = "__debezium.oldkey"
UNCHANGED: Final = "cdcd.unchanged"
WATERMARK: Final = "cdcd.watermark"


class Violations:
    """Broken promises by kind: how many, and the first few."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._shown: dict[str, list[str]] = defaultdict(list)

    def __bool__(self) -> bool:
        return bool(self.counts)

    def add(self, kind: str, where: str) -> None:
        self.counts[kind] += 1
        if len(self._shown[kind]) < SHOWN_MAX:
            self._shown[kind].append(where)

    def lines(self) -> Iterator[str]:
        for kind, count in sorted(self.counts.items()):
            yield f"{kind}: {count}"
            yield from (f"    {where}" for where in self._shown[kind])
            if count > SHOWN_MAX:
                yield f"    and {count - SHOWN_MAX} more"


@dataclass(frozen=True, slots=True)
class Event:
    """A record with a value. `half`: 1 is the create of a changed key, which comes after its delete's 0."""

    raw: Raw
    commit_lsn: int
    serial: int
    half: int
    op: str
    schema: str
    table: str
    xid: int | None
    of_snapshot: bool = False
    """It stands between transactions: a row that was read, a difference after a gap, or the end of a former table's
    rows."""

    @property
    def place(self) -> tuple[int, int, int]:
        return self.commit_lsn, self.serial, self.half

    def envelope(self) -> dict[str, Any]:
        """The record's value; read again rather than kept."""
        assert self.raw.value is not None
        found: dict[str, Any] = json.loads(self.raw.value)
        return found

    def key(self) -> dict[str, Any] | None:
        return None if self.raw.key is None else json.loads(self.raw.key)

    def unchanged(self) -> list[str]:
        """Columns whose value the server did not send."""
        return [
            name for header, value in self.raw.headers if header == UNCHANGED for name in json.loads(value)
        ]

    def __str__(self) -> str:
        raw = self.raw
        at = f"{self.commit_lsn >> 32:X}/{self.commit_lsn & 0xFFFFFFFF:X}"
        return f"{raw.topic}/{raw.partition}@{raw.offset} {self.op} {at} #{self.serial} {_short(raw.key)}"


@dataclass(slots=True)
class History:
    """The events in the order of their places, and what is wrong with them."""

    events: list[Event] = field(default_factory=list)
    violations: Violations = field(default_factory=Violations)
    records: int = 0
    tombstones: int = 0

    def transactions(self) -> Iterator[list[Event]]:
        """Events of one transaction after the other."""
        run: list[Event] = []
        for event in self.events:
            if run and event.commit_lsn != run[0].commit_lsn:
                yield run
                run = []
            run.append(event)
        if run:
            yield run


def examine(records: Iterable[Raw], *, exactly_once: bool = True, whole: bool = True) -> History:
    """Read all records, each partition's in its order, and look for broken promises.

    Args:
        exactly_once: False: what comes again is left out instead of being a violation.
        whole: all events are in these topics, so that a missing number means a lost event.
    """
    history = History()
    partitions: dict[tuple[str, int], _Partition] = defaultdict(_Partition)
    homes: dict[tuple[str, bytes], int] = {}
    for raw in records:
        if raw.value is None and WATERMARK in dict(raw.headers):
            continue
        history.records += 1
        violations = history.violations
        partition = partitions[raw.topic, raw.partition]
        if raw.key is not None and homes.setdefault((raw.topic, raw.key), raw.partition) != raw.partition:
            violations.add("a key in two partitions", f"{raw.topic} {_short(raw.key)}")
        if raw.value is None:
            history.tombstones += 1
            partition.tombstone(raw, violations)
            continue
        try:
            event = _event(raw)
        except (ValueError, KeyError, TypeError) as error:
            violations.add("not an event", f"{raw.topic}/{raw.partition}@{raw.offset}: {error!r}")
            continue
        partition.event(event, violations, exactly_once=exactly_once)
        history.events.append(event)
    for partition in partitions.values():
        partition.end(history.violations)
    history.events.sort(key=lambda event: event.place)
    history.events = list(_unique(history, exactly_once=exactly_once))
    for transaction in history.transactions():
        _examine_transaction(transaction, history.violations, whole=whole)
    return history


class _Partition:
    """What came last in a partition."""

    def __init__(self) -> None:
        self._last: Event | None = None
        self._deleted: Event | None = None

    def event(self, event: Event, violations: Violations, *, exactly_once: bool) -> None:
        self.end(violations)
        if exactly_once and self._last is not None and event.place < self._last.place:
            violations.add("order falls within a partition", f"{event} after {self._last}")
        self._last = event
        if event.op == "d" and event.raw.key is not None:
            self._deleted = event

    def tombstone(self, raw: Raw, violations: Violations) -> None:
        if self._deleted is None or self._deleted.raw.key != raw.key:
            violations.add(
                "tombstone without its delete", f"{raw.topic}/{raw.partition}@{raw.offset} {_short(raw.key)}"
            )
        self._deleted = None

    def end(self, violations: Violations) -> None:
        if self._deleted is not None:
            violations.add("delete without its tombstone", str(self._deleted))
            self._deleted = None


def _event(raw: Raw) -> Event:
    assert raw.value is not None
    envelope = json.loads(raw.value)
    source = envelope["source"]
    headers = dict(raw.headers)
    event = Event(
        raw,
        source["commit_lsn"],
        source["event_serial_no"],
        1 if OLD_KEY in headers else 0,
        envelope["op"],
        source["schema"],
        source["table"],
        source["txId"],
        source.get("snapshot", "false") != "false" or (source["txId"] is None and envelope["op"] in "cud"),
    )
    if event.op not in _ROWS:
        raise ValueError(f"op {event.op!r}")
    before, after = _ROWS[event.op]
    for name, must in (("before", before), ("after", after)):
        if event.op != "m" and must is not None and (envelope[name] is not None) is not must:
            raise ValueError(f"{name} of an event with op {event.op} is {'not ' if must else ''}null")
    key = event.key()
    row = envelope["before"] if event.op == "d" else envelope.get("after")
    if key is not None and row is not None and any(row[name] != value for name, value in key.items()):
        raise ValueError(f"the key {_short(raw.key)} is not the row's")
    return event


_ROWS: Final[dict[str, tuple[bool | None, bool | None]]] = {
    "c": (False, True),
    "r": (False, True),
    "u": (None, True),
    "d": (True, False),
    "t": (False, False),
    "m": (None, None),
}
"""Whether before and after are rows; None: both are possible."""


def _unique(history: History, *, exactly_once: bool) -> Iterator[Event]:
    """The events without those that come again, which are violations if `exactly_once`."""
    seen: dict[tuple[object, ...], Event] = {}
    lsn = -1
    for event in history.events:
        if event.commit_lsn != lsn:
            seen.clear()
            lsn = event.commit_lsn
        # What may share a number: the two halves of a changed key, and the tables of one TRUNCATE.
        place = (event.serial, event.half, (event.schema, event.table) if event.op == "t" else "")
        first = seen.setdefault(place, event)
        if first is event:
            yield event
        elif exactly_once:
            violation = "an event twice" if first.raw.key == event.raw.key else "two events with one number"
            history.violations.add(violation, f"{first} and {event}")


def _examine_transaction(events: list[Event], violations: Violations, *, whole: bool) -> None:
    # Rows of snapshots stand between transactions, and are numbered on and on.
    events = [event for event in events if event.op != "r" and not event.of_snapshot]
    if not events:
        return
    xids = {event.xid for event in events}
    if len(xids) > 1:
        violations.add("a transaction with several xids", f"{xids} {events[0]}")
    expected = 1
    halves: dict[int, set[str]] = defaultdict(set)
    for event in events:
        headers = dict(event.raw.headers)
        halves[event.serial] |= headers.keys() & {NEW_KEY, OLD_KEY}
        if event.serial > expected and whole:
            violations.add(
                "events missing in a transaction", f"#{expected} to #{event.serial - 1} before {event}"
            )
        expected = max(expected, event.serial + 1)
    for serial, found in halves.items():
        if len(found) == 1:
            violations.add("half of a changed key", f"{found} #{serial} of {events[0]}")


def _short(key: bytes | None) -> str:
    text = "no key" if key is None else key.decode(errors="replace")
    return text if len(text) <= 80 else f"{text[:80]}…"
