from cdcd.mirror.base.changes import merge, next_bound
from cdcd.mirror.base.part import PartOfForm
from tests.spark.source_model import FORM


def form(schema_id: str, first: int, last: int) -> PartOfForm:
    return PartOfForm(schema_id, 1, (first, 1), (last, 1), None, None)


def test_changes_of_a_form_are_folded_before_those_of_the_next_form():
    assert next_bound([form("a", 10, 20)], 5) is None
    assert next_bound([form("b", 30, 40), form("a", 10, 20), form("c", 50, 60)], 5) == 29
    assert next_bound([form("b", 30, 40), form("c", 50, 60)], 29) == 49


def test_forms_that_begin_in_one_transaction_are_folded_together():
    assert next_bound([form("a", 10, 10), form("b", 10, 20)], 9) is None


def test_changes_that_a_table_may_have_are_folded_with_the_next_form():
    # A cut before the form of the table's rows would take the table back to an earlier form.
    parts = [form("a", 10, 20), form("b", 30, 40), form("c", 50, 60)]
    assert next_bound(parts, 35) == 49
    assert next_bound(parts, 55) is None


def test_a_change_is_added_once_and_rows_of_a_snapshot_go_by_their_place():
    said = merge("t", "s", FORM, 7, 9)
    assert "t._cdcd_commit_lsn > 7 AND t._cdcd_commit_lsn <= 9" in said
    assert (
        "(s._cdcd_op <> 'r' OR (t._cdcd_partition = s._cdcd_partition AND t._cdcd_offset = s._cdcd_offset))"
        in said
    )
    # A MERGE that only inserts is an append, which another commit does not make fail.
    assert (
        "WHEN MATCHED AND t._cdcd_offset IS NULL THEN UPDATE SET _cdcd_partition = s._cdcd_partition" in said
    )
    assert said.endswith(
        "VALUES (s._cdcd_op, s._cdcd_commit_lsn, s._cdcd_event_no, s._cdcd_commit_time, s._cdcd_unchanged, "
        "s._cdcd_partition, s._cdcd_offset, s.`id`, s.`n`, s.`title`, s.`body`)"
    )
