"""The last warnings and errors of the log, for the page, each with its hint.

The rule: texts on the page are masked as in the log, and have a limit. A repeated problem is one entry with a count
and the time of its last occurrence.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from threading import Lock
from typing import Final

from cdcd.config.masking import mask_text, mask_value
from cdcd.core.facts import Fact, Observer, cut_short
from cdcd.core.protocol.lsn import Lsn

PROBLEMS_MAX: Final = 20
"""Maximum number of entries. The log has all problems."""

TEXT_MAX: Final = 600
"""Maximum characters of a message or a hint."""


@dataclass(frozen=True, slots=True)
class LastProblem:
    """A warning or an error.

    Attributes:
        at: time of its last report (UTC).
        event: name of the event; docs/events.md explains it.
        message: message of the event or, without one, its fields.
        hint: instruction for the operator; "" if the event has none.
        count: number of reports in a series of equal ones.
    """

    at: datetime
    level: str
    event: str
    message: str
    hint: str
    count: int = 1


class LastProblems:
    """An observer that keeps warnings and errors, and passes every fact on. Any thread may call its methods.

    Attributes:
        found: entries, newest first, at most `PROBLEMS_MAX`.
    """

    def __init__(self, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self.found: tuple[LastProblem, ...] = ()
        self._now = now
        self._lock = Lock()

    def observing(self, observe: Observer) -> Observer:
        """Return an observer that calls `note` and then `observe`."""

        def both(fact: Fact) -> None:
            self.note(fact)
            observe(fact)

        return both

    def note(self, fact: Fact) -> None:
        """Keep the fact if it is a warning or worse."""
        if fact.level == "info":
            return
        new = _problem(fact, self._now())
        with self._lock:
            rest = []
            for each in self.found:
                if (each.event, each.message, each.hint) == (new.event, new.message, new.hint):
                    new = replace(new, count=each.count + 1)
                else:
                    rest.append(each)
            self.found = (new, *rest)[:PROBLEMS_MAX]


def _problem(fact: Fact, at: datetime) -> LastProblem:
    fields = {name: _text(name, value) for name, value in fact.logged().items()}
    message, hint = fields.pop("message", ""), fields.pop("hint", "")
    if not message:
        message = ", ".join(f"{name} {value}" for name, value in fields.items())
    return LastProblem(at, fact.level, fact.event, cut_short(message, TEXT_MAX), cut_short(hint, TEXT_MAX))


def _text(name: str, value: object) -> str:
    """Return a field as the log shows it, with masked secrets."""
    if name.endswith("_lsn") and isinstance(value, int):
        return str(Lsn(value))
    return mask_text(value) if isinstance(value, str) else str(mask_value(value))
