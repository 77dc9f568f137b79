"""Records that go to the topic for dead letters, because the topic of their table cannot have them
(`kafka.dead_letters`).

The rule: such a record keeps its number and its place in the order, and is in the Kafka transaction of its event. So
positions, checkpoints and numbers are the same with and without dead letters, and nothing is written twice. The topic
of the table lacks the record, and nothing sends it there later.

| kind | the record | from when to when |
|---|---|---|
| `values` | with null for the values that have no form (`unwritable.py`) | this record |
| `schemas` | in JSON, because the registry refuses the schema of the table | until the registry accepts a schema |

The registry is asked again when the table is described again, thus after each ALTER TABLE and after each start.

The name of such a record's place is the table's share of the topic (`catalog/sharing.py`), so that changes beside a
snapshot, and faults of the topic, are those of the table.
"""

from dataclasses import replace
from typing import Final

from cdcd.core.catalog.sharing import share_of, whole_topic
from cdcd.core.facts import Observer
from cdcd.core.records.debezium_json.encoder import json_format
from cdcd.core.records.debezium_json.known_tables import KnownTables
from cdcd.core.records.debezium_json.table_fragments import TableFragments
from cdcd.core.records.encoder import (
    HEADER_LETTER_OF,
    HEADER_LETTER_REASON,
    HEADER_UNWRITABLE,
    TRANSACTIONS,
    EncoderSettings,
    Record,
)
from cdcd.core.records.format import Current, Format
from cdcd.core.records.schema_registrations import SchemaUse
from cdcd.core.records.shaping.shape import DEAD_LETTER
from cdcd.core.table_names import table_text

VALUES: Final = "values"
SCHEMAS: Final = "schemas"

REASON_MAX: Final = 500
"""Maximum number of characters of a reason in a header."""

_VALUE: Final = b"values: the record has values without a form, in the columns of the header cdcd.unwritable"


class DeadLetters:
    """Moves records to the topic for dead letters. The caller passes all records of a table that may have to go there.

    Attributes:
        counts: number of records that were moved, by (schema.table, DEAD_LETTER).
        is_on: whether any record may have to be moved.

    Args:
        tables: the catalog of tables.
        usual: format of all other records.
    """

    def __init__(
        self,
        settings: EncoderSettings,
        usual: Format,
        tables: KnownTables,
        current: Current,
        observe: Observer,
    ) -> None:
        self.counts: dict[tuple[str, str], int] = {}
        self._format = usual
        self._tables = tables
        self._topic = settings.dead_letter_topic or ""
        self._has_values = VALUES in settings.dead_letters
        self.is_on = bool(settings.dead_letters)
        self._in_json: Format | None = None
        if SCHEMAS in settings.dead_letters:
            plain = replace(settings, key_format="json", value_format="json", transaction_topic=None)
            self._in_json = json_format(plain, tables, current, observe)
        self._refused: dict[int, frozenset[SchemaUse]] = {}
        """By oid of a table: schemas that the registry refuses."""
        self._reasons: dict[int, bytes] = {}

    def refuse(self, oid: int, reason: str) -> bool:
        """Send the table's records to the dead letters until it is described again: the registry refuses a schema.

        Returns:
            False if `kafka.dead_letters` does not name `schemas`. The caller then decides what happens to the table.
        """
        if self._in_json is None:
            return False
        if not self._tables.knows(oid):
            # The registry is asked when the table is described.
            return True
        schemas = self._format.schemas
        others = schemas.unregistered(TRANSACTIONS)
        self._refused[oid] = frozenset([use for use in schemas.unregistered(oid) if use not in others])
        self._reasons[oid] = f"schemas: {reason}"[:REASON_MAX].encode()
        return True

    def describe(self, table: TableFragments) -> None:
        """Forget the refusals of a table that is described again. The caller then asks the registry again."""
        self._refused.pop(table.relation.oid, None)
        if self._in_json is not None:
            self._in_json.describe(table)

    def format_of(self, table: TableFragments) -> Format:
        """Return the format in which the table's records are written."""
        if self._in_json is None or table.relation.oid not in self._refused:
            return self._format
        return self._in_json

    def unregistered(self, oid: int) -> tuple[SchemaUse, ...]:
        """See `Encoder`. A record in JSON needs none of the table's schemas."""
        uses = self._format.schemas.unregistered(oid)
        refused = self._refused.get(oid) if self._refused else None
        return uses if refused is None else tuple([use for use in uses if use not in refused])

    def take(
        self, table: TableFragments, first: int, out: list[Record], came: list[Record] | None = None
    ) -> None:
        """Move those of the records from index `first` on that the table's topic cannot have.

        Args:
            came: further records of the same event.
        """
        if not self._refused and not self._has_values:
            return
        reason = self._reasons[table.relation.oid] if table.relation.oid in self._refused else None
        if reason is None and not self._has_values:
            return
        self._move(table, first, out, reason)
        if came:
            self._move(table, 0, came, reason)

    def _move(self, table: TableFragments, first: int, out: list[Record], reason: bytes | None) -> None:
        name = table_text(table.relation.schema, table.relation.name)
        moved = 0
        for place in range(first, len(out)):
            topic, key, value, headers = out[place]
            if topic != table.topic or (reason is None and not _has_unwritable(headers)):
                continue
            named = [
                *(headers or ()),
                (HEADER_LETTER_OF, whole_topic(topic).encode()),
                (HEADER_LETTER_REASON, reason or _VALUE),
            ]
            out[place] = (share_of(self._topic, name), key, value, named)
            moved += value is not None
        if moved:
            self.counts[name, DEAD_LETTER] = self.counts.get((name, DEAD_LETTER), 0) + moved


def _has_unwritable(headers: list[tuple[str, bytes]] | None) -> bool:
    return any(name == HEADER_UNWRITABLE for name, _ in headers or ())
