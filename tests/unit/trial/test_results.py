"""The bound, and the file that grows by a row for each trial."""

from collections import Counter
from dataclasses import replace

import pytest

from tests.trial.results import Result, add_planted, add_trial, upper_bound

RESULT = Result(
    date="2026-01-02",
    commit="abc",
    seed=7,
    version=18,
    seconds=120,
    faults=Counter({"daemon killed": 3, "failover": 1}),
    outcomes=(90, 8, 2),
    records=1000,
    samples=500,
    takeovers=2,
    anomalies=Counter(),
)


@pytest.mark.parametrize("tries", [1, 24, 1000])
def test_without_failures_the_bound_is_the_exact_form_of_the_rule_of_three(tries: int):
    assert upper_bound(0, tries) == pytest.approx(1 - 0.05 ** (1 / tries))


def test_the_bound_is_that_of_clopper_and_pearson():
    # R: binom.test(1, 24, alternative = "less")$conf.int
    assert upper_bound(1, 24) == pytest.approx(0.1829, abs=1e-4)
    assert upper_bound(24, 24) == 1


def test_a_trial_is_a_row_and_all_rows_are_added_up():
    text = add_trial(add_trial("", RESULT), replace(RESULT, seed=8))
    assert text.count("| 2026-01-02 |") == 2
    assert (
        "Trials: 2, of 2 different seeds, with 8 faults and 200 operations; 0 of them found an anomaly."
        in text
    )
    assert "at most 77.6%" in text


def test_a_trial_that_found_something_stays_in_the_file():
    text = add_trial("", replace(RESULT, anomalies=Counter({"lost": 2})))
    text = add_trial(text, RESULT)
    assert "| 2: 2 lost |" in text
    assert "1 of them found an anomaly" in text


def test_a_planted_mistake_has_one_row_and_is_no_trial():
    text = add_planted(add_trial("", RESULT), ("late", "1", "30", "5", "nothing"))
    text = add_planted(text, ("late", "2", "30", "5", "4 doubled"))
    text = add_trial(text, RESULT)
    assert text.count("| late |") == 1
    assert "4 doubled" in text
    assert "Trials: 2, of 1 different seeds" in text
