"""The catalog of a stream of records: tables as last described, with their topics and counts of records."""

from collections.abc import Mapping
from dataclasses import replace

from cdcd.core.catalog.bindings import Bindings
from cdcd.core.catalog.field_names import Fields
from cdcd.core.catalog.logical import require_binary
from cdcd.core.catalog.protection import ColumnRule
from cdcd.core.catalog.relations import (
    DescribedRelation,
    TableDescription,
    TypeDescription,
    key_columns,
    types_of,
)
from cdcd.core.catalog.replica_identity import check_partitions
from cdcd.core.catalog.routing import ClaimedTopics
from cdcd.core.catalog.server_text import require_decoded
from cdcd.core.catalog.sharing import is_share, share_of, whole_topic
from cdcd.core.catalog.table_rules import moves
from cdcd.core.errors import ConfigError
from cdcd.core.facts import unheard
from cdcd.core.protocol.messages import Relation
from cdcd.core.records.cloud_events import CLOUDEVENTS
from cdcd.core.records.debezium_json.row_layout import DescribedTable, Layouts
from cdcd.core.records.debezium_json.source_block import OPS
from cdcd.core.records.debezium_json.table_fragments import TableFragments, Tally
from cdcd.core.records.debezium_json.transaction_metadata import TransactionMetadata
from cdcd.core.records.encoder import EncoderSettings, Record, owner_headers
from cdcd.core.records.schemas import TableForm, require_writable, table_form
from cdcd.core.records.shaping.computing import ComputedFields
from cdcd.core.table_names import table_text

RowForm = tuple[Relation, tuple[str, ...], tuple[TypeDescription, ...], tuple[ColumnRule | None, ...]]
"""What a row's JSON and its key follow from: the description, the key's columns, the types that are not built in, and
the rules that protect columns."""


class KnownTables:
    """Relations as they were last described; `define` before the first row, and whenever one is described again.

    Args:
        binary: the server was asked for values in binary form, so that all columns' types must have a reader for it.
        computed: the computed fields of tables; None: there are none.
    """

    def __init__(
        self, settings: EncoderSettings, binary: bool = False, computed: ComputedFields | None = None
    ) -> None:
        self._settings = settings
        self._layouts = Layouts(settings)
        self._computed = computed or ComputedFields((), settings.protections, unheard)
        self._plain: dict[int, Relation] = {}
        """By oid: relations as the server describes them, without computed fields."""
        self._owner = owner_headers(settings)
        self._binary = binary
        self._protections = settings.protections
        self.rules: dict[int, list[ColumnRule | None]] = {}
        """By relation: the rule of each column as it was last described."""
        self._chosen_keys = settings.chosen_keys
        self._chosen_partitions = settings.chosen_partitions
        self._chosen_fields = settings.chosen_fields
        self._repeating: set[int] = set()
        """Relations in which several rows may have the same key."""
        self.names = settings.topics
        self._claimed = ClaimedTopics(self.names)
        self.fragments: dict[int, TableFragments] = {}
        """By oid of the relation."""
        self.told_forms: dict[int, TableForm] = {}
        """Of the last description of each relation, which numbers columns that have another name by now."""
        self._tallies: dict[str, Tally] = {}
        self._forms: dict[RowForm, int] = {}

    @property
    def counts(self) -> dict[tuple[str, str], int]:
        """Records so far by (schema.table, op), tombstones not counted."""
        counts: dict[tuple[str, str], int] = {}
        for table, tally in self._tallies.items():
            for op, count in zip(OPS, tally.counts, strict=True):
                if count:
                    counts[table, op] = count
        return counts

    @property
    def bindings(self) -> Bindings:
        """Columns to which the rules of protection are bound. All encoders of a session share them."""
        return self._protections.bindings

    def define(
        self,
        relation: Relation,
        table: TableDescription,
        types: Mapping[int, TypeDescription],
        metadata: TransactionMetadata | None = None,
    ) -> TableFragments | None:
        """Take a relation's description, the first or a changed one.

        Args:
            metadata: of the transaction that is open; None: records do not name their transaction.

        Returns:
            The table's new fragments; None if the description changes nothing.

        Whether its topic is allowed and free is looked at when its first record comes: many relations never have one,
        such as the leaves of a partitioned table that is published as a whole.

        Raises:
            UndecodableNameError: a name of the table cannot be decoded.
            WithoutBinaryError: rows may come in binary form, and a column's type has no reader for it.
            ConfigError: the rules that protect columns contradict each other, or the table's key; or the key that is
                chosen cannot be made; or the chosen columns cannot choose partitions; or two fields have one name;
                or a partition does not send the former values of the key; or the description is too large.
        """
        require_decoded(relation, table, types)
        if self._binary:
            require_binary(relation, types)
        table = self._remembered(relation, table)
        if self._chosen_keys:
            table = self._chosen_keys.applied(relation, table)
            if table.repeats:
                self._repeating.add(relation.oid)
            else:
                self._repeating.discard(relation.oid)
        table = self._with_identifier(relation, table)
        if table.unsent:
            check_partitions(relation, table)
        plain = relation
        computed = self._computed.of_table(plain, table, types)
        relation = plain if computed is None else computed.shown
        added = relation.columns[len(plain.columns) :]
        topic = self.names.share(relation.schema, relation.name)
        tally = self._tallies.setdefault(table_text(relation.schema, relation.name), Tally())
        schema_id: str | None = None
        announcement: Record | None = None
        told = self.told_forms.get(relation.oid)
        modes = self._settings.modes
        rules = [
            *self._protections.of_columns(plain, key_columns(plain, table), types, table),
            *[None] * len(added),
        ]
        same_rules = self.rules.get(relation.oid) == rules
        self.rules[relation.oid] = rules
        form = table_form(
            relation,
            table if told is None else replace(table, former=(told.columns, *table.former)),
            types,
            whole_topic(topic),
            rules,
            modes=modes,
            shared=is_share(topic),
            letters=bool(self._settings.dead_letters),
            skipped=self._settings.skipped,
            routes=self.names.routed(relation.schema, relation.name),
            flattened=self._settings.flattening is not None,
            cloudevents=self._settings.value_format == CLOUDEVENTS,
            moves=bool(self._chosen_partitions)
            and moves(self._chosen_partitions.columns(relation, table), relation, table),
            change_header=self._settings.value_format if self._settings.change_header else "",
        )
        form = replace(form, computed=() if computed is None else computed.names)
        if told is not None and told.rewritten == form.rewritten and told.last_id is not None:
            form = replace(form, last_id=told.last_id)
        if self._settings.schemas_topic is not None:
            require_writable(form)
        self.told_forms[relation.oid] = form
        fields: Fields | None = None
        if self._chosen_fields:
            fields = self._chosen_fields.of_table(plain, table, [column.name for column in added])
            form = form.with_fields(relation, fields)
        if self._settings.schemas_topic is not None:
            schema_id = form.fingerprint
            known = self.fragments.get(relation.oid)
            # In a stream a description carries the xid of its transaction.
            same = known is not None and replace(known.relation, xid=relation.xid) == relation
            if same and same_rules and known is not None and known.schema_id == schema_id:
                if told is not None and form.rewritten not in {None, told.rewritten}:
                    # Records stay as they are. Readers must know of the rewrite before they know of a new column.
                    known.announcement = (self._settings.schemas_topic, *form.record(), self._owner)
                    known.is_new = True
                return None
            announcement = (self._settings.schemas_topic, *form.record(), self._owner)
        rows: RowForm = (
            relation if relation.xid is None else replace(relation, xid=None),
            key_columns(relation, table),
            types_of(relation, types),
            tuple(rules),
        )
        fragments = TableFragments(
            DescribedTable(
                relation,
                table,
                types,
                rules,
                fields,
                self._named(relation),
            ),
            self._layouts,
            topic=topic,
            tally=tally,
            schema_id=schema_id,
            form=self._forms.setdefault(rows, len(self._forms)),
            metadata=metadata,
        )
        fragments.announcement = announcement
        self.fragments[relation.oid] = fragments
        self._computed.take(relation.oid, computed)
        self._plain[relation.oid] = plain
        return fragments

    def _named(self, relation: Relation) -> str:
        """Return the beginning of the names of schemas.

        Tables with other columns in one topic need schemas of other names, which the subjects then have too.
        """
        topic = self.names.share(relation.schema, relation.name)
        if is_share(topic) and self._settings.subjects != "topic":
            return self.names.alone(relation.schema, relation.name)
        return whole_topic(topic)

    def _with_identifier(self, relation: Relation, table: TableDescription) -> TableDescription:
        """Return the description with the field by which keys of the tables in one topic differ, if there is one.

        Raises:
            ConfigError: the key has a field of this name, or is a bare value.
        """
        shared = self.names.shared_topic(relation.schema, relation.name)
        if shared is None or not shared.key_field:
            return table
        taken = (*key_columns(relation, table), *[name for name, _ in table.key_constants])
        if table.bare_key or shared.key_field in taken:
            problem = "is a bare value (key.forms)" if table.bare_key else f"has a field {shared.key_field}"
            raise ConfigError(
                f"The key of {relation.schema}.{relation.name} {problem}, and key_field of topics.shared."
                f"{shared.topic} adds the field {shared.key_field}.",
                hint=f"Choose another name in key_field of topics.shared.{shared.topic}, or another form of the key.",
            )
        value = shared.identifier(self.names.alone(relation.schema, relation.name))
        return replace(table, key_constants=(*table.key_constants, (shared.key_field, value)))

    def _remembered(self, relation: Relation, table: TableDescription) -> TableDescription:
        """What the catalog said, or the key of the last description where it has forgotten the table.

        The changes of a table that was dropped may still be on their way, and each Relation message has the catalog
        asked again. With REPLICA IDENTITY FULL it alone knows the key.
        """
        known = self.fragments.get(relation.oid)
        if known is None or table.is_known or relation.oid in self._repeating:
            return table
        return replace(table, primary_key=self.key_column_names(relation.oid))

    def introduce(self, table: TableFragments, out: list[Record]) -> None:
        """Before the first record of a table as it is described now: check its topic, append its description.

        Raises:
            SinkError: the name of the topic is too long, or collides with another one.
        """
        self._claimed.table(table.relation.schema, table.relation.name)
        if table.announcement is not None:
            # Not counted in what the caller is told: it comes once in a life, and is about as large as a row.
            out.append(table.announcement)
            table.announcement = None
        table.is_new = False

    def topic_named(self, name: str) -> str:
        """The topic of a table, described or not, by its name as `schema.table`."""
        return self.names.share_named(name)

    def announce(self, relation_oid: int, out: list[Record]) -> int:
        """Append the description of a relation that was defined, unless one has come already; the size of the record.

        Raises:
            SinkError: the name of the topic is too long, or collides with another one.
        """
        table = self.fragments[relation_oid]
        if not table.is_new or table.announcement is None:
            return 0
        _, key, value, _ = table.announcement
        self.introduce(table, out)
        return len(key or b"") + len(value or b"")

    def forget(self, relation_oid: int) -> None:
        """Remove the relation. See `Encoder.forget`."""
        self.fragments.pop(relation_oid, None)
        self._plain.pop(relation_oid, None)

    def relation(self, relation_oid: int) -> Relation:
        """A relation as the server described it last, without computed fields."""
        return self._plain[relation_oid]

    def description(self, relation_oid: int) -> DescribedRelation | None:
        """A relation as it was last described, with numbered columns and its key; None: it was never described."""
        if relation_oid not in self.fragments:
            return None
        return DescribedRelation(
            self.relation(relation_oid),
            self.told_forms[relation_oid].columns,
            self.key_column_names(relation_oid),
        )

    def claim(self, relation_oid: int) -> str:
        """The topic of a relation that will have records; SinkError: it is not allowed, or another one's."""
        table = self.fragments[relation_oid]
        self._claimed.table(table.relation.schema, table.relation.name)
        return table.topic

    def key_indexes(self, relation_oid: int) -> tuple[int, ...]:
        """Where the key's columns stand among a relation's columns, in the key's order; () without a key."""
        return tuple(self.fragments[relation_oid].key_columns)

    def has_protected_key(self, relation_oid: int) -> bool:
        """Whether a column of a relation's key has other values in records than in the table."""
        table = self.fragments[relation_oid]
        return any(table.protected[index] for index in table.key_columns)

    def key_column_names(self, relation_oid: int) -> tuple[str, ...]:
        """The names of the key's columns, in the key's order; () without a key."""
        table = self.fragments[relation_oid]
        return tuple([table.relation.columns[index].name for index in table.key_columns])

    def may_be_compacted(self, relation_oid: int) -> bool:
        """Whether compaction of the topic keeps the last record of each row of the relation."""
        table = self.fragments[relation_oid]
        shared = self.names.shared_topic(table.relation.schema, table.relation.name)
        return bool(table.key_columns) and (shared is None or bool(table.described.table.key_constants))

    def knows(self, relation_oid: int) -> bool:
        """Whether the relation was defined."""
        return relation_oid in self.fragments

    def topic_of(self, relation_oid: int) -> str:
        """The topic of a relation that was defined. Its first record shows whether the topic is allowed and free."""
        return self.fragments[relation_oid].topic

    def topics_of(self, relation_oid: int) -> tuple[str, ...]:
        """Every topic that records of a relation may go to, each once. The first is `topic_of`."""
        topics = self.row_topics(relation_oid)
        if not self._settings.dead_letters:
            return topics
        relation = self.fragments[relation_oid].relation
        letters = share_of(self._settings.dead_letter_topic or "", table_text(relation.schema, relation.name))
        return (*topics, letters)

    def row_topics(self, relation_oid: int) -> tuple[str, ...]:
        """As `topics_of`, without the topic for dead letters."""
        relation = self.fragments[relation_oid].relation
        return self.names.shares_of(relation.schema, relation.name)
