"""What a person asks of a running daemon, as the content of a logical message with the prefix `cdcd.snapshot`.

    SELECT pg_logical_emit_message(true, 'cdcd.snapshot', '{"action": "start", "tables": ["public.orders"]}');

The message has a place in the stream like any change, so that it is taken once, however often the daemon is killed.
Whoever may connect can send one, and the WAL does not say who did. So a request needs a `token`, unless the operator
allows requests from anybody. What is malformed is refused and reported, and never stops the pipeline.
"""

import hashlib
import json
from dataclasses import dataclass, field
from typing import Final

PREFIX: Final = "cdcd.snapshot"
WATERMARK: Final = "cdcd.watermark"
"""The prefix of messages that make the server write out its WAL, and say nothing else."""
RESERVED: Final = (PREFIX, WATERMARK)
"""Messages with these prefixes are the daemon's own and make no record."""

ADDED: Final = "added"
REPLACED: Final = "replaced"
RESUMED: Final = "resumed"
OWN_REQUESTS: Final = ("", ADDED, REPLACED, RESUMED)
"""What asks for a table where nobody sent a request: the initial snapshot, changes of the publication, the return of a
table that was set aside."""

STOP_TABLES: Final = "stop_tables"
RESUME_TABLES: Final = "resume_tables"
"""Actions of `cdcd tables stop` and `cdcd tables resume`: tables are set aside, or come back."""

TABLES_MAX: Final = 1000
NAME_MAX: Final = 200
WHERE_MAX: Final = 4000
"""Characters that a request's texts may have."""

CONTENT_MAX: Final = 1 << 20
"""Bytes of a message. It becomes objects of 30 times its size, and PostgreSQL sends up to 1 GB."""


@dataclass(frozen=True, slots=True)
class Signal:
    """One request.

    Attributes:
        action: start, pause, resume or cancel, of snapshots; stop_tables or resume_tables.
        tables: `schema.table` each; for cancel, () means all.
        where: for start, SQL that rows must satisfy.
        request: a name of the caller's choice, shown in the status.
        pipeline: whom it is for, where several daemons read one database; "" for all.
        token: a secret that the daemon has, too.
    """

    action: str
    tables: tuple[str, ...] = ()
    where: str = ""
    request: str = ""
    pipeline: str = ""
    token: str = field(default="", repr=False)

    def encode(self) -> str:
        """The message's content."""
        fields = {
            "action": self.action,
            "tables": list(self.tables),
            "where": self.where,
            "id": self.request,
            "pipeline": self.pipeline,
            "token": self.token,
        }
        return json.dumps({name: value for name, value in fields.items() if value}, ensure_ascii=False)

    @classmethod
    def decode(cls, content: bytes) -> "Signal":
        """Read a message's content; ValueError says what is wrong with it, for a person."""
        if len(content) > CONTENT_MAX:
            raise ValueError(f"it has {len(content)} bytes, and {CONTENT_MAX} are allowed")
        try:
            fields = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"it is not JSON: {error}") from None
        if not isinstance(fields, dict):
            raise ValueError("it is not a JSON object")  # noqa: TRY004  what was sent is wrong, not our call
        if unknown := fields.keys() - {"action", "tables", "where", "id", "pipeline", "token"}:
            raise ValueError(f"it has unknown keys: {', '.join(sorted(unknown))}")
        action = fields.get("action")
        if not isinstance(action, str) or action not in _ACTIONS:
            raise ValueError(f"action must be one of {', '.join(_ACTIONS)}")
        tables = fields.get("tables", [])
        if not isinstance(tables, list) or len(tables) > TABLES_MAX or not all(map(_is_table, tables)):
            raise ValueError(f'tables must be a list of at most {TABLES_MAX} names like "schema.table"')
        texts = {name: fields.get(name, "") for name in ("where", "id", "pipeline", "token")}
        for name, text in texts.items():
            most = WHERE_MAX if name == "where" else NAME_MAX
            if not isinstance(text, str) or len(text) > most or not _is_plain(text):
                raise ValueError(f"{name} must be a text of at most {most} characters, without NUL")
        if action in _NAMING and not tables:
            raise ValueError(f"{action} needs tables")
        if texts["where"] and action != "start":
            raise ValueError(f"{action} takes no where")
        return cls(action, tuple(tables), texts["where"], texts["id"], texts["pipeline"], texts["token"])


def token_digest(token: str) -> str:
    """What the daemon keeps of a token, also in a recording: SHA-256."""
    return hashlib.sha256(token.encode()).hexdigest()


def _is_plain(text: str) -> bool:
    """Whether PostgreSQL can be sent it: JSON may name halves of characters, and NUL."""
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False


def _is_table(name: object) -> bool:
    return isinstance(name, str) and len(name) <= NAME_MAX and "." in name.strip(".") and _is_plain(name)


_ACTIONS: Final = ("start", "pause", "resume", "cancel", STOP_TABLES, RESUME_TABLES)

_NAMING: Final = frozenset({"start", STOP_TABLES, RESUME_TABLES})
"""Actions that need names of tables."""
