"""What goes to Kafka together: records in batches that end where a reader may see them end.

The rule: a batch ends at the end of a source transaction, so that a `read_committed` reader sees a transaction wholly
or not at all; only one that is several times larger than a batch is cut, at an event's end, and its position says
where. A batch carries the position that is true when the broker holds it, and the ledger's tickets that are owed then.

A batch without records still moves the position: keepalives and transactions that touched nothing published. It is
not urgent, and waits for company up to an interval, so that an idle database costs one small write now and then; the
end of a transaction that was cut right at its last event does not wait.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from cdcd.snapshots.progress import Progress
from cdcd.transactions.ledger import Ledger
from cdcd.transactions.position import Position

Record = tuple[str, bytes | None, bytes | None, list[tuple[str, bytes]] | None]
"""Topic, key, value and headers; a value of None is a tombstone."""

Produce = Callable[..., object]
"""`confluent_kafka.Producer.produce`: topic, value and key, and `headers`."""

PART: Final = 3
"""A transaction is cut into parts of so many times `bytes_max`, where two of them have room in the queue.

Each Kafka transaction has its price, whatever is in it, and nothing else happens meanwhile that a large one waits for.
"""

TICKETS_MAX: Final = 4096
"""An empty batch with this many tickets is due at once, which bounds the memory of many empty transactions."""


@dataclass(slots=True)
class Batch:
    """Records for one Kafka transaction. `base` is the position before it, `position` the one after it.

    `snapshot` is how far the reading of tables has got with it; `urgent`: it does not wait for records. `handed_over`:
    how many records `hand_over` has passed on. `closes` False: the batch is a part of a larger Kafka transaction, which
    stays open behind it for the next one; nothing is committed and no checkpoint is written with it.
    """

    base: Position
    position: Position
    records: list[Record] = field(default_factory=list)
    size: int = 0
    tickets: list[int] = field(default_factory=list)
    commit_time: int | None = None
    snapshot: Progress | None = None
    urgent: bool = False
    handed_over: int = 0
    closes: bool = True

    def hand_over(self, produce: Produce) -> None:
        """Give `produce` the records from number `handed_over` on; what it raises leaves that at the one refused.

        Here and not with its caller so that it is compiled.
        """
        for topic, key, value, headers in self.records[self.handed_over :]:
            if headers is None:
                produce(topic, value, key)
            else:
                produce(topic, value, key, headers=list(headers))
            self.handed_over += 1


class Batches:
    """A queue of batches, bounded in bytes: fill it while `room` is true, and `take` from its other end.

    The encoder appends to `tail`, the records of the transaction that is open, and reports with `add` how many bytes
    and events that was. One batch is out at a time; `delivered` gives it back.

    Args:
        bytes_max: a batch is closed when its keys and values reach this; see also `PART`.
        records_max: or this many records, and a transaction that has as many is cut.
        queue_bytes_max: `room` turns false when this much waits or is out; not less than `bytes_max`, or a
            transaction between the two would wait for room that only its own end could make.
        idle_s: how long a batch without records may wait.
        snapshot: how far the reading of tables has got. Set it to what is true with the records in `tail`, if there
            are any, and call `insert`, `close` or `touch`.
    """

    def __init__(
        self,
        position: Position,
        *,
        bytes_max: int,
        records_max: int,
        queue_bytes_max: int,
        idle_s: float,
        snapshot: Progress | None = None,
    ) -> None:
        assert bytes_max <= queue_bytes_max, "a batch must fit into the queue"
        self.tail: list[Record] = []
        self.size = 0
        self._bytes_max = bytes_max
        self._part_bytes = max(bytes_max, min(PART * bytes_max, queue_bytes_max // 2))
        self._records_max = records_max
        self._queue_bytes_max = queue_bytes_max
        self._idle_s = idle_s
        self._asked = False
        self._taken_at = 0.0
        self._full: deque[Batch] = deque()
        self.snapshot = snapshot
        self._filling = Batch(position, position, snapshot=snapshot)
        self._tail_size = 0
        self._commit_lsn = 0
        self._events_done = 0
        self._open = False
        self._idle_ticket = -1

    @property
    def room(self) -> bool:
        """Whether more may be added before something is delivered."""
        return self.size < self._queue_bytes_max

    @property
    def position(self) -> Position:
        """The position after everything that was added and closed."""
        return self._filling.position

    @property
    def between(self) -> bool:
        """Whether no transaction is open."""
        return not self._open

    @property
    def records_waiting(self) -> int:
        """Records of whole transactions, or parts of large ones, that wait to be taken."""
        return sum(len(batch.records) for batch in self._full) + len(self._filling.records)

    def begin(self, commit_lsn: int, events_done: int) -> None:
        """A transaction opens, of which `events_done` events are delivered already."""
        self._commit_lsn = commit_lsn
        self._events_done = events_done
        self._open = True

    def add(self, size: int, events: int) -> bool:
        """`size` bytes for `events` events were appended to `tail`; the transaction goes on.

        True: it was cut here.
        """
        self.size += size
        self._tail_size += size
        self._events_done += events
        if self._tail_size < self._part_bytes and len(self.tail) < self._records_max:
            return False
        if self._filling.records:
            self._turn()
        # What came before lies before this commit, so all of that is done.
        position = Position(self._commit_lsn, self._commit_lsn, self._events_done)
        self._append_tail(position)
        self._turn()
        return True

    def close(self, commit_lsn: int, end_lsn: int, commit_time: int | None, tickets: tuple[int, ...]) -> None:
        """The transaction is complete. A non-transactional message has no `commit_time`, and is no commit."""
        self._open = False
        before = self._filling.position
        if commit_time is not None and (self.tail or before.commit_lsn == commit_lsn):
            position = Position(commit_lsn, end_lsn)
            self._filling.commit_time = commit_time
            # It was cut: until this is told, PostgreSQL keeps it, and sends all of it again after a restart.
            self._filling.urgent |= before.events_done > 0
        else:
            position = before.moved(end_lsn)
        self._append_tail(position)
        self._owe(tickets)
        if self._filling.size >= self._bytes_max or len(self._filling.records) >= self._records_max:
            self._turn()

    def roll_back(self, end_lsn: int, tickets: tuple[int, ...]) -> None:
        """A prepared transaction was rolled back: the position after it, and what is owed for it."""
        assert not self.tail, "it is rolled back between transactions"
        self._filling.position = self._filling.position.moved(end_lsn)
        self._owe(tickets)

    def advance(self, ledger: Ledger, wal_end: int, *, asked: bool) -> None:
        """A keepalive between transactions: everything before `wal_end` is decoded. `asked`: do not wait."""
        assert not self.tail, "a keepalive counts between transactions only"
        # After a restart the checkpoint in Kafka may be further than what PostgreSQL was told.
        idle = ledger.is_last(self._idle_ticket)
        untold = wal_end > ledger.flushed and (idle or not ledger.open_entries)
        if untold or wal_end > self._filling.position.end_lsn:
            if not idle:
                self._idle_ticket = ledger.open()
                self._filling.tickets.append(self._idle_ticket)
            ledger.seal(self._idle_ticket, wal_end)
            self._filling.position = self._filling.position.moved(wal_end)
        self._asked |= asked and wal_end > ledger.flushed

    def insert(self, size: int) -> None:
        """Records of a snapshot, `size` bytes, were appended to `tail` between two transactions."""
        assert not self._open, "rows of a snapshot stand between transactions"
        self.size += size
        self._tail_size += size
        self._append_tail(self._filling.position)
        self._filling.urgent = True
        if self._filling.size >= self._bytes_max or len(self._filling.records) >= self._records_max:
            self._turn()

    def touch(self) -> None:
        """`snapshot` has changed; it goes out soon, or with the transaction that is open, which may be why."""
        if not self._open:
            self._filling.snapshot = self.snapshot
            self._filling.urgent = True

    def due_at(self, now: float) -> float | None:
        """When a batch may be taken: `now` or before, later, or None while there is nothing."""
        if (
            self._full
            or self._filling.records
            or self._filling.urgent
            or len(self._filling.tickets) >= TICKETS_MAX
        ):
            return now
        if not self._filling.tickets:
            return None
        return now if self._asked else self._taken_at + self._idle_s

    def take(self, now: float) -> Batch:
        """The next batch; call it when `due_at` says so, and `delivered` when the broker holds it."""
        if not self._full:
            self._turn()
        self._taken_at = now
        self._asked = False
        return self._full.popleft()

    def delivered(self, batch: Batch) -> None:
        """Its bytes count no longer."""
        self.size -= batch.size

    def _owe(self, tickets: tuple[int, ...]) -> None:
        self._filling.tickets.extend(tickets)
        self._idle_ticket = -1

    def _append_tail(self, position: Position) -> None:
        filling = self._filling
        filling.records.extend(self.tail)
        filling.size += self._tail_size
        filling.position = position
        filling.snapshot = self.snapshot
        self.tail.clear()
        self._tail_size = 0

    def _turn(self) -> None:
        self._full.append(self._filling)
        before = self._filling
        self._filling = Batch(before.position, before.position, snapshot=before.snapshot)
        self._idle_ticket = -1
