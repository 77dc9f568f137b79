"""Conditions in Groovy and JavaScript: a small part is read, with its precedence, and everything else is named."""

from contextlib import suppress

import pytest

from cdcd.tools.adopt.scripts import UntranslatableError, as_cel, is_condition, parse, paths, truth

GROOVY = "jsr223.groovy"


def cel(text: str) -> str:
    script = parse(text, GROOVY)
    return as_cel(script, {path: path[-1] for path in paths(script)})


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("value.a=='x'", "row.a == 'x'"),
        ("'x' == value.a", "'x' == row.a"),
        (
            "value.a == 'x' || value.b == 1 && value.c != null",
            "row.a == 'x' || (row.b == 1 && row.c != null)",
        ),
        ("!!(value.a == true)", "row.a == true"),
        ("!(value.a == 'x' || value.b == false)", "!(row.a == 'x' || row.b == false)"),
        (r"value.a == 'it\'s \\'", r"row.a == 'it\'s \\'"),
        ('value.a == "ä\'"', r"row.a == 'ä\''"),
    ],
)
def test_what_is_read_has_the_same_meaning_in_cel(text: str, written: str) -> None:
    assert cel(text) == written


@pytest.mark.parametrize(
    "text",
    [
        "value.a == 'x' == true",
        "!value.a == 'x'",
        "value.a",
        "'x' == 'y'",
        "value.a == value.b",
        "value.a ? 'x' : 'y'",
    ],
)
def test_what_is_no_comparison_with_a_literal_is_no_condition(text: str) -> None:
    with suppress(UntranslatableError):
        assert not is_condition(parse(text, GROOVY))


@pytest.mark.parametrize(
    "text",
    [
        "value.a >= 1",
        "value['a'] == 1",
        "value.a == 1.5",
        "value.a == 1L",
        "value.a.size() == 1",
        "value.a == 'x",
        "value.a == '\\n'",
        "value.a in ['x']",
        "a == 1",
        "value.a == 1 &&",
        "(value.a == 1",
        "value. == 1",
        "",
    ],
)
def test_what_has_no_counterpart_is_named(text: str) -> None:
    with pytest.raises(UntranslatableError, match=r"counterpart|missing"):
        parse(text, GROOVY)


def test_a_condition_on_the_operation_is_evaluated() -> None:
    script = parse("value.op == 'c' || !(value.op != 'u') && value.op != 'x'", GROOVY)
    assert [each for each in "cudtrm" if truth(script, ("op",), each)] == ["c", "u"]
