from collections import Counter
from typing import Any

from deploy.demo.fold import Report, TableReport, compare_table
from deploy.demo.history import Violations
from deploy.demo.rows import Column, Table
from deploy.demo.tables import Folded


def table(*rows: dict[str, Any], default: Any = None, generated: bool = False) -> Table:
    columns = (Column("id", int, False, None), Column("name", str, generated, default))
    return Table("public", "t", columns, list(rows))


def keyed(*rows: dict[str, Any]) -> Folded:
    return Folded({str(row["id"]).encode(): row for row in rows}, key_columns=("id",))


def test_the_same_rows_are_equal_in_any_order() -> None:
    a, b = {"id": 1, "name": "a"}, {"id": 2, "name": "b"}
    report = compare_table(table(a, b), keyed(b, a))
    assert (report.wrong, report.differences, report.rows, report.folded) == (0, (), 2, 2)


def test_a_value_that_differs_is_shown_with_its_key() -> None:
    report = compare_table(table({"id": 1, "name": "a"}), keyed({"id": 1, "name": "b"}))
    assert report.wrong == 1
    assert report.differences == ("{'id': '1'}: name is 'a', in the topics 'b'",)


def test_rows_on_one_side_only_are_shown() -> None:
    report = compare_table(table({"id": 1, "name": "a"}), keyed({"id": 2, "name": "b"}))
    assert report.differences == (
        'only in the table: {"id": 1, "name": "a"}',
        'only in the topics: {"id": 2, "name": "b"}',
    )


def test_a_table_without_events_is_compared_with_nothing() -> None:
    assert compare_table(table(), None).wrong == 0
    assert compare_table(table({"id": 1, "name": None}), None).wrong == 1


def test_rows_without_a_key_are_compared_as_often_as_they_are_there() -> None:
    row = {"id": 1, "name": "a"}
    folded = Folded(bag=Counter({'{"id": 1, "name": "a"}': 2}))
    assert compare_table(table(row, row), folded).wrong == 0
    assert compare_table(table(row), folded).wrong == 1
    assert compare_table(table(row, row, row), folded).wrong == 1


def test_a_row_older_than_a_column_has_its_default() -> None:
    assert compare_table(table({"id": 1, "name": "new"}, default="new"), keyed({"id": 1})).wrong == 0
    assert compare_table(table({"id": 1, "name": "other"}, default="new"), keyed({"id": 1})).wrong == 1


def test_a_column_that_is_gone_does_not_count() -> None:
    assert compare_table(table({"id": 1, "name": "a"}), keyed({"id": 1, "name": "a", "old": 5})).wrong == 0


def test_a_generated_column_counts_only_when_it_is_sent() -> None:
    real = table({"id": 1, "name": "made"}, generated=True)
    assert compare_table(real, keyed({"id": 1})).wrong == 0
    assert compare_table(real, keyed({"id": 1, "name": "made"})).wrong == 0
    assert compare_table(real, keyed({"id": 1, "name": "wrong"})).wrong == 1


def test_a_report_is_equal_only_without_differences_and_violations() -> None:
    good = TableReport("public.t", 1, 1, 0, (), Counter(c=1))
    bad = TableReport("public.u", 1, 0, 1, ("only in the table: {}",), Counter())
    violations = Violations()
    assert Report((good,), violations, 1, 1, 1, 0).equal
    report = Report((good, bad), violations, 1, 1, 1, 0)
    assert not report.equal
    assert str(report).splitlines() == [
        "public.t: 1 rows, 1 folded from c:1: equal",
        "public.u: 1 rows, 0 folded from nothing: 1 rows differ",
        "    only in the table: {}",
        "1 records, 1 events, 1 transactions",
        "NOT EQUAL",
    ]
    violations.add("an event twice", "here")
    assert not Report((good,), violations, 1, 1, 1, 0).equal
