"""Frames of the stream -> records in the queue: what each step of the assembler means for the session.

The rule: the queue never has a part of an event, and its positions are those that the assembler gave. What a
transaction asks of the daemon (a request, a name that changes hands) counts when its events count, so that it comes
again after a restart in between. A step is worked off at once, or held until the catalog has answered or a topic is
ready.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from cdcd.engine.actions import Describe
from cdcd.engine.incremental import Incremental
from cdcd.engine.labels import Labels
from cdcd.engine.queue import BatchQueue
from cdcd.engine.rendering import SnapshotRows
from cdcd.engine.requests import Requests
from cdcd.engine.tables import PublishedTables
from cdcd.engine.topics import Topics
from cdcd.facts import Observer, PrepareMissing, RelationChanged, TransactionLarge
from cdcd.protocol import peek
from cdcd.protocol.frames import XLOG_HEADER
from cdcd.protocol.lsn import Lsn
from cdcd.protocol.messages import LogicalMessage, Relation
from cdcd.protocol.reader import read_message
from cdcd.records.envelope import HEADER_NEW_KEY, HEADER_OLD_KEY, HEADER_UNCHANGED, Record
from cdcd.records.formats.debezium_json import DebeziumJsonEncoder
from cdcd.records.relation_changes import Described as Known
from cdcd.records.relation_changes import differences
from cdcd.records.relations import TableDescription, TypeDescription
from cdcd.snapshots.signals import RESERVED
from cdcd.snapshots.visibility import Visibility
from cdcd.transactions.assembler import Assembler
from cdcd.transactions.drafts import SpoolItem, events
from cdcd.transactions.ledger import Ledger
from cdcd.transactions.steps import (
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
"""Events or steps that are worked off before other tasks run: some milliseconds' work, uncompiled."""

DESCRIBE_S: Final = 0.01
"""Seconds until the catalog is asked again, if it does not show a table yet as the stream has described it."""

_RESERVED: Final = tuple(prefix.encode() for prefix in RESERVED)


class Ingest:
    """Works off the frames of a session. `receive` frames, then `advance` until `is_idle`.

    Args:
        ends_former_rows: when a table takes another one's name, a truncate record ends the rows of the other one.
    """

    def __init__(
        self,
        *,
        assembler: Assembler,
        encoder: DebeziumJsonEncoder,
        rows: SnapshotRows,
        queue: BatchQueue,
        ledger: Ledger,
        incremental: Incremental,
        tables: PublishedTables,
        labels: Labels,
        requests: Requests,
        topics: Topics,
        observe: Observer,
        ends_former_rows: bool,
    ) -> None:
        self.cuts = 0
        """How many transactions were cut because they were larger than a Kafka transaction may be."""
        self.caught_up: bool | None = None
        """Whether the broker holds everything that the server had written by its last keepalive; None: not known."""
        self.server_wal_end = 0
        """The end of the server's WAL, as its last keepalive says."""
        self._idle_since_keepalive = False
        """The last keepalive came between transactions, and no transaction was closed since."""
        self.describe_at: float | None = None
        """When to ask for `describing` (monotonic seconds); None: it was asked for, or there is nothing to ask."""
        self.describing: Describe | None = None
        """What the catalog is asked for. Steps wait for the answer."""
        self._assembler = assembler
        self._encoder = encoder
        self._rows = rows
        self._queue = queue
        self._ledger = ledger
        self._incremental = incremental
        self._watched = incremental.watched
        self._tables = tables
        self._labels = labels
        self._requests = requests
        self._topics = topics
        self._observe = observe
        self._ends_former_rows = ends_former_rows
        self._steps: Iterator[Step] | None = None
        self._held: Step | None = None
        self._deferred: list[Callable[[], None]] = []
        self._new_topics: dict[int, str] = {}
        """By oid: topics that may not be ready, of relations that were described."""
        self._new_names: dict[int, str] = {}
        """By oid: names that relations did not have before, until their first events under these names."""
        self._relations: dict[int, Relation] = {}
        self._transaction: Opened | None = None
        self._xid = 0
        self._records: list[Record] = []
        self._unix_us = 0

    @property
    def is_idle(self) -> bool:
        """Whether the frames that were received are worked off."""
        return self._steps is None

    def receive(self, frames: list[bytes]) -> None:
        """Frames came, in their order."""
        assert self._steps is None, "the former frames are not worked off"
        self._steps = self._assembler.receive(frames)

    def described(
        self,
        relation: Relation,
        description: TableDescription,
        types: Mapping[int, TypeDescription],
        now: float,
        seen: Visibility | None,
    ) -> None:
        """What the catalog says of a relation (`Engine.described`)."""
        describing = self.describing
        assert describing is not None
        assert describing.relation is relation
        if seen is not None and not self._queue.between and not seen.sees(self._xid):
            self.describe_at = now + DESCRIBE_S
            return
        self.describing = None
        if describing.tentative:
            if description.has_columns_of(relation):
                self._encoder.define(relation, description, types)
            return
        before = self._encoder.description(relation.oid)
        self._encoder.define(relation, description, types)
        if before is not None and relation.oid in self._relations:
            self._tell_changes(before, relation)
        self._define(relation)

    def _tell_changes(self, before: Known, relation: Relation) -> None:
        """Tell what a new description of a table changed, if it changed anything."""
        after = self._encoder.description(relation.oid)
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

    def relabelled(
        self, oid: int, description: TableDescription, types: Mapping[int, TypeDescription]
    ) -> None:
        """The labels of enums may have changed, of which a table has columns: its changes name them from now on."""
        relation = self._relations.get(oid)
        if relation is not None:
            self._encoder.define(relation, description, types)

    def next_describe(self, now: float) -> Describe | None:
        """The relation to look up in the catalog now; None: none. `described` brings the answer."""
        if self.describe_at is None or self.describe_at > now:
            return None
        self.describe_at = None
        return self.describing

    def topics_ready(self) -> None:
        """Some topics are ready that were not before."""
        self._new_topics = {
            oid: topic for oid, topic in self._new_topics.items() if not self._topics.has(topic)
        }

    def advance(self, now: float, unix_us: int) -> bool:
        """Work off steps for a turn. False: something must be answered or delivered first, or frames must come."""
        self._unix_us = unix_us
        steps = self._steps
        if steps is None or self._waits():
            return False
        left = TURN_EVENTS
        while left > 0:
            step = self._held
            if step is None:
                if not self._queue.room:
                    return False
                step = next(steps, None)
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
        """Whether steps wait for the catalog."""
        return self.describing is not None

    def _is_held(self) -> bool:
        """Whether a step waits for its topics."""
        return self._held is not None

    def _take(self, step: Step, now: float) -> int:
        """Do what the step says. Returns its share of `TURN_EVENTS`."""
        kind = type(step)
        if kind is Changes:
            assert isinstance(step, Changes)
            return self._encode(step)
        _HANDLERS[kind](self, step, now)
        return TURN_EVENTS if kind is Turn else 1

    def _encode(self, step: Changes) -> int:
        """Make records of the events, and return their number. Or hold the step until its topics are ready: 0."""
        if self._missing_topics(step):
            self._held = step
            return 0
        items = step.items
        count = events(items) if step.in_stream else len(items)
        records = self._records
        if self._watched.watches or self._new_names:
            size = self._encode_each(step)
        else:
            size = self._encoder.encode_all(items, step.in_stream, self._unix_us, records)
        if self._queue.add(records, size, count):
            self._cut()
        return count

    def _encode_each(self, step: Changes) -> int:
        """As `encode_all`, and note what each record says of a row: tables are being read, or names are new."""
        size = 0
        records = self._records
        for item in step.items:
            if self._new_names:
                size += self._take_names(item, step.in_stream)
            known = len(records)
            size += self._encoder.encode_all([item], step.in_stream, self._unix_us, records)
            if isinstance(item, bytes):
                self._note(item, step.in_stream, known)
            else:
                for topic, key, value, _ in records[known:]:
                    if value is not None:
                        self._watched.note(self._xid, topic, key, None, moved=False)
        return size

    def _take_names(self, item: SpoolItem, in_stream: bool) -> int:
        """If the item is the first event of a table under a name: end the rows of the table that had the name.

        Returns:
            The bytes of the records that do so.
        """
        size = 0
        for oid in _oids_of(item, in_stream):
            name = self._new_names.pop(oid, None)
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
        for topic, key, value, headers in self._records[known:]:
            if value is None or not self._watched.is_watched(topic):
                continue
            values = None
            names = {name for name, _ in headers or ()}
            if HEADER_UNCHANGED in names and HEADER_NEW_KEY not in names and tag != peek.DELETE:
                (oid,) = peek.relation_oids(frame, in_stream)
                values = peek.key_values(frame, in_stream, list(self._encoder.key_indexes(oid)))
            self._watched.note(self._xid, topic, key, values, moved=HEADER_OLD_KEY in names)

    def _missing_topics(self, step: Changes) -> bool:
        """Whether records of these events go to topics that are not ready. Such topics are asked for."""
        if not self._new_topics:
            return False
        missing = False
        for item in step.items:
            for oid in _oids_of(item, step.in_stream):
                topic = self._new_topics.get(oid)
                if topic is not None and not self._topics.is_ready(topic):
                    missing = True
        return missing

    def _opened(self, step: Opened, now: float) -> None:
        self._transaction = step
        self._xid = step.xid
        self._encoder.begin(step.xid, step.commit_lsn, step.commit_time, step.last_commit_lsn)
        if step.skip:
            self._encoder.skip(step.skip)
        self._queue.begin(step.commit_lsn, step.skip)

    def _closed(self, step: Closed, now: float) -> None:
        self.apply_deferred()
        self._idle_since_keepalive = False
        if self._queue.size:
            self.caught_up = False
        self._queue.close(step.commit_lsn, step.end_lsn, step.commit_time, step.tickets)
        self.between(now)

    def _rolled_back(self, step: RolledBack, now: float) -> None:
        self._queue.roll_back(step.end_lsn, step.tickets)
        self.between(now)

    def _origin_changed(self, step: OriginChanged, now: float) -> None:
        self._encoder.set_origin(step.name, step.lsn)

    def _previewed(self, step: RelationPreview, now: float) -> None:
        """Know a relation before the commit of the transaction that describes it first, so that rows can be drafted.

        A relation that is known keeps its description, because rows of other transactions may still come in its former
        form. If the catalog differs from the message, the transaction has created or altered the relation. Then the
        relation is described at the commit.
        """
        if not self._encoder.knows(step.message.oid):
            self._ask_for(step.message, tentative=True)

    def _described_in_stream(self, step: Described, now: float) -> None:
        # Also if the message is the same as before: a column that was dropped and added again looks the same in it.
        if isinstance(step.message, Relation):
            self._ask_for(step.message, tentative=False)

    def _ask_for(self, relation: Relation, *, tentative: bool) -> None:
        self.describing = Describe(relation, tentative)
        self.describe_at = 0.0

    def _define(self, relation: Relation) -> None:
        oid = relation.oid
        known = self._relations.get(oid)
        self._relations[oid] = relation
        topic = self._encoder.topic_of(oid)
        if not self._topics.has(topic):
            self._new_topics[oid] = topic
            if not self._encoder.key_column_names(oid):
                self._topics.keep_keyless(topic)
        else:
            self._new_topics.pop(oid, None)
        self._watched.defined(oid, topic)
        if known is not None and known != relation:
            self._incremental.redefined(oid)
        name = f"{relation.schema}.{relation.name}"
        if self._tables.is_new(oid, name):
            self._new_names[oid] = name
        else:
            self._new_names.pop(oid, None)

    def _transactional(self, step: TransactionalMessage, now: float) -> None:
        message = _request(step.frame, step.in_stream)
        size = 0
        if message is not None:
            # It is an event like any other, but makes no record.
            self._encoder.skip(1)
            request = self._requests.hold(message)
            if request is not None:
                self._deferred.append(request)
        else:
            size = self._encoder.encode(step.frame, step.in_stream, self._unix_us, self._records)
        if self._queue.add(self._records, size, 1):
            self._cut()

    def _alone(self, step: NonTransactionalMessage, now: float) -> None:
        message = _request(step.frame, step.in_stream)
        self._queue.begin(step.lsn, 0)
        size = 0
        if message is not None:
            self._requests.take(message)
        else:
            size = self._encoder.encode_message(
                step.frame, step.in_stream, step.last_commit_lsn, self._unix_us, self._records
            )
        self._queue.add(self._records, size, 1)
        self._queue.close(step.lsn, step.lsn + 1, None, (step.ticket,))
        self.between(now)

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
        """A batch was delivered. If no transaction came since the last keepalive, the server says nothing more."""
        if self._idle_since_keepalive and not self._queue.size:
            self.caught_up = True

    def _cut(self) -> None:
        if self._transaction is not None:
            self.cuts += 1
            self._observe(
                TransactionLarge(xid=self._transaction.xid, commit_lsn=self._transaction.commit_lsn)
            )
            self._transaction = None

    def apply_deferred(self) -> None:
        """The events of the transaction count from here on, so what it asked of the daemon counts too."""
        if self._deferred:
            deferred, self._deferred = self._deferred, []
            for apply in deferred:
                apply()

    def between(self, now: float) -> None:
        """If no transaction is open: send the rows, and the ends of former tables, that have their place here."""
        if not self._queue.between:
            return
        position = self._queue.position.end_lsn
        for oid in self._tables.due(position, self._has_topic):
            self._end_former_rows(oid)
        for oid in self._labels.take():
            self._rows.describe(oid)
        self._incremental.reads.send_due(position, now)

    def _has_topic(self, oid: int) -> bool:
        return self._topics.is_ready(self._rows.topic_of(oid))

    def _end_former_rows(self, oid: int) -> None:
        """Between two transactions: end the rows of the table that had this one's name before."""
        self._tables.replace(oid)
        if self._ends_former_rows:
            self._rows.end_former_rows(oid, self._incremental.tasks.take_number())

    def _turn(self, step: Turn, now: float) -> None:
        """Nothing is done: the step ends the turn (`_take`), so that other tasks run."""


def _request(frame: bytes, in_stream: bool) -> LogicalMessage | None:
    """The logical message if it is for the daemon itself; None: it is a user's, which the encoder decodes."""
    if peek.message_prefix(frame, in_stream) not in _RESERVED:
        return None
    message = read_message(frame, XLOG_HEADER, in_stream=in_stream)
    assert isinstance(message, LogicalMessage)
    return message


def _oids_of(item: SpoolItem, in_stream: bool) -> Sequence[int]:
    """The relations of an event, or of the rows of a draft."""
    return peek.relation_oids(item, in_stream) if isinstance(item, bytes) else (item[1],)


_Handler = Callable[[Ingest, Any, float], None]

_HANDLERS: Final[dict[type[Step], _Handler]] = {
    Opened: Ingest._opened,
    Closed: Ingest._closed,
    Described: Ingest._described_in_stream,
    RelationPreview: Ingest._previewed,
    OriginChanged: Ingest._origin_changed,
    RolledBack: Ingest._rolled_back,
    TransactionalMessage: Ingest._transactional,
    NonTransactionalMessage: Ingest._alone,
    KeepaliveReceived: Ingest._heard,
    CommitWithoutPrepare: Ingest._commit_without_prepare,
    Turn: Ingest._turn,
}
"""What each step of the assembler does, but for `Changes`."""
