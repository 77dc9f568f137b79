from contextlib import suppress
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdcd.config.expressions import parse_expression
from cdcd.core.errors import ConfigError
from cdcd.core.records.shaping.expressions import DEPTH_MAX, LENGTH_MAX
from cdcd.tools.operations.conditions import cel_of, parse_condition

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
    "at": "2026-01-31T10:00:00.5Z",
    "local": "2026-01-31T10:00:00",
}


def answer(text: str, values: dict[str, Any] | None = None, **unsent: str) -> bool | None:
    return parse_condition(text).answer(VALUES if values is None else values, unsent)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("row.id == 5", True),
        ("row.id != 5", False),
        ("row.id > 4.5 && row.id <= 5", True),
        ("row.share == 0.1", True),
        ("row.price > 9", True),
        ("9 < row.price", True),
        ("row.price == 12.5", True),
        ("row.price == '12.50'", True),
        ("row.price == '12.5'", False),
        ("double(row.price) * 2.0 == 25.0", True),
        ("row.price in [1, 12.5]", True),
        ('row.name == "O\'Brien"', True),
        ("row.name < 'P'", True),
        ("row.name.startsWith('O')", True),
        ("row['Mixed Case'] == 'x'", True),
        ("row.note == null", True),
        ("row.note != null", False),
        ("row.id != null", True),
        ("row.note == 'x'", False),
        ("row.note != 'x'", True),
        ("row.note > 'x'", None),
        ("row.note > 'x' || row.id == 5", True),
        ("row.note > 'x' && row.id == 6", False),
        ("row.note < row.id", None),
        ("row.note && row.id == 5", None),
        ("row.note.startsWith('x')", None),
        ("row.open", True),
        ("!row.open", False),
        ("row.open == true ? row.id == 5 : row.id == 6", True),
        ("row.id in [1, 5]", True),
        ("!(row.id in [1, 5])", False),
        ("row.odd > 1e300", None),
        ("row.low < -1e300", True),
        ("row.id == 1 || row.id == 5 && row.price > 13", False),
        ("row.point != null", True),
        ("row.at > timestamp('2026-01-31T10:00:00Z')", True),
        ("row.local > timestamp('2026-01-31T10:00:00Z')", False),
        ("row.id + 1 == 6", True),
    ],
)
def test_a_record_has_the_answer_of_a_filter(text: str, expected: bool | None):
    assert answer(text) is expected


def test_kinds_may_change_from_record_to_record():
    condition = parse_condition("row.a > 5")
    values: list[Any] = [6, Decimal("6.5"), "6.50", None, 4]
    assert [condition.answer({"a": value}, {}) for value in values] == [True, True, True, None, False]


@pytest.mark.parametrize(
    "text",
    ["", "row.id", "row.id ==", "== 5", "row.id == 5 6", "row.id == 5;", "id", "row.id == 'x", "row.id in 5"],
)
def test_text_that_is_not_a_condition_is_refused(text: str):
    with pytest.raises(ConfigError, match="--where"):
        answer(text)


@pytest.mark.parametrize(
    ("text", "marked"),
    [
        ("row.id = 5", "= 5"),
        ("row.id == 5 &&", ""),
        ("row.id == $1", "$1"),
        ("1 == row.x && " * 20 + "? 2", "? 2"),
    ],
)
def test_the_place_of_a_mistake_is_marked_below_the_condition(text: str, marked: str):
    with pytest.raises(ConfigError) as caught:
        parse_condition(text)
    _, shown, below = caught.value.message.splitlines()
    assert shown[below.index("^") :] == marked
    assert len(shown) <= 102


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("status = 'paid' AND total > 5", 'row.status == "paid" && row.total > 5'),
        ("ID = +5e0", "row.id == 5e0"),
        ("name = 'O''Brien'", 'row.name == "O\'Brien"'),
        ("\"Mixed Case\" <> 'x'", 'row["Mixed Case"] != "x"'),
        ("note IS NULL or note is not null", "row.note == null || row.note != null"),
        ("NOT (id = 1 OR open)", "!(row.id == 1 || row.open)"),
        ("NOT id = 1", "!(row.id == 1)"),
        ("id IN (1, 5) AND id NOT IN (2)", "row.id in [1, 5] && !(row.id in [2])"),
        ("open = TRUE", "row.open == true"),
        ("row.id = 5", "row.id == 5"),
        ("status == 'paid'", 'row.status == "paid"'),
    ],
)
def test_a_condition_of_sql_is_refused_with_its_cel(text: str, meant: str):
    assert cel_of(text) == meant
    parse_expression(meant)
    with pytest.raises(ConfigError, match="--where cannot be read") as caught:
        parse_condition(text)
    assert caught.value.hint.startswith("--where takes CEL. Write --where '")


@pytest.mark.parametrize(
    "text",
    ["id = pg_sleep(9)", "id LIKE 'x'", "id = 5 --", "(id = 5", "id IN ()", "id NOT 5", "'a' = 'a'", "x ~ 1"],
)
def test_text_without_a_counterpart_in_cel_gets_the_grammar_as_hint(text: str):
    with pytest.raises(ConfigError, match="--where cannot be read") as caught:
        parse_condition(text)
    assert "as in filters.tables" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("row.id == '5'", "== does not compare int with string"),
        ("row.name == 5", "== does not compare string with int"),
        ("row.open == 1", "== does not compare bool with int"),
        ("row.id && row.open", "&& takes bool"),
        ("row.point == 'x'", "== does not compare object with string"),
        ("row.id > timestamp('2026-01-31T10:00:00Z')", "> does not compare int with timestamp"),
        ("row.id.matches('x')", "matches"),
        ("row.id", "must have bool"),
    ],
)
def test_values_of_different_kinds_are_an_error_and_not_unequal(text: str, said: str):
    with pytest.raises(ConfigError) as caught:
        answer(text)
    assert said in caught.value.message


def test_a_value_that_was_not_sent_has_no_answer_and_its_reason():
    condition = parse_condition("row.note == 'x' || row.gone == null")
    assert condition.answer({"id": 5, "note": "placeholder"}, {"note": "is large"}) is None
    assert condition.reason == "row.note is large"
    assert condition.answer({"note": "y"}, {}) is None
    assert condition.reason == "there is no column gone"
    assert condition.answer({"note": "x"}, {}) is True
    assert condition.reason == ""


def test_a_condition_has_limits():
    with pytest.raises(ConfigError, match="more than"):
        parse_condition("!(" * (DEPTH_MAX + 1) + "row.id == 5" + ")" * (DEPTH_MAX + 1))
    with pytest.raises(ConfigError, match="characters"):
        parse_condition("row.id == 5" + " " * LENGTH_MAX)
    assert answer(" || ".join(["row.id == 1"] * 500)) is False


@given(st.text(alphabet="id= 'x()\"<>!,.5ANDORNULLisrow.&|", max_size=40))
def test_any_text_is_a_condition_or_a_config_error(text: str):
    with suppress(ConfigError):
        parse_condition(text).answer(VALUES, {})


@given(st.text(min_size=1), st.text())
def test_the_cel_of_a_comparison_finds_the_same_row(name: str, value: str):
    quoted, literal = name.replace('"', '""'), value.replace("'", "''")
    meant = cel_of(f"\"{quoted}\" = '{literal}'")
    assert meant
    assert parse_condition(meant).answer({name: value}, {}) is True
