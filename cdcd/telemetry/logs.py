"""The log: facts, and what libraries say, one line each on standard error, with passwords masked.

Every line has `timestamp` (UTC, ISO 8601), `level` and `event`, a constant name; the rest are fields. Lines
of libraries come in by the standard library's logging and go out in the same form, as the event
`dependency.log`, each message at most once a minute.
"""

import logging
import re
import sys
import time
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, Final, Protocol

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from cdcd.config.masking import mask_text, mask_value
from cdcd.config.sections.process import LogConfig
from cdcd.core.facts import Fact, Observer
from cdcd.core.protocol.lsn import Lsn
from cdcd.core.visible import visible

DEPENDENCY_EVENT: Final = "dependency.log"

OURS: Final = "cdcd"
"""The logger of facts."""

LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
}


class Stream(Protocol):
    """Where lines go: a file, or a terminal with something at its foot (`bars.Terminal`)."""

    def write(self, text: str, /) -> int: ...

    def flush(self) -> None: ...

    def isatty(self) -> bool: ...


class _Handler(logging.StreamHandler[Stream]):
    """Ours among the root logger's handlers."""


REPEAT_S: Final = 60.0
"""Seconds in which a library's message is logged once. librdkafka repeats each failed connection several times a
second."""

KINDS_MAX: Final = 1000
"""Messages to remember. If there are more kinds of messages, all of them are forgotten."""

_VARYING: Final = re.compile(r"\[thrd:[^]]*\]|\(after [^)]*\)|[0-9]+")


class Repeats(logging.Filter):
    """Passes a library's message at most once in `REPEAT_S`. The next line says how often it was `repeated` meanwhile.

    Messages are the same if they differ only in numbers, in librdkafka's thread, and in the time that an attempt took.
    What is logged for debugging passes: whoever asks for it wants each line.
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


def configure_logging(log: LogConfig, stream: Stream | None = None) -> Observer:
    """Send everything that is logged in this process to `stream` (None: standard error).

    Returns the observer that logs facts. Called again, it replaces what an earlier call set up.
    """
    stream = sys.stderr if stream is None else stream
    render: list[Processor] = (
        [structlog.processors.JSONRenderer(ensure_ascii=False, default=str), _visible_line]
        if is_json(log, stream)
        else [_visible_values, structlog.dev.ConsoleRenderer(colors=stream.isatty())]
    )
    common: list[Processor] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    handler = _Handler(stream)
    handler.addFilter(Repeats())
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*common, structlog.processors.format_exc_info, _name_dependency],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                _plain_values,
                _masked,
                _in_order,
                *render,
            ],
        )
    )
    root = logging.getLogger()
    for old in [handler for handler in root.handlers if isinstance(handler, _Handler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(LEVELS[log.level])
    logging.captureWarnings(True)
    logger = structlog.wrap_logger(
        logging.getLogger(OURS),
        processors=[*common, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    return _observer(logger.log)


def is_json(log: LogConfig, stream: Stream) -> bool:
    """Whether the lines are JSON. `log.format: auto` is for people on a terminal, and JSON everywhere else."""
    return log.format == "json" or (log.format == "auto" and not stream.isatty())


def _observer(log: Callable[..., Any]) -> Observer:
    def observe(fact: Fact) -> None:
        log(LEVELS[fact.level], fact.event, **fact.logged())

    return observe


def _name_dependency(_logger: WrappedLogger, _method: str, entry: EventDict) -> EventDict:
    """A library's sentence becomes a field: the names of events are ours."""
    record = entry.get("_record")
    entry["logger"] = record.name if record is not None else ""
    entry["message"] = entry.pop("event", "")
    entry["event"] = DEPENDENCY_EVENT
    if record is not None and hasattr(record, "repeated"):
        entry["repeated"] = record.repeated
    return entry


def _plain_values(_logger: WrappedLogger, _method: str, entry: EventDict) -> EventDict:
    """Positions as PostgreSQL prints them: as numbers nobody finds them again."""
    for key, value in entry.items():
        if key.endswith("_lsn") and isinstance(value, int):
            entry[key] = str(Lsn(value))
    return entry


def _masked(_logger: WrappedLogger, _method: str, entry: EventDict) -> MutableMapping[str, Any]:
    # A field's own name is not judged: fields are ours, and none is a secret as a whole.
    return {
        key: mask_text(value) if isinstance(value, str) else mask_value(value) for key, value in entry.items()
    }


def _visible_line(_logger: WrappedLogger, _method: str, line: Any) -> Any:
    """JSON stays the same JSON."""
    return visible(str(line))


def _visible_values(_logger: WrappedLogger, _method: str, entry: EventDict) -> EventDict:
    """The console's own colors are not in the values yet. A traceback has lines."""
    return {
        key: visible(str(value), lines=True) if key == "exception" else _AsItIs.of(value)
        for key, value in entry.items()
    }


class _AsItIs(str):
    """Text that the console writes between « and » instead of escaping its quotes, so that a command in it can be
    copied. Python's escapes would end the quotes of a shell.
    """

    __slots__ = ()

    @staticmethod
    def of(value: object) -> object:
        """The value with hidden characters written out, and with quotes as they are."""
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
