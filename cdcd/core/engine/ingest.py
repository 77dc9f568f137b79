"""Turns frames of the stream into records in the queue, by handling each step of the assembler.

The rule: the queue never has a part of an event, and its positions are those that the assembler has returned.
Effects of a transaction on the daemon (a request, or a name that goes to another table) are applied when its events
count as delivered, so that they are repeated after a restart in between. A step is processed at once, or held until
the catalog has answered or a topic is ready.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain
from typing import Any, Final, cast

from cdcd.core.catalog.relations import TableDescription, TypeDescription
from cdcd.core.engine.described import DescribedRelations
from cdcd.core.engine.fates import BELONGS, NAME, RULE, SIZE, VALUE, Fates
from cdcd.core.engine.heartbeat import Heartbeat
from cdcd.core.engine.incremental import Incremental
from cdcd.core.engine.labels import Labels
from cdcd.core.engine.left_out import KeptStep, LeftOut, LeftOutTables, WentOut
from cdcd.core.engine.queue import BatchQueue
from cdcd.core.engine.refused_rows import ANY_SIZE, LOOKED_AT_BYTES, refuse, too_large, without_large
from cdcd.core.engine.rendering import SnapshotRows
from cdcd.core.engine.renewal import Renewal
from cdcd.core.engine.requests import Requests
from cdcd.core.engine.tables import PublishedTables
from cdcd.core.engine.topics import Topics
from cdcd.core.engine.watermarks import Watermarks
from cdcd.core.errors import CdcdError, ConfigError, RecordTooLargeError, SinkError
from cdcd.core.facts import MessageOversized, Observer, PrepareMissing, TransactionLarge
from cdcd.core.protocol import peek
from cdcd.core.protocol.frames import XLOG_HEADER
from cdcd.core.protocol.lsn import Lsn
from cdcd.core.protocol.messages import LogicalMessage, Relation
from cdcd.core.protocol.reader import read_message
from cdcd.core.protocol.shortened import read_digest
from cdcd.core.records.encoder import (
    HEADER_DIGEST,
    HEADER_NEW_KEY,
    HEADER_OLD_KEY,
    HEADER_SIZE,
    HEADER_UNCHANGED,
    LOST_KEY_BYTES_MAX,
    MESSAGES,
    TRANSACTIONS,
    Encoder,
    LateRecords,
    Record,
    record_bytes,
)
from cdcd.core.snapshot.reading import Visibility
from cdcd.core.snapshot.signals import RESERVED, WATERMARK
from cdcd.core.transactions.assembler import Assembler
from cdcd.core.transactions.drafts import SpoolItem, events, oids_of, row_count
from cdcd.core.transactions.ledger import Ledger
from cdcd.core.transactions.steps import (
    Changes,
    Closed,
    CommitWithoutPrepare,
    Described,
    KeepaliveReceived,
    NonTransactionalMessage,
    Opened,
    OriginChanged,
    RelationPreview,
    RolledBack,
    Step,
    TransactionalMessage,
    Turn,
)

TURN_EVENTS: Final = 256
"""Number of events or steps that are processed before other tasks run, which takes some milliseconds in uncompiled
code."""

_RESERVED: Final = tuple(prefix.encode() for prefix in RESERVED)
_WATERMARK: Final = WATERMARK.encode()


class Ingest:
    """Processes the frames of a session: `receive` takes frames, then `advance` is called until `is_idle`.

    Args:
        ends_former_rows: whether a truncate record ends the rows of a table when another table takes its name.
        heartbeat: is called between transactions, because a busy stream pauses nowhere else; None if there are no
            heartbeats.
        left_out: the tables that the pipeline leaves out, or that are set aside.
        message_prefixes: prefixes of the logical messages that have records; None if all have records.
        renewal: is told of large messages that were not copied whole, and of the ends of transactions.
        record_bytes_max, fails_over_bytes: as in `EngineSettings`.
        fates: takes the faults of tables.
        place: is called between two transactions, where tables that were set aside may come back.
    """

    def __init__(
        self,
        *,
        assembler: Assembler,
        encoder: Encoder,
        rows: SnapshotRows,
        queue: BatchQueue,
        ledger: Ledger,
        incremental: Incremental,
        relations: DescribedRelations,
        tables: PublishedTables,
        labels: Labels,
        requests: Requests,
        topics: Topics,
        observe: Observer,
        ends_former_rows: bool,
        heartbeat: Heartbeat | None = None,
        watermarks: Watermarks | None = None,
        left_out: LeftOutTables,
        message_prefixes: tuple[bytes, ...] | None = None,
        renewal: Renewal,
        record_bytes_max: int = 0,
        fails_over_bytes: int = 0,
        fates: Fates,
        place: Callable[[float], None] = lambda _now: None,
    ) -> None:
        self._place = place
        self._fault = fates.fault
        self._fails_over = fails_over_bytes or ANY_SIZE
        self._returned: list[Described] = []
        """Descriptions of tables that came back, which precede the next steps."""
        self._row_bytes_max = max(record_bytes_max, LOOKED_AT_BYTES) if record_bytes_max else 0
        self._record_bytes_max = record_bytes_max
        self._renewal = renewal
        self._message_prefixes = message_prefixes
        self.cuts = 0
        """Number of transactions that were cut because they were larger than a Kafka transaction may be."""
        self.caught_up: bool | None = None
        """True if the broker holds everything that the server had written by its last keepalive; None if not known."""
        self.server_wal_end = 0
        """End of the server's WAL, as far as keepalives and commits have shown it."""
        self._idle_since_keepalive = False
        """True if the last keepalive came between transactions, and no transaction has ended since."""
        self._assembler = assembler
        self._encoder = encoder
        self._rows = rows
        self._queue = queue
        self._ledger = ledger
        self._incremental = incremental
        self._watched = incremental.watched
        self.relations = relations
        self._tables = tables
        self._labels = labels
        self._requests = requests
        self._topics = topics
        self._observe = observe
        self._ends_former_rows = ends_former_rows
        self._heartbeat = heartbeat
        self._watermarks = watermarks
        self._left_out = left_out
        self._steps: Iterator[KeptStep] | None = None
        self._held: KeptStep | None = None
        self._deferred: list[Callable[[], None]] = []
        self._transaction: Opened | None = None
        self._xid = 0
        self._commit_lsn = 0
        self._splits = False
        """True if the steps come from `left_out`."""
        self._records: list[Record] = []
        self._metadata = encoder.metadata
        self._start = queue.position
        self._unix_us = 0

    @property
    def is_idle(self) -> bool:
        """True if all received frames are processed."""
        return self._steps is None

    def receive(self, frames: list[bytes]) -> None:
        """Take the next frames of the stream."""
        assert self._steps is None, "the former frames are not worked off"
        steps: Iterator[KeptStep] = self._kept(self._assembler.receive(frames))
        if self._returned:
            steps = chain(self._returned, steps)
            self._returned = []
        self._steps = steps

    def _kept(self, steps: Iterator[Step]) -> Iterator[KeptStep]:
        self._splits = self._left_out.is_needed
        return self._left_out.steps(steps) if self._splits else steps

    @property
    def place_lsn(self) -> int:
        """Return the commit LSN of the open transaction, or between two transactions, the end of the last one."""
        return self._queue.position.end_lsn if self._queue.between else self._commit_lsn

    def leave(self, oid: int) -> Relation | None:
        """Set a table aside, beginning with the step that is being processed or held.

        Returns:
            The table's last description by the stream; None if it had none.
        """
        if self._steps is not None and not self._splits:
            # The remaining steps do not include descriptions of a table that is left out by its name.
            self._splits = True
            self._steps = self._left_out.steps(cast("Iterator[Step]", self._steps))
        held = self._held
        if isinstance(held, Changes):
            self._held = None
            self._put_back(held)
        return self.relations.leave(oid)

    def come_back(self, oid: int, relation: Relation | None) -> None:
        """Let a table that was set aside come back between two transactions: it is described before its next change."""
        self._encoder.forget(oid)
        if relation is None:
            return
        if self._steps is None:
            self._returned.append(Described(relation))
        else:
            self._steps = chain([Described(relation)], self._steps)

    def _put_back(self, step: Changes) -> None:
        """Process these events next, without those of tables that are set aside."""
        assert self._steps is not None, "a step is worked off"
        if step.items:
            self._steps = chain(self._left_out.split(step), self._steps)

    def described(
        self,
        relation: Relation,
        description: TableDescription,
        types: Mapping[int, TypeDescription],
        now: float,
        seen: Visibility | None,
    ) -> None:
        """Take the catalog's description of a relation (`Engine.described`)."""
        if seen is not None and not self._queue.between and not seen.sees(self._xid):
            self.relations.ask_again(now)
        else:
            self.relations.described(relation, description, types)

    def advance(self, now: float, unix_us: int) -> bool:
        """Process steps for one turn. Returns False if an answer, a delivery or more frames must come first."""
        self._unix_us = unix_us
        if self._steps is None or self._waits():
            return False
        left = TURN_EVENTS
        while left > 0:
            step = self._held
            if step is None:
                if not self._queue.room or (self._queue.between and self._incremental.snapshots.holds):
                    return False
                # A step may insert others before the ones that follow.
                step = next(self._steps, None)
                if step is None:
                    self._steps = None
                    return True
            else:
                self._held = None
            left -= self._take(step, now)
            if self._is_held() or self._waits():
                return False
        return True

    def _waits(self) -> bool:
        """True if steps wait for the catalog."""
        return self.relations.asking is not None

    def _is_held(self) -> bool:
        """True if a step waits for its topics."""
        return self._held is not None

    def _take(self, step: KeptStep, now: float) -> int:
        """Process the step, and return its share of `TURN_EVENTS`."""
        kind = type(step)
        if kind is Changes:
            assert isinstance(step, Changes)
            return self._encode(step)
        _HANDLERS[kind](self, step, now)
        return TURN_EVENTS if kind is Turn else 1

    def _encode(self, step: Changes) -> int:
        """Make records of the events, and return their number; 0 if the step is held until its topics are ready."""
        # This is so even if the events wait for a topic, or for the rest of their transaction, because the broker
        # does not hold them.
        self.caught_up = False
        aside = self._left_out.count_aside()
        if self.relations.lacks_topics(step):
            self._held = step
        if self._left_out.count_aside() != aside:
            self._held = None
            self._put_back(step)
            return 0
        if self._held is not None:
            return 0
        items = step.items
        if self._row_bytes_max:
            # A frame of this size is the last one of those that are received or kept together.
            last = items[-1]
            if isinstance(last, bytes) and len(last) > self._row_bytes_max:
                try:
                    refuse(last, step.in_stream, self._encoder, self._record_bytes_max)
                except SinkError as large:
                    self._fault(oids_of(last, step.in_stream)[0], SIZE, large)
                    self._put_back(step)
                    return 0
        count = events(items) if step.in_stream else len(items)
        before = self._queue.events_done
        try:
            if self._watched.watches or self.relations.new_names:
                self._add(self._encode_each(step), count)
            elif step.in_stream:
                self._add_streamed(items)
            else:
                self._add_encoded(items, False, count)
        except BELONGS as error:
            return self._encode_without(step, before, error)
        return count

    def _encode_without(self, step: Changes, before: int, error: CdcdError) -> int:
        """Keep the records of the events before the faulty one, set its table aside, and put the following events back.

        Args:
            before: number of the transaction's events that were added to the queue before this step.

        Returns:
            The number of the step's events that are processed.
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
        self._fault(oid, _fault_of_row(error), error)
        self._put_back(Changes(step.items[at:], step.in_stream))
        return done

    def _add_encoded(self, items: list[SpoolItem], in_stream: bool, count: int) -> None:
        """Encode these items, which are `count` events, and put their records into the queue."""
        self._add(self._encoder.encode_all(items, in_stream, self._unix_us, self._records), count)

    def _add(self, size: int, count: int, late: LateRecords | None = None) -> None:
        """Move `_records`, which are `size` bytes for `count` events, into the queue, and `late` behind them."""
        if size > self._fails_over:
            size -= self._leave_large()
        if self._metadata is not None:
            size += self._metadata.begun(self._records)
        if self._queue.add(self._records, size, count, late):
            self._cut()

    def _leave_large(self) -> int:
        """Set each table aside that has a record which Kafka does not take, and remove its records from there on.

        Returns:
            The bytes of the removed records.
        """
        records, dropped, place = self._records, 0, 0
        while place < len(records):
            topic, key, value, _ = records[place]
            size = record_bytes(key, value, None)
            oid = self._oid_of(topic) if size > self._fails_over else None
            if oid is None:
                # A record of a logical message is replaced by the sink.
                place += 1
                continue
            topics = self._encoder.tables.topics_of(oid)
            self._fault(oid, SIZE, too_large(topic, key, size, self._commit_lsn, self._fails_over))
            gone, place = without_large(records, place, topics)
            dropped += sum([record_bytes(key, value, None) for _, key, value, _ in gone])
            if self._metadata is not None:
                self._metadata.take_back(self._name_of(oid), sum([each[2] is not None for each in gone]))
        return dropped

    def _oid_of(self, topic: str) -> int | None:
        """Return the relation of the stream whose records go to this topic; None if there is none."""
        return self.relations.oid_of(topic)

    def _name_of(self, oid: int) -> str:
        relation = self._encoder.tables.relation(oid)
        return f"{relation.schema}.{relation.name}"

    def _add_streamed(self, items: list[SpoolItem]) -> None:
        """Put the records of frames and drafts into the queue; records of drafts are made late if the encoder can do
        so.
        """
        kept: list[SpoolItem] = []
        aside = self._left_out.count_aside()
        for place, item in enumerate(items):
            if isinstance(item, bytes):
                kept.append(item)
                continue
            if kept:
                self._add_encoded(kept, True, events(kept))
                kept = []
                if self._left_out.count_aside() != aside:
                    self._put_back(Changes(items[place:], True))
                    return
            late = self._encoder.late_records(item, self._unix_us, self._records)
            if late is None:
                kept.append(item)
            elif late.largest > self._fails_over:
                oid = oids_of(item, True)[0]
                self._fault(
                    oid, SIZE, too_large(late.topic, None, late.largest, self._commit_lsn, self._fails_over)
                )
                self._add(0, row_count(item))
                self._put_back(Changes(items[place + 1 :], True))
                return
            else:
                self._add(0, row_count(item), late)
        if kept:
            self._add_encoded(kept, True, events(kept))

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
                rest, is_noted = snapshots.rest(self._xid, each, step.in_stream)
                if rest is None:
                    self._encoder.skip(events([each]))
                    continue
                item = rest
            known = len(records)
            size += self._encoder.encode_all([item], step.in_stream, self._unix_us, records)
            if not is_noted:
                continue
            if isinstance(item, bytes):
                self._note(item, step.in_stream, known)
            else:
                for topic, key, _, _ in records[known:]:
                    self._watched.note(self._xid, topic, key, None, moved=False)
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
            self._deferred.append(partial(self._tables.settle, oid, name))
            if ends and self._ends_former_rows:
                size += self._encoder.encode_end_of_rows(oid, None, self._unix_us, self._records)
        return size

    def _note(self, frame: bytes, in_stream: bool, known: int) -> None:
        tag = peek.tag_of(frame)
        if tag == peek.TRUNCATE:
            self._watched.truncated(self._xid, peek.relation_oids(frame, in_stream))
            return
        divided = False
        for topic, key, value, headers in self._records[known:]:
            if not self._watched.is_watched(topic):
                continue
            if value is None:
                # This is a tombstone, which may be the only record of a delete (`event_flattening`).
                self._watched.note(self._xid, topic, key, None, moved=False)
                continue
            values, secret = None, False
            names = {name for name, _ in headers or ()}
            if HEADER_UNCHANGED in names and HEADER_NEW_KEY not in names and tag != peek.DELETE:
                oid = peek.relation_of_row(frame, in_stream)
                values = peek.key_values(frame, in_stream, list(self._encoder.tables.key_indexes(oid)))
                secret = self._encoder.tables.has_protected_key(oid)
            self._watched.note(
                self._xid,
                topic,
                key,
                values,
                # In the topic of an update's last record, the row may be new because of its key or its route.
                moved=HEADER_OLD_KEY in names or divided,
                secret=secret,
            )
            divided = tag == peek.UPDATE

    def _opened(self, step: Opened, now: float) -> None:
        self._transaction = step
        self._committed(step.commit_lsn)
        self.relations.opened(step.commit_lsn)
        self._xid = step.xid
        self._commit_lsn = step.commit_lsn
        self._idle_since_keepalive = False
        self._encoder.begin(step.xid, step.commit_lsn, step.commit_time, step.last_commit_lsn)
        if step.skip:
            self._encoder.skip(step.skip)
            if self._metadata is not None:
                self._metadata.restore(self._start.counts)
        self._queue.begin(step.commit_lsn, step.skip)

    def _committed(self, lsn: int) -> None:
        """Note that the server has a record at `lsn`, so that what waits for its topic or the catalog counts as not
        caught up.
        """
        self.server_wal_end = max(self.server_wal_end, lsn + 1)

    def _closed(self, step: Closed, now: float) -> None:
        if self._metadata is not None and self._lacks_schemas(step, TRANSACTIONS):
            return
        self.apply_deferred()
        self.relations.closed()
        if self._metadata is not None:
            size = self._metadata.ended(self._records)
            self._queue.append(self._records, size)
        if self._queue.size:
            self.caught_up = False
        self._queue.close(step.commit_lsn, step.end_lsn, step.commit_time, step.tickets)
        if self._renewal.is_pending:
            self._renewal.closed(step.end_lsn, self._undecided())
        if self._heartbeat is not None:
            self._heartbeat.beat(now, self._unix_us)
        if self._watermarks is not None:
            self._watermarks.mark(now)
        self.between(now)

    def _rolled_back(self, step: RolledBack, now: float) -> None:
        self._queue.roll_back(step.end_lsn, step.tickets)
        self.between(now)

    def _origin_changed(self, step: OriginChanged, now: float) -> None:
        self._encoder.set_origin(step.name, step.lsn)

    def _previewed(self, step: RelationPreview, now: float) -> None:
        self.relations.preview(step.message)

    def _described_in_stream(self, step: Described, now: float) -> None:
        if isinstance(step.message, Relation):
            # Rows of the relation follow, and wait for the catalog.
            self.caught_up = False
            self.relations.describe(step.message)

    def _undecided(self) -> int:
        """Return the number of transactions that are streamed or prepared, and that would be sent again over another
        connection.
        """
        return self._assembler.streamed_open + self._assembler.prepared_open

    def _transactional(self, step: TransactionalMessage, now: float) -> None:
        frame, in_stream = step.frame, step.in_stream
        self._renewal.arrived(peek.shortened_bytes(frame), now)
        size = 0
        if self._is_request(frame, in_stream):
            # The message is an event like any other, but has no record.
            self._encoder.skip(1)
            request = self._held_request(frame, in_stream)
            if request is not None:
                self._deferred.append(request)
        elif not self._is_delivered(frame, in_stream):
            self._encoder.skip(1)
        elif self._lacks_schemas(step):
            return
        else:
            known = len(self._records)
            size = self._encoder.encode(frame, in_stream, self._unix_us, self._records)
            size -= self._without_value(frame, in_stream, known)
        if self._queue.add(self._records, size, 1):
            self._cut()

    def _skipped(self, step: LeftOut, now: float) -> None:
        self._encoder.skip(step.events)
        if self._queue.add(self._records, 0, step.events):
            self._cut()

    def _went_out(self, step: WentOut, now: float) -> None:
        for oid, name in step.names.items():
            if self._tables.left(oid, name):
                self._deferred.append(partial(self._tables.settle_left, oid, name))

    def _alone(self, step: NonTransactionalMessage, now: float) -> None:
        frame, in_stream = step.frame, step.in_stream
        self._committed(step.lsn)
        is_request = self._is_request(frame, in_stream)
        is_delivered = not is_request and self._is_delivered(frame, in_stream)
        if is_delivered and self._lacks_schemas(step):
            return
        self._queue.begin(step.lsn, 0)
        size = 0
        if is_request:
            self._take_request(frame, in_stream)
        elif is_delivered:
            known = len(self._records)
            size = self._encoder.encode_message(
                frame, in_stream, step.last_commit_lsn, self._unix_us, self._records
            )
            size -= self._without_value(frame, in_stream, known)
        self._queue.add(self._records, size, 1)
        self._renewal.arrived(peek.shortened_bytes(frame), now)
        self._queue.close(step.lsn, step.lsn + 1, None, (step.ticket,))
        if self._renewal.is_pending:
            self._renewal.closed(step.lsn + 1, self._undecided())
        self.between(now)

    def _is_request(self, frame: bytes, in_stream: bool) -> bool:
        """Return whether a logical message is a request to the daemon."""
        return peek.message_prefix(frame, in_stream) in _RESERVED

    def _held_request(self, frame: bytes, in_stream: bool) -> Callable[[], None] | None:
        """Return the function to call at the end of the request's transaction; None if there is none."""
        if peek.shortened_bytes(frame) < 0:
            return self._requests.hold(_message(frame, in_stream))
        return partial(self._take_request, frame, in_stream)

    def _take_request(self, frame: bytes, in_stream: bool) -> None:
        """Handle the request; if it is too large, only its size is known."""
        size = peek.shortened_bytes(frame)
        if size < 0:
            self._requests.take(_message(frame, in_stream))
        elif peek.message_prefix(frame, in_stream) != _WATERMARK:
            self._requests.refuse_large(size)

    def _is_delivered(self, frame: bytes, in_stream: bool) -> bool:
        """Return whether a logical message that is no request has a record."""
        prefixes = self._message_prefixes
        return prefixes is None or peek.message_prefix(frame, in_stream) in prefixes

    def _without_value(self, frame: bytes, in_stream: bool, known: int) -> int:
        """Remove the value from the record of a message of which only size and digest were kept.

        Args:
            known: number of records before the message.

        Returns:
            The bytes by which the record became smaller.
        """
        size = peek.shortened_bytes(frame)
        if size < 0 or len(self._records) == known:
            return 0
        topic, key, value, headers = self._records[-1]
        digest = read_digest(_message(frame, in_stream).content).hex().encode()
        is_long = key is not None and len(key) > LOST_KEY_BYTES_MAX
        named = [*(headers or ()), (HEADER_SIZE, str(size).encode()), (HEADER_DIGEST, digest)]
        self._records[-1] = (topic, None if is_long else key, None, named)
        self._observe(MessageOversized(topic=topic, record_bytes=size))
        return len(value or b"") + (len(key or b"") if is_long else 0)

    def _lacks_schemas(self, step: KeptStep, of: int = MESSAGES) -> bool:
        """Return whether records of logical messages, or END, lack ids of schemas; the step is then held until they
        have them.
        """
        if self._topics.are_registered(self._encoder.unregistered(of)):
            return False
        self._held = step
        return True

    def _commit_without_prepare(self, step: CommitWithoutPrepare, now: float) -> None:
        self._observe(PrepareMissing(gid=step.gid, xid=step.xid, commit_lsn=str(Lsn(step.commit_lsn))))

    def _heard(self, step: KeepaliveReceived, now: float) -> None:
        self.server_wal_end = max(self.server_wal_end, step.wal_end)
        self._idle_since_keepalive = step.idle
        if step.idle:
            self.caught_up = not self._queue.size
            self._queue.advance(self._ledger, step.wal_end, asked=step.reply_requested)
            self.between(now)

    def delivered(self) -> None:
        """Note that a batch was delivered.

        If no transaction arrived since the last keepalive, the server has nothing more to send.
        """
        if self._idle_since_keepalive and not self._queue.size:
            self.caught_up = True

    def _cut(self) -> None:
        if self._transaction is not None:
            transaction, self._transaction = self._transaction, None
            if not self._queue.is_transactional:
                return
            self.cuts += 1
            self._observe(TransactionLarge(xid=transaction.xid, commit_lsn=transaction.commit_lsn))

    def apply_deferred(self) -> None:
        """Apply the effects of the transaction on the daemon, because its events count as delivered from here on."""
        if self._deferred:
            deferred, self._deferred = self._deferred, []
            for apply in deferred:
                apply()

    def between(self, now: float) -> None:
        """If no transaction is open, send snapshot rows and ends of earlier tables' rows that
        belong at this position.
        """
        if not self._queue.between:
            return
        self._place(now)
        position = self._queue.position.end_lsn
        for oid in self._tables.due(position, self._has_topic):
            self._end_former_rows(oid)
        for oid in self._labels.take():
            self._rows.describe(oid)
        self._incremental.snapshots.end_disturbed(now)
        self._incremental.snapshots.place(now)
        self._incremental.reads.send_due(position, now)

    def _has_topic(self, oid: int) -> bool:
        return self._rows.topic_is_ready(self._rows.topic_of(oid))

    def _end_former_rows(self, oid: int) -> None:
        """End the rows of the table that had this one's name before, between two transactions."""
        self._tables.replace(oid)
        if self._ends_former_rows:
            self._rows.end_former_rows((oid,), self._incremental.tasks.take_number())

    def _turn(self, step: Turn, now: float) -> None:
        """Do nothing: the step ends the turn (`_take`), so that other tasks run."""


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


def _message(frame: bytes, in_stream: bool) -> LogicalMessage:
    """Return the logical message in the frame."""
    message = read_message(frame, XLOG_HEADER, in_stream=in_stream)
    assert isinstance(message, LogicalMessage)
    return message


_Handler = Callable[[Ingest, Any, float], None]

_HANDLERS: Final[dict[type[KeptStep], _Handler]] = {
    Opened: Ingest._opened,
    Closed: Ingest._closed,
    Described: Ingest._described_in_stream,
    RelationPreview: Ingest._previewed,
    OriginChanged: Ingest._origin_changed,
    RolledBack: Ingest._rolled_back,
    LeftOut: Ingest._skipped,
    WentOut: Ingest._went_out,
    TransactionalMessage: Ingest._transactional,
    NonTransactionalMessage: Ingest._alone,
    KeepaliveReceived: Ingest._heard,
    CommitWithoutPrepare: Ingest._commit_without_prepare,
    Turn: Ingest._turn,
}
"""The method for each step of the assembler, except `Changes`."""
