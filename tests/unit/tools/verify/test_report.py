from collections import Counter

from cdcd.core.snapshot.signals import WHERE_MAX
from cdcd.tools.verify.comparing import (
    DIFFERS,
    ONLY_SOURCE,
    ONLY_TOPICS,
    SHOWN_MAX,
    ColumnDifference,
    ComparedOutcome,
    RowDifference,
)
from cdcd.tools.verify.folding import Fault
from cdcd.tools.verify.report import (
    DIFFERENT,
    EQUAL,
    PARTIAL,
    TableReport,
    VerifyReport,
    as_object,
    conditions,
    lines,
    not_repairable,
    requests,
)


def table(outcome: ComparedOutcome, **fields: object) -> TableReport:
    return TableReport("public.orders", "shop.public.orders", 0x1A2B, 12, outcome, **fields)  # type: ignore[arg-type]


def report(*tables: TableReport) -> VerifyReport:
    return VerifyReport("shop", "topics", 0x1A2B, list(tables))


def different() -> ComparedOutcome:
    outcome = ComparedOutcome(source_rows=3, topic_rows=2)
    outcome.add(RowDifference(DIFFERS, '{"id":1}', (ColumnDifference("note", '"' + "x" * 200 + '"', '"b"'),)))
    outcome.add(RowDifference(ONLY_SOURCE, '{"id":2}', (ColumnDifference("note", '"secret"', ""),)))
    return outcome


def test_a_table_is_equal_only_if_everything_was_compared():
    assert table(ComparedOutcome()).verdict == EQUAL
    assert table(ComparedOutcome(), limits=["records from when the table had a key"]).verdict == PARTIAL
    assert table(ComparedOutcome(not_compared=Counter({"rows": 1}))).verdict == PARTIAL
    assert table(ComparedOutcome(), faults_in_all=1).verdict == DIFFERENT
    assert table(different(), limits=["a limit"]).verdict == DIFFERENT


def test_a_note_is_told_and_leaves_a_table_equal():
    noted = table(ComparedOutcome(), notes=["7 rows changed meanwhile"])
    assert noted.verdict == EQUAL
    assert "    7 rows changed meanwhile" in lines(report(noted), shown=1, values=True)
    assert as_object(report(noted), shown=1, values=True)["tables"][0]["notes"] == [
        "7 rows changed meanwhile"
    ]


def test_the_exit_code_is_that_of_the_worst_table():
    equal, partial, worse = (
        table(ComparedOutcome()),
        table(ComparedOutcome(), limits=["x"]),
        table(different()),
    )
    assert report(equal).exit_code == 0
    assert report(equal, partial).exit_code == 12
    assert report(partial, worse, equal).exit_code == 10
    assert VerifyReport("shop", "topics", 1, [equal], ["a sample"]).exit_code == 12


def test_people_read_lines_of_eighty_columns():
    fault = Fault("a record twice", "shop.public.orders/0@17", '{"id":3}')
    text = list(lines(report(table(different(), faults=[fault], faults_in_all=9)), shown=1, values=True))
    assert max(map(len, text)) <= 80
    whole = "\n".join(text)
    for part in (
        "0/1A2B",
        "differs",
        '{"id":1}',
        "note",
        "source",
        "target",
        "@17",
        "8 such records more",
        "1 row more",
    ):
        assert part in whole


def test_values_are_shown_only_if_they_are_wanted():
    for values in (True, False):
        found = report(
            table(different(), faults=[Fault("a record twice", "t/0@1", '{"id":3}')], faults_in_all=1)
        )
        text = "\n".join(lines(found, shown=10, values=values))
        data = str(as_object(found, shown=10, values=values))
        assert ("secret" in text, "secret" in data) == (values, values)
        assert "note" in text or not values
        assert "note" in data


def test_what_a_terminal_would_obey_is_not_shown():
    outcome = ComparedOutcome()
    outcome.add(RowDifference(DIFFERS, '{"id":"\x1b[2J"}', (ColumnDifference("n", "\x07", "1"),)))
    assert all(line.isprintable() for line in lines(report(table(outcome)), shown=5, values=True))


def report_of_repair(outcome: ComparedOutcome, faults: int = 0) -> VerifyReport:
    return VerifyReport(
        "p", "topics", 1, [TableReport("public.t", "p.public.t", 1, 1, outcome, faults_in_all=faults)]
    )


def differing(count: int, sql: str = "id = {}") -> ComparedOutcome:
    outcome = ComparedOutcome()
    for number in range(count):
        outcome.add(RowDifference(DIFFERS, str(number)), sql.format(number))
    return outcome


def test_exactly_the_rows_that_differ_are_asked_for():
    assert list(requests(report_of_repair(differing(2)))) == [("public.t", "(id = 0) OR (id = 1)")]
    assert list(requests(report_of_repair(ComparedOutcome()))) == []


def test_conditions_are_as_long_as_a_request_may_have():
    found = conditions([f"id = '{number:0100}'" for number in range(100)])
    assert len(found) > 1
    assert max(map(len, found)) <= WHERE_MAX
    assert sum(each.count("id =") for each in found) == 100
    assert conditions(["x" * WHERE_MAX]) == []


def test_a_table_of_which_too_many_rows_differ_is_read_whole():
    assert list(requests(report_of_repair(differing(SHOWN_MAX + 1)))) == [("public.t", "")]
    assert list(requests(report_of_repair(differing(1, "x" * WHERE_MAX)))) == [("public.t", "")]


def test_what_no_request_mends_is_said():
    outcome = ComparedOutcome()
    outcome.add(RowDifference(ONLY_TOPICS, "k"))
    found = report_of_repair(outcome, faults=3)
    assert list(requests(found)) == []
    assert len(list(not_repairable(found))) == 2
    assert list(not_repairable(report_of_repair(differing(3)))) == []


def test_a_table_without_a_key_is_read_as_a_whole_which_ends_the_rows_that_only_the_topics_have():
    outcome = differing(1, "")
    outcome.add(RowDifference(ONLY_TOPICS, "no key"))
    outcome.is_counted = True
    assert list(requests(report_of_repair(outcome))) == [("public.t", "")]
    assert list(not_repairable(report_of_repair(outcome))) == []
