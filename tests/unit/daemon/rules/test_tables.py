"""What `cdcd check` says of the fields that are named."""

from cdcd.core.catalog.table_rules import KeyRule, PartitionRule
from cdcd.core.errors import ConfigError
from cdcd.daemon.rules.tables import (
    FieldFacts,
    KeyFacts,
    PartitionFacts,
    check_fields,
    check_keys,
    check_partition_columns,
)


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


NONE: frozenset[str] = frozenset()


def test_tables_whose_partitions_columns_choose_are_named():
    (found,) = check_partition_columns(PartitionFacts((), (), frozenset({"public.a", "public.b"}), NONE))
    assert (found.level, found.code) == ("ok", "partitioner.columns")
    assert "public.a, public.b" in found.found


def test_columns_that_cannot_choose_are_an_error_and_what_is_doubtful_a_warning():
    facts = PartitionFacts(
        (ConfigError("No column x.", hint="Compare the name."),),
        (PartitionRule("public.none", ("id",)),),
        frozenset({"public.a"}),
        frozenset({"public.a"}),
    )
    found = list(check_partition_columns(facts))
    assert [(one.level, one.code) for one in found] == [
        ("error", "partitioner.columns"),
        ("warning", "partitioner.unmatched"),
        ("warning", "partitioner.moves"),
    ]
    assert found[0].fix == "Compare the name."
    assert "partitioner.columns (public.none) matches no published table" in found[1].found
    assert "records of one key may lie in several partitions: public.a" in found[2].found


def test_without_a_table_there_is_nothing_to_say_of_keys():
    assert list(check_partition_columns(PartitionFacts((), (), NONE, NONE))) == []
