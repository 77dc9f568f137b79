"""Against what a server sends, the forms are tested in tests/integration/test_types.py; here are their edges."""

from decimal import Decimal
from struct import pack, unpack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdcd.core.catalog import binary
from cdcd.core.catalog.binary import BinaryFields
from cdcd.core.records.debezium_json.literals import binary_array_json


def numeric(value: Decimal) -> bytes:
    """As numeric_send: leading and trailing zero digits are left out."""
    sign, _, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    scale = max(0, -exponent)
    whole, fraction = f"{value.copy_abs():f}".partition(".")[::2]
    whole = whole.zfill((len(whole) + 3) // 4 * 4)
    fraction = fraction.ljust((len(fraction) + 3) // 4 * 4, "0")
    text = whole + fraction
    groups = [int(text[at : at + 4]) for at in range(0, len(text), 4)]
    weight = len(whole) // 4 - 1
    while groups and not groups[0]:
        groups, weight = groups[1:], weight - 1
    while groups and not groups[-1]:
        groups = groups[:-1]
    negative = 0x4000 if sign and groups else 0
    return pack(f"!HhHH{len(groups)}H", len(groups), weight if groups else 0, negative, scale, *groups)


@given(st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**30), max_value=10**30))
def test_a_numeric_keeps_every_digit_and_its_scale(value):
    expected = f"{value:f}" if value else f"{value.copy_abs():f}"
    assert binary.numeric_text(numeric(value)) == expected


def test_special_numerics_have_their_names():
    for sign, name in ((0xC000, "NaN"), (0xD000, "Infinity"), (0xF000, "-Infinity")):
        assert binary.numeric_text(pack("!HhHH", 0, 0, sign, 0)) == name


@pytest.mark.parametrize(
    "data",
    [
        b"",
        bytes(7),
        bytes(9),
        pack("!HhHH", 1, 0, 0, 0),
        pack("!HhHHH", 1, 0, 0, 0, 10_000),
        pack("!HhHH", 0, 0, 1, 0),
    ],
)
def test_what_is_no_numeric_is_refused(data):
    with pytest.raises(ValueError, match=r"."):
        binary.numeric_text(data)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_double_is_written_with_the_shortest_digits_that_give_it_again(value):
    def digits(text: str) -> str:
        return text.lstrip("-").partition("e")[0].replace(".", "").strip("0")

    text = binary.float8_text(pack("!d", value))
    assert pack("!d", float(text)) == pack("!d", value)
    # Beyond 2^53 the shortest digits may be a tie between two floats, which PostgreSQL does not write.
    assert digits(text) == digits(repr(value)) or abs(value) >= 2**53


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (20695042441144128.0, "2.0695042441144128e+16"),
        (-31665739164601008.0, "-3.1665739164601008e+16"),
        (45784980847904464.0, "4.5784980847904464e+16"),
        (2.0**53, "9.007199254740992e+15"),
        (2.0**60, "1.152921504606847e+18"),
        (9e22, "9e+22"),
    ],
)
def test_a_double_is_not_written_as_a_tie_between_it_and_its_neighbour(value, text):
    assert binary.float8_text(pack("!d", value)) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (52144528.0, "5.2144528e+07"),
        (-31795839000.0, "-3.1795839e+10"),
        (16777216.0, "1.6777216e+07"),
        (2.0**-96, "1.2621775e-29"),
    ],
)
def test_a_float_is_not_written_as_a_tie_either(value, text):
    assert binary.float4_text(pack("!f", value)) == text


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_a_float_is_written_with_digits_that_give_it_again(value):
    text = binary.float4_text(pack("!f", value))
    assert pack("!f", float(text)) == pack("!f", value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"), (-0.0, "-0"), (1.0, "1"), (0.1, "0.1"), (1e-4, "0.0001"), (1e-5, "1e-05"), (1.5e-10, "1.5e-10"),
        (1e14, "100000000000000"), (1e15, "1e+15"), (123456789012345.0, "123456789012345"), (1e300, "1e+300"),
        (5e-324, "5e-324"), (float("inf"), "Infinity"), (float("-inf"), "-Infinity"), (float("nan"), "NaN"),
        (-1234.5, "-1234.5"), (120.0, "120"),
    ],
)  # fmt: skip
def test_a_double_is_laid_out_as_postgresql_does(value, text):
    assert binary.float8_text(pack("!d", value)) == text


@pytest.mark.parametrize(
    ("value", "text"), [(3.3, "3.3"), (1e6, "1e+06"), (123456.0, "123456"), (1e-45, "1e-45"), (0.1, "0.1")]
)
def test_a_float_is_laid_out_as_postgresql_does(value, text):
    assert binary.float4_text(pack("!f", unpack("!f", pack("!f", value))[0])) == text


def test_bits_are_as_many_as_the_length_says():
    assert binary.bits_text(pack("!i", 0)) == ""
    assert binary.bits_text(pack("!iB", 3, 0b10100000)) == "101"
    assert binary.bits_text(pack("!iBB", 9, 0xFF, 0x80)) == "1" * 9
    for data in (b"", pack("!i", 1), pack("!iB", 0, 0), pack("!i", -1), pack("!iBB", 8, 0, 0)):
        with pytest.raises(ValueError, match=r"."):
            binary.bits_text(data)


def text_array(*lengths: int, values: list[bytes | None]) -> bytes:
    head = pack("!iiI", len(lengths), 0, 25) + b"".join([pack("!ii", length, 1) for length in lengths])
    return head + b"".join(
        [pack("!i", -1) if value is None else pack("!i", len(value)) + value for value in values]
    )


def as_text(data: bytes) -> str:
    return f'"{data.decode()}"'


def test_an_array_nests_by_its_dimensions():
    assert binary_array_json(text_array(values=[]), as_text) == "[]"
    assert binary_array_json(text_array(2, values=[b"a", None]), as_text) == '["a",null]'
    two = text_array(2, 2, values=[b"a", b"", b"c", b"d"])
    assert binary_array_json(two, as_text) == '[["a",""],["c","d"]]'
    three = text_array(2, 1, 1, values=[b"a", b"b"])
    assert binary_array_json(three, as_text) == '[[["a"]],[["b"]]]'


@pytest.mark.parametrize(
    "data",
    [
        b"",
        text_array(2, values=[b"a"]),
        text_array(1, values=[b"a", b"b"]),
        text_array(1, values=[b"abc"])[:-1],
        text_array(1, values=[b"abc"])[:-4],
        text_array(values=[b"a"]),
        text_array(1, values=[]) + pack("!i", -2),
        pack("!iiI", 1, 0, 25),
    ],
)
def test_an_array_whose_parts_do_not_fit_is_refused(data):
    with pytest.raises(ValueError, match=r"."):
        binary_array_json(data, as_text)


@pytest.mark.parametrize(
    "read", [binary.float4_text, binary.float8_text, binary.point_text, binary.uuid_text]
)
def test_a_fixed_form_has_its_length(read):
    for size in (0, 1, 3, 5, 7, 9, 15, 17):
        with pytest.raises(ValueError, match=r"."):
            read(bytes(size))
    with pytest.raises(ValueError, match=r"."):
        binary.integer(b"\0\0", 4)


def test_fields_are_read_one_after_the_other():
    fields = BinaryFields(
        b"\xff\xfe\xff\xfe" + b"\0\0\0\2ab" + b"\xff\xff\xff\xff" + b"gr\xc3\xb6\xc3\x9fe\0" + b"rest"
    )
    assert (fields.integer(2), fields.unsigned(2)) == (-2, 65534)
    assert (fields.value(), fields.value()) == (b"ab", None)
    assert fields.string().encode("latin-1").decode() == "größe"
    assert fields.rest() == b"rest"
    fields.end()


def test_what_ends_too_early_is_refused():
    for read in (BinaryFields.unsigned, BinaryFields.integer):
        with pytest.raises(ValueError, match="after the value"):
            read(BinaryFields(b"\1\1"), 4)
    for read_whole in (BinaryFields.value, BinaryFields.string):
        with pytest.raises(ValueError, match=r"."):
            read_whole(BinaryFields(b"\1\1"))
    with pytest.raises(ValueError, match="after the value"):
        BinaryFields(b"\0\0\0\2a").value()
    with pytest.raises(ValueError, match="after the value"):
        BinaryFields(b"\xff\xff\xff\xfe").value()


def test_what_is_left_over_is_refused():
    fields = BinaryFields(b"\0\0")
    fields.integer(1)
    with pytest.raises(ValueError, match="left over"):
        fields.end()
