"""Which tables have records in which topics, where the stream is and before that.

The rule: a topic that is refused belongs to each table that may have records in it. Changes, rows of snapshots and
events of outbox tables have topics of their own. A table that was renamed may still have records under its former
name, which wait for Kafka.
"""

from collections.abc import Mapping

from cdcd.core.catalog.sharing import whole_topic
from cdcd.core.engine.beside_stream import BesideStream
from cdcd.core.engine.described import DescribedRelations
from cdcd.core.engine.fates import Fates
from cdcd.core.engine.topics import Topics
from cdcd.core.records.schema_registrations import SchemaUse


class TopicTables:
    """Finds tables by topic, and topics by table.

    Args:
        relations: the relations that the stream has described.
        beside: the tables whose rows are read, and the published tables.
        names: the published tables as `schema.table`, by oid, as they were when the session began.
    """

    def __init__(
        self,
        relations: DescribedRelations,
        beside: BesideStream,
        topics: Topics,
        fates: Fates,
        names: Mapping[int, str],
    ) -> None:
        self._relations = relations
        self._rendering = beside.rendering
        self._tables = beside.tables
        self._topics = topics
        self._fates = fates
        self._names = names

    def name_of(self, oid: int) -> str:
        """Return `schema.table` of a table; "" if it is not known."""
        relations = self._relations
        names = (relations.refused_name, relations.name_of, self._rendering.name_of)
        return next((name for find in names if (name := find(oid))), self._names.get(oid, ""))

    def with_topic(self, topic: str) -> list[int]:
        """Return the table that has its records in this topic, or the outbox tables whose events go there; [] if there
        is none.
        """
        oid = self._oid_of(topic)
        return self._event_tables(topic) if oid is None else [oid]

    def with_schema(self, use: SchemaUse) -> list[int]:
        """Return the tables whose records lack the id of this schema."""
        return [*self._relations.oids_with(use), *self._rendering.oids_with(use)]

    def _oid_of(self, topic: str) -> int | None:
        """Return the table that has its records in this topic; None: no table has.

        A table that is set aside may have had the topic's name before another table.
        """
        oid = self._relations.oid_of(topic)
        if oid is not None and oid not in self._fates.aside:
            return oid
        read = self._rendering.oid_of(topic)
        return oid if read is None else read

    def owners_of(self, topic: str, lsn: int) -> list[int]:
        """Return the tables that may have records in this topic which commit behind `lsn`, or rows of a snapshot."""
        known = self._relations.owners_of(topic, lsn) or self._event_tables(topic)
        owners = [oid for oid in known if self._fates.may_have_records(oid, lsn)]
        read = self._rendering.oid_of(topic)
        if read is not None and read not in owners and (not owners or self._has_taken(read, topic)):
            owners.append(read)
        return owners or known

    def _event_tables(self, topic: str) -> list[int]:
        """Return the outbox tables whose events may go to the topic; [] if events of logical messages may go there
        too.
        """
        if not self._topics.has_only_events(topic):
            return []
        return [oid for oid, name in self._tables.oids().items() if self._topics.has_events(name, topic)]

    def _has_taken(self, oid: int, topic: str) -> bool:
        """Return whether a table with rows of a snapshot has the name of the topic where the stream is."""
        name = self._tables.oids().get(oid, "")
        return topic in self._rendering.topics_of(oid) and self._rendering.name_of(oid) == name

    def topics_of(self, oid: int, name: str, lsn: int) -> list[str]:
        """Return the topics that may have records of the table which commit behind `lsn`, or rows of a snapshot."""
        relations = self._relations
        read = [topic for topic in self._rendering.topics_of(oid) if relations.oid_of(topic) in {None, oid}]
        events = self._topics.of_events(name)
        return list(dict.fromkeys([*relations.topics_of(oid, lsn), *read, *events])) or [
            self._rendering.topic_named(name)
        ]

    def marked(self) -> tuple[str, ...]:
        """Return the topics of all tables of which it is known that they take records without a key."""
        aside = self._fates.aside
        named = {
            self._rendering.topic_named(name) for oid, name in self._tables.oids().items() if oid not in aside
        }
        known = [topic for topic in named if self._topics.takes_watermarks(topic)]
        return tuple(sorted(set(map(whole_topic, known))))
