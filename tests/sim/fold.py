"""G9: what a consumer has that folds each topic, and whether that is the table.

c, u and r put a row, d takes it away, t takes all. A value that was not sent stays what it was, also where an update
changes the key; where it was nothing, it is `MISSING`, until another record has it. Rows of a snapshot must never be
older than a change of the same row that stands before them in the topic: the number of the event in the row tells.
"""

import json
from typing import Any, Final

from cdcd.core.records.encoder import HEADER_NEW_KEY, HEADER_OLD_KEY
from cdcd.core.snapshot.reading import Visibility
from tests.sim.aside import AsideSeen
from tests.sim.catalog import EVENT, SCHEMA, Definition
from tests.sim.database import Database
from tests.sim.expected import (
    PLACEHOLDER,
    TOMBSTONE,
    TOPIC_PREFIX,
    Expected,
    PromiseBrokenError,
    Record,
    key_bytes,
    own_key,
    topic_of,
    without_marker,
)
from tests.sim.filtered import matches
from tests.sim.parted import PartitionsSeen, partition_of
from tests.sim.published import TOPIC as PUBLISHED
from tests.sim.routed import ALL, route

MISSING: Final = b"(a value that no record has)"

NEVER_SENT: Final = b"(a value that PostgreSQL did not send for a row that entered the topic)"
"""Value of a column in a row that an update brought into the topic, because of a filter or a route. PostgreSQL sends an
unchanged TOAST value with REPLICA IDENTITY FULL only, and the topic has no former record of the row. The value stays
so until another record has it (docs/filters.md, docs/routes.md)."""

Values = dict[str, bytes | None]


class Topic:
    """The rows that a consumer has of one topic, by their keys, and the newest event of each."""

    def __init__(self) -> None:
        self.rows: dict[bytes, Values] = {}
        self.newest: dict[tuple[int, bytes], int] = {}
        self.truncated: dict[int, int] = {}
        self.is_whole = False
        """A truncate record came before the rows of a table without a key: no row may be missing or come twice."""
        self.disturbed = ""
        """A change of such a table came before its row, or although a row has it. A truncate record must end this."""
        self._moved: dict[bytes, Values] = {}

    def take(self, key: bytes, moved_to: bytes | None) -> None:
        """The row with this key is no more, or has another key from now on."""
        row = self.rows.pop(key, {})
        if moved_to is not None:
            self._moved[key] = row

    def put(
        self, key: bytes, values: Values, moved_from: bytes | None = None, *, unknown: bytes = MISSING
    ) -> None:
        """The row with this key has these values. For a value that was not sent, the former one is kept, or `unknown`
        if there is no former one.
        """
        before = self.rows.get(key, {}) if moved_from is None else self._moved.pop(moved_from, {})
        self.rows[key] = {
            name: before.get(name, unknown) if value == PLACEHOLDER.encode() else value
            for name, value in values.items()
        }


class Fold:
    """All topics. Records are given in the order of the log, those of the stream with what was expected.

    Args:
        strict: no row may be older than what stands before it; not so where Kafka may hold changes twice.
        filters: whether tables have a filter.
        routes: whether rows of tables are routed.
    """

    def __init__(
        self, database: Database, *, strict: bool, filters: bool = False, routes: bool = False
    ) -> None:
        self.database = database
        self._filters = filters
        self._routes = routes
        self._strict = strict
        self.topics: dict[str, Topic] = {}
        self.rows_read = 0
        self.wholes = 0
        """Truncate records before the rows of tables without a key."""
        self._ended: set[str] | None = None
        """Topics whose former rows have ended since the last gap. None: there was no gap."""
        self.aside: AsideSeen | None = None
        """Tables that were set aside; None: no table is."""
        self.never_sent = 0
        """Number of values in the end that are `NEVER_SENT`."""
        self.partitions: PartitionsSeen | None = None
        """Where rows lie, if columns choose the partitions."""

    def begin_gap(self) -> None:
        """Note that changes of the source were lost. From now on, each topic may end its former rows once."""
        self._ended = set()

    @property
    def has_gap(self) -> bool:
        """Whether changes of the source were lost."""
        return self._ended is not None

    def is_outdated(self, topic: str) -> bool:
        """Return whether the topic may still have rows from before a gap, or is of a table without a key."""
        return (self._ended is not None and topic not in self._ended) or self.is_keyless(topic)

    def is_keyless(self, topic: str) -> bool:
        """Return whether the topic is of a table without a key, whose former rows may end at any time."""
        oids = self.database.named.get(topic.rpartition(".")[2], ())
        return any(self.database.first[oid].keyless for oid in oids)

    def may_be_left_out(self, expected: Expected) -> bool:
        """Return whether the rows of a snapshot may have the change, so that it has no record of its own."""
        table = expected.table
        return table is not None and table.keyless and self.topic(topic_of(table)).is_whole

    def _keyless(self, topic: Topic, table: Definition, op: str, fields: dict[str, Any]) -> None:
        """A change of a table without a key, or a row of it (op r)."""
        if op in ("u", "d"):
            before = own_key(table, fields["before"])
            if topic.rows.pop(before, None) is None:
                self._disturb(topic, f"{op} of {before!r} of {table.name}, which is not there")
        if op != "d":
            after = own_key(table, fields["after"])
            if after in topic.rows:
                self._disturb(topic, f"the row {after!r} of {table.name} is there twice")
            topic.put(after, without_marker(fields["after"], table))
            if op == "r" and topic.disturbed:
                raise PromiseBrokenError(f"G9: a row came after it: {topic.disturbed}")

    def _disturb(self, topic: Topic, why: str) -> None:
        if topic.is_whole:
            topic.disturbed = topic.disturbed or why

    def _end(self, topic: str, name: str) -> None:
        """Note that the topic's former rows end. They belong to another table, or are from before a gap."""
        returned = self.aside is not None and self.aside.may_end(topic)
        if not self.is_shared(name) and not self.is_outdated(topic) and not returned:
            raise PromiseBrokenError(f"G9: the former rows of {topic} end, and no gap made them outdated")
        if self._ended is not None:
            self._ended.add(topic)

    def is_shared(self, name: str) -> bool:
        """Whether several tables had the name, or one with several names, or one that is back in the publication."""
        database = self.database
        return len(database.named.get(name, ())) > 1 or name in database.several or name in database.rejoined

    def topic(self, name: str) -> Topic:
        topic = self.topics.get(name)
        if topic is None:
            topic = self.topics[name] = Topic()
        return topic

    def change(self, expected: Expected, record: Record, fields: dict[str, Any]) -> None:
        """A record of the stream that is as it was expected."""
        table, change, op = expected.table, expected.change, expected.op
        if table is None or op == TOMBSTONE:
            return
        topic = self.topic(record[0])
        # A row that was read must not be older than a change of it in another topic of the table, either.
        own = self.topic(topic_of(table))
        if op == "t":
            topic.rows.clear()
            own.truncated[table.oid] = change.event
            return
        if table.keyless:
            self._keyless(topic, table, op, fields)
            return
        key = record[1]
        assert key is not None
        own.newest[table.oid, key] = change.event
        headers = dict(record[3] or ())
        if op == "d":
            topic.take(key, headers.get(HEADER_NEW_KEY))
        else:
            topic.put(
                key,
                without_marker(fields["after"], table),
                headers.get(HEADER_OLD_KEY),
                unknown=NEVER_SENT if self._enters(expected) else MISSING,
            )

    def _enters(self, expected: Expected) -> bool:
        """Return whether an update brings the row into the topic, where its former values did not belong."""
        table, change = expected.table, expected.change
        if table is None or change.what != "U":
            return False
        was_kept = not self._filters or matches(table, change.old)
        was_here = not self._routes or route(table, change.old) == expected.route
        return not (was_kept and was_here)

    def table_of(self, fields: dict[str, Any]) -> int:
        """Return the oid of the table that has the row of a snapshot; 0 if no event wrote the row."""
        return self.database.oids.get(int(fields["after"][EVENT] or 0), 0)

    def snapshot(self, record: Record, fields: dict[str, Any]) -> None:
        """A record that a snapshot made: a row, or the end of all rows of another table that had the name."""
        topic = self.topic(record[0])
        if fields["op"] == "t":
            if self._strict:
                self._end(record[0], fields["source"]["table"])
            topic.rows.clear()
            topic.is_whole = self.is_keyless(record[0])
            self.wholes += topic.is_whole
            topic.disturbed = ""
            if self.partitions is not None:
                self.partitions.end(record)
            return
        key = record[1]
        self.rows_read += 1
        event = int(fields["after"][EVENT] or 0)
        oid = self.database.oids.get(event)
        if oid is None:
            raise PromiseBrokenError(f"G9: a row of event {event}, which wrote none: {record}")
        if oid not in self.database.published:
            raise PromiseBrokenError(f"G12: a row of the table {oid}, which was never published: {record}")
        values = without_marker(fields["after"], self.database.first[oid])
        self.check_row(oid, event, key, values)
        if self.database.first[oid].keyless:
            self._keyless(topic, self.database.first[oid], "r", fields)
            return
        if self._filters and not matches(self.database.first[oid], self.database.rows[event]):
            raise PromiseBrokenError(f"G9: a row that the filter leaves out: {record}")
        own = topic
        if self._routes:
            name = f"{TOPIC_PREFIX}.{SCHEMA}.{fields['source']['table']}"
            wanted = name + route(self.database.first[oid], self.database.rows[event])
            if record[0] != wanted:
                raise PromiseBrokenError(f"G9: a row of event {event} came in {record[0]}, not in {wanted}")
            own = self.topic(name)
        assert key is not None
        newest = max(own.newest.get((oid, key), 0), own.truncated.get(oid, 0))
        if self._strict and event < newest:
            raise PromiseBrokenError(
                f"G9: stale row: event {event} of {record[0]} {key!r} came after event {newest}"
            )
        topic.put(key, values)
        if self.partitions is not None:
            self.partitions.row(self.database.first[oid], self.database.rows[event], record)

    def check_row(self, oid: int, event: int, key: bytes | None, values: Values) -> None:
        """A row is as it was written, in every column."""
        database = self.database
        row, columns = database.rows[event], database.columns[oid]
        first = database.first[oid]
        wanted_key = None if first.keyless else key_bytes(first, row)
        if key != wanted_key:
            raise PromiseBrokenError(f"G4: the row of event {event} has the key {key!r}, not {wanted_key!r}")
        for name, value in values.items():
            if self._is_renamed(name):
                continue
            column = columns[name]
            wanted = row.get(column.attnum, column.missing)
            if value != wanted:
                raise PromiseBrokenError(
                    f"G9: the row of event {event} has {value!r} in {name}, not {wanted!r}"
                )

    def _is_renamed(self, name: str) -> bool:
        """Return whether other columns may have had this name, so that the value cannot be compared by name."""
        return self.database.protected and name.startswith("c")

    def compare(self, table: Definition, snapshot: Visibility) -> None:
        """The topics of the table must give its rows."""
        for suffix in ALL if self._routes else ("",):
            self._compare(table, snapshot, suffix)

    def _compare(self, table: Definition, snapshot: Visibility, suffix: str) -> None:
        topic = self.topics.get(topic_of(table) + suffix, Topic())
        heap = self.database.heap(table)
        source = {
            key_bytes(table, version.row): version.row
            for version in heap.visible(snapshot)
            if (not self._filters or matches(table, version.row))
            and (not self._routes or route(table, version.row) == suffix)
        }
        name = table.full_name + suffix
        if topic.disturbed:
            raise PromiseBrokenError(f"G9: {topic.disturbed}")
        if self.partitions is not None:
            where = {key: partition_of(table, row) for key, row in source.items()}
            self.partitions.compare(topic_of(table), where)
        for key in sorted(source.keys() - topic.rows.keys()):
            event = source[key][table.event_attnum]
            raise PromiseBrokenError(f"G9: {name} lacks {key!r} (event {event!r})")
        for key in sorted(topic.rows.keys() - source.keys()):
            raise PromiseBrokenError(f"G9: {name} has {key!r}, which is not in the table: {topic.rows[key]}")
        names: dict[int, list[str]] = {}
        for each, column in self.database.columns[table.oid].items():
            names.setdefault(column.attnum, []).append(each)
        for key, row in source.items():
            found = topic.rows[key]
            for column in table.columns:
                if self._is_renamed(column.name):
                    continue
                wanted = table.value(row, column)
                value = next((found[each] for each in names[column.attnum] if each in found), column.missing)
                if value == NEVER_SENT:
                    self.never_sent += 1
                elif value != wanted:
                    raise PromiseBrokenError(
                        f"G9: {name} {key!r}: {column.name} is {value!r} instead of {wanted!r} "
                        f"(event {row[table.event_attnum]!r})"
                    )


def decoded(record: Record) -> dict[str, Any]:
    """A record's value, {} for a tombstone and for an event of an outbox."""
    value = None if record[0] == PUBLISHED else record[2]
    fields: dict[str, Any] = {} if value is None else json.loads(value)
    return fields


def is_of_snapshot(fields: dict[str, Any]) -> bool:
    """Whether a snapshot made the record, and not the stream."""
    return fields["source"].get("snapshot") != "false" if fields else False
