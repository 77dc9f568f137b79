"""Hidden characters are written out."""

import json
import sys
import unicodedata

import pytest

from cdcd.core.visible import visible

HIDDEN = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Categories of Unicode: controls, formats, surrogates, separators of lines and paragraphs."""


def test_every_hidden_character_of_unicode_is_written_out_and_comes_back_from_json():
    for point in range(sys.maxunicode + 1):
        letter = chr(point)
        if unicodedata.category(letter) in HIDDEN:
            shown = visible(f"a{letter}b")
            assert shown.isascii(), hex(point)
            assert json.loads(f'"{shown}"') == f"a{letter}b"


@pytest.mark.parametrize("letter", "\u034f\u115f\u3164\uffa0\ufe0f\U000e0061")
def test_letters_without_a_width_are_hidden_too(letter: str):
    assert visible(letter).startswith("\\u")


def test_what_is_seen_stays_and_lines_stay_where_they_are_asked_for():
    text = "Straße 東京 café é̂ \u3000\xa0 <&'\"\\ naïve 😀"
    assert visible(text) == text
    assert visible("a\n\tb\r", lines=True) == "a\n\tb\\u000d"
    assert visible("a\n\tb\r") == "a\\u000a\\u0009b\\u000d"


def test_what_is_written_out_already_stays():
    once = visible("a\u202eb\x1b")
    assert visible(once) == once == "a\\u202eb\\u001b"
