"""Forecasts of when a slot is lost, against what then happened, over steady and bursty traces."""

from collections.abc import Callable
from itertools import count

import pytest

from cdcd.core.engine.wal_forecast import WINDOW_S, WalForecast

LOOK_S = 15.0
MB = 1_000_000

Trace = Callable[[float], float]
"""The WAL that was written by a time."""


def steady(rate: float) -> Trace:
    return lambda now: rate * now


def bursty(rate: float, every_s: float, busy_s: float, phase_s: float) -> Trace:
    """`rate` on average, written in the first `busy_s` of every `every_s`."""

    def written(now: float) -> float:
        periods, within = divmod(now + phase_s, every_s)
        return rate * every_s * (periods + min(within / busy_s, 1.0))

    return written


def lost_at(trace: Trace, since: float, safe: float) -> float:
    """When the trace has written `safe` bytes since then."""
    before = trace(since)
    return next(each for each in (since + step for step in count()) if trace(each) - before >= safe)


def measured(trace: Trace, until: float, safe: int, *, idle_s: float = 0.0) -> WalForecast:
    """A forecast after `until` seconds of the trace, and `idle_s` before it, with `safe` bytes left."""
    forecast = WalForecast()
    now = -idle_s
    while now <= until:
        written = trace(now) - trace(0.0) if now > 0 else 0.0
        forecast.observe(now, int(written), 10 * safe, safe)
        now += LOOK_S
    return forecast


TRACES = {
    "steady": steady(5 * MB),
    "slow": steady(0.01 * MB),
    **{
        f"{busy_s:g} of {every_s:g} s, phase {phase_s:g}": bursty(5 * MB, every_s, busy_s, phase_s)
        for every_s, busy_s in ((10.0, 1.0), (60.0, 10.0), (60.0, 50.0), (110.0, 20.0), (180.0, 60.0))
        for phase_s in (0.0, 5.0, 25.0, 55.0, 100.0)
    },
}


@pytest.mark.parametrize("name", TRACES)
@pytest.mark.parametrize("idle_s", [0.0, 3600.0])
def test_after_ten_minutes_the_forecast_is_right_within_a_fifth(name: str, idle_s: float):
    trace = TRACES[name]
    safe = int(trace(3600.0) - trace(0.0))
    forecast = measured(trace, WINDOW_S, safe, idle_s=idle_s)
    truth = lost_at(trace, WINDOW_S, safe) - WINDOW_S
    left_s = forecast.seconds_left
    assert left_s is not None
    assert abs(left_s - truth) <= 0.2 * truth


def test_another_rate_is_known_ten_minutes_later():
    forecast = WalForecast()
    written = 0.0
    for step in range(161):
        now = step * LOOK_S
        forecast.observe(now, int(written), 0, 1000 * MB)
        written += LOOK_S * (1 * MB if now < 1800 else 10 * MB)
    assert forecast.bytes_per_s == pytest.approx(10 * MB)


def test_without_a_limit_nothing_is_left_to_tell():
    forecast = WalForecast()
    for now in (0.0, 60.0):
        forecast.observe(now, int(now) * MB, 100 * MB, None)
    assert forecast.bytes_per_s == MB
    assert forecast.seconds_left is None
    assert forecast.warning(3600.0) is None


def test_a_moment_of_measuring_gives_no_forecast():
    forecast = WalForecast()
    assert forecast.seconds_left is None
    for now in (0.0, 15.0):
        forecast.observe(now, int(now) * MB, 0, MB)
    assert forecast.seconds_left is None


def test_a_server_that_writes_nothing_keeps_the_slot_for_ever():
    forecast = WalForecast()
    for now in (0.0, 60.0):
        forecast.observe(now, 7, 0, MB)
    assert forecast.seconds_left == float("inf")


def test_a_slot_behind_its_limit_has_no_time_left():
    forecast = WalForecast()
    for now in (0.0, 60.0):
        forecast.observe(now, int(now), 100, -5)
    assert forecast.seconds_left == 0


def test_another_server_begins_the_measure_anew():
    forecast = WalForecast()
    for now in (0.0, 60.0):
        forecast.observe(now, 5000 + int(now), 0, MB)
    forecast.observe(75.0, 10, 0, MB)
    assert forecast.bytes_per_s is None


def looked(retained: int, safe: int) -> WalForecast:
    forecast = WalForecast()
    for now in (0.0, 60.0):
        forecast.observe(now, int(now) * MB, retained, safe)
    return forecast


def test_a_healthy_slot_is_not_warned_of_however_small_its_limit_is():
    forecast = looked(10 * MB, 600 * MB)
    assert forecast.seconds_left == 600
    assert forecast.warning(3600.0) is None


def test_a_slot_that_holds_half_of_its_limit_and_has_little_time_is_warned_of():
    assert looked(700 * MB, 600 * MB).warning(3600.0) == 600
    assert looked(7000 * MB, 6000 * MB).warning(3600.0) is None


def test_the_warning_comes_again_when_the_rest_has_halved_and_after_a_recovery():
    forecast = looked(700 * MB, 600 * MB)
    assert forecast.warning(3600.0) == 600
    assert forecast.warning(3600.0) is None
    forecast.observe(75.0, 75 * MB, 900 * MB, 301 * MB)
    assert forecast.warning(3600.0) is None
    forecast.observe(90.0, 90 * MB, 900 * MB, 299 * MB)
    assert forecast.warning(3600.0) == pytest.approx(299)
    forecast.observe(105.0, 105 * MB, 10 * MB, 1200 * MB)
    assert forecast.warning(3600.0) is None
    forecast.observe(120.0, 120 * MB, 900 * MB, 600 * MB)
    assert forecast.warning(3600.0) == 600
