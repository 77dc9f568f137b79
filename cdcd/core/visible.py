r"""Text of strangers as a terminal, a log or a browser may have it: hidden characters are written out.

Names of tables and columns, values of rows and messages of servers may hold control characters (which a terminal
obeys), bidirectional ones (which let a name read as another one), and characters without a width. Each of them is
written as `\u202e`, the form of JSON and of Python: text that is JSON stays the same JSON.
"""

import re
from typing import Final

_HIDDEN: Final = (
    # Controls and formats of Unicode (categories Cc, Cf), separators of lines and paragraphs (Zl, Zp), surrogates (Cs).
    "\x00-\x1f\x7f-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
    # Noncharacters, which programs use internally (Unicode, section 23.7).
    "\ufdd0-\ufdef\ufffe\uffff"
    # Without a width, but counted among the letters and marks (Default_Ignorable_Code_Point).
    "\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\ufff0-\ufff8"
)
_ALL: Final = re.compile(f"[{_HIDDEN}]")
_IN_LINES: Final = re.compile(rf"(?![\n\t])[{_HIDDEN}]")


def visible(text: str, *, lines: bool = False) -> str:
    r"""The text with `\u….` for each character that is not seen or moves others; `lines` keeps line ends and tabs."""
    return (_IN_LINES if lines else _ALL).sub(_written, text)


def _written(match: re.Match[str]) -> str:
    point = ord(match[0])
    if point < 0x10000:
        return f"\\u{point:04x}"
    # As JSON has it: a pair of surrogates.
    point -= 0x10000
    return f"\\u{0xD800 + (point >> 10):04x}\\u{0xDC00 + (point & 0x3FF):04x}"
