"""How the reading of tables ended, and what became of each request. `cdcd snapshot start --wait` waits for it.

The rule: every end is counted, and what the checkpoint record keeps of it has a limit. Of tables that were read
completely, the oldest is forgotten first. Of requests, the oldest one that has ended is.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, Self

from cdcd.core.bounded_json import count, text

OUTCOMES_MAX: Final = 20
"""How many ended tables the record remembers."""

TEXT_MAX: Final = 150
"""Characters of an error that the record keeps."""

REQUESTS_BYTES_MAX: Final = 2048
"""Bytes of the record that requests which have ended may take together; the last one is kept in any case."""

CANCELLED: Final = 9
"""The exit code for a request that was cancelled (`errors.EXIT_CODES`)."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a table ended: complete, or why not.

    Attributes:
        request: what asked for it, as in `TableTask`.
        asked, began, ended: when it was asked for, begun with, and ended: Unix seconds, 0 if not known.
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
    """What became of a request that has a name.

    Attributes:
        id: the name.
        tables: how many tables it asked for.
        complete, failed: how many of them have ended so far.
        rows: rows that were delivered of those that have ended.
        asked, ended: when it was taken and when its last table ended: Unix seconds, 0 if not yet.
        error: why the first table failed, or why the request was refused.
        code: the exit code that `error` stands for (`errors.EXIT_CODES`); 0 without an error.
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
        """Whether nothing more comes of it."""
        return self.complete + self.failed >= self.tables

    def end_table(self, rows: int, error: str, code: int, unix_s: int) -> Self:
        """One of its tables has ended."""
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
    """The outcomes that are kept once this one has come.

    One that failed is kept longer than those that are complete, unless as many failed as are kept.
    """
    kept = (*outcomes, outcome)
    if len(kept) <= OUTCOMES_MAX:
        return kept
    failed = {each.name for each in kept if each.error}
    # A complete reading of a table that failed before says that the failure is over, so it stays as long.
    at = next((at for at, each in enumerate(kept) if each.name not in failed), 0)
    return (*kept[:at], *kept[at + 1 :])


def find_request(requests: Iterable[Requested], name: str) -> Requested | None:
    """The request with this name; None: it is not known, or forgotten."""
    return next((each for each in requests if each.id == name), None)


def with_request(requests: tuple[Requested, ...], request: Requested) -> tuple[Requested, ...]:
    """The requests with this one in place of another one of its name, without those that are forgotten."""
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
    """For the checkpoint record."""
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
    """What `outcome_json` wrote, or a former release, which had no times."""
    asked, began, ended = (count(each) for each in times or (0, 0, 0))
    return Outcome(text(name), text(request), count(rows), text(error), asked, began, ended)


def request_json(request: Requested) -> list[object]:
    """For the checkpoint record."""
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


def request_from(  # noqa: PLR0917  the fields of a list in the record
    name: str,
    tables: int,
    complete: int,
    failed: int,
    rows: int,
    asked: int,
    ended: int,
    error: str,
    code: int,
) -> Requested:
    """What `request_json` wrote."""
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
