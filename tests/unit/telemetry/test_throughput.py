from cdcd.telemetry.throughput import LOOK_S, MINUTES, QUARTERS, DelayTimes, Throughput, Totals

HOUR = 3600.0 * 1000


def totals(rows: int) -> Totals:
    return Totals(rows // 2, rows, rows * 100)


def test_before_the_first_look_there_are_sixty_minutes_of_nothing():
    minutes = Throughput().minutes(HOUR, Totals())
    assert len(minutes) == MINUTES
    assert {each for _, each in minutes} == {Totals()}
    assert [at for at, _ in minutes] == [int(HOUR) - 60 * back for back in range(MINUTES - 1, -1, -1)]


def test_each_minute_has_what_was_delivered_in_it():
    found = Throughput()
    for second in range(240):
        found.look(second, HOUR + second, totals(second), {})
    minutes = dict(found.minutes(HOUR + 239, totals(239)))
    assert [minutes[int(HOUR) + 60 * index].rows for index in range(4)] == [60, 60, 60, 59]


def test_a_day_has_quarters_of_an_hour_with_the_largest_lag_and_the_mean_delay():
    found = Throughput()
    for second in range(0, 2000, 10):
        lag = 7.0 if second == 100 else 1.0
        found.look(
            second, HOUR + second, totals(second), {}, lag_s=lag, delays=DelayTimes(second, second * 0.25)
        )
    day = found.day(HOUR + 1990, totals(1990), DelayTimes(1990, 1990 * 0.25))
    assert len(day) == QUARTERS
    first, middle, last = day[-3:]
    assert (first.at, first.lag_s, middle.lag_s) == (int(HOUR), 7.0, 1.0)
    assert (first.rows, middle.rows, last.rows) == (900, 900, 190)
    assert (middle.delay_s, day[0].delay_s, day[0].lag_s) == (0.25, None, None)


def test_the_ring_keeps_an_hour_and_no_more():
    found = Throughput()
    for minute in range(3 * MINUTES):
        found.look(minute * 60.0, HOUR + minute * 60, totals(minute), {})
    minutes = found.minutes(HOUR + 3 * MINUTES * 60 - 60, totals(3 * MINUTES - 1))
    assert len(minutes) == MINUTES
    assert len(found._minutes) == MINUTES
    assert [each.rows for _, each in minutes[:-1]] == [1] * (MINUTES - 1)


def test_a_time_in_which_the_process_stood_still_has_zeros():
    found = Throughput()
    found.look(0, HOUR, totals(0), {})
    found.look(1, HOUR + 1, totals(10), {})
    found.look(600, HOUR + 600, totals(50), {})
    minutes = dict(found.minutes(HOUR + 600, totals(50)))
    # What came meanwhile is counted in the minute in which it was seen first.
    assert minutes[int(HOUR)].rows == 50
    assert {minutes[int(HOUR) + 60 * index].rows for index in range(1, 10)} == {0}


def test_rates_are_means_of_the_last_seconds_by_table():
    found = Throughput()
    for second in range(100):
        found.look(
            second,
            HOUR + second,
            totals(second * 10),
            {("a", "c"): second * 8, ("a", "u"): second, ("b", "c"): 7},
        )
    counts = {("a", "c"): 99 * 8, ("a", "u"): 99, ("a", "filtered"): 500, ("b", "c"): 7, ("new", "c"): 28}
    rates = found.rates(99.0, totals(990), counts)
    assert 2 * LOOK_S <= rates.window_s <= 3 * LOOK_S
    assert rates.rows_per_s == 10
    assert rates.rows_by_table["a"] == 9
    assert set(rates.rows_by_table) == {"a", "new"}


def test_without_a_look_all_rates_are_zero():
    assert Throughput().rates(5.0, totals(10), {("a", "c"): 10}).rows_per_s == 0
