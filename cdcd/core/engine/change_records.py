"""Makes records of changes of rows, and puts them into the queue.

The rule: the queue never has a part of an event. If a record cannot be made, or is too large, the table of the event is
set aside: the events before it keep their records, and the events from it on are processed again without the table.

While tables are read beside the stream, or names are new, each event is noted (`watched.py`), because it may overtake a
row that was read.
"""

from functools import partial

from cdcd.core.engine.current_transaction import CurrentTransaction
from cdcd.core.engine.described import DescribedRelations
from cdcd.core.engine.fates import BELONGS, NAME, RULE, SIZE, VALUE, Fates
from cdcd.core.engine.incremental import Incremental
from cdcd.core.engine.left_out import WentOut
from cdcd.core.engine.refused_rows import RecordLimits, refuse, too_large, without_large
from cdcd.core.engine.tables import PublishedTables
from cdcd.core.errors import CdcdError, ConfigError, RecordTooLargeError, SinkError
from cdcd.core.protocol import peek
from cdcd.core.records.encoder import HEADER_NEW_KEY, HEADER_OLD_KEY, HEADER_UNCHANGED, record_bytes
from cdcd.core.records.late_records import LateRecords
from cdcd.core.transactions.drafts import SpoolItem, events, oids_of, row_count
from cdcd.core.transactions.steps import Changes

Added = tuple[int, Changes | None]
"""Number of events that were processed, and the events to process again. None: no event is to be processed again."""


class ChangeRecords:
    """Makes the records of `Changes`; call `make_records` in the order of the stream.

    Args:
        relations: the relations of the stream, whose topics and schemas are ready for the events.
    """

    def __init__(
        self,
        current: CurrentTransaction,
        relations: DescribedRelations,
        incremental: Incremental,
        tables: PublishedTables,
        fates: Fates,
        limits: RecordLimits,
    ) -> None:
        self.relations = relations
        self._current = current
        self._encoder = current.encoder
        self._queue = current.queue
        self._records = current.records
        self._metadata = current.encoder.metadata
        self._incremental = incremental
        self._watched = incremental.watched
        self._tables = tables
        self._fates = fates
        self._limits = limits
        self._row_bytes_max = limits.row_bytes_max
        self._fails_over = limits.fails_over

    def make_records(self, step: Changes) -> Added:
        """Make records of the events, and put them into the queue.

        Returns:
            The number of events that were processed, and the events that are to be processed again, because the table
            of one of them was set aside; None if all were processed.
        """
        items = step.items
        if self._row_bytes_max:
            # A frame of this size is the last one of those that are received or kept together.
            last = items[-1]
            if isinstance(last, bytes) and len(last) > self._row_bytes_max:
                try:
                    refuse(last, step.in_stream, self._encoder, self._limits.record_bytes_max)
                except SinkError as large:
                    self._fates.fault(oids_of(last, step.in_stream)[0], SIZE, large)
                    return 0, step
        count = events(items) if step.in_stream else len(items)
        before = self._queue.events_done
        rest: Changes | None = None
        try:
            if self._watched.watches or self.relations.new_names:
                self._add(self._encode_each(step), count)
            elif step.in_stream:
                rest = self._add_streamed(items)
            else:
                self._add_encoded(items, False, count)
        except BELONGS as error:
            return self._add_without(step, before, error)
        return count, rest

    def _add_without(self, step: Changes, before: int, error: CdcdError) -> Added:
        """Keep the records of the events before the faulty one, and set its table aside. Returns as `make_records`.

        Args:
            before: number of the transaction's events that were added to the queue before this step.
        """
        done = self._encoder.serial - 1 - before
        at = left = 0
        while left < done:
            left += _count(step.items[at])
            at += 1
        item = step.items[at]
        if left != done or not isinstance(item, bytes):
            # A draft has no values that could be faulty.
            raise error
        oid = oids_of(item, step.in_stream)[0]
        added = self._queue.events_done - before
        size = sum([record_bytes(key, value, None) for _, key, value, _ in self._records])
        self._add(size, done - added)
        # The event is left out together with the following ones.
        self._encoder.skip(-1)
        self._fates.fault(oid, _fault_of_row(error), error)
        return done, Changes(step.items[at:], step.in_stream)

    def _add_encoded(self, items: list[SpoolItem], in_stream: bool, count: int) -> None:
        """Encode these items, which are `count` events, and put their records into the queue."""
        self._add(self._encoder.encode_all(items, in_stream, self._current.unix_us, self._records), count)

    def _add(self, size: int, count: int, late: LateRecords | None = None) -> None:
        """Move the records, which are `size` bytes for `count` events, into the queue, and `late` behind them."""
        if size > self._fails_over - self._current.context_bytes:
            size -= self._leave_large()
        if self._metadata is not None:
            size += self._metadata.begun(self._records)
        self._current.submit(size, count, late)

    def went_out(self, step: WentOut) -> None:
        """Note that tables have their first events under names that the pipeline leaves out."""
        for oid, name in step.names.items():
            if self._tables.left(oid, name):
                self._current.defer(partial(self._tables.settle_left, oid, name))

    def _leave_large(self) -> int:
        """Set each table aside that has a record which Kafka does not take, and remove its records from there on.

        Returns:
            The bytes of the removed records.
        """
        records, dropped, place = self._records, 0, 0
        limit = self._fails_over - self._current.context_bytes
        while place < len(records):
            topic, key, value, _ = records[place]
            size = record_bytes(key, value, None)
            oid = self.relations.oid_of(topic) if size > limit else None
            if oid is None:
                # A record of a logical message is replaced by the sink.
                place += 1
                continue
            topics = self._encoder.tables.topics_of(oid)
            self._fates.fault(oid, SIZE, too_large(topic, key, size, self._current.commit_lsn, limit))
            gone, place = without_large(records, place, topics)
            dropped += sum([record_bytes(key, value, None) for _, key, value, _ in gone])
            if self._metadata is not None:
                self._metadata.take_back(self._name_of(oid), sum([each[2] is not None for each in gone]))
        return dropped

    def _name_of(self, oid: int) -> str:
        """Return the name by which transaction metadata counts the table's records, as Debezium writes it."""
        relation = self._encoder.tables.relation(oid)
        return f"{relation.schema}.{relation.name}"

    def _add_streamed(self, items: list[SpoolItem]) -> Changes | None:
        """Put the records of frames and drafts into the queue; records of drafts are made late if the encoder can do
        so. Returns the items that are not processed because a table was set aside; None if all are.
        """
        kept: list[SpoolItem] = []
        aside = len(self._fates)
        for place, item in enumerate(items):
            if isinstance(item, bytes):
                kept.append(item)
                continue
            if kept:
                self._add_encoded(kept, True, events(kept))
                kept = []
                if len(self._fates) != aside:
                    return Changes(items[place:], True)
            late = None
            if not self._current.context_bytes:
                # Records that are made late have no headers of a context.
                late = self._encoder.late_records(item, self._current.unix_us, self._records)
            if late is None:
                kept.append(item)
            elif late.largest > self._fails_over:
                lsn, limit = self._current.commit_lsn, self._fails_over
                self._fates.fault(
                    oids_of(item, True)[0], SIZE, too_large(late.topic, None, late.largest, lsn, limit)
                )
                self._add(0, row_count(item))
                return Changes(items[place + 1 :], True)
            else:
                self._add(0, row_count(item), late)
        if kept:
            self._add_encoded(kept, True, events(kept))
        return None

    def _encode_each(self, step: Changes) -> int:
        """Encode the events one by one, and note what each record says about a row, because tables are being read, or
        names are new.
        """
        size = 0
        records = self._records
        snapshots = self._incremental.snapshots
        filters = snapshots.filters
        for each in step.items:
            item = each
            if self.relations.new_names:
                size += self._take_names(item, step.in_stream)
            is_noted = True
            if filters:
                rest, is_noted = snapshots.rest(self._current.xid, each, step.in_stream)
                if rest is None:
                    self._encoder.skip(events([each]))
                    continue
                item = rest
            known = len(records)
            size += self._encoder.encode_all([item], step.in_stream, self._current.unix_us, records)
            if not is_noted:
                continue
            if isinstance(item, bytes):
                self._note(item, step.in_stream, known)
            else:
                for topic, key, _, _ in records[known:]:
                    self._watched.note(self._current.xid, topic, key, None, moved=False)
        return size

    def _take_names(self, item: SpoolItem, in_stream: bool) -> int:
        """If the item is the first event of a table under a name, end the rows of the table that had the name.

        Returns:
            The bytes of the records for this.
        """
        size = 0
        for oid in oids_of(item, in_stream):
            name = self.relations.new_names.pop(oid, None)
            if name is None:
                continue
            ends = self._tables.described(oid, name)
            self._current.defer(partial(self._tables.settle, oid, name))
            if ends and self._tables.ends_rows:
                size += self._encoder.encode_end_of_rows(oid, None, self._current.unix_us, self._records)
        return size

    def _note(self, frame: bytes, in_stream: bool, known: int) -> None:
        tag = peek.tag_of(frame)
        if tag == peek.TRUNCATE:
            self._watched.truncated(self._current.xid, peek.relation_oids(frame, in_stream))
            return
        divided = False
        for topic, key, value, headers in self._records[known:]:
            if not self._watched.is_watched(topic):
                continue
            if value is None:
                # This is a tombstone, which may be the only record of a delete (`event_flattening`).
                self._watched.note(self._current.xid, topic, key, None, moved=False)
                continue
            values, secret = None, False
            names = {name for name, _ in headers or ()}
            if HEADER_UNCHANGED in names and HEADER_NEW_KEY not in names and tag != peek.DELETE:
                oid = peek.relation_of_row(frame, in_stream)
                values = peek.key_values(frame, in_stream, list(self._encoder.tables.key_indexes(oid)))
                secret = self._encoder.tables.has_protected_key(oid)
            self._watched.note(
                self._current.xid,
                topic,
                key,
                values,
                # In the topic of an update's last record, the row may be new because of its key or its route.
                moved=HEADER_OLD_KEY in names or divided,
                secret=secret,
            )
            divided = tag == peek.UPDATE


def _count(item: SpoolItem) -> int:
    """Return the number of events in the item."""
    return 1 if isinstance(item, bytes) else row_count(item)


def _fault_of_row(error: CdcdError) -> str:
    """Return the kind of fault for an error in a row."""
    if isinstance(error, RecordTooLargeError):
        return SIZE
    if isinstance(error, SinkError):
        return NAME
    return RULE if isinstance(error, ConfigError) else VALUE
