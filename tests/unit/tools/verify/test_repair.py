from cdcd.core.snapshot.signals import WHERE_MAX
from cdcd.tools.verify.comparing import DIFFERS, ONLY_TOPICS, SHOWN_MAX, Outcome, RowDifference
from cdcd.tools.verify.repair import conditions, not_repairable, requests
from cdcd.tools.verify.report import Report, TableReport


def report(outcome: Outcome, faults: int = 0) -> Report:
    return Report(
        "p", "topics", 1, [TableReport("public.t", "p.public.t", 1, 1, outcome, faults_in_all=faults)]
    )


def differing(count: int, sql: str = "id = {}") -> Outcome:
    outcome = Outcome()
    for number in range(count):
        outcome.add(RowDifference(DIFFERS, str(number)), sql.format(number))
    return outcome


def test_exactly_the_rows_that_differ_are_asked_for():
    assert list(requests(report(differing(2)))) == [("public.t", "(id = 0) OR (id = 1)")]
    assert list(requests(report(Outcome()))) == []


def test_conditions_are_as_long_as_a_request_may_have():
    found = conditions([f"id = '{number:0100}'" for number in range(100)])
    assert len(found) > 1
    assert max(map(len, found)) <= WHERE_MAX
    assert sum(each.count("id =") for each in found) == 100
    assert conditions(["x" * WHERE_MAX]) == []


def test_a_table_of_which_too_many_rows_differ_is_read_whole():
    assert list(requests(report(differing(SHOWN_MAX + 1)))) == [("public.t", "")]
    assert list(requests(report(differing(1, "x" * WHERE_MAX)))) == [("public.t", "")]


def test_what_no_request_mends_is_said():
    outcome = Outcome()
    outcome.add(RowDifference(ONLY_TOPICS, "k"))
    found = report(outcome, faults=3)
    assert list(requests(found)) == []
    assert len(list(not_repairable(found))) == 2
    assert list(not_repairable(report(differing(3)))) == []


def test_a_table_without_a_key_is_read_as_a_whole_which_ends_the_rows_that_only_the_topics_have():
    outcome = differing(1, "")
    outcome.add(RowDifference(ONLY_TOPICS, "no key"))
    outcome.is_counted = True
    assert list(requests(report(outcome))) == [("public.t", "")]
    assert list(not_repairable(report(outcome))) == []
