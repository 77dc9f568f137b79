"""Java's regular expressions over names of topics, as far as Python reads them in the same way.

Topics have ASCII characters only, and Connect's transforms match with the case of letters (`Pattern.compile` without
flags). `RegexRouter` and Debezium's routers first ask whether the whole topic matches, and then replace the first place
that the expression finds, which may be a part of the topic (`Matcher.matches`, `Matcher.replaceFirst`).
"""

import re
from dataclasses import dataclass
from typing import Final

from cdcd.tools.adopt.tables import is_java_only

_NAMED_GROUP: Final = re.compile(r"\(\?<(?=[A-Za-z])")
_DIGITS: Final = "0123456789"


class UnreadableError(ValueError):
    """Only Java reads the expression or the replacement, or nobody does."""


def compiled(expression: str) -> re.Pattern[str]:
    """The expression for whole topics. UnreadableError: Python does not read it as Java does."""
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
        """The topic that a record of this topic goes to. UnreadableError: Java would refuse the replacement."""
        if self.expression.fullmatch(topic) is None:
            return topic
        found = self.expression.search(topic)
        assert found is not None, "what matches as a whole is found"
        return topic[: found.start()] + expanded(self.replacement, found) + topic[found.end() :]


def expanded(replacement: str, found: re.Match[str]) -> str:
    """The replacement with `$1`, `${name}` and backslashes as Java's `Matcher.appendReplacement` reads them."""
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
    """What stands behind a `$`, and the place after it."""
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
