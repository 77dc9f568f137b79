"""The values that flattened records have besides their row: added fields, the field `__deleted`, and headers.

The values are JSON. Formats with a registry encode the same values by their schemas (`avro/around.py`).
"""

import json
from collections.abc import Mapping, Sequence
from typing import Final

from cdcd.core.catalog.protection import EXCLUDE, ColumnRule
from cdcd.core.catalog.sharing import whole_topic
from cdcd.core.catalog.wiretext import wire
from cdcd.core.facts import Observer
from cdcd.core.facts.rules import FlatteningCollision
from cdcd.core.records.debezium_json.source_block import OPS, SourceBlock, TransactionFacts
from cdcd.core.records.debezium_json.strings import quote
from cdcd.core.records.debezium_json.table_fragments import TableFragments
from cdcd.core.records.encoder import EncoderSettings
from cdcd.core.records.flattening import DELETED_FIELD, AddedField, Flattening
from cdcd.core.table_names import table_text

_OF_EVENT: Final = (
    "op", "ts_ms", "ts_us", "ts_ns", "source.lsn", "source.sequence", "source.event_serial_no",
)  # fmt: skip
"""Fields that differ between events; all others are the same for all events of a table in a transaction."""

_NULL: Final = b"null"


class AddedValues:
    """Makes the values of a list of fields; values that depend only on the transaction are kept for all its events.

    The caller must call `renew` before the first event of a transaction.

    Args:
        constants: JSON of the fields of `source` that never change.
        as_text: whether the values are for headers, which are texts without quotes.
    """

    def __init__(self, fields: Sequence[AddedField], constants: Mapping[str, bytes], as_text: bool) -> None:
        self.names = [field.name for field in fields]
        self._fields = [field.field for field in fields]
        self._constants = constants
        self._as_text = as_text
        self._values: list[bytes] = []
        self._events = [(place, field) for place, field in enumerate(self._fields) if field in _OF_EVENT]
        self._absent: set[str] = set()
        """Names of the fields that are null in this transaction."""
        self._last = b""

    def renew(self, values: Mapping[str, bytes]) -> None:
        """Set the values of `source` that depend on the transaction (`SourceBlock.values`)."""
        known = {**self._constants, **values}
        self._last = known["last"]
        found: list[bytes] = []
        self._absent.clear()
        for name, field in zip(self.names, self._fields, strict=True):
            value = b"" if field in _OF_EVENT else known[field.removeprefix("source.")]
            if value == _NULL:
                self._absent.add(name)
            found.append(_text(value) if self._as_text else value)
        self._values = found

    def of_event(self, op: int, lsn: bytes, event_no: int, now_us: int) -> list[bytes]:
        """Return the values for one event in the order of the fields; `null` where there is none."""
        values = self._values.copy()
        for place, field in self._events:
            values[place] = self._of_event(field, op, lsn, event_no, now_us)
        return values

    def _of_event(self, field: str, op: int, lsn: bytes, event_no: int, now_us: int) -> bytes:
        if field == "source.lsn":
            return lsn
        if field == "source.event_serial_no":
            return b"%d" % event_no
        if field == "op":
            return (OPS[op] if self._as_text else f'"{OPS[op]}"').encode("ascii")
        if field == "source.sequence":
            value = b'"[%b,\\"%b\\"]"' % (self._last, lsn)
            return _text(value) if self._as_text else value
        if field == "ts_ms":
            return b"%d" % (now_us // 1000)
        return b"%d" % (now_us if field == "ts_us" else now_us * 1000)

    def headers(self, op: int, lsn: bytes, event_no: int, now_us: int) -> list[tuple[str, bytes]]:
        """Return the headers of one event; a field without a value has no header."""
        values = self.of_event(op, lsn, event_no, now_us)
        return [
            (name, value) for name, value in zip(self.names, values, strict=True) if name not in self._absent
        ]


def _text(value: bytes) -> bytes:
    """Return the text of a header for a JSON value."""
    return str(json.loads(value)).encode() if value.startswith(b'"') else value


class FlatForm:
    """Makes the values that flattened records of one table have besides their row.

    Attributes:
        added: the added fields.
        has_deleted: whether rows have the field `__deleted`.
        fields, headers: the values of added fields, in the order of `added`, and of added headers.
        transaction: number of the facts that the values were made of.
    """

    __slots__ = ("added", "fields", "has_deleted", "headers", "transaction")

    def __init__(
        self,
        added: Sequence[AddedField],
        headers: Sequence[AddedField],
        has_deleted: bool,
        constants: Mapping[str, bytes],
    ) -> None:
        self.added = added
        self.has_deleted = has_deleted
        self.fields = AddedValues(added, constants, as_text=False)
        self.headers = AddedValues(headers, constants, as_text=True)
        self.transaction = -1

    def renew(self, facts: TransactionFacts) -> None:
        """Set the values of the open transaction, unless they are those of these facts already."""
        if self.transaction == facts.number:
            return
        values = SourceBlock.values(facts)
        self.fields.renew(values)
        self.headers.renew(values)
        self.transaction = facts.number


class FlatForms:
    """Makes the `FlatForm` of each table.

    Attributes:
        rewrites: whether a delete has a record with the old row.
        has_tombstones: whether a delete has a record without a value.
    """

    def __init__(self, settings: EncoderSettings, observe: Observer) -> None:
        flattening = settings.flattening
        assert flattening is not None, "only flattened records have this"
        self._settings = settings
        self._flat: Flattening = flattening
        self._observe = observe
        self._told: set[tuple[str, ...]] = set()
        self.rewrites = flattening.rewrites
        self.has_tombstones = flattening.has_tombstones(settings.tombstones)

    def of_table(self, fragments: TableFragments, rules: Sequence[ColumnRule | None]) -> FlatForm:
        """Return the form of a table with a new description; fields with the name of a column are reported."""
        relation, flat = fragments.relation, self._flat
        columns = {
            column.name
            for column, rule in zip(fragments.shown.columns, rules, strict=True)
            if rule is None or rule.action != EXCLUDE
        } | {name for name, _ in fragments.constants}
        left_out = [field.name for field in flat.fields if field.name in columns]
        has_deleted = flat.has_deleted_field and DELETED_FIELD not in columns
        if flat.has_deleted_field and not has_deleted:
            left_out.append(DELETED_FIELD)
        if left_out and (fragments.topic, *left_out) not in self._told:
            self._told.add((fragments.topic, *left_out))
            self._observe(
                FlatteningCollision(
                    table=table_text(relation.schema, relation.name),
                    fields=", ".join(left_out),
                    topic=whole_topic(fragments.topic),
                )
            )
        constants = SourceBlock.constants(self._settings) | {
            "schema": quote(wire(relation.schema)).encode("latin-1"),
            "table": quote(wire(relation.name)).encode("latin-1"),
            "schema_id": b"null" if fragments.schema_id is None else b'"%b"' % fragments.schema_id.encode(),
        }
        added = [field for field in flat.fields if field.name not in columns]
        return FlatForm(added, flat.headers, has_deleted, constants)
