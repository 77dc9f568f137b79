"""Dates and times of the usual form: the same as `temporal.py` has them, and nothing of another form."""

from datetime import date, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from librt.strings import BytesWriter

from cdcd.core.catalog import temporal
from cdcd.core.catalog.temporal import DAY_BYTES, UNUSUAL, read_days, read_timestamp
from cdcd.core.records.debezium_json.temporal_types import write_timestamp, write_timestamp_text

EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001  as of `timestamp`
YEARS_US = (-62_135_596_800_000_000, 253_402_300_799_999_999)
"""The first and the last microsecond of the years 1 to 9999."""


@given(st.dates())
@example(date(2000, 2, 29))
@example(date(1900, 3, 1))
@example(date(1, 1, 1))
@example(date(9999, 12, 31))
def test_a_date_is_its_days_since_1970(day):
    assert read_days(b"<" + day.isoformat().encode() + b">", 1) == temporal.epoch_days(day.isoformat())


@given(st.from_regex(rb"[0-9]{4}-[0-9]{2}-[0-9]{2}", fullmatch=True) | st.binary(min_size=10, max_size=10))
@example(b"1900-02-29")
@example(b"2100-02-29")
@example(b"2023-02-29")
@example(b"2024-04-31")
@example(b"2024-13-01")
@example(b"0000-01-01")
@example(b"2024-W01-1")
def test_what_is_no_day_of_the_calendar_is_left(text):
    days = read_days(text, 0)
    try:
        known = date(int(text[:4]), int(text[5:7]), int(text[8:]))
        is_day = known.isoformat().encode() == text
    except ValueError:
        is_day = False
    assert (days != UNUSUAL) == is_day


@given(st.datetimes())
@example(datetime(2024, 1, 31, 12, 34, 56))  # noqa: DTZ001
@example(datetime(2024, 1, 31, 12, 34, 56, 500_000))  # noqa: DTZ001
def test_a_timestamp_is_its_microseconds_since_1970(moment):
    text = moment.isoformat(" ")
    # The server leaves out zeros at the end.
    text = text.rstrip("0") if "." in text else text
    data = b"<" + text.encode() + b">"
    assert read_timestamp(data, 1, len(data) - 1) == (moment - EPOCH) // timedelta(microseconds=1)


@pytest.mark.parametrize(
    "text",
    [
        "", "infinity", "-infinity", "2024-01-31", "2024-01-31 12:34:5", "2024-01-31 12:34:56.", "2024-01-31T12:34:56",
        "2024-01-31 24:00:00", "2024-01-31 12:60:00", "2024-01-31 12:34:60", "2024-01-31 12-34-56",
        "2024-02-30 00:00:00", "0044-03-15 12:00:00 BC", "0044-03-15 12:00:00.5 BC", "10000-01-01 00:00:00",
        "2024-01-31 12:34:56.1234567", "2024-01-31 12:34:56.12x", "2024-01-31 12:34:56+00",
    ],
)  # fmt: skip
def test_what_is_no_timestamp_of_the_usual_form_is_left(text):
    data = b"<" + text.encode() + b" " * DAY_BYTES
    assert read_timestamp(data, 1, 1 + len(text)) == UNUSUAL


@given(st.integers(*YEARS_US), st.integers(0, 6))
@example(YEARS_US[0], 6)
@example(YEARS_US[1], 0)
@example(-1, 6)
@example(951_782_400_000_000, 3)
def test_microseconds_are_written_as_iso_8601(micros, digits):
    out = BytesWriter()
    assert write_timestamp(micros, digits, out)
    assert out.getvalue().decode() == f'"{temporal.iso_timestamp_of(micros, digits)}"'


@pytest.mark.parametrize("micros", [YEARS_US[0] - 1, YEARS_US[1] + 1, -(2**61), 2**61])
def test_far_years_are_left(micros):
    out = BytesWriter()
    assert not write_timestamp(micros, 6, out)
    assert not len(out)


@given(st.datetimes(), st.integers(0, 6))
def test_a_timestamp_with_time_zone_keeps_its_digits_and_gets_those_of_its_type(moment, digits):
    fraction = f"{moment.microsecond:06}"[:digits].rstrip("0")
    text = f"{moment:%H:%M:%S}{'.' if fraction else ''}{fraction}+00"
    text = f"{moment.date().isoformat()} {text}"
    data = b"<" + text.encode() + b">"
    out = BytesWriter()
    assert write_timestamp_text(data, 1, len(data) - 1, digits, out)
    assert out.getvalue().decode() == f'"{temporal.iso_timestamp(text, digits)}"'


@pytest.mark.parametrize(
    "text",
    [
        "infinity", "-infinity", "2024-01-31 12:34:56", "2024-01-31 12:34:56+01", "0044-03-15 00:00:00+00 BC",
        "10000-01-01 00:00:00+00", "2024-01-31 12:34:56.1234567+00",
    ],
)  # fmt: skip
def test_what_is_no_timestamp_with_time_zone_of_the_usual_form_is_left(text):
    data = b"<" + text.encode() + b" " * DAY_BYTES
    out = BytesWriter()
    assert not write_timestamp_text(data, 1, 1 + len(text), 6, out)
    assert not len(out)
