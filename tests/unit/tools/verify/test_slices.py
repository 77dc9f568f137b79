from cdcd.telemetry.verify import VerifyTelemetry
from cdcd.tools.verify.comparing import DIFFERS, ComparedOutcome, RowDifference
from cdcd.tools.verify.report import TableReport, VerifyReport
from cdcd.tools.verify.slices import Slices, Told


def test_every_table_has_its_turn():
    slices = Slices(100)
    sizes = {"a": 60, "b": 60, "c": 30, "d": 500, "e": 0}
    assert [slices.next(sizes) for _ in range(5)] == [["a"], ["b", "c"], ["d"], ["e", "a"], ["b", "c"]]


def test_tables_that_come_and_go_do_not_stop_the_round():
    slices = Slices(10)
    assert slices.next({"a": 10, "b": 10}) == ["a"]
    assert slices.next({"c": 10}) == ["c"]
    assert slices.next({"a": 10, "b": 10}) == ["a"]
    assert slices.next({}) == []


def test_without_a_limit_all_tables_are_one_slice():
    assert Slices(0).next({"b": 1 << 40, "a": 0}) == ["a", "b"]


def test_a_wrong_record_counts_once_and_a_row_at_each_comparison():
    numbers = VerifyTelemetry()
    told = Told(numbers)
    outcome = ComparedOutcome()
    outcome.add(RowDifference(DIFFERS, "k"))
    for now, lsn, found in (
        (1.0, 10, ComparedOutcome()),
        (2.0, 20, outcome),
        (3.0, 30, outcome),
        (4.0, 40, ComparedOutcome()),
    ):
        faults = 3 if now > 1 else 0
        told.tell(
            VerifyReport("p", "topics", lsn, [TableReport("t", "p.t", lsn, 1, found, faults_in_all=faults)]),
            now,
        )
        if now == 2.0:
            assert (numbers.tables["t"].differences, numbers.tables["t"].differs) == (4, True)
            assert numbers.tables["t"].lsn == 10
    table = numbers.tables["t"]
    # The last comparison found nothing that is new, and all rows are equal.
    assert (table.differences, table.differs, table.lsn, table.compared_at) == (5, False, 40, 4.0)


def test_what_is_not_compared_is_told():
    numbers = VerifyTelemetry()
    Told(numbers).tell(
        VerifyReport("p", "topics", 1, [TableReport("t", "p.t", 1, 1, ComparedOutcome(), ["a limit"])]), 1.0
    )
    assert numbers.tables["t"].is_partial
