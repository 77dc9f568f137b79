"""Commands with names in them, and text that a terminal shows without its control characters."""

import json
import shlex
import sys
import unicodedata

import pytest

from cdcd.core.catalog.patterns import parse_pattern
from cdcd.core.catalog.routing import parse_table, table_named
from cdcd.core.pasted import (
    begin_again,
    cdcd,
    identifier,
    literal,
    on_table,
    qualified,
    quoted,
    read_table,
    shell,
    table_option,
    with_file,
)
from cdcd.core.visible import visible


@pytest.mark.parametrize(
    ("table", "option"),
    [
        ("public.orders", "public.orders"),
        ("public.Odd Name", 'public."Odd Name"'),
        ('public."a.b"', 'public."a.b"'),
        ('"public.a".b', '"public.a".b'),
        ('"public.a"."q""x"', '"public.a"."q""x"'),
        ('public.q"x', 'public."q""x"'),
        ("public.a*", 'public."a*"'),
        ("public.a\u202eb\\", 'public.U&"a\\202eb\\\\"'),
        ("public.\U000e0041", 'public.U&"\\+0e0041"'),
        ("public.$(id)", "public.$(id)"),
    ],
)
def test_a_table_is_written_as_the_option_takes_it(table: str, option: str):
    assert table_option(table) == option
    assert table_named(option) == table
    pattern = parse_pattern(option)
    assert pattern.matches_name(table)
    assert pattern.is_literal


def test_a_command_is_quoted_for_a_shell():
    assert read_table("app.$(id)") == "cdcd snapshot start --table 'app.$(id)'"
    assert "cdcd tables resume 'app.$(id)' --config FILE." in begin_again("app.$(id)")
    assert read_table("a.b", where=True) == "cdcd snapshot start --table a.b --where '<condition>'"
    assert on_table("--relayout", 'a."') == """--relayout 'a.\"\"\"\"'"""
    assert cdcd("run", "--config", "my file") == "cdcd run --config 'my file'"
    assert shlex.split(shell("psql", "-d", "x'y")) == ["psql", "-d", "x'y"]


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("cdcd", "cdcd"),
        ("Cdcd", '"Cdcd"'),
        ("user", '"user"'),
        ('a"b', '"a""b"'),
        ("a b", '"a b"'),
        ("\x1b", 'U&"\\001b"'),
    ],
)
def test_a_name_in_sql_has_quotes_where_it_needs_them(name: str, written: str):
    assert identifier(name) == written


def test_sql_names_a_table_and_writes_a_constant():
    assert qualified("public.order") == 'public."order"'
    assert qualified('"crm.x".t') == '"crm.x".t'
    assert qualified('crm."x.t"') == 'crm."x.t"'
    assert quoted("cdcd") == '"cdcd"'
    assert literal("it's") == "'it''s'"
    assert literal("\u202e'\\") == "E'\\U0000202e''\\\\'"


def test_what_a_person_wrote_is_a_table_as_cdcd_names_it():
    assert table_named('public."Odd Name"') == "public.Odd Name"
    assert table_named('"a.b".c') == '"a.b".c'
    assert table_named('"a.b"."C D"') == '"a.b".C D'
    assert table_named("public.orders") == "public.orders"
    assert table_named("a.b.c") == "a.b.c"
    assert parse_table('U&"\\0041".u&"x""y"') == ("A", 'x"y')


@pytest.mark.parametrize(
    ("hint", "pasted"),
    [
        ("Restart: `cdcd reset --yes` removes", "Restart: `cdcd reset --yes --config 'a b.yaml'` removes"),
        ("`cdcd snapshot start --table x`; `cdcd run`", None),
        ("`cdcd run --config other.yaml`", "`cdcd run --config other.yaml`"),
        ("`cdcd config --reference` shows", "`cdcd config --reference` shows"),
        ("`cdcd mirror status` and cdcd run", "`cdcd mirror status` and cdcd run"),
        ("`SELECT 1`", "`SELECT 1`"),
    ],
)
def test_a_hint_names_the_file_that_its_commands_need(hint, pasted):
    found = with_file(hint, "a b.yaml")
    if pasted is None:
        assert found.count("--config 'a b.yaml'`") == 2
    else:
        assert found == pasted


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
