"""The window by examples, and against every order in which commits, snapshots and the stream can meet."""

from dataclasses import dataclass, field

from cdcd.snapshots.window import Window
from hypothesis import given, settings
from hypothesis import strategies as st

from cdcd.snapshots.visibility import Visibility


def test_a_change_that_the_snapshot_does_not_see_wins_over_the_chunks_row():
    window = Window()
    window.watch("t")
    window.note(7, "t", b"old")
    window.note(9, "t", b"new")
    assert window.overtaken("t", Visibility(9, 9)) == {b"new"}
    assert window.overtaken("t", Visibility(10, 10)) == set()


def test_a_transaction_that_was_in_progress_for_the_snapshot_wins_though_its_id_is_older():
    window = Window()
    window.watch("t")
    window.note(5, "t", b"k")
    assert window.overtaken("t", Visibility(5, 9, frozenset({5}))) == {b"k"}


def test_what_has_no_key_makes_the_chunk_be_read_again_until_a_snapshot_sees_it():
    window = Window()
    window.watch("t")
    window.note(5, "t", b"k")
    window.note(5, "t", None)
    assert window.overtaken("t", Visibility(5, 5)) is None
    assert window.overtaken("t", Visibility(6, 6)) == set()
    assert window.keys == 0


def test_a_void_transaction_touches_every_table_or_those_named():
    window = Window()
    window.watch("a")
    window.watch("b")
    window.void(5)
    window.void(6, ["b"])
    assert window.overtaken("a", Visibility(5, 5)) is None
    assert window.overtaken("a", Visibility(6, 6)) == set()
    assert window.overtaken("b", Visibility(6, 6)) is None


def test_tables_that_nobody_reads_cost_nothing():
    window = Window()
    window.note(1, "t", b"k")
    assert not window.watching
    assert window.keys == 0
    window.watch("t")
    window.note(1, "t", b"k")
    assert window.keys == 1
    window.unwatch("t")
    assert (window.keys, window.watching) == (0, False)
    window.unwatch("t")


def test_only_what_every_open_chunk_sees_is_forgotten():
    window = Window()
    window.watch("t")
    window.note(5, "t", b"a")
    window.note(6, "t", b"b")
    window.forget("t", [Visibility(6, 6), Visibility(7, 7)])
    assert window.overtaken("t", Visibility(1, 1)) == {b"b"}
    assert window.keys == 1


def test_the_largest_transaction_is_given_up_when_there_are_too_many_keys():
    window = Window(keys_max=3)
    window.watch("t")
    window.note(5, "t", b"a")
    for key in (b"b", b"c", b"d"):
        window.note(6, "t", key)
    assert window.keys == 1
    assert window.overtaken("t", Visibility(6, 6)) is None
    assert window.overtaken("t", Visibility(5, 7, frozenset({5}))) == {b"a"}
    window.note(6, "t", b"e")
    assert window.keys == 1


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
        self.window = Window(keys_max=self.draw(st.sampled_from([1, 2, 100])))
        self.mirror: dict[bytes, int] = {}
        self.chunk: tuple[Visibility, dict[bytes, int], int] | None = None
        self.delivered = False

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
            self.window.note(xid, "t", key)
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
        overtaken = self.window.overtaken("t", seen)
        if overtaken is not None:
            self.mirror.update({key: value for key, value in rows.items() if key not in overtaken})
            self.window.forget("t", [seen])
            self.delivered = True


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_whatever_the_order_the_chunk_leaves_no_row_that_is_out_of_date(data: st.DataObject):
    # GIVEN a past of which some is streamed; whoever writes is waited for once the table is watched
    world = World(data)
    for _ in range(data.draw(st.integers(0, 4))):
        data.draw(st.sampled_from([world.commit, world.see]))()
    world.source.streamed = data.draw(st.integers(0, len(world.source.wal)))
    world.window.watch("t")
    world.see_all()
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
