"""What `cdcd check` says of the keys that are chosen."""

from cdcd.core.catalog.chosen_keys import KeyRule
from cdcd.core.errors import ConfigError
from cdcd.daemon.rules.keys import KeyFacts, check_keys


def test_keys_that_can_be_made_are_named():
    (found,) = check_keys(KeyFacts(chosen=frozenset({"public.a", "public.b"})))
    assert (found.level, found.code) == ("ok", "key.columns")
    assert "public.a, public.b" in found.found


def test_a_key_that_cannot_be_made_is_an_error_and_what_is_doubtful_a_warning():
    facts = KeyFacts(
        refused=(ConfigError("No column x.", hint="Compare the name."),),
        unmatched=(KeyRule("public.none", ("id",)),),
        chosen=frozenset({"public.a"}),
        repeating=frozenset({"public.a"}),
    )
    found = list(check_keys(facts))
    assert [(one.level, one.code) for one in found] == [
        ("error", "key.columns"),
        ("warning", "key.unmatched"),
        ("warning", "key.repeats"),
    ]
    assert found[0].fix == "Compare the name."
    assert "key.columns (public.none) matches no published table" in found[1].found
    assert "several rows may have the same key: public.a" in found[2].found


def test_without_rules_there_is_nothing_to_say():
    assert list(check_keys(KeyFacts())) == []


def test_partitions_that_do_not_send_what_a_key_needs_are_an_error():
    (found,) = check_keys(KeyFacts(unsent=(ConfigError("It is not sent.", hint="Alter it."),)))
    assert (found.level, found.code, found.fix) == ("error", "key.partitions", "Alter it.")
