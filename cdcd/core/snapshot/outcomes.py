"""How the reading of tables ended, and what became of each request; `cdcd snapshot start --wait` waits for this.

The rule: every end is counted, but the checkpoint record keeps only a limited number of them. Of tables that were
read completely, the oldest is forgotten first. Of requests, the oldest that has ended is forgotten first.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, Self

from cdcd.core.bounded_json import count, text

OUTCOMES_MAX: Final = 20
"""Number of ended tables that the record remembers."""

TEXT_MAX: Final = 150
"""Characters of an error that the record keeps."""

REQUESTS_BYTES_MAX: Final = 2048
"""Maximum of bytes in the record for all ended requests together; the last one is always kept."""

CANCELLED: Final = 9
"""The exit code for a request that was cancelled (`errors.EXIT_CODES`)."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the reading of a table ended: completely, or with an error.

    Attributes:
        request: what asked for the reading, as in `TableTask`.
        asked, began, ended: when the reading was requested, begun and ended, in Unix seconds; 0 if not known.
    """

    name: str
    request: str
    rows: int
    error: str = ""
    asked: int = 0
    began: int = 0
    ended: int = 0


@dataclass(frozen=True, slots=True)
class Requested:
    """What became of a request that has an id.

    Attributes:
        id: the id, which the sender chose.
        tables: number of tables that the request asked for.
        complete, failed: number of these tables that were read completely, and that failed, so far.
        rows: delivered rows of the tables that have ended.
        asked, ended: when the request was accepted, and when its last table ended, in Unix seconds; 0 if not yet.
        error: why the first table failed, or why the request was refused.
        code: the exit code that belongs to `error` (`errors.EXIT_CODES`); 0 without an error.
    """

    id: str
    tables: int = 0
    complete: int = 0
    failed: int = 0
    rows: int = 0
    asked: int = 0
    ended: int = 0
    error: str = ""
    code: int = 0

    @property
    def has_ended(self) -> bool:
        """True if all tables of the request have ended."""
        return self.complete + self.failed >= self.tables

    def end_table(self, rows: int, error: str, code: int, unix_s: int) -> Self:
        """Return the request after one more of its tables has ended."""
        counted = replace(
            self,
            complete=self.complete + (not error),
            failed=self.failed + bool(error),
            rows=self.rows + rows,
            error=self.error or error[:TEXT_MAX],
            code=self.code or (code if error else 0),
        )
        return replace(counted, ended=unix_s) if counted.has_ended else counted


def remember(outcomes: tuple[Outcome, ...], outcome: Outcome) -> tuple[Outcome, ...]:
    """Return the outcomes to keep after this one was added.

    A failed one is kept longer than complete ones, unless there are as many failed ones as may be kept.
    """
    kept = (*outcomes, outcome)
    if len(kept) <= OUTCOMES_MAX:
        return kept
    failed = {each.name for each in kept if each.error}
    # A complete reading of a table that failed before shows that the failure is over, so it is kept as long.
    at = next((at for at, each in enumerate(kept) if each.name not in failed), 0)
    return (*kept[:at], *kept[at + 1 :])


def find_request(requests: Iterable[Requested], name: str) -> Requested | None:
    """Return the request with this id; None if it is not known or was forgotten."""
    return next((each for each in requests if each.id == name), None)


def with_request(requests: tuple[Requested, ...], request: Requested) -> tuple[Requested, ...]:
    """Return the requests with this one added, or in place of the one with the same id, without those that are
    forgotten.
    """
    if any(each.id == request.id for each in requests):
        every = tuple(request if each.id == request.id else each for each in requests)
    else:
        every = (*requests, request)
    kept: list[Requested] = []
    size = 0
    for each in reversed(every):
        if each.has_ended:
            size += len(json.dumps(request_json(each), ensure_ascii=False).encode())
            if size > REQUESTS_BYTES_MAX and any(other.has_ended for other in kept):
                continue
        kept.append(each)
    return tuple(reversed(kept))


def outcome_json(outcome: Outcome) -> list[object]:
    """Return the outcome as a list for the checkpoint record."""
    return [
        outcome.name,
        outcome.request,
        outcome.rows,
        outcome.error,
        outcome.asked,
        outcome.began,
        outcome.ended,
    ]


def outcome_from(name: str, request: str, rows: int, error: str, *times: int) -> Outcome:
    """Return the outcome that `outcome_json` wrote, or that an earlier release wrote without times."""
    asked, began, ended = (count(each) for each in times or (0, 0, 0))
    return Outcome(text(name), text(request), count(rows), text(error), asked, began, ended)


def request_json(request: Requested) -> list[object]:
    """Return the request as a list for the checkpoint record."""
    return [
        request.id,
        request.tables,
        request.complete,
        request.failed,
        request.rows,
        request.asked,
        request.ended,
        request.error,
        request.code,
    ]


def request_from(name: object, *fields: object) -> Requested:
    """Return the request that `request_json` wrote. ValueError: the list is another one."""
    tables, complete, failed, rows, asked, ended, error, code = fields
    return Requested(
        text(name),
        count(tables),
        count(complete),
        count(failed),
        count(rows),
        count(asked),
        count(ended),
        text(error),
        count(code),
    )
