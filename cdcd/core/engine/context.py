"""Context of a transaction: the logical message `cdcd.context`, which becomes headers of the transaction's records.

    SELECT pg_logical_emit_message(true, 'cdcd.context', '{"actor": "anna", "traceparent": "00-…-01"}');

Everybody who may connect to the database can send such a message, so a context may need a token.

The rule: a context holds for the events of its transaction that follow the message, until the transaction's next
context, which replaces it as a whole. It ends with its transaction. A context that is refused changes nothing, is
counted, and never stops the pipeline. No report repeats the sender's words.
"""

import hmac
import re
from dataclasses import dataclass
from typing import Any, Final

from cdcd.core.bounded_json import parse
from cdcd.core.engine.refusals import Sparing
from cdcd.core.engine.settings import ContextSettings
from cdcd.core.facts import Observer
from cdcd.core.facts.transactions import ContextRefused
from cdcd.core.protocol.messages import LogicalMessage
from cdcd.core.snapshot.signals import token_digest
from cdcd.core.visible import visible

PREFIX: Final = "cdcd.context"
"""Prefix of the logical message, and of the headers' names."""

TOKEN: Final = "token"  # noqa: S105  the name of a field
"""Field of a context that no header has."""

FIELDS_MAX: Final = 32
"""Maximum number of fields in a context: each is a header of each record."""

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_TRACEPARENT: Final = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
"""https://www.w3.org/TR/trace-context/#traceparent-header"""

_W3C: Final = ("traceparent", "tracestate")
"""Fields whose header has the name of the field, because that is where tracing libraries look for them."""

Headers = list[tuple[str, bytes]]


@dataclass(frozen=True, slots=True)
class Traced:
    """A transaction whose context has a `traceparent`.

    Attributes:
        commit_us: time of the commit, in microseconds since 1970.
    """

    traceparent: str
    tracestate: str
    xid: int
    commit_lsn: int
    commit_us: int


def traced(headers: Headers, xid: int, commit_lsn: int, commit_us: int) -> Traced | None:
    """Return the transaction with its trace; None if its context, which has these headers, names no trace."""
    named = dict(headers)
    parent = named.get("traceparent")
    if parent is None:
        return None
    return Traced(parent.decode(), named.get("tracestate", b"").decode(), xid, commit_lsn, commit_us)


class Contexts:
    """Reads contexts. `refused` is the number of contexts that were refused, reported or not."""

    def __init__(self, settings: ContextSettings, observe: Observer) -> None:
        self.refused = 0
        self._settings = settings
        self._observe = observe
        self._sparing = Sparing()

    def headers(self, message: LogicalMessage, unix_s: int) -> Headers | None:
        """Return the headers of a context; None if it is refused.

        Args:
            unix_s: the time in Unix seconds, which bounds how many refusals are reported.
        """
        try:
            return self._read(message)
        except ValueError as error:
            self.refuse(str(error), unix_s)
            return None

    def refuse(self, reason: str, unix_s: int) -> None:
        """Count a context that is refused, and report it unless there were many."""
        self.refused += 1
        left_out = self._sparing.admit(unix_s)
        if left_out is not None:
            self._observe(ContextRefused(reason=reason, left_out=left_out))

    def refuse_large(self, size: int, unix_s: int) -> None:
        """Refuse a context of which only the size in bytes was kept, because it is larger than `bytes_max`."""
        self.refuse(f"it has {size} bytes, and context.bytes_max is {self._settings.bytes_max}", unix_s)

    def _read(self, message: LogicalMessage) -> Headers:
        """Return the headers. ValueError: the context is refused, and the text says why without the sender's words."""
        if not message.transactional:
            raise ValueError("it is not transactional: pg_logical_emit_message(true, …)")
        size = len(message.content)
        if size > self._settings.bytes_max:
            raise ValueError(f"it has {size} bytes, and context.bytes_max is {self._settings.bytes_max}")
        try:
            fields = parse(message.content)
        except ValueError:
            raise ValueError("it is not JSON in UTF-8 without repeated keys and deep nesting") from None
        if not isinstance(fields, dict):
            raise ValueError("it is not a JSON object")  # noqa: TRY004  what was sent is wrong, not our call
        token = fields.pop(TOKEN, "")
        if self._settings.tokens is not None and not _is_known(token, self._settings.tokens):
            raise ValueError("it has no token that this pipeline knows (context.token)")
        if len(fields) > FIELDS_MAX:
            raise ValueError(f"it has {len(fields)} fields, and {FIELDS_MAX} are allowed")
        return [(_header(name), _value(name, value)) for name, value in fields.items()]


def _is_known(token: object, tokens: tuple[str, ...]) -> bool:
    digest = token_digest(token) if isinstance(token, str) else ""
    return any(hmac.compare_digest(digest, known) for known in tokens)


def _header(name: str) -> str:
    if _NAME.fullmatch(name) is None:
        raise ValueError("the name of a field is not 1 to 64 ASCII letters, digits, '_', '.' and '-'")
    return name if name in _W3C else f"{PREFIX}.{name}"


def _value(name: str, value: Any) -> bytes:
    if isinstance(value, bool):
        text = "true" if value else "false"
    elif isinstance(value, int | float):
        text = repr(value)
    elif isinstance(value, str):
        text = value
    else:
        raise ValueError(f"field {name} is not a text, a number, true or false")  # noqa: TRY004  as above
    if visible(text) != text:
        raise ValueError(f"field {name} has control characters or characters that are not seen")
    if name == "traceparent" and _TRACEPARENT.fullmatch(text) is None:
        raise ValueError("field traceparent has not the form of W3C Trace Context")
    return text.encode()


def add_headers(headers: Headers | None, added: Headers) -> Headers:
    """Return the headers of a record with those of a context. A header that the record has already stays."""
    if not headers:
        return added
    taken = {name for name, _ in headers}
    return [*headers, *[each for each in added if each[0] not in taken]]
