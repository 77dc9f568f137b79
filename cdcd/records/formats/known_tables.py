"""The tables that an encoder knows: their topics, their fragments, and how many records they have had."""

from collections.abc import Mapping
from dataclasses import replace

from cdcd.protocol.messages import Relation
from cdcd.records.envelope import EnvelopeSettings, Record
from cdcd.records.formats.table_fragments import OPS, TableFragments, Tally
from cdcd.records.relations import TableDescription, TypeDescription, key_columns, types_of
from cdcd.records.routing import Routes, topic_name
from cdcd.records.schemas import table_form

RowForm = tuple[Relation, tuple[str, ...], tuple[TypeDescription, ...]]
"""What a row's JSON and its key follow from: the description, the key's columns, the types that are not built in."""


class KnownTables:
    """Relations as they were last described; `define` before the first row, and whenever one is described anew."""

    def __init__(self, settings: EnvelopeSettings) -> None:
        self._settings = settings
        self._routes = Routes(settings.prefix)
        self._message_topic = topic_name(settings.message_topic or f"{settings.prefix}.message")
        self._routes.claim(self._message_topic, "logical messages")
        if settings.schemas_topic is not None:
            self._routes.claim(settings.schemas_topic, "descriptions of tables")
        self._tables: dict[int, TableFragments] = {}
        self._recent: TableFragments | None = None
        """Of the last row: the next one is most often of the same table."""
        self._tallies: dict[str, Tally] = {}
        self._messages = 0
        self._forms: dict[RowForm, int] = {}

    @property
    def counts(self) -> dict[tuple[str, str], int]:
        """Records so far by (schema.table, op), tombstones not counted; logical messages are ("", "m")."""
        counts = {("", "m"): self._messages}
        for table, tally in self._tallies.items():
            counts |= {(table, op): count for op, count in zip(OPS, tally.counts, strict=True)}
        return {key: count for key, count in counts.items() if count}

    def define(
        self, relation: Relation, table: TableDescription, types: Mapping[int, TypeDescription]
    ) -> None:
        """Take a relation's description, the first or a changed one; one that changes nothing is left alone.

        Raises:
            SinkError: its topic's name is too long or collides with another's.
        """
        topic = self._routes.table(relation.schema, relation.name)
        tally = self._tallies.setdefault(f"{relation.schema}.{relation.name}", Tally())
        schema_id: str | None = None
        announcement: Record | None = None
        if self._settings.schemas_topic is not None:
            form = table_form(relation, table, types, topic)
            schema_id = form.fingerprint
            known = self._tables.get(relation.oid)
            # In a stream a description carries the xid of its transaction.
            same = known is not None and replace(known.relation, xid=relation.xid) == relation
            if same and known is not None and known.schema_id == schema_id:
                return
            announcement = (self._settings.schemas_topic, *form.record(), None)
        self._recent = None
        rows: RowForm = (replace(relation, xid=None), key_columns(relation, table), types_of(relation, types))
        self._tables[relation.oid] = TableFragments(
            relation,
            table,
            types=types,
            topic=topic,
            tally=tally,
            unavailable=self._settings.unavailable,
            schema_id=schema_id,
            announcement=announcement,
            form=self._forms.setdefault(rows, len(self._forms)),
        )

    def knows(self, relation_oid: int) -> bool:
        return relation_oid in self._tables

    def topic_of(self, relation_oid: int) -> str:
        """The topic of a relation that was defined."""
        return self._tables[relation_oid].topic
