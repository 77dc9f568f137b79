"""Relations that the stream describes: what is looked up about them in the catalog, and which of their topics and names
are new.

The rule: a row is encoded with the description that is valid at the row's position in the stream. So a relation is
looked up in the catalog when the stream describes it, and later steps wait for the answer. A topic that may not be
ready, and a name that is new for the relation, are remembered until the relation's first event.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from cdcd.core.catalog.relations import (
    TENTATIVE,
    UNKNOWN_PLACE,
    DescribedRelation,
    TableDescription,
    TypeDescription,
    differences,
)
from cdcd.core.engine.actions import Describe
from cdcd.core.engine.fates import BELONGS, NAME, Fates, fault_of
from cdcd.core.engine.incremental import Incremental
from cdcd.core.engine.tables import PublishedTables
from cdcd.core.engine.topics import Topics
from cdcd.core.errors import CdcdError, SinkError, WithheldError
from cdcd.core.facts import Observer
from cdcd.core.facts.tables import RelationChanged
from cdcd.core.protocol.messages import Relation
from cdcd.core.records.encoder import Encoder
from cdcd.core.records.schema_registrations import SchemaUse
from cdcd.core.table_names import table_text
from cdcd.core.transactions.drafts import SpoolItem, oids_of
from cdcd.core.transactions.steps import Changes

DESCRIBE_S: Final = 0.01
"""Seconds until the catalog is asked again, if it does not show a table yet as the stream has described it."""


class DescribedRelations:
    """Keeps the relations that the stream has described.

    The caller looks `next` up in the catalog, and passes the answer to `described`.
    """

    def __init__(
        self,
        *,
        encoder: Encoder,
        incremental: Incremental,
        tables: PublishedTables,
        topics: Topics,
        observe: Observer,
        fates: Fates,
        start: int = UNKNOWN_PLACE,
    ) -> None:
        self.ask_at: float | None = None
        """When to look up `asking` (monotonic seconds); None if it is being looked up, or if there is nothing to
        look up."""
        self.asking: Describe | None = None
        """The relation to look up in the catalog; later steps wait for the answer."""
        self.new_topics: dict[int, tuple[str, ...]] = {}
        """Topics that may not be ready, by the oid of their described relation."""
        self.new_names: dict[int, str] = {}
        """New names of relations, by oid, until the first event under the name."""
        self._encoder = encoder
        self._incremental = incremental
        self._tables = tables
        self._start = self._commit_lsn = start
        """Commit LSN of the transaction that is being processed. Between two transactions it is `start`, because
        relations that are described there are needed by transactions that commit at `start` or later."""
        self.withheld: dict[int, CdcdError] = {}
        """The error because of which no event of a relation may be encoded, by oid."""
        self._refused: dict[int, Relation] = {}
        """The descriptions of these relations."""
        self._fates = fates
        self._unregistered: set[int] = set()
        """Oids of described relations whose records lack ids of schemas."""
        self._claimed: set[int] = set()
        """Oids of relations whose topics are valid and not used by another table, which is checked at their first
        event."""
        self._topics = topics
        self._observe = observe
        self._relations: dict[int, Relation] = {}
        self._owners: dict[str, int] = {}
        """The oid of the present relation of each topic."""
        self._present: dict[int, tuple[str, ...]] = {}
        """Topics of each relation by its last description. The keys are oids."""
        self._formers: dict[str, dict[int, int]] = {}
        """By topic, the oids of relations that had the topic before they were renamed or replaced. The value of an oid
        is the commit LSN from which on the relation has no records in the topic. Earlier records may still wait for
        Kafka."""

    def opened(self, commit_lsn: int) -> None:
        """Note that the events of a transaction follow, together with descriptions of their relations."""
        self._commit_lsn = commit_lsn

    def closed(self) -> None:
        """Note that the transaction has ended."""
        self._commit_lsn = self._start

    def preview(self, relation: Relation) -> None:
        """Take the description of a relation before the commit of the transaction that describes it first, so that rows
        can be drafted.

        A known relation keeps its description, because rows of other transactions may still arrive in its earlier
        form. If the catalog differs from the message, the transaction has created or altered the relation. Then the
        relation is described at the commit.
        """
        if not self._encoder.tables.knows(relation.oid):
            self._ask(relation, tentative=True)

    def refused_name(self, oid: int) -> str:
        """Return `schema.table` of a relation whose last description was refused; "" if it was not refused."""
        relation = self._refused.get(oid)
        return "" if relation is None else table_text(relation.schema, relation.name)

    def name_of(self, oid: int) -> str:
        """Return `schema.table` of a relation by its last description; "" if it is not described."""
        found = self._encoder.tables.description(oid)
        return "" if found is None else table_text(found.relation.schema, found.relation.name)

    def describe(self, relation: Relation) -> None:
        """Take the description of a relation, even if it equals the last one: a column that was dropped and added again
        looks the same in the message.
        """
        self._ask(relation, tentative=False)

    def _ask(self, relation: Relation, *, tentative: bool) -> None:
        self.asking = Describe(relation, tentative)
        self.ask_at = 0.0

    def next(self, now: float) -> Describe | None:
        """Return the relation to look up in the catalog now; None if there is none.

        The answer is passed to `described`.
        """
        if self.ask_at is None or self.ask_at > now:
            return None
        self.ask_at = None
        return self.asking

    def ask_again(self, now: float) -> None:
        """Look the relation up again later, because the catalog does not show yet what the stream has described."""
        self.ask_at = now + DESCRIBE_S

    def described(
        self, relation: Relation, description: TableDescription, types: Mapping[int, TypeDescription]
    ) -> None:
        """Take the catalog's description of the relation that was looked up."""
        asking = self.asking
        if asking is None or asking.relation is not relation:
            # The table was set aside in the meantime.
            return
        before = self._encoder.tables.description(relation.oid)
        if asking.tentative:
            self._define_tentatively(relation, replace(description, at=TENTATIVE), types)
            self.asking = None
            return
        try:
            self._encoder.define(relation, replace(description, at=self._commit_lsn), types)
        except BELONGS as error:
            # The relation may have no event before it is described again.
            if not self._fates.sets_aside and not isinstance(error, WithheldError):
                # No row of the relation may be encoded until the session has ended.
                raise
            self.withheld[relation.oid] = error
            self._refused[relation.oid] = replace(relation, xid=None)
            self.asking = None
            return
        self.withheld.pop(relation.oid, None)
        self._refused.pop(relation.oid, None)
        self.asking = None
        if before is not None and relation.oid in self._relations:
            self._tell_changes(before, relation)
        self._define(relation)

    def _define_tentatively(
        self, relation: Relation, description: TableDescription, types: Mapping[int, TypeDescription]
    ) -> None:
        """Define a relation for drafts, unless its transaction seems to have created or altered it."""
        if not description.has_columns_of(relation):
            return
        try:
            self._encoder.define(relation, description, types)
        except BELONGS:
            # Which columns are protected is known after the commit, so rows are kept undrafted until then. Other
            # faults of the description are also handled at the first event.
            return

    def _tell_changes(self, before: DescribedRelation, relation: Relation) -> None:
        """Report what a new description of a table has changed, if anything."""
        after = self._encoder.tables.description(relation.oid)
        assert after is not None
        changed = differences(before, after)
        if not changed.is_empty:
            self._observe(
                RelationChanged(
                    schema=relation.schema,
                    table=relation.name,
                    added=changed.added,
                    dropped=changed.dropped,
                    renamed=changed.renamed,
                    retyped=changed.retyped,
                    key=changed.key,
                    former_name=changed.former_name,
                    replica_identity=changed.replica_identity,
                )
            )

    def _define(self, relation: Relation) -> None:
        oid = relation.oid
        known = self._relations.get(oid)
        if known is not None and (known.schema, known.name) != (relation.schema, relation.name):
            self._claimed.discard(oid)
        # The message has a transaction's id if the transaction is streamed, but this id does not belong to the
        # description.
        described = self._relations[oid] = replace(relation, xid=None)
        self._look_for_schemas(oid)
        topics = self._encoder.tables.topics_of(oid)
        self._own(oid, topics)
        events = self._topics.of_events(table_text(relation.schema, relation.name))
        new = tuple([topic for topic in (*topics, *events) if not self._topics.has(topic)])
        if new or oid not in self._claimed:
            self.new_topics[oid] = new
            if new and not self._encoder.tables.may_be_compacted(oid):
                for topic in new:
                    self._topics.keep_keyless(topic)
        else:
            self.new_topics.pop(oid, None)
        self._incremental.watched.defined(oid, topics)
        if known is not None and known != described:
            self._incremental.redefined(oid)
        name = table_text(relation.schema, relation.name)
        if self._tables.is_new(oid, name):
            self.new_names[oid] = name
        else:
            self.new_names.pop(oid, None)

    def relabelled(
        self, oid: int, description: TableDescription, types: Mapping[int, TypeDescription]
    ) -> None:
        """Take the description of a table with enums whose labels may have changed; its changes use the new labels from
        now on.
        """
        relation = self._relations.get(oid)
        if relation is not None:
            self._encoder.define(relation, description, types)
            self._look_for_schemas(oid)

    def _look_for_schemas(self, oid: int) -> None:
        if self._encoder.unregistered(oid):
            self._unregistered.add(oid)
        else:
            self._unregistered.discard(oid)

    def topics_ready(self) -> None:
        """Note that more topics are ready, or more schemas are registered."""
        for oid in tuple(self._unregistered):
            self._look_for_schemas(oid)
        self.new_topics = {
            oid: topics
            for oid, topics in self.new_topics.items()
            if oid not in self._claimed or not all(self._topics.has(topic) for topic in topics)
        }

    def lacks_topics(self, step: Changes) -> bool:
        """Return whether records of these events go to topics that are not ready, or lack ids of schemas.

        Such topics and schemas are requested. If no event of a relation may be encoded, this is a fault of its
        table.
        """
        has_events = self._encoder.shapes.has_needs
        if not self.new_topics and not self._unregistered and not self.withheld and not has_events:
            return False
        missing = False
        for item in step.items:
            if has_events and not self._has_needs(item, step.in_stream):
                missing = True
            for oid in oids_of(item, step.in_stream):
                if oid in self.withheld:
                    error = self.withheld[oid]
                    self._fates.fault(oid, fault_of(error), error)
                    continue
                if oid in self.new_topics and not self._takes_topics(oid):
                    missing = True
                lacking = self._encoder.unregistered(oid) if oid in self._unregistered else ()
                if not self._topics.are_registered(lacking):
                    missing = True
        return missing

    def _has_needs(self, item: SpoolItem, in_stream: bool) -> bool:
        """Return whether the topics of an item's events are ready, and their schemas registered."""
        shapes = self._encoder.shapes
        needs = shapes.needs(item, in_stream)
        ready = self._topics.are_registered(needs.schemas)
        for topic in needs.topics:
            if topic in self._owners:
                shapes.topic_refused(topic, "it is the topic of a table")
            else:
                ready = self._topics.is_ready(topic) and ready
        return ready

    def _takes_topics(self, oid: int) -> bool:
        """Return whether the topics of a relation with an event are ready.

        If the relation may not have these topics, this is a fault of its table.
        """
        if oid not in self._claimed:
            try:
                self._encoder.tables.claim(oid)
            except SinkError as error:
                self._fates.fault(oid, NAME, error)
                return True
            self._claimed.add(oid)
        ready = [self._topics.is_ready(topic) for topic in self.new_topics[oid]]
        if all(ready):
            del self.new_topics[oid]
        return all(ready)

    def oids_with(self, use: SchemaUse) -> list[int]:
        """Return the relations whose records lack the id of this schema."""
        return [oid for oid in self._unregistered if use in self._encoder.unregistered(oid)]

    def _own(self, oid: int, topics: tuple[str, ...]) -> None:
        """Note that the relation has these topics now, and no others."""
        for topic in {*self._present.get(oid, ()), *topics}:
            owner = self._owners.get(topic)
            if owner is not None and (owner == oid) != (topic in topics):
                self._formers.setdefault(topic, {})[owner] = self._commit_lsn
                del self._owners[topic]
        self._owners.update(dict.fromkeys(topics, oid))
        self._present[oid] = topics

    def oid_of(self, topic: str) -> int | None:
        """Return the relation whose records go to this topic; None if the stream has described none."""
        return self._owners.get(topic)

    def owners_of(self, topic: str, lsn: int) -> list[int]:
        """Return the relations that have records in this topic which commit behind `lsn`."""
        formers = [oid for oid, until in self._formers.get(topic, {}).items() if until > lsn]
        owner = self._owners.get(topic)
        return formers if owner is None else [owner, *formers]

    def topics_of(self, oid: int, lsn: int) -> list[str]:
        """Return the topics in which the relation has records that commit behind `lsn`; [] if the stream has not
        described it.
        """
        formers = [topic for topic, oids in self._formers.items() if oids.get(oid, 0) > lsn]
        present = [topic for topic in self._present.get(oid, ()) if self._owners.get(topic) == oid]
        return [*present, *formers]

    def leave(self, oid: int) -> Relation | None:
        """Forget the table, because it is set aside.

        Returns its last description by the stream; None if it had none.
        """
        asked: Relation | None = None
        if self.asking is not None and self.asking.relation.oid == oid:
            if not self.asking.tentative:
                # The server does not describe the table again.
                asked = replace(self.asking.relation, xid=None)
            self.asking = self.ask_at = None
        self.withheld.pop(oid, None)
        self.new_topics.pop(oid, None)
        self.new_names.pop(oid, None)
        self._unregistered.discard(oid)
        self._claimed.discard(oid)
        former = self._relations.pop(oid, None)
        refused = self._refused.pop(oid, former)
        return refused if asked is None else asked
