"""The log: facts, and messages of libraries, one line each on standard error, with masked passwords; and the last
warnings and errors for the page, each with its hint.

Every line has `timestamp` (UTC, ISO 8601), `level` and `event`, a constant name, and further fields. Messages of
libraries come from the standard library's logging and are written in the same form, as the event `dependency.log`,
each message at most once a minute.

The rule: texts on the page are masked as in the log, and have a limit. A repeated problem is one entry with a count
and the time of its last occurrence.
"""

import json
import logging
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from threading import Lock
from typing import Final, Protocol

from cdcd.config.masking import mask_text, mask_value
from cdcd.config.sections.process import LogConfig
from cdcd.core.facts import Fact, Observer, cut_short
from cdcd.core.protocol.lsn import Lsn
from cdcd.core.visible import visible

DEPENDENCY_EVENT: Final = "dependency.log"

OURS: Final = "cdcd"
"""Name of the logger of facts."""

Entry = dict[str, object]
"""The fields of one line, in their order."""

_COLORS: Final = {"debug": "1;32", "info": "1;32", "warning": "1;33", "error": "1;31", "critical": "1;31"}
"""Parameters of the terminal's control sequence (ECMA-48, SGR) for each level."""

LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
}


class LogStream(Protocol):
    """Destination of log lines: a file, or a terminal with progress bars below the log (`bars.Terminal`)."""

    def write(self, text: str, /) -> int: ...

    def flush(self) -> None: ...

    def isatty(self) -> bool: ...


class _Handler(logging.StreamHandler[LogStream]):
    """cdcd's handler among the root logger's handlers."""


REPEAT_S: Final = 60.0
"""Seconds within which the same message of a library is logged once. librdkafka repeats each failed connection
several times a second."""

KINDS_MAX: Final = 1000
"""Maximum number of remembered messages. If there are more, all are forgotten."""

_VARYING: Final = re.compile(r"\[thrd:[^]]*\]|\(after [^)]*\)|[0-9]+")


class Repeats(logging.Filter):
    """Filter that passes the same message of a library at most once in `REPEAT_S`.

    The next line has the number of suppressed messages in `repeated`.

    Messages are the same if they differ only in numbers, in librdkafka's thread, or in the duration of an attempt.
    Debug messages all pass, because a reader of the debug log wants each line.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._seen: dict[tuple[str, int, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name == OURS or record.levelno <= logging.DEBUG:
            return True
        key = (record.name, record.levelno, _VARYING.sub("0", record.getMessage()))
        now = self._clock()
        at, left_out = self._seen.get(key, (now - REPEAT_S, 0))
        if now - at < REPEAT_S:
            self._seen[key] = (at, left_out + 1)
            return False
        if len(self._seen) >= KINDS_MAX:
            self._seen.clear()
        self._seen[key] = (now, 0)
        if left_out:
            record.repeated = left_out
        return True


def configure_logging(log: LogConfig, stream: LogStream | None = None) -> Observer:
    """Write all log messages of this process to `stream` (None: standard error).

    Returns the observer that logs facts. A further call replaces the former configuration.
    """
    stream = sys.stderr if stream is None else stream
    root = logging.getLogger()
    for old in [handler for handler in root.handlers if isinstance(handler, _Handler)]:
        root.removeHandler(old)
    _add_handler(_Handler(stream), _as_json if is_json(log, stream) else _for_people(stream.isatty()))
    root.setLevel(LEVELS[log.level])
    logging.captureWarnings(True)
    ours = logging.getLogger(OURS)

    def observe(fact: Fact) -> None:
        ours.log(LEVELS[fact.level], fact.event, extra={"fields": fact.logged()})

    return observe


def also_log_to(handler: logging.Handler) -> None:
    """Let a further handler have the same lines, as JSON objects, whatever `log.format` says."""
    _add_handler(handler, _as_json)


def _add_handler(handler: logging.Handler, render: Callable[[Entry], str]) -> None:
    """Let a handler of the root logger write each line as `render` says, with masked secrets."""
    handler.addFilter(Repeats())
    handler.setFormatter(_Formatter(render))
    logging.getLogger().addHandler(handler)


def is_json(log: LogConfig, stream: LogStream) -> bool:
    """Return True if the lines are JSON.

    `log.format: auto` means readable text on a terminal, and JSON everywhere else.
    """
    return log.format == "json" or (log.format == "auto" and not stream.isatty())


class _Formatter(logging.Formatter):
    """Makes the fields of a line from a fact, or from a library's record, and lets `render` write them."""

    def __init__(self, render: Callable[[Entry], str]) -> None:
        super().__init__()
        self._render = render

    def format(self, record: logging.LogRecord) -> str:
        entry: Entry = {
            "timestamp": datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "level": record.levelname.lower(),
        }
        if record.name == OURS and hasattr(record, "fields"):
            entry |= {"event": record.msg, **record.fields}
        else:
            # The library's sentence is a field, because only cdcd defines names of events.
            entry |= {"event": DEPENDENCY_EVENT, "logger": record.name, "message": record.getMessage()}
            if record.exc_info:
                entry["exception"] = self.formatException(record.exc_info)
            if hasattr(record, "repeated"):
                entry["repeated"] = record.repeated
        return self._render({name: _shown(name, value) for name, value in entry.items()})


def _shown(name: str, value: object) -> object:
    """Return a field with masked secrets, and a position as the text that PostgreSQL prints."""
    if name.endswith("_lsn") and isinstance(value, int):
        # A number cannot be searched for.
        return str(Lsn(value))
    # The names of fields are not checked: cdcd defines the fields, and none is a secret as a whole.
    return mask_text(value) if isinstance(value, str) else mask_value(value)


def _as_json(entry: Entry) -> str:
    # Hidden characters are written out; the line stays the same JSON.
    return visible(json.dumps(entry, ensure_ascii=False, default=str))


def _for_people(colors: bool) -> Callable[[Entry], str]:
    """Return what writes a line for a terminal or a file that a person reads."""

    def paint(code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if colors else text

    def render(entry: Entry) -> str:
        timestamp, level, event = (str(entry.pop(name)) for name in ("timestamp", "level", "event"))
        exception = entry.pop("exception", None)
        fields = [
            f"{paint('36', name)}={paint('35', _quoted(value))}" for name, value in sorted(entry.items())
        ]
        shown_level = paint(_COLORS.get(level, "1"), f"{level:<9}")
        head = f"{paint('2', timestamp)} [{shown_level}] {paint('1', f'{event:<30}')}"
        line = " ".join([head, *fields])
        # A traceback keeps its lines.
        return line if exception is None else f"{line}\n{visible(str(exception), lines=True)}"

    return render


def _quoted(value: object) -> str:
    """Return a value for a person, with hidden characters written out.

    A text with quotes stands between « and », so that a command in it can be copied: Python's escapes would break the
    quotes of a shell command.
    """
    if not isinstance(value, str):
        return visible(str(value))
    text = visible(value)
    if any(letter in text for letter in "'\"\\"):
        return f"«{text}»"
    return f"'{text}'" if not text or any(letter in text for letter in " =") else text


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
    fields = {name: str(_shown(name, value)) for name, value in fact.logged().items()}
    message, hint = fields.pop("message", ""), fields.pop("hint", "")
    if not message:
        message = ", ".join(f"{name} {value}" for name, value in fields.items())
    return LastProblem(at, fact.level, fact.event, cut_short(message, TEXT_MAX), cut_short(hint, TEXT_MAX))
