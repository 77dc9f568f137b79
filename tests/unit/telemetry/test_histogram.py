"""What each bucket counts, one value at a time or many ages at once."""

import random

import pytest

from cdcd.telemetry.histogram import Histogram

BOUNDS = (0.01, 0.1, 1.0)
NOW = 800_000_000_000_000


def test_a_bucket_has_its_upper_end():
    histogram = Histogram(BOUNDS)
    for value in (0.0, 0.01, 0.011, 1.0, 1.1):
        histogram.observe(value)
    assert histogram.counts == [2, 1, 1, 1]
    assert histogram.sum == pytest.approx(2.121)


def test_many_ages_at_once_are_counted_as_they_are_one_by_one():
    dice = random.Random(7)
    ages_us = [dice.choice((0, 9_999, 10_000, 10_001, 100_000, 999_999, 1_000_001)) for _ in range(500)]
    single, together = Histogram(BOUNDS), Histogram(BOUNDS)
    for age in ages_us:
        single.observe(age / 1e6)
    together.observe_ages([NOW - age for age in ages_us], NOW)
    assert together.counts == single.counts
    assert together.sum == pytest.approx(single.sum)


def test_a_commit_after_now_is_no_age_at_all():
    histogram = Histogram(BOUNDS)
    histogram.observe_ages([NOW + 5_000_000, NOW - 50_000], NOW)
    assert histogram.counts == [1, 1, 0, 0]
    assert histogram.sum == pytest.approx(0.05)


def test_no_ages_count_nothing():
    histogram = Histogram(BOUNDS)
    histogram.observe_ages([], NOW)
    assert (histogram.counts, histogram.sum) == ([0, 0, 0, 0], 0)
