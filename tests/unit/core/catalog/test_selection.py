import pytest

from cdcd.core.catalog.selection import TableSelection
from cdcd.core.errors import ConfigError

NAMES = ("public.orders", "public.audit_1", "audit.log", "a.b.c")


@pytest.mark.parametrize(
    ("selection", "has"),
    [
        (TableSelection(), set(NAMES)),
        (TableSelection(("public.*",)), {"public.orders", "public.audit_1"}),
        (TableSelection(None, ("*.audit*", "audit.*")), {"public.orders", "a.b.c"}),
        (TableSelection(("public.*",), ("public.audit_?",)), {"public.orders"}),
        (TableSelection(('"a.b".c',)), {"a.b.c"}),
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
def test_a_malformed_pattern_names_its_key(selection, key):
    with pytest.raises(ConfigError, match=key):
        selection.test()


def test_patterns_that_match_no_table_are_named():
    selection = TableSelection(("public.*", "sales.*"), ("*.audit*", "public.salarys"))
    assert selection.unmatched(NAMES) == ["sales.*", "public.salarys"]
    assert TableSelection().unmatched(NAMES) == []
