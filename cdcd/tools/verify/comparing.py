"""Comparison of the source's rows with the topic's rows: by sums of ranges, then row by row where the sums differ.

The rule: two ranges with the same sum have the same rows, and are not compared further. For the other ranges, the
source is read once more at the same snapshot, and their rows are compared value by value. Rows and values that
cannot be compared are counted with the reason, and never as equal.

A value that was never sent is a difference, unless its record may have been removed from the topic.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from cdcd.tools.verify.columns import Columns
from cdcd.tools.verify.folding import TableFold, shown_key
from cdcd.tools.verify.row_store import ELSEWHERE, FOREIGN, MOVED, RowsSeen, RowTally, Stored
from cdcd.tools.verify.values import (
    NULL,
    UNSENT,
    RangeSums,
    first_byte,
    key_hash,
    pack_row,
    range_of,
    shown,
    split,
)

SHOWN_MAX: Final = 1000
"""Maximum number of a table's differences that are kept; all differences are counted."""

ONLY_SOURCE: Final = "only in the source"
ONLY_TOPICS: Final = "only in the topics"
DIFFERS: Final = "differs"

_IN_FILE: Final = "rows whose record is in a file (claim check)"


class ColumnDifference(NamedTuple):
    """A column, and its values as text for the operator."""

    column: str
    source: str
    topics: str


@dataclass(frozen=True, slots=True)
class RowDifference:
    """A row that differs. `key` is the record's key, or the values of a row without a key."""

    kind: str
    key: str
    columns: tuple[ColumnDifference, ...] = ()


class SourceRow(NamedTuple):
    """A row of the source, as the encoder writes it.

    Attributes:
        key: key of the record; None for a table without a key.
        sql: SQL condition that selects the row; "" for a table without a key.
        topic: topic of the row, if the table has routes; "": the table's own topic.
    """

    key: bytes | None
    values: tuple[bytes, ...]
    sql: str = ""
    topic: str = ""


@dataclass(slots=True)
class ComparedOutcome:
    """Result of a table's comparison.

    Attributes:
        not_compared: number of rows or values that could not be compared, by the reason.
        repairable: SQL conditions that select the differing rows of the source, as far as they were kept.
        is_counted: the table has no key, so its rows were counted.
    """

    source_rows: int = 0
    topic_rows: int = 0
    ranges: int = 0
    differing: int = 0
    differences: list[RowDifference] = field(default_factory=list)
    not_compared: Counter[str] = field(default_factory=Counter)
    repairable: list[str] = field(default_factory=list)
    only_in_topics: int = 0
    is_counted: bool = False

    def add(self, difference: RowDifference, sql: str = "") -> None:
        self.differing += 1
        if difference.kind == ONLY_TOPICS:
            self.only_in_topics += 1
        if len(self.differences) < SHOWN_MAX:
            self.differences.append(difference)
        if sql and len(self.repairable) < SHOWN_MAX:
            self.repairable.append(sql)


class TableComparison:
    """Comparison of one table at the snapshot. The caller owes `close`.

    The order of calls: `add_source` for each row, then `ranges`; if it returns any, `look_at` for each row once
    more, and `end`.

    Args:
        fold: rows of the table's topic. Records that the fold gets before `ranges` count.
    """

    def __init__(self, fold: TableFold, columns: Columns) -> None:
        self.outcome = ComparedOutcome()
        self._fold = fold
        self._columns = columns
        self._rows_gone = ""
        self._values_gone = ""
        self._sums = RangeSums()
        self._wanted: frozenset[int] = frozenset()
        self._has_key = bool(columns.key)
        self._is_sample = False
        self._seen: RowsSeen = fold.store.seen(fold.number)
        self._tally: RowTally = fold.store.tally(fold.number)

    def close(self) -> None:
        """Remove the stored rows. Idempotent."""
        self._seen.close()
        self._tally.close()
        self._sums = RangeSums()

    def excuse(self, *, rows_gone: str = "", values_gone: str = "") -> None:
        """Set reasons for data that the topic may lack.

        Args:
            rows_gone: why the topic may lack rows that it should have; "" if it may not.
            values_gone: why the topic may lack values that a record leaves out; "" if it may not.
        """
        self._rows_gone = rows_gone
        self._values_gone = rows_gone or values_gone

    def sample(self) -> None:
        """Compare only the rows that are passed to `look_at`, without `add_source` and `ranges`."""
        self._wanted = frozenset(range(RangeSums.RANGES))
        self._is_sample = True

    def add_source(self, rows: Sequence[SourceRow]) -> None:
        """Add rows of the source, each once."""
        add = self._sums.add
        for row in rows:
            packed = pack_row(row.values)
            add(key_hash(packed if row.key is None else row.key), packed)

    def ranges(self) -> list[int]:
        """Return the ranges in which rows differ or may differ.

        Before this call, every row of the source was added, and the fold got all records.
        """
        self._fold.settle()
        theirs = self._sum_keyed() if self._has_key else self._sum_loose()
        self.outcome.source_rows, self.outcome.topic_rows = self._sums.rows, theirs.rows
        found = self._sums.differing(theirs)
        self.outcome.ranges = len(found)
        self._wanted = frozenset(found)
        return found

    def _sum_keyed(self) -> RangeSums:
        sums = RangeSums()
        fold, columns, shapes, add = self._fold, self._columns, self._fold.shapes, sums.add
        same = [columns.plan(shape).same for shape in shapes]
        for key, row in fold.rows():
            found = fold.resolve(key, row) if row.state == MOVED else row
            at = found.shape
            add(key, found.packed if same[at] else columns.now(shapes[at], found.packed))
        return sums

    def _sum_loose(self) -> RangeSums:
        fold = self._fold
        for row in fold.store.loose(fold.number, fold.truncated):
            packed = self._columns.now(fold.shapes[row.shape], row.packed)
            self._tally.add(key_hash(packed), 0, row.sign, packed)
        sums = RangeSums()
        for key, _, count, packed in self._tally.rows():
            if count:
                sums.add(key, packed, count)
        return sums

    def look_at(self, rows: Sequence[SourceRow]) -> None:
        """Keep the rows that are in one of the differing ranges."""
        for row in rows:
            packed = pack_row(row.values)
            key = key_hash(packed if row.key is None else row.key)
            if range_of(key) not in self._wanted:
                continue
            if row.key is None:
                self._tally.add(key, 1, 0, packed)
            else:
                self._seen.add(key, row.key, row.sql, packed)
            self.outcome.source_rows += self._is_sample

    def end(self) -> ComparedOutcome:
        """Compare the rows of the differing ranges, after every row was passed to `look_at`."""
        if self._is_sample:
            # `ranges`, which otherwise settles the fold, was not called.
            self._fold.settle()
        if not self._wanted:
            return self.outcome
        if self._has_key:
            self._compare_keyed()
        else:
            self._compare_loose()
        return self.outcome

    def _compare_keyed(self) -> None:
        fold = self._fold
        first_bytes = sorted({first_byte(at) for at in self._wanted})
        for there, rows in fold.store.beside(
            fold.number, fold.filled, fold.truncated, self._seen, first_bytes
        ):
            found = set()
            for key, name, sql, packed in rows:
                found.add(key)
                self._compare(key, there.get(key), name, sql, packed)
            for key, row in there.items():
                if not self._is_sample and key not in found and range_of(key) in self._wanted:
                    self._only_in_topics(key, row)

    def _compare(self, key: bytes, there: Stored | None, name: bytes, sql: str, packed: bytes) -> None:
        fold, outcome = self._fold, self.outcome
        if there is None:
            if self._rows_gone:
                outcome.not_compared[f"rows that are not in the topic: {self._rows_gone}"] += 1
            elif fold.without_key:
                outcome.not_compared["rows that may have been sent when the table had no key"] += 1
            else:
                outcome.add(RowDifference(ONLY_SOURCE, shown_key(name), self._values(packed)), sql)
            return
        if there.state == ELSEWHERE:
            outcome.not_compared[_IN_FILE] += 1
            return
        if there.state == MOVED:
            there = fold.resolve(key, there)
        columns = self._differing(there, packed)
        if columns:
            outcome.add(RowDifference(DIFFERS, shown_key(name), tuple(columns)), sql)

    def _differing(self, there: Stored, packed: bytes) -> list[ColumnDifference]:
        fold, names = self._fold, self._columns.names
        shape = fold.shapes[there.shape]
        plan = self._columns.plan(shape)
        ours, theirs = split(packed), split(self._columns.now(shape, there.packed))
        found = []
        for at, (source, topics) in enumerate(zip(ours, theirs, strict=True)):
            if source == topics:
                continue
            if there.state == FOREIGN:
                why = "rows that another connector wrote last"
            elif at in plan.unlike:
                why = f"values of {names[at]} from before its type changed"
            elif at in plan.doubtful:
                why = (
                    f"values of {names[at]} from when the table was altered and the daemon was behind, so that nobody "
                    "knows which column it was"
                )
            elif topics == UNSENT and self._values_gone:
                why = f"values of {names[at]} that are not in the topic: {self._values_gone}"
            else:
                found.append(ColumnDifference(names[at], shown(source), shown(topics)))
                continue
            self.outcome.not_compared[why] += 1
        return found

    def _only_in_topics(self, key: bytes, row: Stored) -> None:
        fold = self._fold
        why = self._why_only_in_topics(row)
        if why:
            self.outcome.not_compared[why] += 1
            return
        found = fold.resolve(key, row) if row.state == MOVED else row
        packed = self._columns.now(fold.shapes[found.shape], found.packed)
        values = self._values(packed, in_topics=True)
        self.outcome.add(RowDifference(ONLY_TOPICS, shown_key(row.name), values))

    def _why_only_in_topics(self, row: Stored) -> str:
        """Return the reason why a row may be in the topic only; "" if there is none."""
        if row.state == FOREIGN:
            return "rows that another connector wrote last"
        if row.state == ELSEWHERE:
            return _IN_FILE
        if row.lsn < self._fold.whole_from:
            return "rows that a TRUNCATE may have removed, which another partition may have had"
        return ""

    def _compare_loose(self) -> None:
        self.outcome.is_counted = True
        for key, source, topics, packed in self._tally.rows():
            if source == topics or range_of(key) not in self._wanted:
                continue
            if self._rows_gone:
                # Rows may be missing, or deletes of rows.
                why = f"rows of which changes are not in the topic: {self._rows_gone}"
                self.outcome.not_compared[why] += abs(source - topics)
                continue
            kind = ONLY_SOURCE if not topics else ONLY_TOPICS if not source else DIFFERS
            named = self._values(packed, in_topics=source < topics)
            times = (ColumnDifference("(how often)", str(source), str(topics)),)
            self.outcome.add(RowDifference(kind, "no key", times + named))

    def _values(self, packed: bytes, *, in_topics: bool = False) -> tuple[ColumnDifference, ...]:
        """Return the values of a row that is on one side only, without NULLs."""
        return tuple(
            ColumnDifference(name, "" if in_topics else shown(value), shown(value) if in_topics else "")
            for name, value in zip(self._columns.names, split(packed), strict=True)
            if value != NULL
        )
