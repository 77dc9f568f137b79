from pathlib import Path

import pytest

from cdcd.verify.row_store import WAITING, WHOLE, Loose, RowStore, Stored
from cdcd.verify.values import key_hash


@pytest.fixture
def store(tmp_path: Path) -> RowStore:
    return RowStore(tmp_path)


def row(number: int) -> Stored:
    return Stored(number, 1, WHOLE, 0, b"\x01%d" % (number % 10), b"k")


def test_a_row_is_read_wherever_it_is(store: RowStore):
    for number in range(WAITING + 10):
        store.put(0, key_hash(b"%d" % number), row(number))
    store.delete(0, key_hash(b"3"))
    for number in (0, 3, WAITING - 1, WAITING + 5):
        assert store.get(0, key_hash(b"%d" % number)) == (None if number == 3 else row(number))
    store.settle()
    assert store.get(0, key_hash(b"3")) is None
    assert len(list(store.rows(0, b"", b"\xff" * 20, (-1, -1)))) == WAITING + 9
    assert store.get(1, key_hash(b"0")) is None


def test_rows_from_before_a_place_are_left_out(store: RowStore):
    for number in range(10):
        store.put(0, key_hash(b"%d" % number), row(number))
    store.settle()
    assert {each.lsn for _, each in store.rows(0, b"", b"\xff" * 20, (5, 0))} == {5, 6, 7, 8, 9}
    assert {each.lsn for _, each in store.rows(0, b"", b"\xff" * 20, (5, 1))} == {6, 7, 8, 9}


def test_a_row_without_a_key_is_known_by_its_place(store: RowStore):
    for _ in range(2):
        store.add_loose(0, Loose(7, 1, 1, 1, WHOLE, 0, b"\x011"))
    store.settle()
    assert len(list(store.loose(0, (-1, -1)))) == 1


def test_nothing_is_left_of_it_on_the_disk(store: RowStore, tmp_path: Path):
    store.put(0, key_hash(b"k"), row(1))
    store.settle()
    assert list(tmp_path.iterdir()) == []
