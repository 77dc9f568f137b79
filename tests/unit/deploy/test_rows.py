from typing import Any

import pytest

from deploy.demo.rows import converter


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("int8", "-9223372036854775808", -9223372036854775808),
        ("bool", "t", True),
        ("float8", "1e-300", 1e-300),
        ("float4", "NaN", "NaN"),
        ("numeric", "-0.000", "-0.000"),
        ("numeric", "NaN", "NAN"),
        ("numeric", "-Infinity", "NEGATIVE_INFINITY"),
        ("money", "-$1,234.50", "-1234.50"),
        ("bytea", "\\x00ff", "AP8="),
        ("date", "1970-01-02", 1),
        ("date", "2024-02-29", 19782),
        ("date", "0001-01-01 BC", -719528),
        ("date", "0044-03-15 BC", -735160),
        ("date", "10000-01-01", 2932897),
        ("date", "infinity", -2147472692),
        ("time", "23:59:59.5", 86399500000),
        ("time", "24:00:00", 86400000000),
        ("timestamp", "1970-01-01 00:00:01.000001", 1000001),
        ("timestamp", "1969-12-31 23:59:59.999999", -1),
        ("timestamp", "-infinity", -9223372036832400000),
        ("timestamptz", "2024-01-31 12:34:56.7+00", "2024-01-31T12:34:56.700000Z"),
        ("timestamptz", "0044-03-15 12:00:00+00 BC", "-0043-03-15T12:00:00.000000Z"),
        ("timestamptz", "20240-02-29 23:59:59.999999+00", "+20240-02-29T23:59:59.999999Z"),
        ("timestamptz", "infinity", "infinity"),
        ("interval", "1 year 2 mons -3 days +04:05:06.7", "P1Y2M-3DT4H5M6.7S"),
        ("interval", "-1 years -2 mons", "P-1Y-2M0DT0H0M0S"),
        ("interval", "-00:00:00.000001", "P0Y0M0DT0H0M-0.000001S"),
        ("interval", "00:00:00", "P0Y0M0DT0H0M0S"),
        ("interval", "1000:00:10", "P0Y0M0DT1000H0M10S"),
        ("jsonb", '{"a": 1}', '{"a": 1}'),
        ("bpchar", "ab   ", "ab   "),
    ],
)
def test_text_becomes_what_records_have(kind: str, text: str, expected: Any) -> None:
    found = converter(kind, "", -1)(text)
    assert found == expected
    assert type(found) is type(expected)


def test_a_declared_precision_makes_milliseconds_and_fewer_digits() -> None:
    assert converter("timestamp", "", 3)("1970-01-01 00:00:01.234") == 1234
    assert converter("time", "", 0)("00:00:01") == 1000
    assert converter("timestamptz", "", 3)("2024-01-01 00:00:00.5+00") == "2024-01-01T00:00:00.500Z"
    assert converter("timestamptz", "", 0)("2024-01-01 00:00:00+00") == "2024-01-01T00:00:00Z"


@pytest.mark.parametrize(
    ("element", "text", "expected"),
    [
        ("int4", "{1,NULL,3}", [1, None, 3]),
        ("text", "{}", []),
        ("text", '{a,"b,c","NULL",NULL,"","x\\"y\\\\z"}', ["a", "b,c", "NULL", None, "", 'x"y\\z']),
        ("date", "{{1970-01-01,NULL},{1970-01-02,infinity}}", [[0, None], [1, -2147472692]]),
        ("int4", "[0:1]={7,8}", [7, 8]),
        ("text", '{"{}"}', ["{}"]),
    ],
)
def test_arrays_are_lists_of_their_elements_form(element: str, text: str, expected: Any) -> None:
    assert converter(f"_{element}", element, -1)(text) == expected
