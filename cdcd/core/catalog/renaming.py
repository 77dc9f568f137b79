"""Rules that rename topics: a regular expression and a replacement, as Kafka Connect's `RegexRouter` takes them.

The rules of `topics.rename` are applied to the topic of a table one after the other, each to the result of the rule
before it. A rule first compares the whole topic with its expression, and then replaces the first place that the
expression finds, which may be a part of the topic (Java's `Matcher.matches`, `Matcher.replaceFirst`).

Python reads Java's expressions in the same way, except for those that are refused here. Topics have ASCII characters
only, and case counts (`Pattern.compile` without flags).

The owner of a table chooses its name, and Python's matching may take a time that grows with a power of the name's
length. So the rules of a configuration may repeat neither a repetition, nor more than `REPEATS_MAX` parts without an
upper limit (`check_expression`).
"""

import re
from dataclasses import dataclass
from typing import Final

_JAVA_ONLY: Final = re.compile(
    r"\\[pPQEhHRXzZGkN]|\(\?<[A-Za-z]|&&|\[[^\]]*\[|\\x\{|\(\?[a-zA-Z]*[dux]", re.ASCII
)
"""What Java's expressions have and Python's lack, or read in another way."""

_NAMED_GROUP: Final = re.compile(r"\(\?<(?=[A-Za-z])")
_DIGITS: Final = "0123456789"


class UnreadableError(ValueError):
    """The expression or the replacement is malformed, or has a part that only Java knows."""


def compiled(expression: str) -> re.Pattern[str]:
    """Return the compiled expression. UnreadableError: Python does not read the expression as Java does."""
    text = _NAMED_GROUP.sub("(?P<", expression)
    if is_java_only(text.replace("(?P<", "(")):
        raise UnreadableError(f"Only Java reads the expression {expression}.")
    try:
        return re.compile(text, re.ASCII)
    except (re.error, OverflowError, RecursionError):
        raise UnreadableError(f"{expression} is no regular expression that can be read here.") from None


@dataclass(frozen=True, slots=True)
class Router:
    """A regular expression and its replacement, as `RegexRouter` takes them. Both are in Java's language."""

    expression: re.Pattern[str]
    replacement: str

    def routed(self, topic: str) -> str:
        """Return the new name of a topic. UnreadableError: Java would refuse the replacement."""
        if self.expression.fullmatch(topic) is None:
            return topic
        found = self.expression.search(topic)
        assert found is not None, "the whole match is found"
        return topic[: found.start()] + expanded(self.replacement, found) + topic[found.end() :]


def expanded(replacement: str, found: re.Match[str]) -> str:
    """Return the replacement for a match; `$1`, `${name}` and backslashes as in Java's `Matcher.appendReplacement`."""
    parts: list[str] = []
    place = 0
    while place < len(replacement):
        character = replacement[place]
        place += 1
        if character == "\\":
            if place == len(replacement):
                raise UnreadableError("The replacement ends with a backslash.")
            parts.append(replacement[place])
            place += 1
        elif character == "$":
            group, place = _reference(replacement, place, found)
            parts.append(group)
        else:
            parts.append(character)
    return "".join(parts)


def _reference(replacement: str, place: int, found: re.Match[str]) -> tuple[str, int]:
    """Return the text of the group that a `$` names, and the place behind the name."""
    named = re.compile(r"\{([A-Za-z][A-Za-z0-9]*)\}").match(replacement, place)
    if named is not None:
        if named[1] not in found.re.groupindex:
            raise UnreadableError(f"The expression has no group {named[1]}.")
        return found[named[1]] or "", named.end()
    if place == len(replacement) or replacement[place] not in _DIGITS:
        raise UnreadableError("The replacement has a $ without a group behind it.")
    number = int(replacement[place])
    if number > found.re.groups:
        raise UnreadableError(f"The expression has no group {number}.")
    place += 1
    # Java takes a further digit as long as there is such a group.
    while place < len(replacement) and replacement[place] in _DIGITS:
        longer = number * 10 + int(replacement[place])
        if longer > found.re.groups:
            break
        number, place = longer, place + 1
    return found[number] or "", place


def is_java_only(expression: str) -> bool:
    """Return True if the expression has a part that Python lacks, or reads in another way."""
    return _JAVA_ONLY.search(expression) is not None


REPEATS_MAX: Final = 4
"""Maximum number of repetitions without an upper limit in an expression. With four, a topic of 249 characters takes a
second at most."""

_TOKEN: Final = re.compile(
    r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\((?:\?[:=!<>a-zA-Z]*)?|\)|[*+?]|\{\d+(,?)\d*\}|.", re.DOTALL
)


def check_expression(expression: str) -> None:
    """Raise ValueError if an expression of a configuration is unreadable, or if matching it may take too long."""
    compiled(expression)
    count = 0
    groups: list[bool] = []
    """For each open group: whether it has a repetition or alternatives."""
    is_repeating = False
    """Whether the part before this place has a repetition or alternatives in it."""
    for match in _TOKEN.finditer(expression):
        sign = match[0]
        if sign[0] == "(":
            groups.append(False)
            is_repeating = False
        elif sign == ")":
            is_repeating = bool(groups) and groups.pop()
            if is_repeating and groups:
                groups[-1] = True
        elif sign in ("*", "+") or (sign[0] == "{" and len(sign) > 1):
            if is_repeating:
                raise ValueError(
                    f"{expression} repeats a part that has a repetition or alternatives in it, and comparing a long "
                    "name with it could take years. Write the part once, or without them"
                )
            count += 1
            if groups:
                groups[-1] = True
        elif sign == "|" and groups:
            groups[-1] = True
        elif sign != "?":
            is_repeating = False
    if count > REPEATS_MAX:
        raise ValueError(
            f"{expression} has {count} repetitions; at most {REPEATS_MAX} keep the comparison with a long name short"
        )


def check_replacement(replacement: str, expression: str) -> None:
    """Raise ValueError if the replacement names a group that the expression lacks, or is unreadable."""
    empty = re.compile(f"(?:{compiled(expression).pattern})|", re.ASCII).search("")
    assert empty is not None, "the empty text is an alternative"
    expanded(replacement, empty)
