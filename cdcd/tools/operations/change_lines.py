"""Display of a record by `cdcd tail`: which changes are shown, and their form as a line or as JSON."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from cdcd.core.bounded_json import is_deep
from cdcd.core.catalog.patterns import TablePattern
from cdcd.core.errors import ConfigError
from cdcd.core.records.encoder import HEADER_UNCHANGED, is_watermark
from cdcd.core.records.flattening import DELETED_FIELD
from cdcd.core.table_names import table_text
from cdcd.telemetry.terminal_text import plain
from cdcd.tools.operations.conditions import RowCondition
from cdcd.tools.operations.shown_values import Forms, ShownForms, shown, shown_content

_FLAT: Final = "flattened"
"""Key in the source of the envelope for a flattened record, which has no time and position of its own."""

_IS_LARGE: Final = "is large (TOAST) and did not change, so that the record has no value of this column"
_NOT_IN_DELETE: Final = "is NULL, or not part of the replica identity"

OPERATIONS: Final = {
    "c": "INSERT",
    "u": "UPDATE",
    "d": "DELETE",
    "r": "READ",
    "t": "TRUNCATE",
    "m": "MESSAGE",
}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


TS_MS_MAX: Final = 8_000_000_000_000
"""Milliseconds from 1970, in both directions, that Python's datetime can represent: years 1716 to 2223."""


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """A record as it was read. `partition` and `offset` are None if the record comes from a slot."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()
    partition: int | None = None
    offset: int | None = None


@dataclass(slots=True)
class Filter:
    """The choice of changes to show.

    Attributes:
        tables: patterns of tables; () for all.
        condition: condition on rows; None for all rows.
        flattened: returns the table of a topic, if records are flattened (`event_flattening`).
        notices: sentences about records that are not shown although they may be wanted, each once. The caller
            removes them.
    """

    tables: tuple[TablePattern, ...] = ()
    condition: RowCondition | None = None
    flattened: Callable[[str], str] | None = None
    notices: list[str] = field(default_factory=list)
    _told: set[str] = field(default_factory=set)

    def wanted(self, seen: ReadRecord) -> dict[str, Any] | None:
        """Return the envelope of the record; None if it is not wanted, or is a tombstone or watermark.

        Raises ConfigError if the condition cannot be evaluated on the record.
        """
        if is_watermark(seen.value, seen.headers):
            return None
        envelope = _envelope(seen) if seen.value is not None else None
        if envelope is None and self.flattened is not None:
            envelope = _around_row(seen, self.flattened(seen.topic))
        elif seen.value is None:
            return None
        if envelope is None:
            self._notice(f"{plain(seen.topic)} has records that are not changes. They are not shown.")
            return None
        table = table_of(envelope)
        if self.tables and not any(pattern.matches_name(table) for pattern in self.tables):
            return None
        return envelope if self.condition is None or self._holds(seen, envelope, table) else None

    def _holds(self, seen: ReadRecord, envelope: dict[str, Any], table: str) -> bool:
        assert self.condition is not None
        op = envelope["op"]
        values = envelope.get("after") or envelope.get("before")
        if not isinstance(values, dict):
            self._notice(
                f"{OPERATIONS.get(op, op)} has no row to judge the condition on. Such records are not shown."
            )
            return False
        unsent = dict.fromkeys(_unsent(seen), _IS_LARGE)
        if op == "d":
            # A delete has null in all columns outside of the replica identity, unless the identity is FULL.
            unsent |= {name: _NOT_IN_DELETE for name, value in values.items() if value is None}
        try:
            outcome = self.condition.answer(values, unsent)
        except ConfigError as error:
            raise ConfigError(f"{error.message[:-1]}, in {plain(table)}.", hint=error.hint) from None
        if outcome is None:
            self._notice(
                f"The condition has no answer for a record of {plain(table)} ({OPERATIONS.get(op, op)}): "
                f"{plain(self.condition.reason)}. Such records are not shown."
            )
        return outcome is True

    def _notice(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self.notices.append(text)


def table_of(envelope: dict[str, Any]) -> str:
    """Return `schema.table`; "" for a logical message."""
    source = envelope["source"]
    if _FLAT in source:
        return str(source[_FLAT])
    return table_text(source["schema"], source["table"]) if source.get("table") else ""


def payload_of(found: Any) -> Any:
    """Return the parsed record without its schema: its payload with `format: json_schema`, else the record itself."""
    if isinstance(found, dict) and found.keys() == {"schema", "payload"}:
        schema = found["schema"]
        # A key may have columns with these two names.
        if isinstance(schema, dict) and schema.get("type") == "struct":
            return found["payload"]
    return found


def _parsed(data: bytes | None) -> Any:
    """Parse the JSON of a record, which may come from any writer. ValueError: the text is not JSON, or too deep."""
    if is_deep(data or b""):
        raise ValueError("too deep")
    return json.loads(data or b"", parse_float=Decimal)


def _unsent(seen: ReadRecord) -> set[str]:
    """Return the columns that the record lacks, by its header."""
    try:
        found = [each for name, data in seen.headers if name == HEADER_UNCHANGED for each in _parsed(data)]
    except (ValueError, TypeError):
        return set()
    return {each for each in found if isinstance(each, str)}


def key_of(seen: ReadRecord) -> dict[str, Any]:
    """Return the key of a record; empty if the record has no key, or if its key is not an object."""
    try:
        found = payload_of(_parsed(seen.key)) if seen.key else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _envelope(seen: ReadRecord) -> dict[str, Any] | None:
    """Return the envelope of a record; None if the record is not cdcd's."""
    try:
        found = payload_of(_parsed(seen.value))
    except ValueError:
        return None
    if not isinstance(found, dict) or not isinstance(found.get("op"), str):
        return None
    source = found.get("source")
    if (
        not isinstance(source, dict)
        or not isinstance(source.get("schema"), str | None)
        or "schema" not in source
    ):
        return None
    ts_ms = source.get("ts_ms")
    is_ours = (
        isinstance(ts_ms, int) and abs(ts_ms) <= TS_MS_MAX and isinstance(source.get("table"), str | None)
    )
    return found if is_ours and isinstance(found.get("message"), dict | None) else None


def _around_row(seen: ReadRecord, table: str) -> dict[str, Any] | None:
    """Return an envelope for a flattened record, as far as its contents are known. None: it is not a flattened record.

    A record without a value counts as a delete, of which the key is shown.
    """
    data = seen.key if seen.value is None else seen.value
    try:
        row = payload_of(_parsed(data))
    except ValueError:
        return None
    if not isinstance(row, dict):
        return None
    is_deleted = seen.value is None or row.get(DELETED_FIELD) == "true"
    row = {name: value for name, value in row.items() if name != DELETED_FIELD}
    place = "before" if is_deleted else "after"
    return {"op": "d" if is_deleted else "", place: row, "source": {_FLAT: table}}


def as_json(seen: ReadRecord) -> str:
    """Return a line with the unchanged record: topic, partition, offset, key, value."""
    where = {"topic": seen.topic, "partition": seen.partition, "offset": seen.offset}
    head = json.dumps(where, ensure_ascii=False)[:-1]
    return f'{head}, "key": {_json_of(seen.key)}, "value": {_json_of(seen.value)}}}'


def _json_of(data: bytes | None) -> str:
    """Return JSON in one line; other text (an outbox event) as a JSON string."""
    if data is None:
        return "null"
    try:
        _parsed(data)
        return data.decode().replace("\r", " ").replace("\n", " ")
    except ValueError:
        return json.dumps(data.decode("utf-8", "backslashreplace"), ensure_ascii=False)


def as_line(seen: ReadRecord, envelope: dict[str, Any], descriptions: ShownForms | None = None) -> str:
    """Return a line for people: time of the commit (UTC), operation, table and values.

    Args:
        descriptions: descriptions of columns; None if values are shown as in the record.
    """
    op, source, table = envelope["op"], envelope["source"], table_of(envelope)
    ts_ms = source.get("ts_ms")
    forms = {} if descriptions is None or op == "m" else descriptions.of(table, source.get("schema_id"))
    if ts_ms is None:
        head = f"{OPERATIONS.get(op, 'ROW'):8} {plain(table)}"
        return " ".join([head, *_values(seen, envelope, forms)])
    at = (_EPOCH + timedelta(milliseconds=int(ts_ms))).isoformat(sep=" ", timespec="milliseconds")
    head = f"{at.removesuffix('+00:00')} {OPERATIONS.get(op, plain(str(op))):8} {plain(table)}"
    if op == "m":
        message = envelope.get("message") or {}
        content = shown_content(message.get("content"), "" if descriptions is None else descriptions.binary)
        return f"{head}prefix={plain(str(message.get('prefix')))} content={content}"
    return " ".join([head, *_values(seen, envelope, forms)])


def _values(seen: ReadRecord, envelope: dict[str, Any], forms: Forms) -> Iterator[str]:
    before, after = envelope.get("before"), envelope.get("after")
    unsent = _unsent(seen)
    if isinstance(after, dict):
        for name, value in after.items():
            form = forms.get(name, "")
            if name in unsent:
                yield f"{plain(name)}=(unchanged)"
            elif isinstance(before, dict) and before.get(name) != value and envelope["op"] == "u":
                yield f"{plain(name)}={shown(before.get(name), form)}→{shown(value, form)}"
            else:
                yield f"{plain(name)}={shown(value, form)}"
    elif isinstance(before, dict):
        key = key_of(seen)
        for name, value in before.items():
            # A column outside of the replica identity is null, which has no meaning.
            if value is not None or name in key:
                yield f"{plain(name)}={shown(value, forms.get(name, ''))}"
