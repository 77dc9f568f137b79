"""The log: facts, and messages of libraries, one line each on standard error, with masked passwords; and the last
warnings and errors for the page, each with its hint.

Every line has `timestamp` (UTC, ISO 8601), `level` and `event`, a constant name, and further fields. Messages of
libraries come from the standard library's logging and are written in the same form, as the event `dependency.log`,
each message at most once a minute.

The rule: texts on the page are masked as in the log, and have a limit. A repeated problem is one entry with a count
and the time of its last occurrence.
"""

import logging
import re
import sys
import time
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from threading import Lock
from typing import Any, Final, Protocol

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from cdcd.config.masking import mask_text, mask_value
from cdcd.config.sections.process import LogConfig
from cdcd.core.facts import Fact, Observer, cut_short
from cdcd.core.protocol.lsn import Lsn
from cdcd.core.visible import visible

DEPENDENCY_EVENT: Final = "dependency.log"

OURS: Final = "cdcd"
"""Name of the logger of facts."""

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
    render: list[Processor] = (
        _as_json()
        if is_json(log, stream)
        else [_visible_values, structlog.dev.ConsoleRenderer(colors=stream.isatty())]
    )
    root = logging.getLogger()
    for old in [handler for handler in root.handlers if isinstance(handler, _Handler)]:
        root.removeHandler(old)
    _add_handler(_Handler(stream), render)
    root.setLevel(LEVELS[log.level])
    logging.captureWarnings(True)
    logger = structlog.wrap_logger(
        logging.getLogger(OURS),
        processors=[*_common(), structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    return _observer(logger.log)


def also_log_to(handler: logging.Handler) -> None:
    """Let a further handler have the same lines, as JSON objects, whatever `log.format` says."""
    _add_handler(handler, _as_json())


def _common() -> list[Processor]:
    """Return what is done with the lines of cdcd and with those of libraries."""
    return [structlog.stdlib.add_log_level, structlog.processors.TimeStamper(fmt="iso", utc=True)]


def _as_json() -> list[Processor]:
    return [structlog.processors.JSONRenderer(ensure_ascii=False, default=str), _visible_line]


def _add_handler(handler: logging.Handler, render: list[Processor]) -> None:
    """Let a handler of the root logger write each line as `render` says, with masked secrets."""
    handler.addFilter(Repeats())
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*_common(), structlog.processors.format_exc_info, _name_dependency],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                _plain_values,
                _masked,
                _in_order,
                *render,
            ],
        )
    )
    logging.getLogger().addHandler(handler)


def is_json(log: LogConfig, stream: LogStream) -> bool:
    """Return True if the lines are JSON.

    `log.format: auto` means readable text on a terminal, and JSON everywhere else.
    """
    return log.format == "json" or (log.format == "auto" and not stream.isatty())


def _observer(log: Callable[..., Any]) -> Observer:
    def observe(fact: Fact) -> None:
        log(LEVELS[fact.level], fact.event, **fact.logged())

    return observe


def _name_dependency(_logger: WrappedLogger, _method: str, entry: EventDict) -> EventDict:
    """Move a library's sentence from `event` to a field, because only cdcd defines names of events."""
    record = entry.get("_record")
    entry["logger"] = record.name if record is not None else ""
    entry["message"] = entry.pop("event", "")
    entry["event"] = DEPENDENCY_EVENT
    if record is not None and hasattr(record, "repeated"):
        entry["repeated"] = record.repeated
    return entry


def _plain_values(_logger: WrappedLogger, _method: str, entry: EventDict) -> EventDict:
    """Replace positions by the text that PostgreSQL prints, because numbers cannot be searched for."""
    for key, value in entry.items():
        if key.endswith("_lsn") and isinstance(value, int):
            entry[key] = str(Lsn(value))
    return entry


def _masked(_logger: WrappedLogger, _method: str, entry: EventDict) -> MutableMapping[str, Any]:
    # The names of fields are not checked: cdcd defines the fields, and none is a secret as a whole.
    return {
        key: mask_text(value) if isinstance(value, str) else mask_value(value) for key, value in entry.items()
    }


def _visible_line(_logger: WrappedLogger, _method: str, line: Any) -> Any:
    """Write out hidden characters; JSON stays the same JSON."""
    return visible(str(line))


def _visible_values(_logger: WrappedLogger, _method: str, entry: EventDict) -> EventDict:
    """Write out hidden characters before the console adds its colors. A traceback keeps its lines."""
    return {
        key: visible(str(value), lines=True) if key == "exception" else _AsItIs.of(value)
        for key, value in entry.items()
    }


class _AsItIs(str):
    """Text that the console writes between « and » without escaping its quotes, so that a command in it can be copied.

    Python's escapes would break the quotes of a shell command.
    """

    __slots__ = ()

    @staticmethod
    def of(value: object) -> object:
        """Return the value with hidden characters written out, and with unchanged quotes."""
        seen = _seen(value)
        return _AsItIs(seen) if isinstance(seen, str) and any(letter in seen for letter in "'\"\\") else seen

    def __repr__(self) -> str:
        return f"«{self}»"


def _seen(value: object) -> object:
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, Mapping):
        return {_seen(key): _seen(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_seen(item) for item in value]
    return value


def _in_order(_logger: WrappedLogger, _method: str, entry: EventDict) -> EventDict:
    first = {key: entry.pop(key) for key in ("timestamp", "level", "event") if key in entry}
    return {**first, **entry}


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
