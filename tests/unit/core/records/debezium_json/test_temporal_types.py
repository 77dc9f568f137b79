"""What servers send is tested with real ones (tests/integration/test_types.py)."""

from struct import pack

import pytest

from cdcd.core.records.debezium_json.temporal_types import (
    DATES_MAX,
    Date,
    IntervalString,
    Time,
    Timestamp,
    TimestampTz,
    TimeTz,
)

GREATEST = {32: 2**31 - 1, 64: 2**63 - 1}


def test_remembered_dates_are_forgotten_when_there_are_too_many():
    converter = Date()
    first = converter.json("2024-01-31")
    for year in range(1, DATES_MAX + 2):
        converter.json(f"{year:04}-01-31")
        assert len(converter._known) <= DATES_MAX
    assert converter.json("2024-01-31") == first


@pytest.mark.parametrize(("modifier", "unit"), [(-1, 1), (0, 1000), (3, 1000), (4, 1), (6, 1)])
def test_the_unit_is_milliseconds_where_the_declared_precision_is_three_or_less(modifier, unit):
    assert Time(modifier).json("00:00:02.5") == str(2_500_000 // unit)
    assert Timestamp(modifier).json("1970-01-01 00:00:02.5") == str(2_500_000 // unit)
    assert Timestamp(modifier).json("infinity") == str(9_223_372_036_825_200_000 // unit)
    assert Timestamp(modifier).json("-infinity") == str(-9_223_372_036_832_400_000 // unit)


@pytest.mark.parametrize(("sign", "name"), [(1, "infinity"), (-1, "-infinity")])
def test_the_infinities_are_the_same_in_binary_form(sign, name):
    day, moment = (sign * GREATEST[bits] - (sign < 0) for bits in (32, 64))
    assert Date().binary(pack("!i", day)) == Date().json(name)
    assert Timestamp(-1).binary(pack("!q", moment)) == Timestamp(-1).json(name)
    assert TimestampTz(-1).binary(pack("!q", moment)) == TimestampTz(-1).json(name) == f'"{name}"'
    interval = pack("!qii", moment, day, day)
    assert IntervalString().binary(interval) == IntervalString().json(name) == f'"{name}"'


def test_an_interval_with_one_extreme_part_is_finite():
    made = IntervalString().binary(pack("!qii", GREATEST[64], 0, 0))
    assert made == '"P0Y0M0DT2562047788H0M54.775807S"'


def test_a_time_with_zone_counts_its_seconds_westward_in_binary_form():
    assert TimeTz().binary(pack("!qi", 3_600_000_000, -7200)) == TimeTz().json("01:00:00+02") == '"23:00:00Z"'
