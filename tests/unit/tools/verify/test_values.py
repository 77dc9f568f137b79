from hypothesis import given
from hypothesis import strategies as st

from cdcd.tools.verify.values import (
    BEFORE,
    MOVED,
    NULL,
    SHORT,
    UNSENT,
    RangeSums,
    first_byte,
    join,
    key_hash,
    pack,
    pack_row,
    range_of,
    shown,
    split,
)

VALUE = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=3 * SHORT).map(
    str.encode
)
VALUES = st.lists(VALUE)


@given(VALUES)
def test_a_packed_row_is_its_packed_values(values: list[bytes]):
    assert split(pack_row(values)) == [pack(value) for value in values]


@given(VALUE, VALUE)
def test_values_are_equal_if_their_packed_ones_are(one: bytes, other: bytes):
    assert (pack(one) == pack(other)) == (one == other)


def test_what_was_never_sent_is_no_value():
    assert split(join([BEFORE, MOVED, UNSENT, NULL])) == [BEFORE, MOVED, UNSENT, pack(b"null")]
    assert len({shown(MOVED), shown(UNSENT), shown(NULL)}) == 3


def test_a_long_value_is_shown_by_its_beginning_size_and_hash():
    assert shown(pack(b'"' + b"x" * 100 + b'"')).startswith('"xxx')
    assert "(102 bytes, sha256 " in shown(pack(b'"' + b"x" * 100 + b'"'))


@given(
    st.lists(st.tuples(st.binary(min_size=1, max_size=8), st.binary(max_size=8)), max_size=20), st.randoms()
)
def test_sums_are_the_same_in_every_order(rows: list[tuple[bytes, bytes]], dice):
    one, other = RangeSums(), RangeSums()
    shuffled = list(rows)
    dice.shuffle(shuffled)
    for sums, some in ((one, rows), (other, shuffled)):
        for key, value in some:
            sums.add(key_hash(key), value)
    assert one.differing(other) == []
    assert one.rows == len(rows)


def test_rows_that_are_there_twice_do_not_cancel_each_other():
    one, other = RangeSums(), RangeSums()
    for _ in range(2):
        one.add(key_hash(b"k"), b"v")
    assert one.differing(other) == [range_of(key_hash(b"k"))]


@given(st.binary(max_size=8))
def test_each_key_is_in_one_range(key: bytes):
    hashed = key_hash(key)
    at = range_of(hashed)
    assert at in range(RangeSums.RANGES)
    assert first_byte(at) == hashed[0]
