"""The result of `cdcd verify`: as lines of 80 columns for people, as an object for programs, and as requests to the
daemon that read differing rows again (`--repair`).

The rule: a table is `equal` only if every row and every value was compared. Otherwise it is `equal so far`, with
the reason and, if known, the number of rows or values that were not compared.

A request is an incremental snapshot of one table with a condition that selects the differing rows. It sends rows of
the source. A request cannot repair a row that only the topics have, or a faulty record. A table without a key is read
as a whole behind a truncate record, which also ends rows that only the topics have.
"""

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from cdcd.core.protocol.lsn import Lsn
from cdcd.core.snapshot.signals import WHERE_MAX
from cdcd.telemetry.terminal_text import cut, number, plain
from cdcd.tools.verify.comparing import DIFFERS, ColumnDifference, ComparedOutcome, RowDifference
from cdcd.tools.verify.folding import Fault

EQUAL: Final = "equal"
DIFFERENT: Final = "differs"
PARTIAL: Final = "equal so far"

CODES: Final = {EQUAL: 0, DIFFERENT: 10, PARTIAL: 12}

_WIDTH: Final = 80
_NAME_MIN: Final = 16
_NAME_MAX: Final = 32


@dataclass(slots=True)
class TableReport:
    """Result for one table.

    Attributes:
        lsn: LSN before which the snapshot saw every commit.
        limits: reasons why not everything was compared, as sentences.
        notes: further information for the reader, as sentences.
        faults: flawed records, as far as they are kept; `faults_in_all` counts all of them.
    """

    name: str
    topic: str
    lsn: int
    records: int
    outcome: ComparedOutcome
    limits: list[str] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    faults_in_all: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        if self.outcome.differing or self.faults_in_all:
            return DIFFERENT
        return PARTIAL if self.limits or self.outcome.not_compared else EQUAL

    @property
    def differences(self) -> int:
        """Number of differing rows and flawed records."""
        return self.outcome.differing + self.faults_in_all


@dataclass(slots=True)
class VerifyReport:
    """Result for all tables. `lsn` is the lowest LSN at which a table was compared."""

    pipeline: str
    target: str
    lsn: int
    tables: list[TableReport]
    limits: list[str] = field(default_factory=list)
    """Limits that apply to all tables."""

    @property
    def verdict(self) -> str:
        verdicts = {table.verdict for table in self.tables}
        if DIFFERENT in verdicts:
            return DIFFERENT
        return PARTIAL if self.limits or PARTIAL in verdicts else EQUAL

    @property
    def exit_code(self) -> int:
        return CODES[self.verdict]

    @property
    def differences(self) -> int:
        return sum(table.differences for table in self.tables)


def lines(report: VerifyReport, *, shown: int, values: bool) -> Iterator[str]:
    """Yield the lines of the report for people.

    Args:
        shown: maximum number of differences to show for each table.
        values: True to show values, and not only the names of their columns.
    """
    yield from _wrapped(f"{report.pipeline}: {report.target} against the source at {Lsn(report.lsn)}", 0)
    wide = max((len(table.name) for table in report.tables), default=0)
    for table in report.tables:
        name = cut(plain(table.name), _NAME_MAX).ljust(min(max(wide, _NAME_MIN), _NAME_MAX))
        rows = number(table.outcome.source_rows, "row")
        yield f"  {name}  {table.verdict:<12} {rows}"
        for note in table.notes:
            yield from _wrapped(note, 4)
        yield from _limits(table)
        for fault in table.faults[:shown]:
            yield from _wrapped(f"{fault.kind}: {fault.where} {fault.key if values else ''}".rstrip(), 4)
        yield from _rest(table.faults_in_all - min(shown, len(table.faults)), "such record")
        for difference in table.outcome.differences[:shown]:
            yield from _difference(difference, values=values)
        yield from _rest(table.outcome.differing - min(shown, len(table.outcome.differences)), "row")
    for limit in report.limits:
        yield from _wrapped(f"not compared: {limit}", 2)
    yield _summary(report)


def _limits(table: TableReport) -> Iterator[str]:
    for limit in table.limits:
        yield from _wrapped(f"not compared: {limit}", 4)
    for why, count in table.outcome.not_compared.most_common():
        yield from _wrapped(f"not compared: {count:,} {why}", 4)


def _difference(difference: RowDifference, *, values: bool) -> Iterator[str]:
    if difference.kind != DIFFERS:
        yield from _wrapped(f"{difference.key}: {difference.kind}", 4)
        if not values:
            return
        for column in difference.columns:
            yield from _wrapped(f"{column.column}: {column.source or column.topics}", 6)
        return
    if not values:
        yield from _wrapped(f"{difference.key}: {', '.join(each.column for each in difference.columns)}", 4)
        return
    yield from _wrapped(difference.key, 4)
    for column in difference.columns:
        yield from _wrapped(f"{column.column}", 6)
        yield from _wrapped(f"source  {column.source}", 8)
        yield from _wrapped(f"target  {column.topics}", 8)


def _rest(count: int, what: str) -> Iterator[str]:
    if count > 0:
        yield f"    and {number(count, what)} more"


def _wrapped(text: str, indent: int) -> Iterator[str]:
    yield from textwrap.wrap(
        plain(text), _WIDTH, initial_indent=" " * indent, subsequent_indent=" " * (indent + 2)
    )


def _summary(report: VerifyReport) -> str:
    if report.verdict == EQUAL:
        return f"equal: {number(len(report.tables), 'table')} at {Lsn(report.lsn)}"
    if report.verdict == PARTIAL:
        return "no difference found; not everything could be compared, see above"
    tables = sum(1 for table in report.tables if table.verdict == DIFFERENT)
    return f"differs: {number(report.differences, 'difference')} in {number(tables, 'table')}"


def as_object(report: VerifyReport, *, shown: int, values: bool) -> dict[str, Any]:
    """Return the report as an object for programs."""
    return {
        "pipeline": report.pipeline,
        "target": report.target,
        "lsn": str(Lsn(report.lsn)),
        "verdict": report.verdict,
        "differences": report.differences,
        "not_compared": report.limits,
        "tables": [_table_object(table, shown=shown, values=values) for table in report.tables],
    }


def _table_object(table: TableReport, *, shown: int, values: bool) -> dict[str, Any]:
    outcome = table.outcome
    return {
        "table": table.name,
        "topic": table.topic,
        "lsn": str(Lsn(table.lsn)),
        "verdict": table.verdict,
        "rows": outcome.source_rows,
        "target_rows": outcome.topic_rows,
        "records": table.records,
        "differing_rows": outcome.differing,
        "wrong_records": table.faults_in_all,
        "not_compared": [*table.limits, *(f"{count} {why}" for why, count in outcome.not_compared.items())],
        "notes": table.notes,
        "differences": [
            {
                "key": each.key,
                "kind": each.kind,
                "columns": [_column_object(column, values=values) for column in each.columns],
            }
            for each in outcome.differences[:shown]
        ],
        "faults": [
            {"kind": fault.kind, "record": fault.where, **({"key": fault.key} if values else {})}
            for fault in table.faults[:shown]
        ],
    }


def _column_object(column: ColumnDifference, *, values: bool) -> dict[str, str]:
    return (
        {"column": column.column, "source": column.source, "target": column.topics}
        if values
        else {"column": column.column}
    )


_OR: Final = " OR "
REQUESTS_MAX: Final = 50
"""Maximum number of requests for one table. If more are needed, the whole table is read."""


def conditions(rows: Sequence[str]) -> list[str]:
    """Return conditions that together select all rows of `rows`, each within the length limit of a request.

    [] if a single condition is longer; then the whole table must be read.
    """
    found: list[str] = []
    for row in rows:
        term = f"({row})"
        if len(term) > WHERE_MAX:
            return []
        if found and len(found[-1]) + len(_OR) + len(term) <= WHERE_MAX:
            found[-1] += _OR + term
        else:
            found.append(term)
    return found


def requests(report: VerifyReport) -> Iterator[tuple[str, str]]:
    """Yield tables to request, each with a condition; "" for the whole table."""
    for table in report.tables:
        if table.outcome.is_counted and table.outcome.differing:
            yield table.name, ""
            continue
        wanted = table.outcome.differing - table.outcome.only_in_topics
        if not wanted:
            continue
        terms = conditions(table.outcome.repairable) if len(table.outcome.repairable) == wanted else []
        if terms and len(terms) <= REQUESTS_MAX:
            yield from ((table.name, term) for term in terms)
        elif table.outcome.repairable:
            yield table.name, ""


def not_repairable(report: VerifyReport) -> Iterator[str]:
    """Yield sentences about differences that no request repairs, and what would repair them."""
    for table in report.tables:
        yield from _of_table(table)


def _of_table(table: TableReport) -> Iterator[str]:
    outcome = table.outcome
    if outcome.only_in_topics and not outcome.is_counted:
        yield (
            f"{table.name}: {number(outcome.only_in_topics, 'row')} that only the topic has cannot be taken out of it "
            "by reading the table. Insert such a row in the source, and delete it again in another transaction."
        )
    if table.faults_in_all:
        yield (
            f"{table.name}: {number(table.faults_in_all, 'record')} that should not be as they are stay in the topic. "
            "Find out which other program writes to the topic. Only cdcd may write to it."
        )
