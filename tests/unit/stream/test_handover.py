"""Which transaction the reader of a stream has, and what PostgreSQL may be told of it."""

from collections.abc import Iterable
from typing import Any

import pytest

from cdcd.core.catalog.relations import TableDescription
from cdcd.core.catalog.types import BUILTIN_TYPES
from cdcd.core.errors import LimitError
from cdcd.core.protocol.lsn import Lsn
from cdcd.core.protocol.messages import UNCHANGED
from cdcd.core.transactions.assembler import Assembler
from cdcd.core.transactions.ledger import Ledger
from cdcd.core.transactions.position import Position
from cdcd.core.transactions.spool import Spool
from cdcd.core.transactions.steps import CommitWithoutPrepare
from cdcd.stream import handover as module
from cdcd.stream.changes import Change, Insert, Message, Truncate
from cdcd.stream.decoding import ChangeDecoder
from cdcd.stream.handover import Advance, DescriptionWanted, Handed, Handover
from tests.golden.streams import Golden, captured
from tests.unit.core.transactions.wire import (
    SIZE,
    TABLE,
    TIME,
    alone,
    begin,
    block,
    commit,
    commit_prepared,
    described,
    emitted,
    insert,
    keepalive,
    prepared,
    rollback_prepared,
    stream_abort,
    stream_commit,
    truncate,
    undrafted,
)


class Reader:
    """A program that reads a stream, without anything that waits."""

    def __init__(self, directory: Any, *, lasting: bool = True, abort_info: bool = False) -> None:
        self.ledger = Ledger()
        self.spool = Spool(str(directory), 20_000)
        assembler = Assembler(self.ledger, self.spool, Position(), undrafted, abort_info)
        self.handover = Handover(assembler, self.ledger, ChangeDecoder(), waits_for_reader=lasting)
        self.asked: list[DescriptionWanted] = []
        self.told: list[CommitWithoutPrepare] = []

    def receive(self, *frames: bytes | Iterable[bytes]) -> None:
        flat: list[bytes] = []
        for one in frames:
            flat += [one] if isinstance(one, bytes) else one
        self.handover.receive(flat)

    def step(self) -> Advance | Handed:
        """The next piece of work that the reader sees; the catalog knows nothing."""
        while True:
            said = self.handover.advance()
            if isinstance(said, DescriptionWanted):
                self.asked.append(said)
                self.handover.described(TableDescription(), BUILTIN_TYPES)
            elif isinstance(said, CommitWithoutPrepare):
                self.told.append(said)
            elif said is not Advance.TURN:
                return said

    def next(self) -> Handed | None:
        """The next transaction, None where frames are needed first."""
        while True:
            said = self.step()
            if isinstance(said, Handed):
                return said
            if said is Advance.FRAMES:
                return None

    def rest(self) -> list[Change]:
        """What is left of the current transaction."""
        found: list[Change] = []
        while self.handover.current is not None:
            found += self.handover.changes
            self.handover.changes.clear()
            assert self.step() is not Advance.FRAMES
        return found

    def all(self) -> list[tuple[Handed, list[Change]]]:
        """Every transaction that is there, each acknowledged at its end."""
        found = []
        while (handed := self.next()) is not None:
            found.append((handed, self.rest()))
            self.handover.acknowledge(handed)
        return found


def texts(changes: list[Change]) -> list[object]:
    return [
        change.new["a"]
        if isinstance(change, Insert)
        else change.content
        if isinstance(change, Message)
        else "?"
        for change in changes
    ]


def transaction(xid: int, lsn: int, *rows: str) -> list[bytes]:
    return [begin(xid, lsn), described("a"), *map(insert, rows), commit(lsn)]


@pytest.fixture
def reader(tmp_path):
    return Reader(tmp_path)


def test_transactions_come_one_after_the_other_with_their_changes(reader):
    reader.receive(transaction(5, 100, "x", "y"), transaction(6, 200, "z"))
    first = reader.next()
    assert (first.xid, first.commit_lsn, first.commit_time) == (5, 100, TIME)
    assert texts(reader.rest()) == ["x", "y"]
    assert texts(reader.all()[0][1]) == ["z"]
    assert [asked.xid for asked in reader.asked] == [5, 6]


def test_nothing_is_confirmed_before_it_is_acknowledged(reader):
    reader.receive(transaction(5, 100, "x"), transaction(6, 200, "y"), keepalive(400))
    first = reader.next()
    reader.rest()
    second = reader.next()
    reader.rest()
    assert reader.next() is None
    assert reader.ledger.flushed == 0
    # Out of order: what is before is still missing
    reader.handover.acknowledge(second)
    assert reader.ledger.flushed == 0
    reader.handover.acknowledge(first)
    assert reader.ledger.flushed == 400
    # Twice is as good as once
    reader.handover.acknowledge(first)
    assert reader.ledger.flushed == 400


def test_a_transaction_that_is_acknowledged_early_is_confirmed_at_its_end_only(reader):
    reader.receive([begin(5, 100), described("a"), insert("x")])
    handed = reader.next()
    reader.handover.acknowledge(handed)
    assert reader.step() is Advance.CHANGES
    assert reader.step() is Advance.FRAMES
    assert reader.ledger.flushed == 0
    reader.receive(commit(100))
    reader.rest()
    assert reader.ledger.flushed == 100 + SIZE


def test_with_a_temporary_slot_the_end_of_a_transaction_is_enough(tmp_path):
    reader = Reader(tmp_path, lasting=False)
    reader.receive(transaction(5, 100, "x"))
    handed = reader.next()
    assert handed is not None
    assert reader.ledger.flushed == 0
    reader.rest()
    assert reader.ledger.flushed == 100 + SIZE
    reader.handover.acknowledge(handed)
    assert reader.ledger.flushed == 100 + SIZE


def test_a_transaction_without_a_change_is_never_seen_and_counts_as_done(reader):
    reader.receive([begin(5, 100), commit(100)], transaction(6, 200, "x"))
    assert reader.next().xid == 6
    assert reader.ledger.flushed == 100 + SIZE


def test_what_is_skipped_is_not_decoded(reader):
    reader.receive([begin(5, 100), described("a"), insert("x"), insert("no such table", oid=99), commit(100)])
    reader.next()
    reader.handover.skips = True
    assert reader.rest() == []
    # The next one is read again
    reader.receive(transaction(6, 200, "y"))
    reader.next()
    assert texts(reader.rest()) == ["y"]


def test_a_streamed_transaction_comes_at_its_commit_without_its_aborted_parts(reader):
    reader.receive(
        block(5, described("a", xid=5), insert("kept", 5), insert("undone", 51)),
        block(6, described("a", xid=6), insert("never", 6)),
        transaction(7, 100, "between"),
        stream_abort(5, 51),
        stream_abort(6),
        stream_commit(5, 200),
    )
    assert [(handed.xid, texts(changes)) for handed, changes in reader.all()] == [
        (7, ["between"]),
        (5, ["kept"]),
    ]


def test_a_transaction_of_which_all_was_aborted_is_never_seen(reader):
    reader.receive(
        block(5, described("a", xid=5), insert("undone", 51)), stream_abort(5, 51), stream_commit(5, 200)
    )
    assert reader.all() == []
    assert reader.ledger.flushed == 200 + SIZE


def test_a_prepared_transaction_comes_at_its_commit_and_holds_the_position_until_then(reader):
    reader.receive(
        prepared(5, "gid", 100, described("a"), insert("prepared")),
        transaction(6, 200, "later"),
        prepared(7, "other", 300, insert("never")),
        rollback_prepared(7, "other", 400),
    )
    assert [texts(changes) for _, changes in reader.all()] == [["later"]]
    assert reader.ledger.flushed == 0
    reader.receive(commit_prepared(5, "gid", 500))
    assert [texts(changes) for _, changes in reader.all()] == [["prepared"]]
    assert reader.ledger.flushed == 500 + SIZE


def test_a_commit_whose_prepare_never_came_is_told(reader):
    reader.receive(commit_prepared(5, "gid", 100))
    assert reader.all() == []
    assert [told.gid for told in reader.told] == ["gid"]
    assert reader.ledger.flushed == 100 + SIZE


def test_a_message_without_a_transaction_is_a_transaction_of_its_own(reader):
    reader.receive(alone("hello", 100), transaction(5, 200, "x"))
    handed = reader.next()
    assert (handed.xid, handed.commit_lsn, handed.commit_time) == (0, 99, TIME)
    (message,) = reader.rest()
    assert message == Message(Lsn(100), "prefix", b"hello", transactional=False)
    assert reader.ledger.flushed == 0
    reader.handover.acknowledge(handed)
    assert reader.ledger.flushed == 100
    assert reader.next().xid == 5


def test_messages_and_truncates_stand_among_the_rows(reader):
    reader.receive([
        begin(5, 100), described("a"), insert("x"), emitted("m"), truncate(TABLE), insert("y"), commit(100)
    ])  # fmt: skip
    reader.next()
    changes = reader.rest()
    assert texts(changes) == ["x", b"m", "?", "y"]
    assert isinstance(changes[2], Truncate)
    assert [str(table) for table in changes[2].tables] == ["public.t"]


def test_a_keepalive_counts_when_nothing_is_open_and_not_within_a_transaction(reader):
    reader.receive(keepalive(50))
    assert reader.next() is None
    assert reader.ledger.flushed == 50
    reader.receive([begin(5, 100), described("a"), insert("x"), keepalive(90)])
    handed = reader.next()
    assert reader.step() is Advance.CHANGES
    assert reader.step() is Advance.FRAMES
    assert reader.ledger.flushed == 50
    reader.receive(commit(100))
    reader.rest()
    reader.handover.acknowledge(handed)
    assert reader.ledger.flushed == 100 + SIZE


def test_a_reader_that_never_acknowledges_is_stopped(reader, monkeypatch):
    monkeypatch.setattr(module, "UNACKNOWLEDGED_MAX", 2)
    reader.receive(transaction(5, 100, "x"), transaction(6, 200, "y"), transaction(7, 300, "z"))
    reader.next()
    reader.rest()
    reader.next()
    reader.rest()
    with pytest.raises(LimitError, match=r"await transaction\.acknowledge"):
        reader.next()


# What real servers sent.

GOLDENS = [golden for golden in captured() if golden.mode in ("v1", "v3-two-phase")]


def read(golden: Golden, directory: Any) -> list[object]:
    reader = Reader(directory, abort_info=golden.description().abort_info)
    reader.receive(golden.frames())
    found: list[object] = [
        (handed.xid, handed.commit_lsn, [(type(each), *values(each)) for each in changes])
        for handed, changes in reader.all()
    ]
    assert reader.handover.current is None
    return found


def values(change: Change) -> tuple[object, ...]:
    """A change by its values; its LSN too, which is the same however the transaction was sent."""
    if isinstance(change, Truncate):
        return (change.lsn, *map(str, change.tables))
    if isinstance(change, Message):
        return (change.lsn, change.content)
    rows = {name: getattr(change, name) for name in ("old", "new") if hasattr(change, name)}
    return (change.lsn, str(change.table), repr(rows))


@pytest.mark.parametrize("version", sorted({golden.version for golden in GOLDENS}))
def test_the_same_wal_is_the_same_changes_prepared_or_not(version, tmp_path):
    found = [read(golden, tmp_path) for golden in GOLDENS if golden.version == version]
    assert len(found[0]) > 10
    assert all(each == found[0] for each in found)
    assert repr(UNCHANGED) in repr(found[0])
