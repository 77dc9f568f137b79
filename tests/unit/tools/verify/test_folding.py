from pathlib import Path

import pytest

from cdcd.core.snapshot.reading import Visibility
from cdcd.tools.verify.snapshot_visibility import Sight
from tests.unit.tools.verify.records import EVERYTHING, FORM, ID, NOTE, Topic, column, form, text

LONG = "x" * 5000


@pytest.fixture
def topic(tmp_path: Path) -> Topic:
    return Topic(tmp_path / "store")


def test_the_last_change_of_a_key_is_its_row(topic: Topic):
    topic.change("c", 10, {"id": 1, "note": "a"})
    topic.change("c", 10, {"id": 2, "note": LONG}, serial=2)
    topic.change("u", 20, {"id": 1, "note": "b"})
    topic.change("d", 30, before={"id": 2, "note": None})
    assert topic.compare([{"id": 1, "note": "b"}]).differing == 0
    assert topic.faults == []


def test_what_a_snapshot_does_not_see_is_left_for_a_later_one(topic: Topic):
    # GIVEN a snapshot that sees the transactions 1 and 7, and not 5, which commits between them
    topic.look(Sight(Visibility(5, 9, frozenset({5})), lsn=100, old_lsn=0))
    topic.change("c", 10, {"id": 1, "note": "a"}, xid=1)
    topic.change("c", 10, {"id": 2, "note": "a"}, xid=1, serial=2)
    topic.change("u", 20, {"id": 1, "note": "b"}, xid=5)
    topic.change("d", 30, before={"id": 2, "note": None}, xid=7)
    topic.change("c", 40, {"id": 3, "note": LONG}, xid=7)
    topic.change("u", 200, {"id": 3, "note": "?"}, xid=9, unchanged=("note",))
    assert topic.compare([{"id": 1, "note": "a"}, {"id": 3, "note": LONG}]).differing == 0
    # WHEN a later one sees all of them
    topic.look(EVERYTHING)
    # THEN what is read again changes nothing, and is no fault
    assert topic.compare([{"id": 1, "note": "b"}, {"id": 3, "note": LONG}]).differing == 0
    assert topic.faults == []
    assert topic.fold.records == 6


def test_a_row_that_was_read_behind_a_change_that_is_not_seen_is_left_out(topic: Topic):
    topic.look(Sight(Visibility(5, 9, frozenset({5})), lsn=100, old_lsn=0))
    topic.change("u", 20, {"id": 1, "note": "b"}, xid=5)
    topic.change("r", 30, {"id": 1, "note": "b"}, serial=1)
    topic.change("r", 30, {"id": 2, "note": "c"}, serial=2)
    assert topic.compare([{"id": 2, "note": "c"}]).differing == 0
    # Nobody can tell whether the row that was left out was the first that had a value.
    assert topic.fold.is_unsure
    topic.look(EVERYTHING)
    assert topic.compare([{"id": 1, "note": "b"}, {"id": 2, "note": "c"}]).differing == 0
    assert not topic.fold.is_unsure


def test_a_watermark_is_no_record_of_a_row(topic: Topic):
    mark = (("cdcd.watermark", b"4711"),)
    topic.raw(None, None, mark)
    topic.change("c", 10, {"id": 1, "note": "a"})
    topic.raw(None, None, mark)
    topic.change("d", 20, before={"id": 1, "note": None})
    topic.raw(None, None, mark)
    assert topic.compare([]).differing == 0
    assert topic.faults == []
    assert topic.fold.records == 2


def test_an_unsent_value_is_that_of_the_row_before(topic: Topic):
    topic.change("c", 10, {"id": 1, "note": LONG})
    topic.change("u", 20, {"id": 1, "note": "__unavailable"}, unchanged=("note",))
    assert topic.compare([{"id": 1, "note": LONG}]).differing == 0


def test_an_unsent_value_that_nothing_fills_is_a_difference(topic: Topic):
    topic.change("u", 20, {"id": 1, "note": "__unavailable"}, unchanged=("note",))
    (difference,) = topic.compare([{"id": 1, "note": "__unavailable"}]).differences
    assert [(each.column, each.topics) for each in difference.columns] == [("note", "(never sent)")]


@pytest.mark.parametrize("late", [False, True])
def test_a_changed_key_takes_what_was_not_sent_from_the_former_row(topic: Topic, late: bool):
    # GIVEN two rows that follow each other through three keys, in partitions that may be read in any order
    def left() -> None:
        topic.change("c", 10, {"id": 1, "note": LONG}, partition=0)
        topic.change("d", 20, before={"id": 1, "note": None}, new_key={"id": 2}, partition=0)

    def between() -> None:
        old = {"id": 1}
        topic.change("c", 20, {"id": 2, "note": "?"}, unchanged=("note",), old_key=old, partition=1)
        topic.change("u", 25, {"id": 2, "note": "?"}, unchanged=("note",), partition=1)
        topic.change("d", 30, before={"id": 2, "note": None}, new_key={"id": 3}, partition=1)

    def arrived() -> None:
        old = {"id": 2}
        topic.change("c", 30, {"id": 3, "note": "?"}, unchanged=("note",), old_key=old, partition=2)

    for step in (arrived, between, left) if late else (left, between, arrived):
        step()
    assert topic.compare([{"id": 3, "note": LONG}]).differing == 0
    assert topic.compare([{"id": 3, "note": LONG + "y"}]).differing == 1


def test_a_changed_key_whose_former_row_is_not_there_has_an_unsent_value(topic: Topic):
    topic.change("c", 20, {"id": 2, "note": "?"}, unchanged=("note",), old_key={"id": 1})
    (difference,) = topic.compare([{"id": 2, "note": LONG}]).differences
    assert difference.columns[0].topics == "(never sent)"


def test_a_truncate_ends_the_rows_of_all_partitions_from_before_it(topic: Topic):
    topic.change("c", 10, {"id": 1, "note": "a"}, partition=0)
    topic.change("c", 30, {"id": 2, "note": "b"}, partition=0)
    topic.change("t", 20, partition=1)
    topic.change("c", 10, {"id": 3, "note": "c"}, partition=2, serial=2)
    assert topic.compare([{"id": 2, "note": "b"}]).differing == 0


def test_a_snapshots_rows_are_rows(topic: Topic):
    topic.change("r", 10, {"id": 1, "note": "a"}, serial=1)
    topic.change("r", 10, {"id": 2, "note": "b"}, serial=2)
    assert topic.compare([{"id": 1, "note": "a"}, {"id": 2, "note": "b"}]).differing == 0
    assert topic.faults == []


def test_rows_without_a_key_are_counted(tmp_path: Path):
    topic = Topic(tmp_path / "store")
    heap = form(ID, NOTE, key=())
    for serial in (1, 2, 3):
        topic.change("c", 10, {"id": 1, "note": "a"}, serial=serial, keyed=False)
    topic.change("d", 20, before={"id": 1, "note": "a"}, keyed=False)
    topic.change("u", 30, {"id": 1, "note": "b"}, {"id": 1, "note": "a"}, keyed=False)
    two = [{"id": 1, "note": "a"}, {"id": 1, "note": "b"}]
    assert topic.compare(two, heap).differing == 0
    (difference,) = topic.compare([*two, two[0]], heap).differences
    assert difference.columns[0] == ("(how often)", "2", "1")


def test_a_record_that_comes_twice_is_a_fault(tmp_path: Path):
    topic = Topic(tmp_path / "store")
    heap = form(ID, NOTE, key=())
    topic.change("c", 10, {"id": 1, "note": "a"}, keyed=False)
    topic.change("c", 10, {"id": 1, "note": "a"}, keyed=False)
    assert topic.faults == ["a record twice"]
    assert topic.compare([{"id": 1, "note": "a"}], heap).differing == 0


def test_records_that_are_swapped_are_a_fault(topic: Topic):
    topic.change("u", 20, {"id": 1, "note": "b"})
    topic.change("u", 10, {"id": 1, "note": "a"})
    assert topic.faults == ["a record out of order, or again"]
    assert topic.compare([{"id": 1, "note": "b"}]).differing == 1


def test_with_at_least_once_a_record_may_come_again(tmp_path: Path):
    topic = Topic(tmp_path / "store", exactly_once=False)
    for _ in range(2):
        topic.change("c", 10, {"id": 1, "note": "a"})
        topic.change("u", 20, {"id": 1, "note": "b"})
    assert topic.faults == []
    assert topic.fold.again == 2
    assert topic.compare([{"id": 1, "note": "b"}]).differing == 0


def test_rows_that_are_repeated_behind_their_truncate_are_told_until_the_truncate_is_repeated_too(
    tmp_path: Path,
):
    topic = Topic(tmp_path / "store", exactly_once=False)
    told = []
    for _ in range(2):
        topic.change("c", 10, {"id": 1, "note": "a"})
        told.append(topic.fold.restores_rows)
        topic.change("t", 20)
        told.append(topic.fold.restores_rows)
        topic.change("c", 30, {"id": 2, "note": "b"})
        told.append(topic.fold.restores_rows)
    assert told == [False, False, False, True, True, False]


def test_without_a_truncate_a_repetition_that_was_interrupted_is_told_by_the_rows(tmp_path: Path):
    topic = Topic(tmp_path / "store", exactly_once=False)
    topic.change("c", 10, {"id": 1, "note": "a"})
    topic.change("u", 20, {"id": 1, "note": "b"})
    topic.change("c", 10, {"id": 1, "note": "a"})
    assert not topic.fold.restores_rows
    assert topic.compare([{"id": 1, "note": "b"}]).differing == 1


def test_a_key_that_is_not_its_rows_is_a_fault(topic: Topic):
    topic.change("c", 10, {"id": 1, "note": "a"}, key={"id": 2})
    assert topic.faults == ['not a record: the key has "id" 2, its row 1']


def test_bytes_that_are_no_record_are_a_fault(topic: Topic):
    topic.raw(b'{"id":1}', b"hello")
    assert topic.faults == ["not a record: the record is not an object in the form that an encoder writes"]


def test_a_tombstone_belongs_to_a_delete(topic: Topic):
    topic.change("c", 5, {"id": 1, "note": "a"})
    topic.change("d", 10, before={"id": 1, "note": None})
    topic.change("c", 20, {"id": 1, "note": "a"})
    topic.change("d", 30, before={"id": 1, "note": None}, tombstone=False)
    topic.change("c", 40, {"id": 1, "note": "a"})
    topic.raw(b'{"id":1}', None)
    assert topic.faults == ["a delete without its tombstone, before", "a tombstone without its delete"]


def test_a_topic_that_is_cut_may_begin_with_a_tombstone(topic: Topic):
    topic.fold.cut(0)
    topic.raw(b'{"id":1}', None)
    assert topic.faults == []
    topic.raw(b'{"id":1}', None)
    assert topic.faults == ["a tombstone without its delete"]


def test_deletes_from_before_tombstones_were_switched_on_have_none(topic: Topic):
    topic.change("d", 10, before={"id": 1, "note": None}, tombstone=False)
    topic.change("d", 20, before={"id": 2, "note": None})
    assert topic.faults == []


def test_records_of_another_connector_come_before_cdcds(topic: Topic):
    source = {"version": "3", "snapshot": "false", "table": "t"}
    row = {"id": 1, "note": "a"}
    foreign = text({"before": None, "after": row, "source": source, "transaction": None, "op": "c"})
    topic.raw(text({"id": 1}), foreign)
    # What it wrote cannot be held against what cdcd would have written, but may be the same.
    assert topic.compare([row]).not_compared.total() == 0
    assert topic.compare([{"id": 1, "note": "b"}]).not_compared == {
        "rows that another connector wrote last": 1
    }
    topic.change("u", 10, row)
    topic.raw(text({"id": 1}), foreign)
    assert topic.faults == ["a record without a place behind cdcd's"]


def test_a_row_in_a_file_is_not_compared(topic: Topic):
    topic.raw(text({"id": 1}), b'{"claim_check":{}}', (("cdcd.claim_check", b"/x"),))
    outcome = topic.compare([{"id": 1, "note": LONG}])
    assert outcome.differing == 0
    assert outcome.not_compared == {"rows whose record is in a file (claim check)": 1}
    # A later change that leaves a value out does not make it whole.
    topic.change("u", 20, {"id": 1, "note": "?"}, unchanged=("note",))
    assert topic.compare([{"id": 1, "note": LONG}]).not_compared.total() == 1


def test_unsent_values_are_found_in_a_column_that_was_renamed(tmp_path: Path):
    renamed = form(ID, column("text", 2))
    topic = Topic(tmp_path / "store", former=(FORM, renamed))
    topic.change("c", 10, {"id": 1, "note": LONG})
    topic.change("u", 20, {"id": 1, "text": "?"}, unchanged=("text",), schema=renamed)
    assert topic.compare([{"id": 1, "text": LONG}], renamed).differing == 0
    assert topic.asked == 1, "what the first one brought has the other one too"


def test_descriptions_are_asked_for_once_for_each_form_of_the_rows(tmp_path: Path):
    topic = Topic(tmp_path / "store", former=())
    for lsn in (10, 20, 30):
        topic.change("c", lsn, {"id": lsn, "note": LONG})
    topic.change("c", 40, {"id": 40}, schema=None)
    topic.compare([])
    assert topic.asked == 1
