"""Values of records as `cdcd tail` shows them to people: bytea in hexadecimal, numbers without quotes, times as text.

JSON does not say which type a column has. The descriptions of the tables say so (topic `topics.schemas`), and each
record names its description. Without a description, a value is shown as the record has it.
"""

import base64
import json
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from cdcd.core.bounded_json import is_deep
from cdcd.core.catalog import temporal
from cdcd.core.records.schemas import read_form
from cdcd.core.table_names import table_text
from cdcd.telemetry.terminal_text import cut, plain

VALUE_MAX: Final = 60
"""Maximum characters of a value in a line."""

READ_S: Final = 2.0
"""Seconds between two looks for a description that is not known."""

SCALE_MAX: Final = 16_383
"""Largest scale of a numeric (NUMERIC_DSCALE_MAX)."""

_JSON_TEXTS: Final = frozenset({"{}", "[]"})
"""The first and the last character of an object and of an array."""

_PER_S: Final[Mapping[str, int]] = {
    "timestamp": 10**6,
    "timestamp_us": 10**6,
    "timestamp_ms": 10**3,
    "timestamp_connect": 10**3,
    "timestamp_ns": 10**9,
    "time": 10**6,
    "time_ms": 10**3,
    "time_ns": 10**9,
}
"""Units in a second, by the form of a number that is a time."""

_INFINITE_DATES: Final = {-2147472692: "infinity", -2147472691: "-infinity"}
"""Texts of the numbers that records have for infinite dates (docs/records.md)."""

_TEXTS: Final = frozenset({"timestamptz", "timestamp_iso", "date_iso", "time_iso", "decimal"})
"""Forms whose values are texts that need no quotes."""

BINARY: Final[Mapping[str, str]] = {
    "bytes": "bytes",
    "base64": "bytes",
    "base64-url-safe": "bytes_base64_url",
    "hex": "bytes_hex",
}
"""The form of a bytea by `format.binary_handling_mode`."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

Forms = Mapping[str, str]
"""The form of each column, by its name in the record (docs/records.md, "Descriptions of tables")."""


class ShownForms:
    """Forms of the columns of tables, from descriptions.

    Args:
        binary: form of the content of a logical message.
        read: calls its argument with each description that there is; None: `take` is called from outside.
    """

    def __init__(
        self, binary: str = "bytes", read: Callable[[Callable[[bytes], object]], None] | None = None
    ) -> None:
        self.binary = binary
        self._read = read
        self._read_at = -READ_S
        self._by_id: dict[str, Forms] = {}
        self._by_table: dict[str, Forms] = {}

    def take(self, value: bytes) -> None:
        """Keep a description. Records that are no description are passed over."""
        try:
            fingerprint, form = read_form(value)
        except ValueError:
            return
        # A protected value has the form of its protection.
        forms = {each.name: each.form for each in form.columns if each.protected is None}
        self._by_id[fingerprint] = self._by_table[table_text(form.schema, form.table)] = forms

    def of(self, table: str, fingerprint: object) -> Forms:
        """Return the forms of a record's columns; empty: there is no description.

        Args:
            fingerprint: `source.schema_id` of the record; None: a flattened record, which has the table's last form.
        """
        found = self._find(table, fingerprint)
        now = time.monotonic()
        if found is None and self._read is not None and now - self._read_at >= READ_S:
            self._read(self.take)
            self._read_at = time.monotonic()
            found = self._find(table, fingerprint)
        return found or {}

    def _find(self, table: str, fingerprint: object) -> Forms | None:
        return self._by_table.get(table) if fingerprint is None else self._by_id.get(str(fingerprint))


def shown(value: Any, form: str = "") -> str:
    """Return the value in one line of at most about `VALUE_MAX` characters. `form`: "": it is not known."""
    data = _bytes(value, form)
    if data is not None:
        return _short(f"\\x{data.hex()}", len(data), "bytes")
    text = _text(value, form)
    if text is not None:
        return _short(plain(text), len(text), "characters")
    if isinstance(value, str):
        # Records have values of json and jsonb as texts.
        is_json = value[:1] + value[-1:] in _JSON_TEXTS and _is_json(value)
        return _short(
            plain(value if is_json else json.dumps(value, ensure_ascii=False)), len(value), "characters"
        )
    whole = plain(json.dumps(value, ensure_ascii=False, default=str))
    return _short(whole, len(whole), "characters")


def shown_content(content: Any, form: str) -> str:
    """Return the content of a logical message: as text if it is text, else in hexadecimal."""
    data = _bytes(content, form)
    if data is not None:
        try:
            return shown(data.decode())
        except UnicodeDecodeError:
            pass
    return shown(content, form)


def _short(text: str, size: int, unit: str) -> str:
    return text if len(text) <= VALUE_MAX else f"{cut(text, VALUE_MAX)} ({size:,} {unit})"


def _bytes(value: Any, form: str) -> bytes | None:
    """The bytes that the value is written for; None: it is no bytea."""
    if not isinstance(value, str):
        return None
    try:
        if form == "bytes":
            return base64.b64decode(value, validate=True)
        if form == "bytes_base64_url":
            return base64.urlsafe_b64decode(value)
        if form == "bytes_hex":
            return bytes.fromhex(value)
    except ValueError:
        # Anybody may have written the record.
        pass
    return None


def _text(value: Any, form: str) -> str | None:
    """Text of a value that is shown without quotes; None: the value is shown as JSON."""
    if isinstance(value, Decimal):
        return str(value)
    if form.endswith("[]") and isinstance(value, list):
        return f"[{', '.join([shown(each, form[:-2]) for each in value])}]"
    kind = form.partition("(")[0]
    if isinstance(value, str):
        return value if kind in _TEXTS else _unscaled(value, form) if kind == "decimal_bytes" else None
    if kind == "decimal_variable" and isinstance(value, dict):
        return _unscaled(value.get("value"), f"({value.get('scale')})")
    if isinstance(value, int) and not isinstance(value, bool):
        return _moment(value, kind)
    return None


def _unscaled(value: Any, form: str) -> str | None:
    """A decimal from the base64 of its unscaled value; the last number of `form` is the scale."""
    scale = form.rstrip(")").rpartition(",")[2].rpartition("(")[2]
    if not isinstance(value, str) or not scale.isdecimal() or int(scale) > SCALE_MAX:
        return None
    try:
        number = int.from_bytes(base64.b64decode(value, validate=True), "big", signed=True)
        return f"{Decimal(f'{number}e-{scale}'):f}"
    except ValueError:
        # It is no base64, or has more digits than Python writes.
        return None


def _moment(value: int, kind: str) -> str | None:
    """Text of a date or time, as PostgreSQL writes it. None: `value` is neither.

    A timestamp beyond Python's calendar gives None too, because a real timestamp has the same number as infinity.
    """
    if kind in {"date", "date_connect"}:
        infinite = _INFINITE_DATES.get(value)
        return infinite or temporal.date_text_of(value - temporal.POSTGRES_EPOCH_DAYS)
    if kind not in _PER_S:
        return None
    try:
        whole, rest = divmod(value, _PER_S[kind])
        at = _EPOCH + timedelta(seconds=whole)
    except OverflowError:
        return None
    digits = len(str(_PER_S[kind])) - 1
    part = f"{rest:0{digits}}".rstrip("0")
    return at.strftime(
        "%H:%M:%S" if kind.startswith("time") and "stamp" not in kind else "%Y-%m-%d %H:%M:%S"
    ) + (f".{part}" if part else "")


def _is_json(text: str) -> bool:
    try:
        if is_deep(text.encode()):
            return False
        json.loads(text)
    except ValueError:
        return False
    return True
