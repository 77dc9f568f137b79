"""`cdcd verify --repair`: the rows that differ are read again, by requests to the daemon.

A request is an incremental snapshot of one table with a condition that is true for the rows that differ. It sends rows
that the source has. A row that only the topics have, and a record that is wrong in itself, no request can mend.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from cdcd.core.snapshot.signals import WHERE_MAX
from cdcd.telemetry.terminal_text import number
from cdcd.tools.verify.report import Report, TableReport

_OR: Final = " OR "
REQUESTS_MAX: Final = 50
"""Requests for one table. If there are more, the whole table is read."""


def conditions(rows: Sequence[str]) -> list[str]:
    """Conditions that are together true for rows that these are true for, each as long as a request may have.

    [] if a single one is longer: then the whole table is to be read.
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
    """What to ask for: tables, each with a condition; "" for the whole table."""
    for table in report.tables:
        wanted = table.outcome.differing - table.outcome.only_in_topics
        if not wanted:
            continue
        terms = conditions(table.outcome.repairable) if len(table.outcome.repairable) == wanted else []
        if terms and len(terms) <= REQUESTS_MAX:
            yield from ((table.name, term) for term in terms)
        elif table.outcome.repairable:
            yield table.name, ""


def not_repairable(report: Report) -> Iterator[str]:
    """What no request mends, and what would."""
    for table in report.tables:
        yield from _of_table(table)


def _of_table(table: TableReport) -> Iterator[str]:
    outcome = table.outcome
    if outcome.only_in_topics:
        yield (
            f"{table.name}: {number(outcome.only_in_topics, 'row')} that only the topic has cannot be taken out of it "
            "by reading the table. Insert such a row in the source, and delete it again in another transaction."
        )
    if outcome.differing > outcome.only_in_topics and not outcome.repairable:
        yield f"{table.name} has no key, so its rows cannot be read beside the stream."
    if table.faults_in_all:
        yield (
            f"{table.name}: {number(table.faults_in_all, 'record')} that should not be as they are stay in the topic. "
            "Find out who else writes to it: only cdcd may."
        )
