"""PostgreSQL's text of a value -> a value of Python."""

from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from math import isnan
from uuid import UUID

import pytest

from cdcd.core.catalog.relations import TypeDescription
from cdcd.core.catalog.types import BUILTIN_TYPES
from cdcd.stream.changes import reader_for

MOOD = TypeDescription(50_001, "public", "mood", "e", "E", 0, 0, -1)
MOODS = TypeDescription(50_002, "public", "_mood", "b", "A", 50_001, 0, -1)
AMOUNT = TypeDescription(50_003, "public", "amount", "d", "N", 0, 1700, -1)
AMOUNTS = TypeDescription(50_004, "public", "_amount", "b", "A", 50_003, 0, -1)
TYPES = {**BUILTIN_TYPES, **{each.oid: each for each in (MOOD, MOODS, AMOUNT, AMOUNTS)}}


@pytest.mark.parametrize(
    ("oid", "text", "value"),
    [
        (16, "t", True),
        (16, "f", False),
        (20, "-9223372036854775808", -(2**63)),
        (26, "4294967295", 2**32 - 1),
        (700, "1.1", 1.1),
        (701, "-Infinity", float("-inf")),
        (1700, "0.10", Decimal("0.10")),
        (1700, "Infinity", Decimal("Infinity")),
        (17, "\\x00ff", b"\x00\xff"),
        (17, "\\x", b""),
        (2950, "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", UUID("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11")),
        (1082, "2026-02-28", date(2026, 2, 28)),
        (1083, "23:59:59.5", time(23, 59, 59, 500_000)),
        (1266, "12:00:00+05:30", time(12, tzinfo=timezone(timedelta(hours=5, minutes=30)))),
        (1114, "2026-02-28 01:02:03.000004", datetime(2026, 2, 28, 1, 2, 3, 4)),  # noqa: DTZ001  so it is
        (1184, "2026-02-28 01:02:03+00", datetime(2026, 2, 28, 1, 2, 3, tzinfo=UTC)),
        (25, "žluťoučký\nkůň", "žluťoučký\nkůň"),
        (3802, '{"a": 1.10}', '{"a": 1.10}'),
        (790, "$1,000.00", "$1,000.00"),
        (1186, "1 mon 2 days", "1 mon 2 days"),
        (50_001, "sad", "sad"),
        (50_003, "1.50", Decimal("1.50")),
        (99_999, "of a type that was dropped", "of a type that was dropped"),
        (1007, "{1,NULL,3}", [1, None, 3]),
        (1007, "{{1,2},{3,4}}", [[1, 2], [3, 4]]),
        (1007, "[0:1]={1,2}", [1, 2]),
        (1007, "{}", []),
        (1009, '{"a,b","NULL",NULL,"q\\"\\\\ů"}', ["a,b", "NULL", None, 'q"\\ů']),
        (1020, "{(1,1),(0,0);(2,2),(1,1)}", ["(1,1),(0,0)", "(2,2),(1,1)"]),
        (1001, '{"\\\\x01"}', [b"\x01"]),
        (50_002, "{sad,ok}", ["sad", "ok"]),
        (50_004, "{1.50}", [Decimal("1.50")]),
        (22, "1 2", "1 2"),
    ],
)
def test_a_type_that_python_has_without_loss_is_read_into_it(oid, text, value):
    found = reader_for(oid, TYPES)(text)
    assert (type(found), found) == (type(value), value)


@pytest.mark.parametrize(
    ("oid", "text"),
    [
        (1082, "infinity"),
        (1082, "0044-03-15 BC"),
        (1082, "12026-01-01"),
        (1083, "24:00:00"),
        (1114, "-infinity"),
        (1114, "12026-01-01 00:00:00"),
        (1114, "0044-03-15 00:00:00 BC"),
        (1184, "12026-01-01 00:00:00+00"),
        (1184, "infinity"),
    ],
)
def test_a_time_that_python_cannot_hold_stays_text(oid, text):
    assert reader_for(oid, TYPES)(text) == text


def test_not_a_number_is_not_a_number():
    number, decimal = reader_for(701, TYPES)("NaN"), reader_for(1700, TYPES)("NaN")
    assert isinstance(number, float)
    assert isinstance(decimal, Decimal)
    assert isnan(number)
    assert decimal.is_nan()


@pytest.mark.parametrize(
    ("oid", "text"), [(16, "yes"), (23, "1.5"), (17, "abc"), (1007, "{1"), (1700, "one"), (2950, "x")]
)
def test_what_postgresql_never_writes_is_refused(oid, text):
    with pytest.raises((ValueError, ArithmeticError)):
        reader_for(oid, TYPES)(text)


def test_a_circle_of_domains_comes_to_an_end():
    loop = TypeDescription(50_010, "public", "d", "d", "N", 0, 50_010, -1)
    assert reader_for(50_010, {50_010: loop})("1") == "1"
