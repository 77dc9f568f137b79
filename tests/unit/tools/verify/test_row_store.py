import re
import resource
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from cdcd.core.errors import LimitError
from cdcd.tools.verify import bucket_log, row_store
from cdcd.tools.verify.row_store import PARTIAL, WHOLE, Loose, RowStore, Stored
from cdcd.tools.verify.values import key_hash

BEGIN = (-1, -1)
KEYS = [key_hash(b"%d" % number) for number in range(3000)]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RowStore]:
    with closing(RowStore(tmp_path)) as made:
        yield made


@pytest.fixture(params=["in memory", "on disk", "in parts of parts"])
def room(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How much waits in memory, and how large a part may be."""
    if request.param != "in memory":
        monkeypatch.setattr(bucket_log, "WAITING_BYTES", 10_000)
    if request.param == "in parts of parts":
        monkeypatch.setattr(bucket_log, "PART_BYTES", 100)


def row(number: int) -> Stored:
    return Stored(number, 1, WHOLE, 0, b"\x01%d" % (number % 10), b"k%d" % number)


def both(old: Stored | None, new: Stored) -> Stored:
    """The values of both rows side by side."""
    return new._replace(state=WHOLE, packed=(b"" if old is None else old.packed) + new.packed)


def rows(store: RowStore, table: int = 0, after: tuple[int, int] = BEGIN) -> dict[bytes, Stored]:
    found = list(store.rows(table, both, after))
    assert len(dict(found)) == len(found)
    return dict(found)


@pytest.mark.usefixtures("room")
def test_the_last_change_of_a_key_is_its_row(store: RowStore):
    for number, key in enumerate(KEYS):
        store.put(0, key, row(number))
        store.put(1, key, row(number + 1))
    store.put(0, KEYS[7], row(4711))
    store.delete(0, KEYS[3])
    expected = {key: row(number) for number, key in enumerate(KEYS)} | {KEYS[7]: row(4711)}
    del expected[KEYS[3]]
    assert rows(store) == expected
    assert rows(store, 1)[KEYS[3]] == row(4)
    assert rows(store, 2) == {}


@pytest.mark.usefixtures("room")
def test_a_change_that_is_a_part_of_a_row_gets_the_rest_from_the_row_before(store: RowStore):
    for state in (WHOLE, PARTIAL, PARTIAL):
        for number, key in enumerate(KEYS):
            store.put(0, key, row(number)._replace(state=state))
    store.delete(0, KEYS[3])
    store.put(0, KEYS[3], row(3)._replace(state=PARTIAL))
    found = rows(store)
    assert found[KEYS[4]].packed == b"\x014\x014\x014"
    assert found[KEYS[3]].packed == b"\x013"


def test_rows_from_before_a_place_are_left_out(store: RowStore):
    for number in range(10):
        store.put(0, KEYS[number], row(number))
    assert {each.lsn for each in rows(store, after=(5, 0)).values()} == {5, 6, 7, 8, 9}
    assert {each.lsn for each in rows(store, after=(5, 1)).values()} == {6, 7, 8, 9}


@pytest.mark.usefixtures("room")
def test_a_row_without_a_key_is_known_by_its_place(store: RowStore):
    for _ in range(2):
        for number, key in enumerate(KEYS):
            store.add_loose(0, key, Loose(number, 1, 1, 1, 0, b"\x011"))
    assert len(list(store.loose(0, BEGIN))) == len(KEYS)
    assert len(list(store.loose(0, (99, 9)))) == len(KEYS) - 100


@pytest.mark.usefixtures("room")
def test_rows_of_the_source_are_beside_those_with_the_same_key(store: RowStore):
    with closing(store.seen(0)) as seen:
        for number, key in enumerate(KEYS):
            store.put(0, key, row(number))
            seen.add(key, b"%d" % number, f"id = {number}", b"\x01x")
        seen.add(KEYS[1], b"again", "", b"")
        found = []
        for there, source in store.beside(0, both, (10, 0), seen, range(256)):
            found += [(there.get(key), name, sql, packed) for key, name, sql, packed in source]
    assert len(found) == len(KEYS) + 1
    assert (row(2999), b"2999", "id = 2999", b"\x01x") in found
    assert (None, b"9", "id = 9", b"\x01x") in found


@pytest.mark.usefixtures("room")
def test_what_was_wanted_of_the_hashes_is_read_and_no_more(store: RowStore):
    for number, key in enumerate(KEYS):
        store.put(0, key, row(number))
    with closing(store.seen(0)) as seen:
        found = [key for there, _ in store.beside(0, both, BEGIN, seen, [5, 7]) for key in there]
    assert sorted(found) == sorted([key for key in KEYS if key[0] in {5, 7}])


@pytest.mark.usefixtures("room")
def test_rows_with_the_same_values_are_counted(store: RowStore):
    with closing(store.tally(0)) as tally:
        for key in KEYS:
            tally.add(key, 0, 2, b"v")
            tally.add(key, 0, -1, b"v")
            tally.add(key, 1, 0, b"v")
        assert sorted(tally.rows()) == sorted([(key, 1, 1, b"v") for key in KEYS])


def test_what_a_row_was_when_it_got_another_key_is_found_by_its_place(store: RowStore):
    # GIVEN a row that went to another key, which came back since
    store.put(0, KEYS[0], row(10))
    store.leave(0, KEYS[0], (20, 1))
    store.put(0, KEYS[0], row(30))
    store.moves.add(0, KEYS[1], (20, 1), KEYS[0])
    store.settle(0, both)
    assert store.moves.of(0, KEYS[1]) == [(20, 1)]
    assert store.moves.former(0, KEYS[1], (20, 1)) == (KEYS[0], row(10)._replace(lsn=20, name=b""))


def test_changes_that_nothing_shows_any_more_are_forgotten(store: RowStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(row_store, "GARBAGE_MAX", 100)
    sizes = []
    for again in range(20):
        for number, key in enumerate(KEYS[:50]):
            store.put(0, key, row(number)._replace(lsn=again))
        store.leave(0, KEYS[0], (again, 9))
        store.put(0, KEYS[1], row(1)._replace(state=PARTIAL))
        before = rows(store)
        store.compact({0: both})
        assert rows(store) == before
        sizes.append(store._rows.size)
    assert max(sizes) < 4 * sizes[0]
    assert sizes != sorted(sizes)
    # What a row was is still known.
    store.moves.add(0, KEYS[2], (5, 9), KEYS[0])
    assert store.moves.former(0, KEYS[2], (5, 9)) is not None


def test_a_disk_that_is_full_is_an_error_that_names_the_folder(
    store: RowStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(bucket_log, "WAITING_BYTES", 10_000)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    said = re.escape(f"cannot be kept in {tmp_path}")

    def put() -> None:
        for number, key in enumerate(KEYS):
            store.put(0, key, row(number))

    def move() -> None:
        for number, key in enumerate(KEYS):
            store.moves.add_gone(0, key, (number, 1), row(number)._replace(packed=bytes(100_000)))

    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
    try:
        with pytest.raises(LimitError, match=said) as raised:
            put()
        with pytest.raises(LimitError, match=said):
            move()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "--directory" in (raised.value.hint or "")


@pytest.mark.usefixtures("room")
def test_nothing_is_left_of_it_on_the_disk(store: RowStore, tmp_path: Path):
    for number, key in enumerate(KEYS):
        store.put(0, key, row(number))
    assert list(tmp_path.iterdir()) == []
