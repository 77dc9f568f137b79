import pytest
from hypothesis import given

from cdcd.core.errors import ProtocolError
from cdcd.core.protocol.lsn import LSN_MAX, Lsn
from tests.unit.core.protocol.strategies import lsns


@pytest.mark.parametrize(
    ("text", "value"),
    [("0/0", 0), ("0/16B3748", 0x16B3748), ("16/B374D848", 0x16B374D848), ("FFFFFFFF/FFFFFFFF", LSN_MAX)],
)
def test_an_lsn_reads_and_prints_as_postgres_writes_it(text, value):
    assert Lsn.parse(text) == value
    assert str(Lsn(value)) == text
    assert f"{Lsn(value)}" == text
    assert repr(Lsn(value)) == f"Lsn({text})"


@given(lsns)
def test_every_lsn_survives_its_text_form(value):
    assert Lsn.parse(str(Lsn(value))) == value


def test_lower_case_digits_are_read_too():
    assert Lsn.parse("a/ff") == Lsn.parse("A/FF")


def test_an_lsn_is_formatted_as_the_text_that_it_shows():
    assert f"{Lsn(255):>6}|" == "  0/FF|"


@pytest.mark.parametrize(
    "text", ["", "0", "/", "0/", "/0", "0/123456789", "0/-1", "0/0 ", "0/G", "٠/٠", "0/0\n"]
)
def test_what_is_not_an_lsn_is_refused_with_an_example_of_one(text):
    with pytest.raises(ProtocolError, match="0/16B3748"):
        Lsn.parse(text)


@pytest.mark.parametrize("value", [-1, LSN_MAX + 1])
def test_a_number_that_does_not_fit_64_bits_is_no_lsn(value):
    with pytest.raises(ValueError, match="64-bit"):
        Lsn(value)


def test_arithmetic_gives_plain_numbers():
    assert type(Lsn(5) - Lsn(3)) is int
    assert Lsn(5) > Lsn(3) > 2
