"""The parts of a table's records that never change: fragments of JSON, and the plan for the values between them.

```
{"before":  …  ,"after":{"id":  1  ,"name":  "  x  "  }
   0        1        2          3      4     5  6  7  8
```

`source_block.py` makes the part after the row. Quotes around values that are usually strings have their own slots,
because adding quotes to each value would copy it twice.
"""

import json
from typing import Final

from cdcd.core.errors import ConfigError, SourceError
from cdcd.core.records.debezium_json.changes import put_whole
from cdcd.core.records.debezium_json.connect_schema import (
    CLOSING,
    WITH_SCHEMA,
    Schema,
    envelope_schema,
    opening,
    schema_of_key,
)
from cdcd.core.records.debezium_json.converter import QUOTED
from cdcd.core.records.debezium_json.row_layout import DescribedTable, Layouts, constant_field
from cdcd.core.records.debezium_json.source_block import OPS, TableSource
from cdcd.core.records.debezium_json.transaction_metadata import CountedTableSource, TransactionMetadata
from cdcd.core.records.encoder import EncoderSettings, Record
from cdcd.core.records.schema_names import adjusted

TEXT_KEYS: Final = "text"
"""Value of `format.key`: a bare key is the text of its value, without quotes, and any other key is JSON."""

_NULL: Final = b"null"
_QUOTE: Final = b'"'

Headers = list[tuple[str, bytes]]


class Tally:
    """Counts the records of one table by op, with the numbers of ops from above."""

    __slots__ = ("counts",)

    def __init__(self) -> None:
        self.counts = [0] * len(OPS)


class TableFragments:
    """A relation with its latest description, prepared for encoding its rows.

    Attributes:
        described: what the fragments are made of.
        plan: how stage 4 converts a row, and into which slots it puts the results.
        places: the same for rows that are written into a buffer (`row_writer.py`); `key_places` has those of the
            key, in the key's order.
        event_template: fragments of an event up to the end of its new row.
        source: makes the part after the row, for the transaction with the number `transaction`.
        old_template: fragments of an old row alone, whose columns have the same slots.
        announcement: the record with the table's description, until a record of the table is sent after it.
        is_new: whether no record of the table has followed the description yet.
        protected: for each column, whether its values are replaced or left out.
        visible: for each column, whether the records have it.
        hidden_slots: slots of the columns that the records do not have.
        key_end: the end of a key.
        has_text_key: whether the key is the text of its one value, without the quotes of JSON.
        shown: the relation with the names of fields in place of those of columns (`catalog/field_names.py`).
        constants: fields that precede the columns in each row.
        row_start: beginning of a row up to the name of its first column.
        empty_row: beginning of a row without columns.
        topic: topic of the records, or the table's share of it.
        named: beginning of the names of schemas.
        form: number of the description as far as it concerns drafts of rows.
    """

    __slots__ = (
        "announcement",
        "constants",
        "converters",
        "described",
        "empty_row",
        "event_template",
        "form",
        "has_text_key",
        "hidden_slots",
        "identity",
        "index",
        "is_new",
        "key_columns",
        "key_end",
        "key_fragments",
        "key_places",
        "key_quoted",
        "key_slots",
        "modes",
        "named",
        "names",
        "old_template",
        "placeholders",
        "places",
        "plan",
        "protected",
        "relation",
        "row_start",
        "schema_id",
        "shown",
        "source",
        "tally",
        "topic",
        "transaction",
        "visible",
        "width",
    )

    def __init__(
        self,
        described: DescribedTable,
        layouts: Layouts,
        *,
        topic: str,
        tally: Tally,
        schema_id: str | None = None,
        form: int = 0,
        metadata: TransactionMetadata | None = None,
    ) -> None:
        self.described = described
        relation, fields, settings = described.relation, described.fields, layouts.settings
        self.relation = relation
        self.shown = relation if fields is None else fields.renamed(relation)
        self.constants = described.constants
        self.topic = topic
        self.named = described.named or topic
        self.tally = tally
        self.schema_id = schema_id
        self.announcement: Record | None = None
        self.transaction, self.is_new = -1, True
        self.form = form
        self.width = len(relation.columns)
        layout = layouts.layout(described)
        self.converters, self.modes, self.placeholders = layout.converters, layout.modes, layout.placeholders
        self.protected, self.visible, self.hidden_slots = (
            layout.protected,
            layout.visible,
            layout.hidden_slots,
        )
        self.names, self.identity = layout.names, layout.identity
        self.row_start, self.empty_row = layout.row_start, layout.empty_row
        self.plan, self.places, self.index = layout.plan, layout.places, layout.index
        self.event_template, self.old_template = layout.event_template, layout.old_template
        self.key_columns, self.key_places = layout.key_columns, layout.key_places
        self.key_slots, self.key_quoted = layout.key_slots, layout.key_quoted
        head = (
            opening(self.envelope(settings))
            if settings.value_format == WITH_SCHEMA and settings.flattening is None
            else b""
        )
        self.source: TableSource = (
            TableSource(relation.schema, relation.name, schema_id, head)
            if metadata is None
            else CountedTableSource(relation.schema, relation.name, schema_id, head, metadata)
        )
        self._prepare_key(settings)

    def _prepare_key(self, settings: EncoderSettings) -> None:
        table, keys = self.described.table, self.key_columns
        is_bare = table.bare_key
        self.has_text_key = is_bare and settings.key_format == TEXT_KEYS
        self.key_fragments = [
            b"" if is_bare else (b",%b:" if place else b"{%b:") % self.names[index]
            for place, index in enumerate(keys)
        ]
        self.key_end = b"" if is_bare else self._key_constants() + b"}"
        if keys and settings.key_format == WITH_SCHEMA:
            self.key_fragments[0] = opening(self.key_schema(settings)) + self.key_fragments[0]
            self.key_end += CLOSING
        for place, fragment in zip(self.key_places, self.key_fragments, strict=True):
            place.is_key, place.key_fragment = True, fragment

    def envelope(self, settings: EncoderSettings) -> Schema:
        """Return the Connect schema of Debezium's envelope for the rows of the table."""
        return envelope_schema(
            self.shown,
            self.key_columns,
            self.described.types,
            adjusted(self.named, settings.name_adjustment),
            self.described.rules,
            modes=settings.modes,
            constants=self.constants,
        )

    def _key_constants(self) -> bytes:
        """Return the JSON of the constant fields at the end of each key.

        Raises:
            ConfigError: a column of the key has the name of such a field.
        """
        constants = self.described.table.key_constants
        taken = {self.shown.columns[index].name for index in self.key_columns}
        for name, _ in constants:
            if name in taken:
                raise ConfigError(
                    f"Keys of {self.relation.schema}.{self.relation.name} would have two fields {name}: a column, and "
                    "a constant of key.forms.",
                    hint="Give the constant another name in key.forms, or leave it out.",
                )
        return b"".join([b"," + constant_field(name, text) for name, text in constants])

    def key_schema(self, settings: EncoderSettings, topic: str = "") -> Schema:
        """Return the Connect schema of the keys of the table, which has a key.

        Args:
            topic: topic in the names of the schema; "": the table's, adjusted as the settings say.
        """
        described = self.described
        return schema_of_key(
            self.shown,
            self.key_columns,
            described.types,
            topic or adjusted(self.named, settings.name_adjustment),
            described.rules,
            modes=settings.modes,
            bare=described.table.bare_key,
            constants=described.table.key_constants,
        )

    def key(self, values: list[bytes]) -> bytes | None:
        """Return the key of a row; None if the table has no key."""
        slots = self.key_slots
        if not slots:
            return None
        if len(slots) == 1 and not self.key_quoted[0]:
            return self.finished_key(self.key_fragments[0] + values[slots[0]] + self.key_end)
        pieces: list[bytes] = []
        for place, slot in enumerate(slots):
            pieces.append(self.key_fragments[place])
            pieces.extend(values[slot - 1 : slot + 2] if self.key_quoted[place] else [values[slot]])
        pieces.append(self.key_end)
        return self.finished_key(b"".join(pieces))

    def finished_key(self, key: bytes) -> bytes:
        """Return a key as records have it, from its JSON. UnicodeDecodeError: it is not UTF-8."""
        if self.has_text_key and key.startswith(_QUOTE):
            return str(json.loads(key)).encode()
        return key

    def hide(self, values: list[bytes], unchanged: list[int]) -> None:
        """Empty the slots of excluded columns, whether the server sent a value or not."""
        for slot in self.hidden_slots:
            values[slot] = b""
            if slot in unchanged:
                unchanged.remove(slot)

    def take_over(
        self,
        values: list[bytes],
        unchanged: list[int],
        old: list[bytes],
        unchanged_old: list[int],
        whole: bool,
    ) -> list[int]:
        """Fill slots of values that the server did not send from the old row, because these values are unchanged.

        `whole` says whether the old row is complete; if not, it has only the replica identity. Returns the slots
        that stay empty.

        An unchanged large value is never NULL. If the old row has NULL for it, PostgreSQL did not send the old
        value: the row is in a partition that lacks the REPLICA IDENTITY FULL of its partitioned table.
        """
        rest: list[int] = []
        for slot in unchanged:
            index = self.index[slot]
            is_null = old[slot] == _NULL and not (self.plan[index][1] in QUOTED and old[slot - 1])
            if slot not in unchanged_old and not is_null and (whole or self.identity[index]):
                if self.plan[index][1] in QUOTED:
                    values[slot - 1 : slot + 2] = old[slot - 1 : slot + 2]
                else:
                    values[slot] = old[slot]
            else:
                rest.append(slot)
        return rest

    def stand_in(self, values: list[bytes], unchanged: list[int]) -> list[bytes]:
        """Fill the remaining empty slots with placeholders; returns the quoted names of their columns.

        Raises:
            SourceError: one of them belongs to the key.
        """
        missing: list[bytes] = []
        for slot in unchanged:
            index = self.index[slot]
            if slot in self.key_slots:
                relation = self.relation
                raise SourceError(
                    f"The server did not send column {relation.columns[index].name!r} of {relation.schema}."
                    f"{relation.name}, which is TOASTed and part of the key.",
                    hint="PostgreSQL before 13.6 and 14.2 loses such keys: update it, or set REPLICA IDENTITY FULL.",
                )
            if self.plan[index][1] in QUOTED:
                put_whole(values, slot, self.placeholders[index])
            else:
                values[slot] = self.placeholders[index]
            missing.append(self.names[index])
        return missing
