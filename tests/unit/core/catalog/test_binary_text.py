"""Against what a server sends, the forms are tested in tests/integration/test_types.py; here are their edges."""

from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdcd.core.catalog import binary_text, temporal
from cdcd.core.catalog.types import BUILTIN_TYPES, READERS

OIDS = {kind.name: oid for oid, kind in BUILTIN_TYPES.items()}


def read(name: str, data: bytes) -> str:
    return READERS[OIDS[name]](data)


def inet(address: bytes, bits: int, cidr: bool = False) -> bytes:
    return pack("!BBBB", 2 if len(address) == 4 else 3, bits, cidr, len(address)) + address


@pytest.mark.parametrize(
    ("name", "data", "text"),
    [
        ("bool", b"\1", "t"), ("bool", b"\0", "f"), ("bytea", b"\0\xff", "\\x00ff"), ("char", b"\0", ""),
        ("money", pack("!q", -123456), "-$1,234.56"), ("pg_lsn", pack("!Q", 0x16B374D848), "16/B374D848"),
        ("tid", pack("!IH", 2**32 - 1, 65535), "(4294967295,65535)"), ("xid8", b"\xff" * 8, str(2**64 - 1)),
        ("pg_snapshot", pack("!iQQQQ", 2, 10, 20, 10, 14), "10:20:10,14"),
        ("pg_snapshot", pack("!iQQ", 0, 1, 1), "1:1:"),
        ("macaddr", bytes(range(6)), "00:01:02:03:04:05"), ("inet", inet(bytes(4), 0), "0.0.0.0/0"),
        ("cidr", inet(b"\1\2\3\4", 32, cidr=True), "1.2.3.4/32"), ("inet", inet(bytes(16), 128), "::"),
        ("inet", inet(bytes(10) + b"\xff\xff\1\2\3\4", 128), "::ffff:1.2.3.4"),
        ("inet", inet(bytes(12) + b"\1\2\3\4", 96), "::1.2.3.4/96"), ("inet", inet(bytes(15) + b"\1", 128), "::1"),
        ("circle", pack("!ddd", 1, -0.0, 2), "<(1,-0),2>"), ("path", pack("!Bidd", 0, 1, 1, 2), "[(1,2)]"),
        ("tsvector", pack("!i3sHHH", 1, b"'\\\0", 2, 1, 3 << 14 | 7), "'''\\\\':1,7A"), ("tsvector", pack("!i", 0), ""),
        ("tsquery", pack("!i", 0), ""), ("jsonpath", b"\1$", "$"), ("date", pack("!i", 0), "2000-01-01"),
    ],
)  # fmt: skip
def test_a_binary_value_becomes_the_text_of_the_server(name, data, text):
    assert read(name, data) == text


SIZED = ["bool", "char", "int2", "int4", "int8", "oid", "xid8", "tid", "float4", "float8", "money", "date", "time",
         "timetz", "timestamp", "timestamptz", "interval", "uuid", "macaddr", "macaddr8", "point", "lseg", "box",
         "line", "circle", "pg_lsn"]  # fmt: skip


@pytest.mark.parametrize("name", SIZED)
def test_a_fixed_form_has_its_length(name):
    accepted = []
    for size in range(34):
        try:
            read(name, bytes(size))
            accepted.append(size)
        except ValueError:
            pass
    assert len(accepted) == 1


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("inet", b""), ("inet", inet(b"\1\2\3\4", 33)), ("inet", b"\4" + inet(b"\1\2\3\4", 8)[1:]),
        ("inet", inet(b"\1\2\3", 8)), ("inet", inet(bytes(4), 8) + b"\0"), ("path", pack("!Bidd", 0, 2, 1, 2)),
        ("polygon", pack("!idd", -1, 1, 2)), ("tsvector", pack("!i2sH", 1, b"ab", 0)), ("tsvector", pack("!i", 1)),
        ("tsquery", pack("!iBB", 1, 2, 9)), ("tsquery", pack("!iBB", 1, 2, 1)), ("tsquery", pack("!ib", 0, 1)),
        ("pg_snapshot", pack("!iQQ", 1, 1, 1)), ("jsonpath", b"\2$"), ("jsonb", b""), ("tid", b"\0"),
    ],
)  # fmt: skip
def test_what_is_not_of_the_types_form_is_refused(name, data):
    with pytest.raises(ValueError, match=r"."):
        read(name, data)


def word(text: str, weights: int = 0, prefix: int = 0) -> bytes:
    return pack("!BBB", 1, weights, prefix) + text.encode() + b"\0"


def both(operator: int, right: bytes, left: bytes, distance: int = 0) -> bytes:
    return pack("!BB", 2, operator) + (pack("!h", distance) if operator == 4 else b"") + right + left


@pytest.mark.parametrize(
    ("items", "text"),
    [
        (word("a'b", 15, 1), "'a''b':*ABCD"),
        (both(3, word("c"), both(2, word("b"), word("a"))), "'a' & 'b' | 'c'"),
        (both(2, word("c"), both(3, word("b"), word("a"))), "( 'a' | 'b' ) & 'c'"),
        (both(4, both(4, word("c"), word("b"), 1), word("a"), 3), "'a' <3> ( 'b' <-> 'c' )"),
        (both(4, word("c"), both(4, word("b"), word("a"), 1), 1), "'a' <-> 'b' <-> 'c'"),
        (b"\2\1" + both(2, word("b"), word("a")), "!( 'a' & 'b' )"),
        (b"\2\1\2\1" + word("a"), "!!'a'"),
    ],
)
def test_a_query_has_parentheses_where_priorities_ask_for_them(items, text):
    assert binary_text.tsquery_text(pack("!i", 1) + items) == text


@given(st.integers(-210_866_803_200_000_000, 9_223_371_331_200_000_000 - 946_684_800_000_000))
def test_the_text_of_a_timestamp_is_read_as_the_same_moment(micros):
    text = temporal.timestamp_text_of(micros, "+00")
    assert temporal.iso_timestamp(text, 6) == temporal.iso_timestamp_of(micros + 946_684_800_000_000, 6)


@given(st.integers(-2_451_545, 2_145_031_948))
def test_the_text_of_a_date_is_read_as_the_same_day(days):
    assert temporal.epoch_days(temporal.date_text_of(days)) == days + temporal.POSTGRES_EPOCH_DAYS


@given(
    st.integers(-(2**31), 2**31 - 1),
    st.integers(-(2**31) + 1, 2**31 - 1),
    st.integers(-(2**63) + 1, 2**63 - 2),
)
def test_the_text_of_an_interval_is_read_as_the_same_interval(months, days, micros):
    text = temporal.interval_text_of(months, days, micros)
    assert temporal.iso_interval(text) == temporal.iso_interval_of(months, days, micros)


@given(st.integers(0, 86_400_000_000), st.integers(-57_599, 57_599))
def test_the_text_of_a_time_is_read_as_the_same_time(micros, east_s):
    text = temporal.clock_text_of(micros) + temporal.zone_text_of(east_s)
    assert temporal.iso_time(text) == temporal.iso_time_of(micros, east_s)


@pytest.mark.parametrize(
    ("months", "days", "micros", "text"),
    [
        (0, 0, 0, "00:00:00"),
        (13, 1, 1_000_000, "1 year 1 mon 1 day 00:00:01"),
        (-14, 3, -14_706_500_000, "-1 years -2 mons +3 days -04:05:06.5"),
        (0, -1, 90_000_000_000, "-1 days +25:00:00"),
    ],
)
def test_an_interval_is_laid_out_as_postgresql_does(months, days, micros, text):
    assert temporal.interval_text_of(months, days, micros) == text
