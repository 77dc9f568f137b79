"""What a person asks of a running daemon, as the content of a logical message with the prefix `cdcd.snapshot`.

    SELECT pg_logical_emit_message(true, 'cdcd.snapshot', '{"action": "start", "tables": ["public.orders"]}');

The message has a place in the stream like any change, so that it is taken once, however often the daemon is killed.
Whoever may connect can send one: what is malformed is refused and reported, and never stops the pipeline.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from cdcd.snapshots.progress import Progress, TableTask

PREFIX: Final = "cdcd.snapshot"
WATERMARK: Final = "cdcd.watermark"
"""The prefix of messages that make the server write out its WAL, and say nothing else."""
RESERVED: Final = (PREFIX, WATERMARK)
"""Messages with these prefixes are the daemon's own and make no record."""

TABLES_MAX: Final = 1000
TEXT_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class Signal:
    """One request.

    Attributes:
        action: start, pause, resume or cancel.
        tables: `schema.table` each; for cancel, () means all.
        where: for start, SQL that rows must satisfy.
        request: a name of the caller's choice, shown in the status.
        pipeline: whom it is for, where several daemons read one database; "" for all.
    """

    action: str
    tables: tuple[str, ...] = ()
    where: str = ""
    request: str = ""
    pipeline: str = ""

    def encode(self) -> str:
        """The message's content."""
        fields = {
            "action": self.action,
            "tables": list(self.tables),
            "where": self.where,
            "id": self.request,
            "pipeline": self.pipeline,
        }
        return json.dumps({name: value for name, value in fields.items() if value}, ensure_ascii=False)

    @classmethod
    def decode(cls, content: bytes) -> "Signal":
        """Read a message's content; ValueError says what is wrong with it, for a person."""
        try:
            fields = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"it is not JSON: {error}") from None
        if not isinstance(fields, dict):
            raise ValueError("it is not a JSON object")  # noqa: TRY004  what was sent is wrong, not our call
        if unknown := fields.keys() - {"action", "tables", "where", "id", "pipeline"}:
            raise ValueError(f"it has unknown keys: {', '.join(sorted(unknown))}")
        action = fields.get("action")
        if not isinstance(action, str) or action not in _ACTIONS:
            raise ValueError(f"action must be one of {', '.join(_ACTIONS)}")
        tables = fields.get("tables", [])
        if not isinstance(tables, list) or len(tables) > TABLES_MAX or not all(map(_is_table, tables)):
            raise ValueError(f'tables must be a list of at most {TABLES_MAX} names like "schema.table"')
        texts = {name: fields.get(name, "") for name in ("where", "id", "pipeline")}
        for name, text in texts.items():
            if not isinstance(text, str) or len(text) > TEXT_MAX:
                raise ValueError(f"{name} must be a text of at most {TEXT_MAX} characters")
        if action == "start" and not tables:
            raise ValueError("start needs tables")
        if texts["where"] and action != "start":
            raise ValueError(f"{action} takes no where")
        return cls(action, tuple(tables), texts["where"], texts["id"], texts["pipeline"])

    def apply(self, progress: Progress) -> Progress:
        """The progress after the request."""
        return _ACTIONS[self.action](self, progress)


def _is_table(name: object) -> bool:
    return isinstance(name, str) and len(name) <= 200 and "." in name.strip(".")


def _start(signal: Signal, progress: Progress) -> Progress:
    return progress.add(
        TableTask(name, request=signal.request or "signal", where=signal.where) for name in signal.tables
    )


def _pause(_signal: Signal, progress: Progress) -> Progress:
    return replace(progress, paused=True)


def _resume(_signal: Signal, progress: Progress) -> Progress:
    return replace(progress, paused=False)


def _cancel(signal: Signal, progress: Progress) -> Progress:
    for task in progress.tasks:
        if not signal.tables or task.name in signal.tables:
            progress = progress.end(task, "cancelled")
    return progress


_ACTIONS: Final[dict[str, Callable[[Signal, Progress], Progress]]] = {
    "start": _start,
    "pause": _pause,
    "resume": _resume,
    "cancel": _cancel,
}
