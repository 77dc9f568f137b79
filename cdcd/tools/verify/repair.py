"""`cdcd verify --repair`: requests to the daemon that read differing rows again.

A request is an incremental snapshot of one table with a condition that selects the differing rows. It sends rows of
the source. A request cannot repair a row that only the topics have, or a faulty record. A table without a key is read
as a whole behind a truncate record, which also ends rows that only the topics have.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from cdcd.core.snapshot.signals import WHERE_MAX
from cdcd.telemetry.terminal_text import number
from cdcd.tools.verify.report import Report, TableReport

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


def requests(report: Report) -> Iterator[tuple[str, str]]:
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


def not_repairable(report: Report) -> Iterator[str]:
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
