"""One dialect of table patterns, whatever key they stand under."""

import pytest

from cdcd.core.catalog.patterns import TableSelection, matcher, parse_column_pattern, parse_pattern
from cdcd.core.errors import ConfigError
from cdcd.core.snapshot.beginning import wanted
from cdcd.core.table_names import table_text

TABLES = [
    ("public", "orders"),
    ("public", "orders_old"),
    ("sales", "a.b"),
    ("sales", 'quo"te'),
    ("Sales", "Kunde*"),
    ("a.b", "c"),
    ("public", "a[1]"),
    ("new\nline", "t"),
]
PATTERNS: list[tuple[str, list[int] | None]] = [
    ("public.orders", [0]),
    ("public.order?", [0]),
    ("public.order*", [0, 1]),
    ("public.*", [0, 1, 6]),
    ("*.*", [0, 1, 2, 3, 4, 5, 6, 7]),
    ("sales.a.b", None),
    ('sales."a.b"', [2]),
    ('sales."quo""te"', [3]),
    ('Sales."Kunde*"', [4]),
    ('"Sales".*', [4]),
    ("?ales.*", [2, 3, 4]),
    ('"public".orders', [0]),
    ('"a.b".c', [5]),
    ("public.a[1]", [6]),
    ("public.[o]rders", []),
    ("sales.A*", []),
    ("new*.t", [7]),
    ("public.", None),
    ("orders", None),
    (".orders", None),
    ('"public.orders', None),
    ('public."orders', None),
    ("", None),
]


@pytest.mark.parametrize(("pattern", "matched"), PATTERNS)
def test_a_pattern_matches_whole_names_with_case(pattern: str, matched: list[int] | None):
    if matched is None:
        with pytest.raises(ConfigError, match=r"^postgres\.tables: "):
            parse_pattern(pattern)
        return
    parsed = parse_pattern(pattern)
    assert [place for place, table in enumerate(TABLES) if parsed.matches(*table)] == matched


@pytest.mark.parametrize(("pattern", "matched"), [each for each in PATTERNS if each[1] is not None])
def test_the_keys_of_the_configuration_have_the_same_dialect(pattern: str, matched: list[int]):
    names = {place: table_text(*table) for place, table in enumerate(TABLES)}
    assert [place for place, name in names.items() if matcher([pattern], "x")(name)] == matched
    assert wanted(names, [pattern]).keys() == names.keys() - set(matched)


def test_a_malformed_pattern_names_its_key():
    with pytest.raises(ConfigError, match=r"^snapshot\.exclude: "):
        wanted({}, ["orders"])


@pytest.mark.parametrize(
    ("pattern", "matched"),
    [
        ("public.users.email", True),
        ("*.*.email", True),
        ("public.user?.e*", True),
        ("public.users.Email", False),
        ("public.users.mail", False),
        ('public."users"."email"', True),
        ('"public.users".email.x', False),
    ],
)
def test_a_pattern_of_columns_has_three_parts_of_the_same_dialect(pattern: str, matched: bool):
    assert parse_column_pattern(pattern, "columns.mask").matches("public", "users", "email") is matched


@pytest.mark.parametrize(
    "pattern", ["email", "users.email", "public.users.", 'public."users.email', "a.b.c.d", ""]
)
def test_what_is_no_pattern_of_columns_is_refused_with_its_key(pattern: str):
    with pytest.raises(ConfigError, match=r"^columns\.mask: .*schema\.table\.column"):
        parse_column_pattern(pattern, "columns.mask")


NAMES = ("public.orders", "public.audit_1", "audit.log", '"a.b".c')


@pytest.mark.parametrize(
    ("selection", "has"),
    [
        (TableSelection(), set(NAMES)),
        (TableSelection(("public.*",)), {"public.orders", "public.audit_1"}),
        (TableSelection(None, ("*.audit*", "audit.*")), {"public.orders", '"a.b".c'}),
        (TableSelection(("public.*",), ("public.audit_?",)), {"public.orders"}),
        (TableSelection(('"a.b".c',)), {'"a.b".c'}),
        (TableSelection(("a.*",)), set()),
        (TableSelection(None, ("a.*",)), set(NAMES)),
        (TableSelection((), ()), set()),
    ],
)
def test_a_table_is_included_and_not_excluded(selection, has):
    assert set(filter(selection.test(), NAMES)) == has
    assert selection.is_all == (selection == TableSelection())


@pytest.mark.parametrize(
    ("selection", "key"),
    [(TableSelection(("x",)), "tables.include"), (TableSelection(None, ("x",)), "tables.exclude")],
)
def test_a_malformed_pattern_of_a_selection_names_its_key(selection, key):
    with pytest.raises(ConfigError, match=key):
        selection.test()


def test_patterns_that_match_no_table_are_named():
    selection = TableSelection(("public.*", "sales.*"), ("*.audit*", "public.salarys"))
    assert selection.unmatched(NAMES) == ["sales.*", "public.salarys"]
    assert TableSelection().unmatched(NAMES) == []
