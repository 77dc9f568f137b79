"""Requests of a person to a running daemon, as the content of a logical message with the prefix `cdcd.snapshot`.

    SELECT pg_logical_emit_message(true, 'cdcd.snapshot', '{"action": "start", "tables": ["public.orders"]}');

The message has a position in the stream like any change, so it is handled once, however often the daemon is killed.
Everybody who may connect can send one, and the WAL does not show who did. So a request needs a `token`, unless the
operator allows requests from everybody. A malformed request is refused and reported, and never stops the pipeline.
"""

import hashlib
import json
from dataclasses import dataclass, field
from typing import Final

PREFIX: Final = "cdcd.snapshot"
WATERMARK: Final = "cdcd.watermark"
"""Prefix of messages that only make the server write out its WAL."""
RESERVED: Final = (PREFIX, WATERMARK)
"""Prefixes of messages that are for the daemon, and that have no record."""

ADDED: Final = "added"
REPLACED: Final = "replaced"
RESUMED: Final = "resumed"
OWN_REQUESTS: Final = ("", ADDED, REPLACED, RESUMED)
"""Values of `TableTask.request` for tables that nobody requested: the initial snapshot, changes of the publication,
the return of a table that was set aside."""

STOP_TABLES: Final = "stop_tables"
RESUME_TABLES: Final = "resume_tables"
"""Actions of `cdcd tables stop` and `cdcd tables resume`: tables are set aside, or come back."""
REREAD_TABLES: Final = "reread_tables"
"""Action of the daemon itself: former rows of tables end, and the tables are read again. A table that is set aside
stays so, because it is read again when it comes back."""

TABLES_MAX: Final = 1000
NAME_MAX: Final = 200
WHERE_MAX: Final = 4000
"""Maximum number of characters in a request's texts."""

CONTENT_MAX: Final = 1 << 20
"""Maximum of bytes in a message, because parsing makes objects of 30 times its size, and PostgreSQL sends up to 1
GB."""


@dataclass(frozen=True, slots=True)
class Signal:
    """One request.

    Attributes:
        action: start, pause, resume or cancel (for snapshots), stop_tables, resume_tables or reread_tables.
        tables: the tables as `schema.table`; for cancel, () means all.
        where: for start, an SQL condition on rows.
        request: a name of the sender's choice, which the status shows.
        pipeline: the pipeline that the request is for, if several daemons read one database; "" for all.
        token: a secret that the daemon has too.
    """

    action: str
    tables: tuple[str, ...] = ()
    where: str = ""
    request: str = ""
    pipeline: str = ""
    token: str = field(default="", repr=False)

    def encode(self) -> str:
        """Return the content of the message."""
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
        """Parse the content of a message; the text of a ValueError explains to a person what is wrong with it."""
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
    """Return the SHA-256 of a token, which is all that the daemon keeps of it, even in a recording."""
    return hashlib.sha256(token.encode()).hexdigest()


def _is_plain(text: str) -> bool:
    """Return whether the text can be sent to PostgreSQL; JSON can contain half characters and NUL, which cannot."""
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False


def _is_table(name: object) -> bool:
    return isinstance(name, str) and len(name) <= NAME_MAX and "." in name.strip(".") and _is_plain(name)


_ACTIONS: Final = ("start", "pause", "resume", "cancel", STOP_TABLES, RESUME_TABLES, REREAD_TABLES)

_NAMING: Final = frozenset({"start", STOP_TABLES, RESUME_TABLES, REREAD_TABLES})
"""Actions that need names of tables."""
