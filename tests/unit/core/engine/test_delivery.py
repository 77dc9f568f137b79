"""Which checkpoint is true when, with a queue and a ledger."""

from dataclasses import replace

from cdcd.core.engine.checkpoint import AsideTable, Checkpoint
from cdcd.core.engine.delivery import Delivery
from cdcd.core.engine.queue import BatchQueue
from cdcd.core.engine.settings import BatchSettings
from cdcd.core.records.encoder import Record
from cdcd.core.snapshot.progress import Progress
from cdcd.core.transactions.ledger import Ledger
from cdcd.core.transactions.position import Position

START = Checkpoint("1", 1, "", Position(50, 60), 60)


class Session:
    """A `Delivery` with a queue whose batches end at 100 bytes."""

    def __init__(self, *, whole_bytes_max: int = 0, start: Checkpoint = START) -> None:
        self.progress: Progress | None = None
        self.ledger = Ledger(start.flushed_lsn)
        self.queue = BatchQueue(
            START.position,
            BatchSettings(100, 1000, 1000, whole_bytes_max),
            idle_s=10.0,
            progress=lambda: self.progress,
            aside=lambda: self.tables,
        )
        self.tables = start.tables
        self.noted: list[tuple[tuple[AsideTable, ...], tuple[AsideTable, ...], int]] = []
        self.delivery = Delivery(self.queue, self.ledger, start, notes=self.note)

    def note(self, before: tuple[AsideTable, ...], after: tuple[AsideTable, ...], lsn: int) -> list[Record]:
        self.noted.append((before, after, lsn))
        return [("schemas", b"key", b"value", None)]

    def transaction(self, lsn: int, *sizes: int) -> None:
        """A transaction with an event of each size, which commits at `lsn`."""
        ticket = self.ledger.open()
        self.queue.begin(lsn, 0)
        for size in sizes:
            records: list[Record] = [("t", b"k", b"v", None)]
            self.queue.enqueue(records, size, 1)
        self.ledger.seal(ticket, lsn + 10)
        self.queue.close(lsn, lsn + 10, 1, (ticket,))


def test_a_checkpoint_counts_when_its_batch_is_delivered_and_not_before():
    session = Session()
    session.transaction(100, 10)
    ship = session.delivery.next_batch(0.0)
    assert ship is not None
    assert ship.checkpoint.position == Position(100, 110)
    assert (session.delivery.checkpoint, session.delivery.is_out) == (START, True)
    assert (session.ledger.sent, session.ledger.flushed) == (110, 60)
    session.delivery.settle(ship.batch)
    assert session.delivery.checkpoint == ship.checkpoint
    assert (session.delivery.is_out, session.ledger.flushed) == (False, 110)


def test_one_batch_is_out_at_a_time():
    session = Session()
    session.transaction(100, 10)
    first = session.delivery.next_batch(0.0)
    assert first is not None
    session.transaction(200, 10)
    assert session.delivery.next_batch(0.0) is None
    assert session.delivery.next_at(0.0) is None
    session.delivery.settle(first.batch)
    assert session.delivery.next_at(0.0) == 0.0
    second = session.delivery.next_batch(0.0)
    assert second is not None
    assert second.checkpoint.position == Position(200, 210)


def test_a_part_of_a_transaction_goes_out_with_the_checkpoint_before_it():
    session = Session(whole_bytes_max=10_000)
    session.transaction(100, 400, 10)
    part = session.delivery.next_batch(0.0)
    assert part is not None
    assert (part.batch.closes, part.checkpoint) == (False, START)
    session.delivery.settle(part.batch)
    assert (session.delivery.checkpoint, session.ledger.flushed) == (START, 60)
    rest = session.delivery.next_batch(0.0)
    assert rest is not None
    assert (rest.batch.closes, rest.checkpoint.position) == (True, Position(100, 110))


def test_nothing_is_out_where_nothing_is_due():
    session = Session()
    assert session.delivery.next_batch(0.0) is None
    assert session.delivery.next_at(0.0) is None


def test_progress_alone_is_nothing_that_a_reader_may_have():
    session = Session()
    for event_no, has_shipped in ((0, False), (0, False), (5, True), (5, True)):
        session.progress = Progress(event_no=event_no, paused=True)
        session.queue.touch()
        ship = session.delivery.next_batch(100.0)
        assert ship is not None
        session.delivery.settle(ship.batch)
        assert session.delivery.has_shipped is has_shipped


def test_a_change_that_is_handed_over_may_be_with_a_reader():
    session = Session()
    session.transaction(100, 10)
    assert session.delivery.next_batch(0.0) is not None
    assert session.delivery.has_shipped
    # AND so may a part of a transaction, whose position is not past it yet
    session = Session(whole_bytes_max=1000)
    session.ledger.open()
    session.queue.begin(100, 0)
    for _ in range(3):
        records: list[Record] = [("t", b"k", b"v", None)]
        session.queue.enqueue(records, 200, 1)
    ship = session.delivery.next_batch(0.0)
    assert ship is not None
    assert not ship.batch.closes
    assert session.delivery.has_shipped


def deliver_all(session: Session) -> list[tuple[int, int]]:
    """Rows and transactions that count after each batch."""
    counted = []
    while (ship := session.delivery.next_batch(0.0)) is not None:
        session.delivery.settle(ship.batch)
        counted.append((session.delivery.rows, session.delivery.transactions))
    return counted


def test_rows_count_when_they_are_delivered():
    session = Session()
    session.transaction(100, 10, 10)
    session.transaction(200, 10)
    assert (session.delivery.rows, session.delivery.transactions) == (0, 0)
    assert deliver_all(session) == [(3, 2)]
    session.queue.insert([("t", b"k", b"v", None)] * 3, 9, rows=2)
    assert deliver_all(session) == [(5, 2)]


def test_the_rows_of_a_large_transaction_count_with_its_last_part():
    session = Session(whole_bytes_max=10_000)
    session.transaction(100, *[90] * 10)
    counted = deliver_all(session)
    assert len(counted) > 1
    assert set(counted[:-1]) == {(0, 0)}
    assert counted[-1] == (10, 1)


def test_an_event_without_a_record_is_no_row():
    session = Session()
    ticket = session.ledger.open()
    session.queue.begin(100, 0)
    session.queue.enqueue([], 0, 1)
    session.ledger.seal(ticket, 110)
    session.queue.close(100, 110, 1, (ticket,))
    session.delivery.next_batch(20.0)
    assert session.delivery.rows == 0


# The checkpoint was written while a PREPARE at 40 was undecided. What the position covers comes again.

HELD = replace(START, flushed_lsn=40)


def covered(session: Session, end_lsn: int) -> None:
    """A transaction came again that the broker holds: it is acknowledged without a batch."""
    session.ledger.seal(ticket := session.ledger.open(), end_lsn)
    session.ledger.ack(ticket)


def test_what_came_again_is_not_told_before_a_checkpoint_says_so():
    session = Session(start=HELD)
    covered(session, 60)
    assert (session.ledger.acked, session.ledger.flushed) == (60, 40)
    session.queue.advance(session.ledger, 60, asked=False)
    ship = session.delivery.next_batch(20.0)
    assert ship is not None
    assert ship.checkpoint == START
    assert session.ledger.flushed == 40
    session.delivery.settle(ship.batch)
    assert session.ledger.flushed == 60


def test_a_prepare_that_comes_again_holds_the_checkpoint_still():
    session = Session(start=HELD)
    undecided = session.ledger.open()
    covered(session, 60)
    session.transaction(100, 10)
    ship = session.delivery.next_batch(0.0)
    assert ship is not None
    assert ship.checkpoint == replace(HELD, position=Position(100, 110))
    session.delivery.settle(ship.batch)
    assert session.ledger.flushed == 40
    session.ledger.ack(undecided)
    assert session.ledger.flushed == 40
    session.queue.advance(session.ledger, 110, asked=False)
    ship = session.delivery.next_batch(20.0)
    assert ship is not None
    assert ship.checkpoint.flushed_lsn == 110
    session.delivery.settle(ship.batch)
    assert session.ledger.flushed == 110


def test_rows_of_a_snapshot_behind_a_start_do_not_confirm_what_has_not_come_again():
    session = Session(start=HELD)
    session.queue.insert([("t", b"k", b"v", None)], 10, 1)
    ship = session.delivery.next_batch(0.0)
    assert ship is not None
    assert ship.checkpoint == HELD


STOPPED, OTHER = AsideTable(7, 20, "size"), AsideTable(8, 30, "topic")


def test_a_batch_says_which_tables_were_set_aside_since_the_one_before_it():
    session = Session()
    for lsn, tables in ((100, ()), (200, (STOPPED,)), (300, (STOPPED,)), (400, (OTHER,))):
        session.tables = tables
        session.transaction(lsn, 10)
        ship = session.delivery.next_batch(0.0)
        assert ship is not None
        assert ship.batch.tables == tables
        session.delivery.settle(ship.batch)
    assert session.noted == [((), (STOPPED,), 210), ((STOPPED,), (OTHER,), 410)]
    assert session.queue.waiting == 0


def test_the_first_batch_of_a_session_names_all_tables_that_are_set_aside_and_those_that_came_back():
    session = Session(start=replace(START, tables=(STOPPED, OTHER)))
    session.tables = (OTHER,)
    session.transaction(100, 10)
    assert session.delivery.next_batch(0.0) is not None
    assert session.noted == [((STOPPED,), (OTHER,), 110)]
