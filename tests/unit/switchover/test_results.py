from dataclasses import replace

from tests.switchover.results import Result, add

QUIET = Result(
    "2026-01-02", "abc", 1, 13, 18, (200.0, 187.4), (0, 0), "stopped", False, 4.25, 3.2, 1800, 5400, ""
)


def test_rows_are_kept_and_reckoned_together():
    text = add(
        add("", QUIET), replace(QUIET, seed=2, former=16, kills=(2, 1), stopped_s=31.0, daemon="killed")
    )
    assert (
        "| 2026-01-02 | abc | 1 | 13 → 18 | 187 of 200 | 0 + 0 | stopped | no | 4.2 s | 3 | 1800 | 5400 | 0 |"
        in text
    )
    assert "Handovers: 2, of 2 different seeds, with 3 kills; 0 found something." in text
    assert "(1), writes were stopped for 4.2 s in the median, 4.2 s at most" in text


def test_what_was_found_is_one_cell_and_counts():
    text = add(add("", QUIET), replace(QUIET, seed=2, found="t: 1 rows differ\n| NOT EQUAL"))
    assert "| t: 1 rows differ; / NOT EQUAL |" in text
    assert "1 found something" in add(text, replace(QUIET, slipped=True))
