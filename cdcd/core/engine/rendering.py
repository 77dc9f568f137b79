"""Turns rows of tables into records between two transactions of the stream, for reading tables."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from cdcd.core.catalog.relations import TableDescription, TypeDescription
from cdcd.core.catalog.table_rules import ChosenKeys
from cdcd.core.engine.actions import Differences, Looked
from cdcd.core.engine.fates import BELONGS, Fates, fault_of
from cdcd.core.engine.queue import BatchQueue
from cdcd.core.engine.refused_rows import NO_LIMITS, RecordLimits, refuse_lines, too_large
from cdcd.core.engine.topics import Topics
from cdcd.core.errors import FatalError
from cdcd.core.protocol.messages import Relation
from cdcd.core.records.encoder import Encoded, Encoder, Record, SnapshotPosition, record_bytes
from cdcd.core.records.gaps import Gap, HealedTable
from cdcd.core.records.markers import INCREMENTAL, ROW, Marked, marker_of_single
from cdcd.core.records.schema_registrations import SchemaUse
from cdcd.core.snapshot.reading import Rows
from cdcd.core.table_names import table_text

CHANGE: Final = "false"
"""`source.snapshot` of a record that is no row of a snapshot."""

NO_CHOSEN_KEYS: Final = ChosenKeys()


class Rendering(Protocol):
    """Makes records of rows, and knows descriptions, topics and keys of tables."""

    def define(
        self, relation: Relation, description: TableDescription, types: Mapping[int, TypeDescription]
    ) -> str:
        """Take the present description of a table, and return its topic; SinkError if it can have none."""

    def key_columns(self, oid: int) -> tuple[str, ...]:
        """Return the names of the record's key columns; () for a table without a key, or whose rows share keys."""

    def topic_of(self, oid: int) -> str:
        """Return the topic of a defined table."""

    def topic_is_ready(self, topic: str) -> bool:
        """Return whether records may go to all topics of a table, and their schemas have ids; what is missing is
        requested.
        """

    def put(
        self,
        oid: int,
        rows: Rows,
        *,
        event_no: int,
        dropped: set[bytes],
        progress: Callable[[Encoded], None],
        marked: Marked[Any] | None = None,
    ) -> None:
        """Put the rows into the queue between two transactions.

        Args:
            event_no: number of the last row before them.
            dropped: keys whose rows are left out.
            progress: is called before the queue takes the rows, and counts them.
            marked: markers of the first and the last row, in an initial snapshot.
        """

    def end_former_rows(self, oids: Iterable[int], event_no: int) -> None:
        """Put a truncate record into the topic of each of these tables between two transactions.

        Args:
            event_no: number of the first record among the snapshot rows.
        """


class SnapshotRows:
    """The `Rendering` of a session. The engine sets `unix_us`, the wall clock in microseconds since 1970.

    Args:
        record_bytes_max, fails_over_bytes: as in `EngineSettings`.
        gap: makes the record of a gap that is healed; None: there is none.
    """

    def __init__(
        self,
        encoder: Encoder,
        queue: BatchQueue,
        topics: Topics,
        chosen_keys: ChosenKeys = NO_CHOSEN_KEYS,
        limits: RecordLimits = NO_LIMITS,
        gap: Gap | None = None,
    ) -> None:
        self._gap = gap
        self._fails_over = limits.fails_over
        self._row_bytes_max = limits.row_bytes_max
        self._record_bytes_max = limits.record_bytes_max
        self.encoder = encoder
        self.unix_us = 0
        self._queue = queue
        self._topics = topics
        self._chosen_keys = chosen_keys
        self._repeating: set[int] = set()
        """Tables in which several rows may have the same key."""
        self._records: list[Record] = []
        self._oids: dict[str, int] = {}
        """The relation whose records go to each topic, for defined tables."""

    def define(
        self, relation: Relation, description: TableDescription, types: Mapping[int, TypeDescription]
    ) -> str:
        self.encoder.define(relation, description, types)
        topic = self.encoder.tables.claim(relation.oid)
        if self._chosen_keys.applied(relation, description).repeats:
            self._repeating.add(relation.oid)
        else:
            self._repeating.discard(relation.oid)
        self._oids[topic] = relation.oid
        if not self.encoder.tables.may_be_compacted(relation.oid):
            for each in self.encoder.tables.topics_of(relation.oid):
                self._topics.keep_keyless(each)
        return topic

    def forget(self, oids: Collection[int]) -> None:
        """Forget the descriptions of these tables. `define` gives each of them a description again."""
        for oid in oids:
            self.encoder.forget(oid)
        self._oids = {topic: oid for topic, oid in self._oids.items() if oid not in oids}

    @property
    def has_room(self) -> bool:
        """True if the queue takes more rows."""
        return self._queue.room

    @property
    def awaits_topics(self) -> bool:
        """True if a topic was requested and is not ready yet."""
        return self._topics.awaits_topics

    @property
    def awaits_schemas(self) -> bool:
        """True if a schema was requested and is not registered yet."""
        return self._topics.awaits_schemas

    def is_defined(self, relation: Relation, looked: Looked, fates: Fates) -> bool:
        """Define a table as it was looked up, and return True. If no records can be made of its rows, set the table
        aside and return False.
        """
        try:
            self.define(relation, looked.description, looked.types)
        except BELONGS as error:
            fates.fault(relation.oid, fault_of(error), error)
            return False
        return True

    def is_altered(self, relation: Relation) -> bool:
        """Return whether a defined table has been altered."""
        return (
            self.encoder.tables.knows(relation.oid) and self.encoder.tables.relation(relation.oid) != relation
        )

    def describe(self, oid: int) -> None:
        """Put the description of a defined table into the queue, unless it was sent already."""
        size = self.encoder.tables.announce(oid, self._records)
        if size:
            self._queue.insert(self._records, size)

    def key_columns(self, oid: int) -> tuple[str, ...]:
        return () if oid in self._repeating else self.encoder.tables.key_column_names(oid)

    def topic_of(self, oid: int) -> str:
        return self.encoder.tables.topic_of(oid)

    def topic_named(self, name: str) -> str:
        """Return the topic of a table, defined or not, by its name as `schema.table`."""
        return self.encoder.tables.topic_named(name)

    def oid_of(self, topic: str) -> int | None:
        """Return the table whose records go to this topic; None if no defined table's do."""
        if topic in self._oids:
            return self._oids[topic]
        for oid in self._oids.values():
            if self.encoder.tables.knows(oid) and topic in self.encoder.tables.topics_of(oid):
                return oid
        return None

    def topics_of(self, oid: int) -> list[str]:
        """Return the topics of the table's rows that no other table has now; [] if the table is not defined."""
        tables = self.encoder.tables
        present = tables.topics_of(oid) if tables.knows(oid) else ()
        return [topic for topic in present if self._oids.get(topic, oid) == oid]

    def oids_with(self, use: SchemaUse) -> list[int]:
        """Return the tables whose records lack the id of this schema."""
        return [
            oid
            for oid in self._oids.values()
            if self.encoder.tables.knows(oid) and use in self.encoder.unregistered(oid)
        ]

    def name_of(self, oid: int) -> str:
        """Return the name of a defined table as `schema.table`; "" if it is not defined."""
        if not self.encoder.tables.knows(oid):
            return ""
        relation = self.encoder.tables.relation(oid)
        return table_text(relation.schema, relation.name)

    def topic_is_ready(self, topic: str) -> bool:
        oid = self._oids.get(topic)
        if oid is None:
            return self._topics.is_ready(topic)
        # All of them are requested together.
        ready = [self._topics.is_ready(each) for each in self.encoder.tables.topics_of(oid)]
        return self._topics.are_registered(self.encoder.unregistered(oid)) and all(ready)

    def put(
        self,
        oid: int,
        rows: Rows,
        *,
        event_no: int,
        dropped: set[bytes],
        progress: Callable[[Encoded], None],
        marked: Marked[Any] | None = None,
    ) -> None:
        # A row that is left out has no record, however large it is.
        if self._row_bytes_max and not dropped and rows.size > self._row_bytes_max:
            refuse_lines(rows.lines, oid, self.encoder, self._record_bytes_max)
        end_lsn = self._queue.position.end_lsn
        first = last = others = INCREMENTAL
        if marked is not None:
            single = len(rows.lines) == 1
            first = marker_of_single(marked) if single else marked.first
            last = marker_of_single(marked) if single else marked.last
            others = ROW
        position = SnapshotPosition(
            lsn=rows.after or end_lsn,
            commit_lsn=end_lsn - 1,
            first=first,
            last=last,
            others=others,
            event_no=event_no,
        )
        try:
            encoded = self.encoder.encode_rows(
                oid, rows.lines, position, self.unix_us, self._records, dropped
            )
            self._refuse_large(encoded)
        except FatalError:
            self._records.clear()
            raise
        progress(encoded)
        awaits = self._topics.lacking(self.encoder.tables.topics_of(oid))
        self._queue.insert(self._records, encoded.bytes, encoded.rows, awaits)

    def put_differences(self, oid: int, found: Differences, *, event_no: int) -> None:
        """Put records of differences between a defined table and its topic into the queue, between two transactions.

        Args:
            event_no: number of the last row before them.
        """
        end_lsn = self._queue.position.end_lsn
        rows = size = 0
        try:
            for op, lines in (("d", found.deletes), ("u", found.updates), ("c", found.inserts)):
                if not lines:
                    continue
                position = SnapshotPosition(
                    lsn=end_lsn,
                    commit_lsn=end_lsn - 1,
                    first=CHANGE,
                    last=CHANGE,
                    others=CHANGE,
                    event_no=event_no + rows,
                    op=op,
                )
                encoded = (
                    self._put_deletes(oid, found, position)
                    if op == "d"
                    else self.encoder.encode_rows(
                        oid,
                        list(found.updates if op == "u" else found.inserts),
                        position,
                        self.unix_us,
                        self._records,
                        set(),
                    )
                )
                rows += encoded.rows
                size += encoded.bytes
            self._refuse_large(Encoded(rows, size, None))
        except FatalError:
            self._records.clear()
            raise
        assert rows == found.rows, "each difference has a record"
        self._queue.insert(self._records, size, rows)

    def _put_deletes(self, oid: int, found: Differences, position: SnapshotPosition) -> Encoded:
        records, known, own = self._records, len(self._records), self.encoder.tables.topic_of(oid)
        encoded = self.encoder.encode_deletes(oid, list(found.deletes), position, self.unix_us, records)
        if found.topic and found.topic != own:
            for place in range(known, len(records)):
                # There may be a description of the table among them.
                if records[place][0] == own:
                    # Only records in JSON are healed, and they do not depend on their topic.
                    records[place] = (found.topic, *records[place][1:])
        return encoded

    def put_gap(self, healed: Sequence[HealedTable]) -> None:
        """Put the record that tells readers of the gap into the queue, if the pipeline has a schemas topic."""
        if self._gap is None:
            return
        record = self._gap.record(self._queue.position.end_lsn, self.unix_us, healed)
        self._records.append(record)
        self._queue.insert(self._records, record_bytes(record[1], record[2], None))

    def _refuse_large(self, encoded: Encoded) -> None:
        """Raise SinkError if the rows that were encoded have a record which Kafka does not take."""
        if encoded.bytes <= self._fails_over:
            return
        for topic, key, value, _ in self._records:
            size = record_bytes(key, value, None)
            if size > self._fails_over:
                raise too_large(topic, key, size, self._queue.position.end_lsn, self._fails_over)

    def end_former_rows(self, oids: Iterable[int], event_no: int) -> None:
        """Put a truncate record into the topic of each of these defined tables, all in one batch.

        The rows before the truncate record belong to another table, or are from before a gap.

        Args:
            event_no: number of the first record among the snapshot rows.
        """
        commit_lsn = self._queue.position.end_lsn - 1
        size = 0
        for number, oid in enumerate(oids, event_no):
            size += self.encoder.encode_end_of_rows(oid, (commit_lsn, number), self.unix_us, self._records)
        self._queue.insert(self._records, size)
