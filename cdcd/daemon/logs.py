"""The log: facts, and what libraries say, one line each on standard error, with passwords masked.

Every line has `timestamp` (UTC, ISO 8601), `level` and `event`, a constant name; the rest are fields. Lines
of libraries come in by the standard library's logging and go out in the same form, as the event
`dependency.log`.
"""

import json
import logging
import sys
from collections.abc import Callable
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from cdcd.daemon.config_models import LogConfig
from cdcd.daemon.facts import Fact, Observer
from cdcd.daemon.masking import mask_text, mask_value
from cdcd.protocol.lsn import Lsn

DEPENDENCY_EVENT: Final = "dependency.log"

_LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
}

_FACT: Final = "cdcd_fact"
"""The attribute of a record that carries a fact."""

_EVENT_WIDTH: Final = 24

_PLAIN: Final = "\x1b[0m"
_DIM: Final = "\x1b[2m"
_BOLD: Final = "\x1b[1m"
_CYAN: Final = "\x1b[36m"
_COLORS: Final = {"debug": "\x1b[34m", "info": "\x1b[32m", "warning": "\x1b[33m"}
_RED: Final = "\x1b[31m"

Entry = dict[str, Any]


class Stream(Protocol):
    """Where lines go: a file, or a terminal with something at its foot (`bars.Terminal`)."""

    def write(self, text: str, /) -> int: ...

    def flush(self) -> None: ...

    def isatty(self) -> bool: ...


class _Handler(logging.StreamHandler[Stream]):
    """Ours among the root logger's handlers."""


class _Lines(logging.Formatter):
    """A record as an entry of masked fields, and that as `render` writes it."""

    def __init__(self, render: Callable[[Entry], str]) -> None:
        super().__init__()
        self._render = render

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds")
        entry: Entry = {
            "timestamp": moment.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
        }
        fact: Fact | None = getattr(record, _FACT, None)
        entry |= self._said(record) if fact is None else _happened(fact)
        # A field's own name is not judged: fields are ours, and none is a secret as a whole.
        return self._render(
            {
                key: mask_text(value) if isinstance(value, str) else mask_value(value)
                for key, value in entry.items()
            }
        )

    def _said(self, record: logging.LogRecord) -> Entry:
        """A library's sentence is a field: the names of events are ours."""
        said = {"event": DEPENDENCY_EVENT, "logger": record.name, "message": record.getMessage()}
        if record.exc_info:
            said["exception"] = self.formatException(record.exc_info)
        return said


def configure_logging(log: LogConfig, stream: Stream | None = None) -> Observer:
    """Send everything that is logged in this process to `stream` (None: standard error).

    Returns the observer that logs facts. Called again, it replaces what an earlier call set up.
    """
    stream = sys.stderr if stream is None else stream
    handler = _Handler(stream)
    handler.setFormatter(_Lines(_json if log.format == "json" else _colored if stream.isatty() else _plain))
    root = logging.getLogger()
    for old in [handler for handler in root.handlers if isinstance(handler, _Handler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(_LEVELS[log.level])
    logging.captureWarnings(True)
    return _observer(logging.getLogger("cdcd"))


def _observer(logger: logging.Logger) -> Observer:
    def observe(fact: Fact) -> None:
        logger.log(_LEVELS[fact.level], fact.event, extra={_FACT: fact})

    return observe


def _happened(fact: Fact) -> Entry:
    """Positions as PostgreSQL prints them: as numbers nobody finds them again."""
    entry: Entry = {"event": fact.event}
    for field in fields(fact):
        value = getattr(fact, field.name)
        is_position = field.name.endswith("_lsn") and isinstance(value, int)
        entry[field.name] = str(Lsn(value)) if is_position else value
    return entry


def _json(entry: Entry) -> str:
    return json.dumps(entry, ensure_ascii=False, default=str)


def _plain(entry: Entry) -> str:
    timestamp, level, event, rest, exception = _for_people(entry)
    words = " ".join(f"{key}={value}" for key, value in rest)
    return f"{timestamp} {level:<8} {event:<{_EVENT_WIDTH}} {words}".rstrip() + exception


def _colored(entry: Entry) -> str:
    timestamp, level, event, rest, exception = _for_people(entry)
    color = _COLORS.get(level, _RED)
    words = " ".join(f"{_CYAN}{key}{_PLAIN}={value}" for key, value in rest)
    return (
        f"{_DIM}{timestamp}{_PLAIN} {color}{level:<8}{_PLAIN} {_BOLD}{event:<{_EVENT_WIDTH}}{_PLAIN} {words}"
        + exception
    )


def _for_people(entry: Entry) -> tuple[str, str, str, list[tuple[str, str]], str]:
    """Timestamp, level, event, the other fields as text that keeps to its line, and a traceback that does not."""
    rest = dict(entry)
    timestamp, level, event = (str(rest.pop(key)) for key in ("timestamp", "level", "event"))
    exception = rest.pop("exception", "")
    words = [(key, _word(value)) for key, value in rest.items()]
    return timestamp, level, event, words, f"\n{exception}" if exception else ""


def _word(value: object) -> str:
    text = str(value)
    return text if text.isprintable() and " " not in text and text else json.dumps(text, ensure_ascii=False)
