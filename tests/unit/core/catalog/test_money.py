"""Amounts of money: units out of the text of lc_monetary C, and the point where a currency has it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdcd.core.catalog.binary_text import money_text
from cdcd.core.catalog.money import DIGITS_MAX, amount, amount_of, minor_units, rewrite_of, rewritten
from cdcd.core.catalog.relations import TypeDescription

MONEY, MONEYS, TEXT = 790, 791, 25
UNITS = st.integers(-(2**63), 2**63 - 1)


@given(UNITS, st.integers(0, DIGITS_MAX))
def test_the_units_come_back_out_of_every_text_of_c(units: int, digits: int):
    text = money_text(units.to_bytes(8, "big", signed=True))
    assert minor_units(text) == units
    number = amount(text, digits)
    assert number == amount_of(units, digits)
    whole, _, fraction = number.partition(".")
    assert len(fraction) == digits
    assert int(f"{whole}{fraction}") == units
    assert rewritten(text, digits).replace("$", "").replace(",", "") == number


@pytest.mark.parametrize(
    ("units", "digits", "number", "text"),
    [
        (-1234568, 0, "-1234568", "-$1,234,568"),
        (-1234568, 2, "-12345.68", "-$12,345.68"),
        (-1234568, 3, "-1234.568", "-$1,234.568"),
        (5, 3, "0.005", "$0.005"),
        (0, 0, "0", "$0"),
    ],
)
def test_the_point_stands_where_the_currency_has_it(units: int, digits: int, number: str, text: str):
    in_c = money_text(units.to_bytes(8, "big", signed=True))
    assert (amount(in_c, digits), rewritten(in_c, digits)) == (number, text)


@pytest.mark.parametrize("text", ["", "$", "12", "1,2", "￥12", "$1.2.3", "12,34 €", "$ 12.00", "$1.234"])
def test_what_c_does_not_write_is_refused(text: str):
    with pytest.raises(ValueError, match="lc_monetary C"):
        minor_units(text)


def described(oid: int, kind: str, *parts: int, base: int = 0, element: int = 0) -> TypeDescription:
    category = "A" if element else "X"
    return TypeDescription(oid, "public", f"t{oid}", kind, category, element, base, -1, parts=parts)


TYPES = {
    each.oid: each
    for each in (
        described(1, "c", TEXT, MONEY, MONEYS),
        described(2, "r", MONEY),
        described(3, "m", 2),
        described(4, "d", base=1),
        described(5, "b", element=1),
        described(6, "c", TEXT, TEXT),
        described(7, "c", 4, 2),
    )
}


@pytest.mark.parametrize(
    ("oid", "text", "expected"),
    [
        (MONEY, "$0.01", "$1"),
        (MONEYS, '{"$12,345.68",NULL,$0.00}', '{"$1,234,568",NULL,$0}'),
        (MONEYS, "[0:1]={$0.01,-$0.02}", "[0:1]={$1,-$2}"),
        (MONEYS, "{{$0.01},{$0.02}}", "{{$1},{$2}}"),
        (MONEYS, "{}", "{}"),
        (1, '("a,""$1.00""\\\\",$12.30,)', '("a,""$1.00""\\\\","$1,230",)'),
        (1, '(,,"{$0.10,NULL}")', '(,,"{$10,NULL}")'),
        (1, '($0.01,$0.01,"{""$10,000.00""}")', '($0.01,$1,"{""$1,000,000""}")'),
        (1, "(a,$0.01,,added)", "(a,$1,,added)"),
        (2, '["$10,000.00",)', '["$1,000,000",)'),
        (2, "[$0.01,$0.05)", "[$1,$5)"),
        (2, "empty", "empty"),
        (3, '{[$0.01,$0.02),["$10,000.00",)}', '{[$1,$2),["$1,000,000",)}'),
        (3, "{}", "{}"),
        (4, "(,$0.01,)", "(,$1,)"),
        (5, '{"(,$0.01,)",NULL}', '{"(,$1,)",NULL}'),
        (7, '("(,$0.01,)","[$0.01,$0.02)")', '("(,$1,)","[$1,$2)")'),
    ],
)
def test_money_within_other_types_is_rewritten_and_nothing_else(oid: int, text: str, expected: str):
    rewrite = rewrite_of(oid, TYPES, 0)
    assert rewrite is not None
    assert rewrite(text) == expected


@pytest.mark.parametrize(("oid", "digits"), [(6, 0), (TEXT, 0), (99, 0), (MONEY, 2), (1, 2)])
def test_texts_stay_where_there_is_no_money_or_c_has_the_same_digits(oid: int, digits: int):
    assert rewrite_of(oid, TYPES, digits) is None


@pytest.mark.parametrize(
    ("oid", "text"),
    [
        (1, "(a)"),
        (1, "(a,b,)"),
        (1, "a"),
        (2, "[$1.00]"),
        (2, "(1,2)"),
        (3, "[$1.00,$2.00)"),
        (3, "{[$1.00}"),
    ],
)
def test_what_is_not_of_the_types_form_is_an_error_and_no_wrong_amount(oid: int, text: str):
    rewrite = rewrite_of(oid, TYPES, 3)
    assert rewrite is not None
    with pytest.raises(ValueError, match="it is not"):
        rewrite(text)
