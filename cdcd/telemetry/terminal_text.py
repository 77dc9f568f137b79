"""Text for a terminal: foreign names and messages, times, sizes and counts, in a number of columns.

The status of a pipeline and the status of a mirror use it.
"""

import textwrap
from collections.abc import Iterator
from datetime import datetime
from typing import Final

from cdcd.core.visible import visible

_UNITS: Final = ((86_400, "d"), (3600, "h"), (60, "min"))
_WIDTH_MIN: Final = 40
_BREAKS: Final = str.maketrans("\t\n\r", "   ")


def plain(text: str) -> str:
    """Return the text in one line, with hidden characters written out, because it may come from strangers."""
    return visible(text.translate(_BREAKS))


def wrapped(message: str, hint: str, width: int) -> Iterator[str]:
    """Yield indented lines of at most `width` columns: the message, then the hint."""
    for text in (message, hint):
        yield from textwrap.wrap(
            plain(text),
            max(width, _WIDTH_MIN),
            initial_indent="    ",
            subsequent_indent="    ",
            # Commands and names of columns must stay copyable, so lines are not broken at hyphens.
            break_long_words=visible(text, lines=True) != text,
            break_on_hyphens=False,
        )


def cut(text: str, width: int) -> str:
    """Return the text, or its beginning and its end, because names of tables differ at either side."""
    if len(text) <= width:
        return text
    end = (width - 1) // 2
    return f"{text[: width - 1 - end]}…{text[-end:]}"


def number(count: int, what: str) -> str:
    """Return a count with its noun: `1 table`, `2 tables`."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def ago(then: datetime, now: datetime) -> str:
    """Return the age of a time, in one unit."""
    return seconds(max(0.0, (now - then).total_seconds()))


def seconds(value: float) -> str:
    """Return a duration in one unit: `0.4 s`, `12 s`, `3 min`, `5 h`, `2 d`."""
    for unit_s, unit in _UNITS:
        if value >= unit_s:
            return f"{value / unit_s:.0f} {unit}"
    return f"{value:.0f} s" if value >= 10 else f"{value:.1f} s"
