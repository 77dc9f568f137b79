"""Text for a terminal: names and messages of anybody, times, sizes and counts, in so many columns.

The status of a pipeline and that of a mirror are written with it.
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
    """The text in one line, with hidden characters written out: names and messages may be anybody's."""
    return visible(text.translate(_BREAKS))


def wrapped(message: str, hint: str, width: int) -> Iterator[str]:
    """Indented lines of at most `width` columns: the message, then what to do."""
    for text in (message, hint):
        yield from textwrap.wrap(
            plain(text),
            max(width, _WIDTH_MIN),
            initial_indent="    ",
            subsequent_indent="    ",
            # Commands and names of columns are to be copied from it, but not what is written out.
            break_long_words=visible(text, lines=True) != text,
            break_on_hyphens=False,
        )


def cut(text: str, width: int) -> str:
    """The text, or its beginning and its end: schemas and tables differ in either."""
    if len(text) <= width:
        return text
    end = (width - 1) // 2
    return f"{text[: width - 1 - end]}…{text[-end:]}"


def number(count: int, what: str) -> str:
    """`1 table`, `2 tables`."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def ago(then: datetime, now: datetime) -> str:
    """How long ago, in one unit."""
    return seconds(max(0.0, (now - then).total_seconds()))


def seconds(value: float) -> str:
    """A duration in one unit: `0.4 s`, `12 s`, `3 min`, `5 h`, `2 d`."""
    for unit_s, unit in _UNITS:
        if value >= unit_s:
            return f"{value / unit_s:.0f} {unit}"
    return f"{value:.0f} s" if value >= 10 else f"{value:.1f} s"
