"""The window and what is owed: by examples, and against every order in which commits, snapshots and stream meet."""

import json
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdcd.build import is_compiled
from cdcd.core.snapshot.placement import Owed, Window, oldest
from cdcd.core.snapshot.progress import Progress
from cdcd.core.snapshot.reading import Visibility
from cdcd.core.snapshot.table_task import OWED_KEYS_MAX, Key, Part, TableTask


def test_a_change_that_the_snapshot_does_not_see_wins_over_the_chunks_row():
    window = Window()
    window.note(7, b"old")
    window.note(9, b"new")
    assert window.overtaken(Visibility(9, 9)) == {b"new"}
    assert window.overtaken(Visibility(10, 10)) == set()


def test_a_transaction_that_was_in_progress_for_the_snapshot_wins_though_its_id_is_older():
    window = Window()
    window.note(5, b"k")
    assert window.overtaken(Visibility(5, 9, frozenset({5}))) == {b"k"}


def test_what_has_no_key_makes_the_chunk_be_read_again_until_a_snapshot_sees_it():
    window = Window()
    window.note(5, b"k")
    window.note(5, None)
    window.note(5, b"l")
    assert window.overtaken(Visibility(5, 5)) is None
    assert window.overtaken(Visibility(6, 6)) == set()
    assert window.keys == 0


def test_a_window_is_of_one_table_and_costs_nothing_before_a_change_comes():
    one, other = Window(), Window()
    one.note(1, b"k")
    assert (one.keys, other.keys) == (1, 0)
    assert other.overtaken(Visibility(1, 1)) == set()


def test_only_what_every_open_chunk_sees_is_forgotten():
    window = Window()
    window.note(5, b"a")
    window.note(6, b"b")
    window.advance(oldest([Visibility(6, 6), Visibility(7, 7)]))
    assert window.overtaken(Visibility(1, 1)) == {b"b"}
    assert window.keys == 1


def test_what_the_oldest_open_chunk_sees_is_not_remembered_at_all():
    window = Window()
    window.advance(Visibility(7, 9, frozenset({7})))
    for xid in range(1, 10):
        window.note(xid, b"k%d" % xid)
    assert window.overtaken(Visibility(1, 1)) == {b"k7", b"k9"}
    assert window.keys == 2
    window.advance(Visibility(9, 9))
    assert window.keys == 1


def test_a_change_without_a_key_that_every_chunk_sees_means_nothing():
    window = Window()
    window.note(5, None)
    window.advance(Visibility(6, 6))
    assert window.overtaken(Visibility(6, 6)) == set()
    window.note(5, None)
    assert window.overtaken(Visibility(6, 6)) == set()


@pytest.mark.skipif(is_compiled(), reason="a compiled class has no subclass that counts")
@pytest.mark.parametrize("rows", [1, 4])
def test_a_backlog_that_every_chunk_sees_costs_no_memory_and_one_look_for_each_transaction(rows: int):
    # GIVEN a window whose chunks all see what was committed before it
    class Counting(Visibility):
        looks = 0

        def sees(self, xid: int) -> bool:
            Counting.looks += 1
            return super().sees(xid)

    transactions = 1_000_000 // rows
    window = Window()
    window.advance(Counting(transactions + 1, transactions + 1))
    # WHEN a million rows of transactions come that were committed long ago
    for xid in range(1, transactions + 1):
        for _ in range(rows):
            window.note(xid, b"k")
    # THEN nothing is remembered, and each transaction was looked at once
    assert (window.keys, Counting.looks) == (0, transactions)


def test_a_window_gives_up_at_its_limit_and_forgets_all():
    window = Window(keys_max=3)
    for key in (b"a", b"b", b"c", b"a"):
        window.note(5, key)
    assert not window.gave_up
    window.note(6, b"d")
    assert (window.gave_up, window.keys) == (True, 0)
    window.note(7, b"e")
    assert window.keys == 0


def test_keys_are_counted_for_each_transaction_and_given_back():
    window = Window(keys_max=4)
    for xid in (5, 6):
        window.note(xid, b"a")
        window.note(xid, b"b")
    assert window.keys == 4
    window.advance(Visibility(6, 6))
    window.note(7, b"a")
    window.note(7, b"b")
    assert (window.keys, window.gave_up) == (4, False)


def test_the_oldest_snapshot_is_the_one_that_all_others_see_more_than():
    first = Visibility(5, 9, frozenset({5, 7}))
    second = Visibility(5, 9, frozenset({5}))
    third = Visibility(9, 9)
    fourth = Visibility(9, 12, frozenset({9}))
    assert oldest([third, fourth, second, first]) == first
    assert oldest([fourth, third, second]) == second
    assert oldest([fourth, third]) == third


# Rows that are owed.

ONE: Key = ((False, b"1"),)
TWO: Key = ((False, b"2"),)


def owing(*, closed: bool = False) -> Owed:
    owed = Owed()
    owed.note(b"one", ONE, moved=False)
    owed.closed = closed
    return owed


def keys(owed: Owed) -> list[Key]:
    return [key for _, key in owed.some(100)]


def test_a_change_that_left_a_value_out_is_owed():
    assert keys(owing()) == [ONE]


def test_it_is_owed_once_however_often_it_changes():
    owed = owing()
    owed.note(b"one", ONE, moved=False)
    assert keys(owed) == [ONE]


def test_a_change_that_sent_every_value_or_deleted_the_row_settles_it():
    owed = owing()
    owed.note(b"two", TWO, moved=False)
    owed.note(b"one", None, moved=False)
    assert keys(owed) == [TWO]


def test_a_chunk_that_delivers_the_row_settles_it():
    owed = owing()
    owed.note_rows([b"zero", b"one"])
    assert len(owed) == 0


def test_a_key_change_owes_the_row_under_its_new_key():
    owed = owing()
    # The old key is deleted, and the row appears under another one, still without the value.
    owed.note(b"one", None, moved=False)
    owed.note(b"two", TWO, moved=True)
    assert keys(owed) == [TWO]


def test_after_every_page_was_delivered_only_rows_that_were_owed_are():
    owed = owing(closed=True)
    owed.note(b"one", ONE, moved=False)
    owed.note(b"two", TWO, moved=False)
    assert keys(owed) == [ONE]


def test_a_key_change_owes_the_row_also_after_every_page_was_delivered():
    owed = owing(closed=True)
    owed.note(b"two", TWO, moved=True)
    assert keys(owed) == [ONE, TWO]


def test_a_row_that_was_read_by_its_key_is_settled():
    owed = owing()
    asked = owed.some(100)
    owed.settle(asked, set())
    assert len(owed) == 0


def test_but_not_one_that_a_change_overtook():
    owed = owing()
    asked = owed.some(100)
    owed.note(b"one", ONE, moved=False)
    owed.settle(asked, {b"one"})
    assert keys(owed) == [ONE]


def test_nor_one_whose_key_bytes_belong_to_another_row_by_now():
    owed = owing()
    asked = owed.some(100)
    owed.note(b"one", TWO, moved=False)
    owed.settle(asked, set())
    assert keys(owed) == [TWO]


def test_so_many_are_read_at_a_time_those_of_an_earlier_session_first():
    owed = Owed([ONE, TWO])
    owed.note(b"three", ((False, b"3"),), moved=False)
    assert owed.some(1) == [(None, ONE)]
    assert owed.some(3) == [(None, ONE), (None, TWO), (b"three", ((False, b"3"),))]


def test_a_row_that_an_earlier_session_owed_is_settled_when_it_is_read():
    owed = Owed([ONE, TWO])
    owed.settle(owed.some(1), set())
    assert keys(owed) == [TWO]


def test_and_owed_once_more_when_a_change_overtook_the_reading():
    owed = Owed([ONE])
    asked = owed.some(100)
    owed.note(b"one", ONE, moved=False)
    owed.settle(asked, {b"one"})
    assert owed.some(100) == [(b"one", ONE)]


def test_after_every_page_was_delivered_a_row_of_an_earlier_session_is_still_owed():
    owed = Owed([ONE])
    owed.closed = True
    owed.note(b"one", ONE, moved=False)
    assert owed.some(100) == [(b"one", ONE)]


def test_a_truncate_settles_all():
    owed = Owed([TWO])
    owed.note(b"one", ONE, moved=False)
    owed.truncated()
    assert len(owed) == 0


def test_too_many_are_given_up_until_the_table_is_read_from_its_beginning():
    owed = Owed([TWO], keys_max=2)
    owed.note(b"one", ONE, moved=False)
    assert not owed.gave_up
    owed.note(b"three", ((False, b"3"),), moved=False)
    assert (owed.gave_up, len(owed)) == (True, 0)
    owed.note(b"four", ((False, b"4"),), moved=False)
    assert len(owed) == 0


def test_what_was_given_up_is_not_written_down_as_nothing():
    # A restart would find a table that owes no row, and never read the values.
    owed = Owed(keys_max=0)
    owed.note(b"one", ONE, moved=False)
    assert owed.gave_up
    assert owed.to_write_down() is None


def test_what_is_written_down_has_a_limit_in_keys_and_in_bytes():
    owed = Owed(((False, b"%d" % number),) for number in range(OWED_KEYS_MAX))
    written = owed.to_write_down()
    assert written is not None
    assert len(written) == OWED_KEYS_MAX
    owed.note(b"one more", ((False, b"-1"),), moved=False)
    assert owed.to_write_down() is None
    assert Owed([((True, Random(1).randbytes(3000)),)]).to_write_down() is None
    assert Owed().to_write_down() == ()


values = st.tuples(st.booleans(), st.binary(max_size=8)).map(
    lambda value: value if value[0] else (False, value[1].hex().encode())
)


@given(st.lists(st.tuples(values, values), max_size=20, unique=True))
def test_what_is_owed_survives_a_restart(found: list[Key]):
    owed = Owed()
    for number, key in enumerate(found):
        owed.note(b"%d" % number, key, moved=False)
    task = TableTask("a.b", 1, parts=(Part(1, 1, 9, 9, ((0, 1),)),), number=1)
    progress = Progress(tasks=(task,)).owe(task, owed.to_write_down())
    read = Progress.from_json(json.loads(json.dumps(progress.to_json())))
    assert keys(Owed(read.tasks[0].owed)) == found


# A database of a few rows. A transaction's commit is in the WAL, and may be streamed, before snapshots see it.

KEYS = (b"a", b"b", b"c")


@dataclass
class Source:
    """What is committed (in the WAL's order), what of it is visible, and how far the stream has got."""

    wal: list[tuple[int, bytes, int | None]] = field(default_factory=list)
    visible: set[int] = field(default_factory=set)
    streamed: int = 0
    xid: int = 10

    def snapshot(self) -> tuple[Visibility, dict[bytes, int]]:
        unseen = [xid for xid, _, _ in self.wal if xid not in self.visible]
        rows: dict[bytes, int] = {}
        for xid, key, value in self.wal:
            if xid in self.visible:
                rows.pop(key, None)
                if value is not None:
                    rows[key] = value
        return Visibility(min([*unseen, self.xid]), self.xid, frozenset(unseen)), rows


class World:
    """A source, its stream, a window, at most one chunk that is out, and what a reader of the topics has."""

    def __init__(self, data: st.DataObject) -> None:
        self.draw = data.draw
        self.source = Source()
        self.keys_max = self.draw(st.sampled_from([1, 2, 100]))
        self.window = Window(self.keys_max)
        self.mirror: dict[bytes, int] = {}
        self.chunk: tuple[Visibility, dict[bytes, int], int] | None = None
        self.delivered = False

    def plan(self) -> None:
        """Open a window, wait for whoever writes, and look at a snapshot that no chunk's is before."""
        self.window = Window(self.keys_max)
        self.see_all()
        self.window.advance(self.source.snapshot()[0])

    def commit(self) -> None:
        # A row lock is held until its transaction is seen: no two unseen ones change one key.
        source = self.source
        busy = {key for xid, key, _ in source.wal if xid not in source.visible}
        free = [key for key in KEYS if key not in busy]
        if free:
            value = self.draw(st.one_of(st.none(), st.integers(0, 99)))
            source.wal.append((source.xid, self.draw(st.sampled_from(free)), value))
            source.xid += 1

    def see(self) -> None:
        unseen = [xid for xid, _, _ in self.source.wal if xid not in self.source.visible]
        if unseen:
            self.source.visible.add(self.draw(st.sampled_from(unseen)))

    def see_all(self) -> None:
        self.source.visible |= {xid for xid, _, _ in self.source.wal}

    def stream(self) -> None:
        source = self.source
        if source.streamed < len(source.wal):
            xid, key, value = source.wal[source.streamed]
            source.streamed += 1
            self.window.note(xid, key)
            self.mirror.pop(key, None)
            if value is not None:
                self.mirror[key] = value

    def read(self) -> None:
        if self.chunk is None and not self.delivered:
            self.chunk = (*self.source.snapshot(), len(self.source.wal))

    def emit(self) -> None:
        if self.chunk is None or self.source.streamed < self.chunk[2]:
            return
        (seen, rows, _), self.chunk = self.chunk, None
        overtaken = None if self.window.gave_up else self.window.overtaken(seen)
        if self.window.gave_up:
            self.plan()
        if overtaken is not None:
            self.mirror.update({key: value for key, value in rows.items() if key not in overtaken})
            self.window.advance(seen)
            self.delivered = True


@pytest.mark.again
@settings(max_examples=400, deadline=None)
@given(st.data())
def test_whatever_the_order_the_chunk_leaves_no_row_that_is_out_of_date(data: st.DataObject):
    # GIVEN a past of which some is streamed; whoever writes is waited for once the table is watched
    world = World(data)
    for _ in range(data.draw(st.integers(0, 4))):
        data.draw(st.sampled_from([world.commit, world.see]))()
    world.source.streamed = data.draw(st.integers(0, len(world.source.wal)))
    world.plan()
    # WHEN everything happens in any order
    steps = [world.commit, world.see, world.stream, world.read, world.emit]
    for _ in range(data.draw(st.integers(0, 25))):
        data.draw(st.sampled_from(steps))()
    # THEN at the end, when all is streamed and seen, the mirror is the table
    world.see_all()
    while world.source.streamed < len(world.source.wal):
        world.stream()
    while not world.delivered:
        world.read()
        world.emit()
    assert world.mirror == world.source.snapshot()[1]


def test_keys_that_records_do_not_show_are_not_written_down():
    owed = Owed()
    owed.note(b"hashed", ((True, b"ann@example.org"),), moved=False, secret=True)
    assert owed.to_write_down() is None
    assert [key for _, key in owed.some(9)] == [((True, b"ann@example.org"),)]
    owed.note_rows([b"hashed"])
    assert owed.to_write_down() == ()
