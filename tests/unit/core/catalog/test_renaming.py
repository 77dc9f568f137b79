"""Java's expressions and replacements, as RegexRouter uses them, and the limits of those in a configuration."""

import time

import pytest

from cdcd.core.catalog.renaming import (
    Router,
    UnreadableError,
    check_expression,
    check_replacement,
    compiled,
)


@pytest.mark.parametrize(
    ("expression", "replacement", "topic", "routed"),
    [
        (r"(.*)\.(.*)", "$2.$1", "a.b", "b.a"),
        (r"(?<left>.*)\.b", r"${left}\$x\\", "a.b", r"a$x" + "\\"),
        (r"b", "x", "abc", "abc"),
        # `matches` takes the second alternative, and `replaceFirst` finds the first one.
        (r"a|ab", "X", "ab", "Xb"),
        (r"(a)(b)?", "$2$1", "a", "a"),
        # There is no group 10, so that $10 is $1 and a 0.
        (r"(.*)", "$10", "a", "a0"),
        (r"(.)(.)(.)(.)(.)(.)(.)(.)(.)(.)", "$10$1", "abcdefghij", "ja"),
    ],
)
def test_topics_are_replaced_as_java_does(expression: str, replacement: str, topic: str, routed: str) -> None:
    assert Router(compiled(expression), replacement).routed(topic) == routed


@pytest.mark.parametrize("replacement", ["$", "$x", "$2", "${other}", "x\\"])
def test_a_replacement_that_java_refuses_is_refused(replacement: str) -> None:
    with pytest.raises(UnreadableError):
        Router(compiled("(.*)"), replacement).routed("a")


@pytest.mark.parametrize("expression", [r"\p{L}+", r"[a&&b]", "(", r"\Qa\E"])
def test_an_expression_that_python_reads_otherwise_is_refused(expression: str) -> None:
    with pytest.raises(UnreadableError):
        compiled(expression)


def test_the_case_of_letters_counts() -> None:
    assert compiled("orders").fullmatch("Orders") is None


@pytest.mark.parametrize(
    "expression",
    [
        r"([^.]+)\.([^.]+)\.([^.]+)",
        "(.*)",
        r"shop\.(x|y)\.(.*)",
        "(?<table>.*)-v1",
        "a?b?",
        r"[a*+(]+x",
        "(a|b)?c",
    ],
)
def test_expressions_of_routers_are_taken(expression: str) -> None:
    check_expression(expression)


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("(a+)+", "repeats a part"),
        ("((a+)b)*c", "repeats a part"),
        ("(a|ab)*", "repeats a part"),
        ("(a{1,9}){1,9}", "repeats a part"),
        ("(?:x(a*)y)+", "repeats a part"),
        (".*.*.*.*.*", "5 repetitions"),
        (r"\p{L}+", "Only Java"),
        ("(", "no regular expression"),
    ],
)
def test_an_expression_that_may_take_long_is_refused(expression: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        check_expression(expression)


@pytest.mark.parametrize("topic", ["a" * 248 + "!", "a." * 124, "." * 249, "ab" * 124])
@pytest.mark.parametrize("expression", [r"(.*)a(.*)b(.*)c(.*)x", r"(.+)\.(.+)\.(.+)\.(.+)\.x"])
def test_the_longest_topic_is_compared_in_little_time(expression: str, topic: str) -> None:
    check_expression(expression)
    began = time.process_time()
    Router(compiled(expression), "$1").routed(topic)
    assert time.process_time() - began < 5


@pytest.mark.parametrize("replacement", ["$2", "${other}", "$", "x\\"])
def test_a_replacement_without_its_group_is_refused_before_a_topic_is_renamed(replacement: str) -> None:
    with pytest.raises(UnreadableError):
        check_replacement(replacement, "(.*)")
    check_replacement("$1", "(.*)")
    check_replacement("${t}x", "(?<t>.*)")
