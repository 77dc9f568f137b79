"""Answers of PostgreSQL or libpq to a request that failed, and the errors of cdcd that follow from them by the
table in `refusals.py`.

The rule: no text that may hold a value of a row is shown.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import psycopg
from psycopg import pq

from cdcd.adapters.postgres.refusals import (
    _NO_UTF8,
    REFUSALS,
    ROW_FILTER_FAILED,
    TABLE_OF_CHANGE,
    TOO_LARGE_TO_SEND,
    UNKNOWN,
    UNKNOWN_TRANSIENT,
    Refusal,
)
from cdcd.core.errors import (
    CdcdError,
    WithoutConversionError,
)
from cdcd.core.pasted import identifier

_HOLD_VALUES: Final = frozenset({"21", "22", "23", "38", "39", "44", "P0"})
"""SQLSTATE classes whose messages may contain values: data errors, constraint violations, and errors raised by
functions."""


_DATA_ERROR: Final = "22"
"""SQLSTATE class of errors that values of rows cause, such as a division by zero."""

_SETTING: Final = "22023"
"""invalid_parameter_value, which PostgreSQL also reports for settings and options."""


_IN_WORDS: Final = {"25006": "a query writes or locks rows in a read-only transaction"}
"""Descriptions of SQLSTATEs whose names say too little."""


_RAISE: Final = "exec_stmt_raise"
"""C function of PostgreSQL that reports the errors that a PL/pgSQL function raises."""


_CHANGE: Final = re.compile(r"associated LSN ([0-9A-F]+/[0-9A-F]+)")
"""The part of an error's context that names a change (output_plugin_error_callback in logical.c)."""

_INTERRUPTS: Final = "ProcessInterrupts"
"""C function of PostgreSQL that ends a statement because of a timeout or a cancel request. Its messages are fixed."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The fields of an ErrorResponse or notice that cdcd uses; `sqlstate` is "" where libpq keeps none.

    `function` is the server's C function that reported the error, untranslated; "" if unknown. `context` names the
    functions of the database that were running, and other activity of PostgreSQL.
    """

    sqlstate: str
    message: str
    detail: str = ""
    hint: str = ""
    function: str = ""
    context: str = ""

    @property
    def text(self) -> str:
        """Message, detail and SQLSTATE in one line. A message that may contain a value of a row is not shown."""
        if self.sqlstate[:2] in _HOLD_VALUES and self.sqlstate != _SETTING:
            return self.without_message
        text = " ".join(self.message.split())
        if self.detail:
            text += f" ({' '.join(self.detail.split())})"
        if self.sqlstate:
            text += f" [SQLSTATE {self.sqlstate}]"
        return text

    @property
    def text_of_rows(self) -> str:
        """Text as in `text`, for a query that reads rows: a called function may raise any SQLSTATE and message."""
        if self.sqlstate and (self.sqlstate == _SETTING or self.context or self.function == _RAISE):
            return self.without_message
        return self.text

    @property
    def without_message(self) -> str:
        """Description of the error by its SQLSTATE alone. A timeout or a cancellation keeps the server's message."""
        if self.function == _INTERRUPTS:
            return " ".join(f"{self.message} [SQLSTATE {self.sqlstate}]".split())
        try:
            name = _IN_WORDS.get(self.sqlstate) or psycopg.errors.lookup(self.sqlstate).__name__
        except KeyError:
            name = "raised by a function"
        return f"{name} (the message may hold a value, see PostgreSQL's log) [SQLSTATE {self.sqlstate}]"


def find_refusal(answer: Answer) -> Refusal:
    """Return the first matching row of the table; the module's docstring defines a match."""
    text = f"{answer.message} {answer.detail}"
    for row in REFUSALS:
        if answer.sqlstate:
            if row.sqlstate and answer.sqlstate.startswith(row.sqlstate) and row.fragment in text:
                return row
        elif row.fragment and row.fragment in text:
            return row
    return UNKNOWN if answer.sqlstate else UNKNOWN_TRANSIENT


class _Names(dict[str, str]):
    """Names for the hints; a missing name stays visible as an SQL placeholder."""

    def __missing__(self, key: str) -> str:
        return f"<{key}>"


def refused(what: str, answer: Answer, names: Mapping[str, str], secrets: Iterable[str] = ()) -> CdcdError:
    """Return the error for `answer`, which the server gave during `what`.

    `names`: role, database, slot, publication, for the hints.

    Each of `secrets` is replaced in the text, because libpq repeats parts of a DSN that it cannot parse.
    """
    row = find_refusal(answer)
    # The server's message shows bytes of the text, which may be secret.
    said = f"{_NO_UTF8} [SQLSTATE {answer.sqlstate}]" if row.kind is WithoutConversionError else answer.text
    hint = row.hint
    change = _CHANGE.search(answer.context)
    if row is UNKNOWN and change is not None and answer.sqlstate.startswith(_DATA_ERROR):
        hint = ROW_FILTER_FAILED
    if change is not None and hint in (TOO_LARGE_TO_SEND, ROW_FILTER_FAILED):
        said += f" for the change at LSN {change[1]}"
        hint += TABLE_OF_CHANGE.replace("{lsn}", change[1])
    text = f"{what}: {said}"
    for secret in secrets:
        text = text.replace(secret, "***")
    return row.kind(text, hint=hint.format_map(_Names(_for_sql(names))))


def _for_sql(names: Mapping[str, str]) -> dict[str, str]:
    quoted = {"role", "database", "publication"}
    return {key: identifier(name) if key in quoted else name for key, name in names.items()}


def answer_of(error: psycopg.Error) -> Answer:
    """Return the server's answer that the psycopg error contains."""
    diagnostic = error.diag
    return Answer(
        error.sqlstate or "",
        diagnostic.message_primary or str(error),
        diagnostic.message_detail or "",
        function=diagnostic.source_function or "",
        context=diagnostic.context or "",
    )


def answer_of_result(result: pq.abc.PGresult) -> Answer:
    """Return the server's answer that a result or notice of libpq contains."""

    def text(code: pq.DiagnosticField) -> str:
        return (result.error_field(code) or b"").decode("utf-8", "replace")

    field = pq.DiagnosticField
    message = text(field.MESSAGE_PRIMARY) or result.get_error_message()
    return Answer(
        text(field.SQLSTATE),
        message,
        text(field.MESSAGE_DETAIL),
        text(field.MESSAGE_HINT),
        text(field.SOURCE_FUNCTION),
        text(field.CONTEXT),
    )


@contextmanager
def translated(what: str, names: Mapping[str, str]) -> Iterator[None]:
    """Convert a psycopg error in the `with` block to an error of cdcd, with `what` in front of the message."""
    try:
        yield
    except psycopg.Error as error:
        raise refused(what, answer_of(error), names) from error
