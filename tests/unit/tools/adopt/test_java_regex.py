"""Java's expressions and replacements, as RegexRouter uses them."""

import pytest

from cdcd.tools.adopt.java_regex import Router, UnreadableError, compiled


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
