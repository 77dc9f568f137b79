"""The schemas of a format with a registry: their ids, and the beginnings of keys and values that name them."""

from collections.abc import Sequence
from typing import Final

from librt.strings import BytesWriter

from cdcd.core.protocol.messages import Binary, Value
from cdcd.core.records.avro.converters import BinaryForm
from cdcd.core.records.avro.form import known_id
from cdcd.core.records.avro.rows import NULL_IN_KEY
from cdcd.core.records.avro.tables import AvroTable
from cdcd.core.records.debezium_json.table_fragments import TableFragments
from cdcd.core.records.encoder import (
    HEADER_NEW_KEY,
    HEADER_OLD_KEY,
    HEARTBEATS,
    MESSAGES,
    TRANSACTIONS,
    EncoderSettings,
    Record,
)
from cdcd.core.records.format import Schemas
from cdcd.core.records.schema_registrations import SchemaUse
from cdcd.core.records.unwritable import UnwritableError

_OTHERS: Final = (MESSAGES, HEARTBEATS, TRANSACTIONS)


class RegisteredSchemas(Schemas):
    """The schemas of tables, logical messages, heartbeats, and BEGIN and END of transactions.

    Attributes:
        tables: the tables as last described.
    """

    def __init__(self, settings: EncoderSettings, form: BinaryForm) -> None:
        self.tables: dict[int, AvroTable] = {}
        self._settings = settings
        self._form = form
        self._uses: dict[int, tuple[SchemaUse, ...]] = {}
        """Schemas of messages, heartbeats and transactions, by their numbers in `encoder.py`."""
        self._told: set[int] = set()
        """Those of them whose ids were written to the schemas topic."""

    def others(self, kind: int, *uses: SchemaUse | None) -> None:
        """Set the schemas of messages, heartbeats or transactions."""
        self._uses[kind] = tuple([use for use in uses if use is not None])

    def describe(self, table: AvroTable) -> None:
        """Take a table that is described anew."""
        oid = table.fragments.relation.oid
        known = self.tables.get(oid)
        if known is not None and known.is_told and known.uses == table.uses:
            table.is_told = True
        self.tables[oid] = table

    def unregistered(self, relation_oid: int) -> tuple[SchemaUse, ...]:
        """See `Encoder`."""
        ids = self._settings.schema_ids
        of_transactions = self._uses.get(TRANSACTIONS, ())
        if relation_oid not in _OTHERS:
            uses = self.tables[relation_oid].uses + of_transactions
        elif relation_oid == TRANSACTIONS and TRANSACTIONS in self._told:
            uses = ()
        else:
            uses = self._uses.get(relation_oid, ())
        return tuple([use for use in uses if ids.get(use) is None])

    def id(self, use: SchemaUse) -> int:
        """Return the id of a schema; TransientError if it has none yet."""
        return known_id(self._settings, use)

    def head(self, use: SchemaUse) -> bytes:
        """Return the beginning of keys or values with this schema; TransientError if it has no id yet."""
        return self._form.head(self.id(use))

    def tell(self, kind: int, out: list[Record]) -> None:
        """Write the ids of the schemas of messages, heartbeats or transactions to the schemas topic, once."""
        if kind in self._uses and kind not in self._told:
            self._put(self._uses[kind], out)
            self._told.add(kind)

    def _put(self, uses: Sequence[SchemaUse], out: list[Record]) -> None:
        topic = self._settings.schemas_topic
        if topic is not None:
            ids = self._settings.schema_ids
            out.extend([(topic, *ids.record(use), None) for use in uses])

    def ready(self, table: AvroTable, out: list[Record]) -> None:
        """Take the ids of the table's schemas before its first record under this description, and write them to the
        schemas topic.
        """
        value_head = self.head(table.value_use)
        if table.key_use is not None:
            table.key_head = self.head(table.key_use)
        table.value_head = value_head
        for topic, (key_use, value_use) in table.routed_uses.items():
            table.routed_heads[topic] = b"" if key_use is None else self.head(key_use), self.head(value_use)
        if not table.is_told:
            self._put(table.uses, out)
            table.is_told = True
        self.tell(TRANSACTIONS, out)

    def to_topic(self, relation_oid: int, record: Record, topic: str) -> Record:
        """See `Encoder`. A registry may have another id for the same schema under the subjects of another topic."""
        _, key, value, headers = record
        table = self.tables[relation_oid]
        heads = table.routed_heads.get(topic)
        if heads is None or heads == (table.key_head, table.value_head):
            return topic, key, value, headers
        key_head, value_head = heads
        if key is not None:
            key = key_head + key[len(key_head) :]
        if value is not None:
            # A large value is not copied once more.
            value = b"".join((value_head, memoryview(value)[len(value_head) :]))
        if headers is not None:
            headers = [
                (name, key_head + each[len(key_head) :] if name in (HEADER_NEW_KEY, HEADER_OLD_KEY) else each)
                for name, each in headers
            ]
        return topic, key, value, headers

    def check(self, table: TableFragments, column: int, value: Value) -> None:
        """See `Schemas`."""
        place = self.tables[table.relation.oid].places[column]
        converter = place.converter
        if converter is None:
            return
        out = BytesWriter()
        if value is None:
            if place.null is None:
                raise UnwritableError(*NULL_IN_KEY)
        elif isinstance(value, Binary):
            converter.write_binary(value.data, 0, len(value.data), out)
        elif isinstance(value, bytes):
            converter.write(value, 0, len(value), out)
