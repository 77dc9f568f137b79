"""The schemas of a format with a registry: their ids, and the beginnings of keys and values that name them."""

from collections.abc import Sequence
from typing import Final

from cdcd.core.records.avro.converters import BinaryForm
from cdcd.core.records.avro.form import known_id
from cdcd.core.records.debezium_json.connect_schema import Schema
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

_OTHERS: Final = (MESSAGES, HEARTBEATS, TRANSACTIONS)


class RegisteredTable:
    """A table whose records have their schemas in the registry.

    Attributes:
        fragments: the parts for JSON by the same description.
        key_use, value_use: the schemas of keys, if these have one in the registry, and of values.
        key_head, value_head: beginnings of keys and values, once the schemas have ids; empty before.
        routed_uses: the same schemas under the subjects of other topics that rows are routed to, by topic.
        routed_heads: beginnings of keys and values in these topics, once the schemas have ids.
        is_told: whether the schemas topic has the ids of the schemas.
    """

    def __init__(
        self,
        settings: EncoderSettings,
        form: BinaryForm,
        fragments: TableFragments,
        *,
        topics: Sequence[str],
        key: Schema | None,
        value: Schema,
    ) -> None:
        self.fragments = fragments
        topic = fragments.topic
        self.value_use = form.use(settings, topic, value, "value")
        self.key_use: SchemaUse | None = None
        if key is not None and settings.key_format == form.format:
            self.key_use = form.use(settings, topic, key, "key")
        self.routed_uses: dict[str, tuple[SchemaUse | None, SchemaUse]] = {}
        self.routed_heads: dict[str, tuple[bytes, bytes]] = {}
        for each in topics:
            if each != topic:
                key_use = None
                if key is not None and self.key_use is not None:
                    key_use = form.use(settings, each, key, "key")
                self.routed_uses[each] = key_use, form.use(settings, each, value, "value")
        self.key_head = self.value_head = b""
        self.is_told = False

    @property
    def uses(self) -> tuple[SchemaUse, ...]:
        """The schemas that the records use, each once."""
        found: list[SchemaUse | None] = [self.key_use, self.value_use]
        for pair in self.routed_uses.values():
            found += pair
        # Under the strategy `record`, several topics have the same subject.
        return tuple(dict.fromkeys([use for use in found if use is not None]))


class RegisteredSchemas(Schemas):
    """The schemas of tables, logical messages, heartbeats, and BEGIN and END of transactions.

    Attributes:
        tables: the tables as last described.
    """

    def __init__(self, settings: EncoderSettings, form: BinaryForm) -> None:
        self.tables: dict[int, RegisteredTable] = {}
        self._settings = settings
        self._form = form
        self._uses: dict[int, tuple[SchemaUse, ...]] = {}
        """Schemas of messages, heartbeats and transactions, by their numbers in `encoder.py`."""
        self._told: set[int] = set()
        """Those of them whose ids were written to the schemas topic."""

    def others(self, kind: int, *uses: SchemaUse | None) -> None:
        """Set the schemas of messages, heartbeats or transactions."""
        self._uses[kind] = tuple([use for use in uses if use is not None])

    def describe(self, table: RegisteredTable) -> None:
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
            whole = self._settings.change_header
            out.extend([(topic, *ids.record(use, whole=whole), None) for use in uses])

    def ready(self, table: RegisteredTable, out: list[Record]) -> None:
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
