"""Columns choose the partitions of every table: where each record must lie, and where a consumer has a row."""

from typing import Final

from cdcd.core.catalog.table_rules import PartitionRule
from cdcd.core.records.encoder import HEADER_NEW_KEY
from cdcd.core.records.shaping.partitioning import positive_murmur2, taken_out
from tests.sim.catalog import SCHEMA, Definition, Row
from tests.sim.expected import TOMBSTONE, Expected, PromiseBrokenError, Record
from tests.sim.wal import Change

COLUMN: Final = "n"
"""Of no key, so that rows move while their key stays."""

RULES: Final = (PartitionRule(f"{SCHEMA}.*", (COLUMN,)),)

PARTITIONS: Final = 3
"""Of every topic. Some values share a partition, so that a row may move within it."""


def is_moved(change: Change) -> bool:
    """Whether the event is an update that changes the chosen value."""
    table = change.definition
    if change.what != "U" or table is None:
        return False
    column = table.column(COLUMN)
    return table.value(change.old, column) != table.value(change.row, column)


def partition_of(table: Definition, row: Row) -> int:
    """Where a record of the row must lie."""
    return positive_murmur2(table.value(row, table.column(COLUMN)) or b"") % PARTITIONS


def partition(record: Record) -> int | None:
    """Where the sink takes a record; None: where its key leads."""
    chosen, _ = taken_out(record[3])
    return None if chosen is None else chosen % PARTITIONS


class PartitionsSeen:
    """What consumers have that read one partition each. Records come in the order of the log."""

    def __init__(self) -> None:
        self.moved = 0
        """Rows that went to another partition, with their key or without."""
        self._rows: dict[str, dict[int, set[bytes]]] = {}

    def change(self, expected: Expected, record: Record) -> None:
        """A record of the stream that is as it was expected."""
        table, change, op = expected.table, expected.change, expected.op
        if table is None:
            return
        if op == "t":
            self._expect(expected, record, None)
            self.end(record)
            return
        leaves = op in ("d", TOMBSTONE) and change.what == "U"
        wanted = partition_of(table, change.old if leaves else change.row)
        self._expect(expected, record, wanted)
        if op == TOMBSTONE:
            return
        key = record[1]
        assert key is not None
        rows = self._of(record[0], wanted)
        if op == "d":
            rows.discard(key)
            self.moved += HEADER_NEW_KEY in dict(record[3] or ())
        else:
            rows.add(key)

    def row(self, table: Definition, row: Row, record: Record) -> None:
        """A row of a snapshot."""
        wanted = partition_of(table, row)
        self._expect("a row that was read", record, wanted)
        assert record[1] is not None
        self._of(record[0], wanted).add(record[1])

    def end(self, record: Record) -> None:
        """All rows of the topic end."""
        self._rows.pop(record[0], None)

    def compare(self, topic: str, rows: dict[bytes, int]) -> None:
        """Each row must be in its partition, and in no other one.

        Args:
            rows: the source's keys, and where each must be.
        """
        for number in range(PARTITIONS):
            found = self._of(topic, number)
            wanted = {key for key, where in rows.items() if where == number}
            if found != wanted:
                raise PromiseBrokenError(
                    f"G9: partition {number} of {topic} lacks {sorted(wanted - found)} and has {sorted(found - wanted)}"
                )

    def _of(self, topic: str, number: int) -> set[bytes]:
        return self._rows.setdefault(topic, {}).setdefault(number, set())

    def _expect(self, what: object, record: Record, wanted: int | None) -> None:
        found = partition(record)
        if found != wanted:
            raise PromiseBrokenError(f"G4: {what} is in partition {found} instead of {wanted}")
