"""Answers of the HTTP server that take seconds: what `cdcd check` finds, and where the last records of a table are.

The rule: a request never waits for a look-up. The request gets the last answer, and a thread makes the next answer if
the last answer is old. Each kind of answer has one thread, which works for a small share of the time, so that many
readers cost the stream no more than one. The answers have names, positions and counts, and never a key or a value.
"""

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from threading import Thread
from typing import Final, Generic, TypeVar
from urllib.parse import parse_qs

from cdcd.config.models import Config
from cdcd.core.errors import CdcdError, out_of_files
from cdcd.telemetry.access import reading
from cdcd.telemetry.findings import Finding
from cdcd.telemetry.html_look_ups import (
    LastRecord,
    ShownLookUp,
    check_object,
    check_page,
    records_object,
    records_page,
)
from cdcd.telemetry.html_style import HEADERS
from cdcd.telemetry.http import HttpRequest, HttpRoute, Reply, Routes, json_reply, text
from cdcd.telemetry.state import Telemetry

CHECK_S: Final = 600.0
"""Seconds for which the findings of `cdcd check` are kept. A check takes about a second of CPU."""

RECORDS_S: Final = 5.0
"""Seconds for which the last records of a table are kept."""

SHARE_MAX: Final = 0.05
"""The largest share of the time in which a thread looks something up."""

KEPT_MAX: Final = 16
"""Maximum number of answers of one kind that are kept. If there are more, the oldest is removed."""

HTML: Final = "text/html; charset=utf-8"

Kind = TypeVar("Kind", bound=Hashable)
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Tools:
    """Functions of the commands that the HTTP server shows the results of. Each may take seconds, and raise CdcdError.

    Attributes:
        check: findings of `cdcd check`.
        records: the last records of a table, which is named as `schema.table`, the newest first.
    """

    check: Callable[[Config], Sequence[Finding]]
    records: Callable[[Config, str], Sequence[LastRecord]]


class PageLookUp(Generic[Kind, Answer]):
    """Answers by kind, such as by table, each made by a thread. The HTTP server's thread calls the object.

    Args:
        make: makes the answer of a kind, in the thread.
        keep_s: seconds for which an answer is kept.
    """

    def __init__(self, make: Callable[[Kind], Answer], keep_s: float) -> None:
        self._make = make
        self._keep_s = keep_s
        self._answers: dict[Kind, ShownLookUp[Answer]] = {}
        self._made_at: dict[Kind, float] = {}
        self._free_at = 0.0
        self._thread: Thread | None = None

    def last(self, kind: Kind) -> ShownLookUp[Answer]:
        """Return the last answer, and start no look-up."""
        return self._answers.get(kind, ShownLookUp())

    def __call__(self, kind: Kind) -> ShownLookUp[Answer]:
        """Return the last answer, and start a look-up if the answer is old and no other look-up is under way."""
        now = time.monotonic()
        is_old = now - self._made_at.get(kind, -self._keep_s) >= self._keep_s
        is_free = (self._thread is None or not self._thread.is_alive()) and now >= self._free_at
        if is_old and is_free:
            self._thread = Thread(target=self._run, args=(kind,), name="http look-up", daemon=True)
            self._thread.start()
        return self.last(kind)

    def _run(self, kind: Kind) -> None:
        began = time.monotonic()
        try:
            found = ShownLookUp(self._make(kind), time.time())
        except CdcdError as error:
            found = ShownLookUp(None, time.time(), error.message, error.hint)
        except Exception as error:  # noqa: BLE001  a page must not end the daemon
            # The text of such an error may have a value of a row, so only its type is shown.
            full = out_of_files(error)
            why = (
                f"cdcd could not look this up, because of a bug in cdcd ({type(error).__name__})."
                if full is None
                else full.message
            )
            found = ShownLookUp(
                None, time.time(), why, "Run `cdcd check` on a terminal, which shows the whole error."
            )
        ended = time.monotonic()
        self._answers.pop(kind, None)
        while len(self._answers) >= KEPT_MAX:
            oldest = next(iter(self._answers))
            del self._answers[oldest], self._made_at[oldest]
        self._answers[kind], self._made_at[kind] = found, ended
        self._free_at = ended + (ended - began) * (1 / SHARE_MAX - 1)


class PageLookUps:
    """Look-ups of one daemon, and the routes that show them."""

    def __init__(self, current: Callable[[], Config], telemetry: Telemetry, tools: Tools) -> None:
        self._current = current
        self._telemetry = telemetry
        self._check: PageLookUp[str, Sequence[Finding]] = PageLookUp(
            lambda _: tools.check(current()), CHECK_S
        )
        self._records: PageLookUp[str, Sequence[LastRecord]] = PageLookUp(
            lambda table: tools.records(current(), table), RECORDS_S
        )

    def checked(self) -> ShownLookUp[Sequence[Finding]]:
        """Return the last findings. Only an instance that streams starts a new check.

        The check needs a walsender for a moment, which an instance that is starting may need itself.
        """
        return self._check("") if self._telemetry.streaming else self._check.last("")

    def routes(self) -> Routes:
        """Return the pages and their objects by path."""
        refuse = reading(lambda: self._current().http)
        return {
            "/check": HttpRoute(get=self._check_page, refuse=refuse),
            "/v1/check": HttpRoute(
                get=lambda _: json_reply(200, check_object(self._check(""))), refuse=refuse
            ),
            "/records": HttpRoute(get=lambda asked: self._records_of(asked, as_page=True), refuse=refuse),
            "/v1/records": HttpRoute(get=lambda asked: self._records_of(asked, as_page=False), refuse=refuse),
        }

    def _check_page(self, _asked: HttpRequest) -> Reply:
        return Reply(200, HTML, check_page(self._telemetry.name, self._check("")).encode(), HEADERS)

    def _records_of(self, asked: HttpRequest, *, as_page: bool) -> Reply:
        named = parse_qs(asked.query, max_num_fields=8) if asked.query.count("&") < 8 else {}
        table = named.get("table", [""])[0]
        # Only a table of the list: nobody can make the daemon look for names that it does not deliver.
        if not table or all(table != known for known, _ in self._telemetry.events.copy()):
            return text(
                404, "No row of such a table came since the daemon started. Ask with ?table=schema.table"
            )
        looked = self._records(table)
        if as_page:
            return Reply(200, HTML, records_page(self._telemetry.name, table, looked).encode(), HEADERS)
        return json_reply(200, records_object(table, looked))
