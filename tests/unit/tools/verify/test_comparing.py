from dataclasses import replace
from pathlib import Path

import pytest

from cdcd.core.records.schemas import TableForm
from cdcd.tools.verify.columns import Columns
from cdcd.tools.verify.comparing import (
    DIFFERS,
    ONLY_SOURCE,
    ONLY_TOPICS,
    ComparedOutcome,
    SourceRow,
    TableComparison,
)
from tests.unit.tools.verify.records import FORM, ID, NOTE, Topic, column, form

ROW = {"id": 1, "note": "a"}


@pytest.fixture
def topic(tmp_path: Path) -> Topic:
    made = Topic(tmp_path / "store")
    made.change("c", 10, ROW)
    return made


def test_what_differs_is_named_by_table_key_column_and_both_values(topic: Topic):
    (found,) = topic.compare([{"id": 1, "note": "b"}]).differences
    assert (found.kind, found.key, found.columns) == (DIFFERS, '{"id":1}', (("note", '"b"', '"a"'),))


def test_rows_of_one_side_only_are_named(topic: Topic):
    only_topics, *_ = topic.compare([]).differences
    assert (only_topics.kind, only_topics.key) == (ONLY_TOPICS, '{"id":1}')
    only_source, *_ = topic.compare([ROW, {"id": 2, "note": "b"}]).differences
    assert (only_source.kind, only_source.key) == (ONLY_SOURCE, '{"id":2}')


@pytest.mark.parametrize(
    ("sent", "stands"),
    [
        (1.0, 1),
        ("NaN", None),
        ("", None),
        ("1.10", "1.1"),
        ("infinity", "-infinity"),
        ([1, None], [1]),
        (0, False),
    ],
)
def test_values_are_equal_only_as_bytes(tmp_path: Path, sent: object, stands: object):
    topic = Topic(tmp_path / "store")
    topic.change("c", 10, {"id": 1, "note": sent})
    assert topic.compare([{"id": 1, "note": sent}]).differing == 0
    assert topic.compare([{"id": 1, "note": stands}]).differing == 1


def test_long_values_differ_by_their_last_byte(tmp_path: Path):
    topic = Topic(tmp_path / "store")
    topic.change("c", 10, {"id": 1, "note": "x" * 100_000 + "y"})
    (found,) = topic.compare([{"id": 1, "note": "x" * 100_000 + "z"}]).differences
    (difference,) = found.columns
    assert difference.source != difference.topics


def test_many_rows_of_which_one_differs_are_compared_in_one_range(tmp_path: Path):
    topic = Topic(tmp_path / "store")
    rows = [{"id": number, "note": f"row {number}"} for number in range(10_000)]
    for number, row in enumerate(rows):
        topic.change("c", 10 + number, row)
    assert topic.compare(rows).ranges == 0
    rows[4711] = {"id": 4711, "note": "other"}
    outcome = topic.compare(rows)
    assert (outcome.ranges, outcome.differing) == (1, 1)
    assert outcome.differences[0].key == '{"id":4711}'
    assert outcome.repairable == ["id = 4711"]


def test_two_rows_that_exchange_their_values_both_differ(topic: Topic):
    topic.change("c", 20, {"id": 2, "note": "b"})
    assert topic.compare([{"id": 1, "note": "b"}, {"id": 2, "note": "a"}]).differing == 2


def test_what_retention_may_have_taken_is_not_compared_and_the_rest_is(topic: Topic):
    rows = [ROW, {"id": 2, "note": "b"}]
    outcome = topic.compare(rows, rows_gone="it is cut")
    assert outcome.differing == 0
    assert outcome.not_compared == {"rows that are not in the topic: it is cut": 1}
    assert topic.compare([{"id": 1, "note": "z"}], rows_gone="it is cut").differing == 1
    assert topic.compare([], rows_gone="it is cut").differing == 1


def test_compaction_excuses_unsent_values_and_no_rows(topic: Topic):
    topic.change("u", 20, {"id": 2, "note": "?"}, unchanged=("note",))
    outcome = topic.compare([ROW, {"id": 2, "note": "b"}, {"id": 3, "note": "c"}], values_gone="compacted")
    assert [each.key for each in outcome.differences] == ['{"id":3}']
    assert outcome.not_compared == {"values of note that are not in the topic: compacted": 1}


def test_a_column_that_came_later_has_its_default(topic: Topic):
    now = form(ID, NOTE, column("level", 3))
    assert topic.compare([{**ROW, "level": "low"}], now, {"level": b'"low"'}).differing == 0
    assert topic.compare([{**ROW, "level": None}], now).differing == 0
    assert topic.compare([{**ROW, "level": "high"}], now, {"level": b'"low"'}).differing == 1


def test_a_renamed_column_is_the_same_and_another_one_with_its_name_is_not(tmp_path: Path):
    topic = Topic(tmp_path / "store")
    topic.change("c", 10, ROW)
    assert topic.compare([{"id": 1, "text": "a"}], form(ID, column("text", 2))).differing == 0
    (found,) = topic.compare([{"id": 1, "note": "a"}], form(ID, column("note", 3))).differences
    assert found.columns == (("note", '"a"', "null"),)


def test_a_dropped_column_is_not_looked_at(topic: Topic):
    assert topic.compare([{"id": 1}], form(ID)).differing == 0


def test_values_from_before_a_type_changed_are_not_compared(topic: Topic):
    now = form(ID, column("note", 2, type="bigint", type_oid=20, form="int64"))
    outcome = topic.compare([{"id": 1, "note": 5}], now)
    assert outcome.differing == 0
    assert outcome.not_compared == {"values of note from before its type changed": 1}
    topic.change("u", 20, {"id": 1, "note": 6}, schema=now)
    topic.fold.former[now.fingerprint] = now  # type: ignore[index]
    assert topic.compare([{"id": 1, "note": 5}], now).differing == 1


def test_values_of_a_column_whose_number_nobody_knew_are_not_compared_where_they_differ(tmp_path: Path):
    then = form(ID, replace(NOTE, id=None), column("level", 3))
    row = {"id": 1, "note": "a", "level": "low"}

    def compare(source: dict[str, object], now: TableForm) -> ComparedOutcome:
        topic = Topic(tmp_path / str(len(list(tmp_path.iterdir()))), former=(then,))
        topic.change("c", 10, row, schema=then)
        return topic.compare([source], now)

    # As far as names tell, it is the same one.
    assert compare(row, form(ID, NOTE, column("level", 3))).not_compared == {}
    # It may be another one with its name, or this one under another name, or a third one.
    unknown = (
        " from when the table was altered and the daemon was behind, so that nobody knows which column it was"
    )
    for source, name, number in (
        ({**row, "note": "b"}, "note", 2),
        ({"id": 1, "text": "b", "level": "low"}, "text", 2),
        ({"id": 1, "level": "low", "text": "b"}, "text", 4),
    ):
        columns = sorted([column("level", 3), column(name, number)], key=lambda each: each.id or 0)
        outcome = compare(source, form(ID, *columns))
        assert (outcome.differing, outcome.not_compared) == (0, {f"values of {name}{unknown}": 1})
    # Those with a number are compared.
    differs = compare({**row, "level": "high"}, form(ID, NOTE, column("level", 3)))
    assert [each.columns for each in differs.differences] == [(("level", '"high"', '"low"'),)]


def test_a_renamed_label_of_an_enum_is_the_same_value(tmp_path: Path):
    then = form(ID, column("note", 2, labels=((7, "low"), (8, "high"))))
    now = form(ID, column("note", 2, labels=((7, "lower"), (8, "high"))))
    topic = Topic(tmp_path / "store", former=(then, now))
    topic.change("c", 10, {"id": 1, "note": "low"}, schema=then)
    assert topic.compare([{"id": 1, "note": "lower"}], now).differing == 0
    assert topic.compare([{"id": 1, "note": "high"}], now).differing == 1


def test_without_a_description_columns_go_by_their_names(tmp_path: Path):
    topic = Topic(tmp_path / "store", former=())
    topic.change("c", 10, ROW, schema=None)
    assert topic.compare([ROW]).differing == 0
    # A column that is not in the record may have been renamed: nobody knows.
    outcome = topic.compare([{"id": 1, "text": "a"}], form(ID, column("text", 2)))
    assert (outcome.differing, outcome.not_compared.total()) == (0, 1)


def test_the_form_of_the_tests_is_the_tables():
    assert FORM.key == ("id",)


def test_rows_that_a_lost_truncate_may_have_removed_are_not_compared(tmp_path: Path):
    # GIVEN a partition whose beginning is not there, and an older row of another one
    topic = Topic(tmp_path / "store")
    topic.fold.cut(0)
    topic.change("c", 50, {"id": 1, "note": "a"}, partition=0)
    topic.change("c", 10, {"id": 2, "note": "b"}, partition=1)
    topic.change("c", 60, {"id": 3, "note": "c"}, partition=1)
    outcome = topic.compare([{"id": 1, "note": "a"}], rows_gone="it is cut")
    assert [each.key for each in outcome.differences] == ['{"id":3}']
    assert outcome.not_compared.total() == 1


def test_rows_without_a_key_of_a_topic_that_is_cut_are_not_compared(tmp_path: Path):
    topic = Topic(tmp_path / "store")
    topic.change("c", 50, ROW, keyed=False)
    for rows in ([], [ROW, ROW]):
        outcome = topic.compare(rows, form(ID, NOTE, key=()), rows_gone="it is cut")
        assert (outcome.differing, outcome.not_compared.total()) == (0, 1)


def test_a_row_in_a_file_that_the_source_lacks_may_have_been_deleted_by_it(topic: Topic):
    topic.raw(b'{"id":1}', b'{"claim_check":{}}', (("cdcd.claim_check", b"/x"),))
    outcome = topic.compare([])
    assert (outcome.differing, outcome.not_compared.total()) == (0, 1)


def test_a_sample_compares_the_rows_that_it_has(topic: Topic):
    topic.change("c", 20, {"id": 2, "note": "b"})
    columns = Columns(FORM, [None, None], topic.fold.former)
    comparison = TableComparison(topic.fold, columns)
    comparison.sample()
    comparison.look_at([SourceRow(b'{"id":2}', (b"2", b'"c"'))])
    outcome = comparison.end()
    assert [each.key for each in outcome.differences] == ['{"id":2}']
    assert outcome.source_rows == 1


def test_a_comparison_that_is_closed_keeps_no_rows(tmp_path: Path):
    topic = Topic(tmp_path / "store")
    heap = form(ID, NOTE, key=())
    for number in range(100):
        topic.change("c", 10 + number, {"id": number, "note": "a"}, keyed=False)
    comparison = TableComparison(topic.fold, Columns(heap, [None, None], topic.fold.former))
    comparison.add_source([SourceRow(None, (b"1", b'"a"'))])
    comparison.ranges()
    assert comparison._tally._log.size > 100
    comparison.close()
    comparison.close()
    assert (comparison._tally._log.size, comparison._seen.log.size, comparison._sums.rows) == (0, 0, 0)
