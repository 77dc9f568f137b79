from contextlib import suppress
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdcd.core.errors import ConfigError
from cdcd.tools.operations.conditions import DEPTH_MAX, LENGTH_MAX, Row, parse_condition

VALUES: dict[str, Any] = {
    "id": 5,
    "price": "12.50",
    "name": "O'Brien",
    "note": None,
    "open": True,
    "odd": "NaN",
    "low": "NEGATIVE_INFINITY",
    "Mixed Case": "x",
    "point": {"x": 1},
    "share": Decimal("0.1"),
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("id = 5", True),
        ("ID = 5", True),
        ("id <> 5", False),
        ("id != 4", True),
        ("id > 4.5 and id <= 5", True),
        ("id = +5e0", True),
        ("share = 0.1", True),
        ("price > 9", True),
        ("price = 12.5", True),
        ("price = '12.50'", True),
        ("price = '12.5'", False),
        ("name = 'O''Brien'", True),
        ("name < 'P'", True),
        ("\"Mixed Case\" = 'x'", True),
        ("note IS NULL", True),
        ("note is not null", False),
        ("id IS NOT NULL", True),
        ("note = 'x'", None),
        ("NOT note = 'x'", None),
        ("note = 'x' OR id = 5", True),
        ("note = 'x' AND id = 5", None),
        ("note = 'x' AND id = 6", False),
        ("open = true", True),
        ("NOT open = FALSE", True),
        ("id IN (1, 5)", True),
        ("id NOT IN (1, 5)", False),
        ("note IN ('a')", None),
        ("odd > 1e300", True),
        ("low < -1e300", True),
        ("id = 1 OR id = 5 AND price > 13", False),
        ("(id = 1 OR id = 5) AND price > 12", True),
        ("NOT (id = 1)", True),
        ("NOT NOT id = 5", True),
        ("point IS NOT NULL", True),
    ],
)
def test_a_condition_is_judged_as_sql_does(text, expected):
    row = Row(VALUES)
    assert parse_condition(text)(row) is expected
    assert row.lacking == set()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "id",
        "id =",
        "= 5",
        "id = 5 6",
        "id = 5;",
        "id = 5 --",
        "id = pg_sleep(9)",
        "id = id",
        "(id = 5",
        "id = 5)",
        "id IS 5",
        "id = 'x",
        '"id = 5',
        "id IN ()",
        "id IN 5",
        "id LIKE 'x'",
        "and = 5",
        "id == 5",
        "__import__('os') = 1",
        "id = $1",
    ],
)
def test_what_is_no_condition_is_refused_with_the_place(text):
    with pytest.raises(ConfigError, match=r"--where cannot be read: .* at character") as caught:
        parse_condition(text)
    assert "IS [NOT] NULL" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "marked"),
    [("id == 5", "= 5"), ("id = 5 AND", ""), ("id = $1", "$1"), ("x = 1 AND " * 20 + "y ~ 2", "~ 2")],
)
def test_the_place_of_a_mistake_is_marked_below_the_condition(text, marked):
    with pytest.raises(ConfigError) as caught:
        parse_condition(text)
    _, shown, below = caught.value.message.splitlines()
    assert shown[below.index("^") :] == marked
    assert len(shown) <= 102


def test_a_comparison_with_null_says_how_to_ask():
    with pytest.raises(ConfigError, match="never true") as caught:
        parse_condition("id = NULL")
    assert caught.value.hint == "Write IS NULL or IS NOT NULL."


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("id = '5'", "without quotes"),
        ("name = 5", "single quotes"),
        ("open = 1", "TRUE or FALSE"),
        ("id = TRUE", "without quotes"),
        ("point = 'x'", "IS NULL"),
    ],
)
def test_values_of_different_kinds_are_an_error_and_not_unequal(text, hint):
    with pytest.raises(ConfigError, match="cannot be compared") as caught:
        parse_condition(text)(Row(VALUES))
    assert hint in caught.value.hint


def test_a_value_that_was_not_sent_is_unknown_and_named():
    row = Row({"id": 5, "note": "placeholder"}, unsent={"note"})
    assert parse_condition("note = 'x' OR gone IS NULL")(row) is None
    assert row.lacking == {"note", "gone"}


def test_a_condition_has_limits():
    with pytest.raises(ConfigError, match="more than"):
        parse_condition("(" * (DEPTH_MAX + 1) + "id = 5" + ")" * (DEPTH_MAX + 1))
    with pytest.raises(ConfigError, match="characters"):
        parse_condition("id = 5" + " " * LENGTH_MAX)
    assert parse_condition(" OR ".join(["id = 1"] * 500))(Row(VALUES)) is False


@given(st.text(alphabet="id= 'x()\"<>!,.5ANDORNULLis", max_size=40))
def test_any_text_is_a_condition_or_an_error_of_ours(text):
    with suppress(ConfigError):
        parse_condition(text)


@given(st.text(), st.text())
def test_any_text_and_any_name_can_be_asked_for(name, value):
    if not name:
        return
    quoted, literal = name.replace('"', '""'), value.replace("'", "''")
    if len(quoted) + len(literal) < LENGTH_MAX - 20:
        assert parse_condition(f"\"{quoted}\" = '{literal}'")(Row({name: value})) is True
