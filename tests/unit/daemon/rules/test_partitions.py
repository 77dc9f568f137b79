"""What `cdcd check` says of the columns that choose partitions."""

from cdcd.core.catalog.chosen_partitions import PartitionRule
from cdcd.core.errors import ConfigError
from cdcd.daemon.rules.partitions import PartitionFacts, check_partitions

NONE: frozenset[str] = frozenset()


def test_tables_whose_partitions_columns_choose_are_named():
    (found,) = check_partitions(PartitionFacts((), (), frozenset({"public.a", "public.b"}), NONE))
    assert (found.level, found.code) == ("ok", "partitioner.columns")
    assert "public.a, public.b" in found.found


def test_columns_that_cannot_choose_are_an_error_and_what_is_doubtful_a_warning():
    facts = PartitionFacts(
        (ConfigError("No column x.", hint="Compare the name."),),
        (PartitionRule("public.none", ("id",)),),
        frozenset({"public.a"}),
        frozenset({"public.a"}),
    )
    found = list(check_partitions(facts))
    assert [(one.level, one.code) for one in found] == [
        ("error", "partitioner.columns"),
        ("warning", "partitioner.unmatched"),
        ("warning", "partitioner.moves"),
    ]
    assert found[0].fix == "Compare the name."
    assert "partitioner.columns (public.none) matches no published table" in found[1].found
    assert "records of one key may lie in several partitions: public.a" in found[2].found


def test_without_a_table_there_is_nothing_to_say():
    assert list(check_partitions(PartitionFacts((), (), NONE, NONE))) == []
