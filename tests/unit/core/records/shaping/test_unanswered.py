"""Which of the rows without an answer are reported."""

from cdcd.core.facts import unheard
from cdcd.core.facts.rules import FilterFailed
from cdcd.core.records.shaping.row_values import REPORT_S, UnansweredRows
from cdcd.core.records.shaping.shape import FILTER_FAILED


def test_a_table_has_one_report_in_some_seconds_with_the_number_of_the_others():
    rows = UnansweredRows(FILTER_FAILED, FilterFailed, unheard)
    due_us = REPORT_S * 1_000_000
    assert rows.note("a", 0) == 0
    assert rows.note("a", 1) is None
    assert rows.note("a", due_us - 1) is None
    assert rows.note("b", 1) == 0
    assert rows.note("a", due_us) == 2
    assert rows.note("a", 2 * due_us) == 0
