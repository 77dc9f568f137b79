"""Converters of protected columns, which make the JSON in place of values that readers must not see
(`catalog/protection.py`).
"""

import json
from collections.abc import Callable, Mapping
from typing import Final

from cdcd.core.catalog.protection import ENCRYPT, EXCLUDE, HASH, MASK, TRUNCATE, ColumnRule
from cdcd.core.catalog.wiretext import checked, wire
from cdcd.core.records.debezium_json.converter import AS_IS, STRING, Converter
from cdcd.core.records.debezium_json.strings import quote


class Masked(Converter):
    """Replaces every value by the same text."""

    def __init__(self, column: Converter, rule: ColumnRule) -> None:
        self._column = column
        self._json = quote(wire(rule.mask))

    def json(self, text: str) -> str:
        return self._json

    def binary(self, data: bytes) -> str:
        return self._json


class Excluded(Converter):
    """Leaves the value out: the record has no such field."""

    def json(self, text: str) -> str:
        return ""

    def binary(self, data: bytes) -> str:
        return ""


class Replaced(Converter):
    """Replaces each value by its first characters, its HMAC or its ciphertext.

    The replacement is made from what readers would have seen: the text of a JSON string, or the JSON of any other
    value.
    """

    def __init__(self, column: Converter, rule: ColumnRule) -> None:
        self._column = column
        self._is_shown_as_sent = column.mode in (AS_IS, STRING)

    def replacement(self, value: bytes) -> bytes:
        """Return the JSON in place of a value; both are UTF-8."""
        raise NotImplementedError

    def wire(self, value: bytes) -> bytes:
        if self._is_shown_as_sent:
            return self.replacement(checked(value))
        return self._of_json(self._column.wire(value))

    def json(self, text: str) -> str:
        return self._of_json(self._column.json(text).encode("latin-1")).decode("latin-1")

    def wire_of_binary(self, data: bytes) -> bytes:
        return self._of_json(self._column.wire_of_binary(data))

    def binary(self, data: bytes) -> str:
        return self._of_json(self._column.binary(data).encode("latin-1")).decode("latin-1")

    def _of_json(self, shown: bytes) -> bytes:
        """Return the JSON in place of a value whose own JSON is given."""
        checked(shown)
        if shown.startswith(b'"'):
            shown = str(json.loads(shown)).encode("utf-8")
        return self.replacement(shown)


class Truncated(Replaced):
    """Replaces a text by its first characters."""

    def __init__(self, column: Converter, rule: ColumnRule) -> None:
        Replaced.__init__(self, column, rule)
        self._length = rule.length

    def replacement(self, value: bytes) -> bytes:
        return quote(wire(value.decode("utf-8")[: self._length])).encode("latin-1")


class Sealed(Replaced):
    """Replaces a value by what `ColumnRule.seal` makes of it, which is ASCII."""

    def __init__(self, column: Converter, rule: ColumnRule) -> None:
        Replaced.__init__(self, column, rule)
        assert rule.seal is not None, "a rule that hashes or encrypts has a key"
        self._seal = rule.seal

    def replacement(self, value: bytes) -> bytes:
        return b'"' + self._seal(value) + b'"'


_CONVERTERS: Final[Mapping[str, Callable[[Converter, ColumnRule], Converter]]] = {
    EXCLUDE: lambda _column, _rule: Excluded(),
    MASK: Masked,
    TRUNCATE: Truncated,
    HASH: Sealed,
    ENCRYPT: Sealed,
}


def protect(converter: Converter, rule: ColumnRule | None) -> Converter:
    """Return the converter of a column to which this rule applies."""
    return converter if rule is None else _CONVERTERS[rule.action](converter, rule)
