from datetime import UTC, date, datetime, time, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdcd.core.catalog import temporal
from cdcd.core.catalog.temporal import DAY_US

DAYS = st.integers(-2_440_588, 2_145_042_905)  # 4714-11-24 BC to 5874897-12-31, PostgreSQL's range of dates
MICROS = st.integers(-210_866_803_200_000_000, 9_224_318_015_999_999_999)  # and of timestamps

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def postgres_date(year: int, month: int, day: int) -> str:
    """As date_out writes it; `year` is astronomical: 0 is 1 BC."""
    return f"{year:04}-{month:02}-{day:02}" if year > 0 else f"{1 - year:04}-{month:02}-{day:02} BC"


def postgres_timestamp(micros: int, zone: str = "") -> str:
    days, within = divmod(micros, DAY_US)
    text = postgres_date(*temporal._civil(days))
    digits, bc, _ = text.partition(" BC")
    clock = (EPOCH + timedelta(microseconds=within)).time().isoformat()
    if "." in clock:
        clock = clock.rstrip("0")
    return f"{digits} {clock}{zone}{bc}"


@given(st.dates())
def test_days_of_the_common_era_are_pythons(day):
    assert temporal.epoch_days(day.isoformat()) == (day - date(1970, 1, 1)).days


@given(DAYS)
def test_a_date_of_any_era_is_read_back(days):
    assert temporal.epoch_days(postgres_date(*temporal._civil(days))) == days


@pytest.mark.parametrize(
    ("text", "days"),
    [
        ("1970-01-01", 0),
        ("2000-02-29", 11_016),
        ("0001-01-01", -719_162),
        ("0001-12-31 BC", -719_163),
        ("0001-02-29 BC", -719_469),
        ("4714-11-24 BC", -2_440_588),
        ("9999-12-31", 2_932_896),
        ("10000-01-01", 2_932_897),
        ("5874897-12-31", 2_145_042_905),
    ],
)
def test_dates_at_the_edges_have_the_days_that_postgresql_counts(text, days):
    assert temporal.epoch_days(text) == days


@pytest.mark.parametrize(
    "text", ["", "01/02/2024", "2024-13-01", "2023-02-29", "0002-02-29 BC", "2024-01-01 AD", "x"]
)
def test_what_is_no_date_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        temporal.epoch_days(text)


@given(st.datetimes())
def test_microseconds_of_the_common_era_are_pythons(moment):
    text = postgres_timestamp((moment.replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1))
    assert temporal.epoch_us(text) == (moment.replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)


@given(MICROS)
def test_a_timestamp_of_any_era_is_read_back(micros):
    assert temporal.epoch_us(postgres_timestamp(micros)) == micros


@pytest.mark.parametrize(
    "text", ["", "2024-01-01 00:00:00+00", "2024-01-01 25:00:00", "44-01-01 00:00:00 BC", "infinity"]
)
def test_what_is_no_timestamp_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        temporal.epoch_us(text)


@given(st.times())
def test_microseconds_of_the_day_are_pythons(moment):
    text = moment.isoformat().rstrip("0") if moment.microsecond else moment.isoformat()
    expected = timedelta(
        hours=moment.hour, minutes=moment.minute, seconds=moment.second, microseconds=moment.microsecond
    )
    assert temporal.day_us(text) == expected // timedelta(microseconds=1)


def test_the_end_of_the_day_is_a_time():
    assert temporal.day_us("24:00:00") == DAY_US


@pytest.mark.parametrize("text", ["", "1:00:00", "01:00", "01:00:00+00", "01:00:00.1234567"])
def test_what_is_no_time_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        temporal.day_us(text)


@pytest.mark.parametrize(
    ("text", "digits", "iso"),
    [
        ("2024-01-31 12:34:56.789012+00", 6, "2024-01-31T12:34:56.789012Z"),
        ("2024-01-31 12:34:56.7+00", 6, "2024-01-31T12:34:56.700000Z"),
        ("2024-01-31 12:34:56+00", 6, "2024-01-31T12:34:56.000000Z"),
        ("2024-01-31 12:34:56+00", 3, "2024-01-31T12:34:56.000Z"),
        ("2024-01-31 12:34:56+00", 0, "2024-01-31T12:34:56Z"),
        ("0001-01-01 00:00:00+00", 0, "0001-01-01T00:00:00Z"),
        ("0001-12-31 23:59:59+00 BC", 0, "0000-12-31T23:59:59Z"),
        ("0044-03-15 12:00:00.5+00 BC", 1, "-0043-03-15T12:00:00.5Z"),
        ("10000-01-01 00:00:00+00", 0, "+10000-01-01T00:00:00Z"),
        ("294276-12-31 23:59:59.999999+00", 6, "+294276-12-31T23:59:59.999999Z"),
    ],
)
def test_a_timestamp_in_utc_is_iso_8601_with_the_declared_digits(text, digits, iso):
    assert temporal.iso_timestamp(text, digits) == iso


@given(MICROS)
def test_the_iso_form_is_the_same_from_text_and_from_the_number(micros):
    assert temporal.iso_timestamp(postgres_timestamp(micros, "+00"), 6) == temporal.iso_timestamp_of(
        micros, 6
    )


@given(st.datetimes())
def test_the_iso_form_is_read_as_the_same_moment(moment):
    micros = (moment.replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)
    assert datetime.fromisoformat(temporal.iso_timestamp_of(micros, 6)) == moment.replace(tzinfo=UTC)


@pytest.mark.parametrize(
    "text", ["", "2024-01-31 12:34:56", "2024-01-31 12:34:56+01", "31.01.2024 12:34:56+00", "+00"]
)
def test_a_timestamp_that_is_not_in_utc_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        temporal.iso_timestamp(text, 6)


@given(st.times(), st.integers(-15 * 3600 - 59, 15 * 3600 + 59))
def test_a_time_with_zone_is_taken_to_utc(moment, east_s):
    zone = timezone(timedelta(seconds=east_s))
    there = datetime.combine(date(2000, 1, 2), moment, zone)
    sign, seconds = "-" if east_s < 0 else "+", abs(east_s)
    offset = f"{sign}{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    iso = temporal.iso_time(f"{moment.isoformat()}{offset}")
    assert iso.endswith("Z")
    assert not iso.endswith("0Z") or "." not in iso
    assert time.fromisoformat(iso.removesuffix("Z")) == there.astimezone(UTC).time()


@pytest.mark.parametrize(
    ("text", "iso"),
    [
        ("17:00:00+00", "17:00:00Z"),
        ("17:00:00.25+02", "15:00:00.25Z"),
        ("01:00:00+05:30", "19:30:00Z"),
        ("24:00:00+00", "24:00:00Z"),
        ("24:00:00+02", "22:00:00Z"),
        ("24:00:00-02", "02:00:00Z"),
        ("00:00:00-00:00:01", "00:00:01Z"),
    ],
)
def test_times_with_zone_at_the_edges(text, iso):
    assert temporal.iso_time(text) == iso


@pytest.mark.parametrize("text", ["", "17:00:00", "17:00:00Z", "17:00+00"])
def test_what_is_no_time_with_zone_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        temporal.iso_time(text)


@pytest.mark.parametrize(
    ("text", "iso"),
    [
        ("1 year 2 mons 3 days 04:05:06.78", "P1Y2M3DT4H5M6.78S"),
        ("00:00:00", "P0Y0M0DT0H0M0S"),
        ("-1 years -2 mons +3 days -04:05:06", "P-1Y-2M3DT-4H-5M-6S"),
        ("-00:00:00.5", "P0Y0M0DT0H0M-0.5S"),
        ("-00:01:00", "P0Y0M0DT0H-1M0S"),
        ("2 years", "P2Y0M0DT0H0M0S"),
        ("1 mon", "P0Y1M0DT0H0M0S"),
        ("-1 days", "P0Y0M-1DT0H0M0S"),
        ("1 year 00:00:10", "P1Y0M0DT0H0M10S"),
        ("2562047788:00:54.775807", "P0Y0M0DT2562047788H0M54.775807S"),
    ],
)
def test_intervals_have_all_fields_each_with_its_sign(text, iso):
    assert temporal.iso_interval(text) == iso


@given(st.integers(-(2**31), 2**31 - 1), st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1))
def test_an_interval_is_the_same_from_text_and_from_its_parts(months, days, micros):
    """The text is composed as EncodeInterval in datetime.c does for intervalstyle postgres."""
    sign = -1 if months < 0 else 1
    parts = [(sign * (abs(months) // 12), "year"), (sign * (abs(months) % 12), "mon"), (days, "day")]
    words: list[str] = []
    negative = False
    for number, unit in parts:
        if number:
            plus = "+" if negative and number > 0 else ""
            words.append(f"{plus}{number} {unit}{'' if number == 1 else 's'}")
            negative = number < 0
    if micros or not words:
        seconds, fraction = divmod(abs(micros), 1_000_000)
        clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
        clock += f".{fraction:06}".rstrip("0") if fraction else ""
        words.append(("-" if micros < 0 else "+" if negative else "") + clock)
    assert temporal.iso_interval(" ".join(words)) == temporal.iso_interval_of(months, days, micros)


@pytest.mark.parametrize("text", ["", "@ 1 year", "P1Y", "1 year ago", "1-2", "infinity", "1 week"])
def test_what_is_no_interval_in_our_style_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        temporal.iso_interval(text)
