"""What `cdcd check` says of the fields that are named."""

from cdcd.core.errors import ConfigError
from cdcd.daemon.rules.columns import FieldFacts, check_fields


def test_tables_whose_fields_are_named_are_listed():
    (found,) = check_fields(FieldFacts((), (), frozenset({"public.a", "public.b"})))
    assert (found.level, found.code) == ("ok", "fields.rule")
    assert "public.a, public.b" in found.found


def test_fields_of_one_name_are_an_error_and_what_matches_nothing_a_warning():
    facts = FieldFacts(
        (ConfigError("Two fields.", hint="Rename one."),), ("it matches none",), frozenset({"a.b"})
    )
    found = list(check_fields(facts))
    assert [(one.level, one.code) for one in found] == [
        ("error", "fields.rule"),
        ("warning", "fields.unmatched"),
    ]
    assert found[0].fix == "Rename one."
    assert found[1].found == "it matches none"


def test_without_a_table_there_is_nothing_to_say():
    assert list(check_fields(FieldFacts((), (), frozenset()))) == []
