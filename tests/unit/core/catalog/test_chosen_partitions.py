import pytest

from cdcd.core.catalog.chosen_keys import ChosenKeys, KeyRule
from cdcd.core.catalog.chosen_partitions import ChosenPartitions, PartitionRule, moves
from cdcd.core.catalog.patterns import parse_column_pattern
from cdcd.core.catalog.protection import ColumnRule, Protections
from cdcd.core.catalog.relations import TableDescription
from cdcd.core.errors import ConfigError
from tests.unit.core.catalog.test_chosen_keys import DEFAULT, FULL, KEYS


def chosen(*rules: PartitionRule) -> ChosenPartitions:
    return ChosenPartitions(rules)


def test_the_columns_stay_in_the_order_of_the_configuration():
    rule = PartitionRule("public.*", ("note", "id"))
    assert chosen(rule).columns(FULL, KEYS) == ("note", "id")
    assert chosen(PartitionRule("a.*", ("id",))).columns(FULL, KEYS) == ()
    assert [str(each) for each in chosen(PartitionRule("a.b", ("id",))).unmatched([FULL])] == [
        "partitioner.columns (a.b)"
    ]
    assert chosen(rule)
    assert not chosen()


def test_columns_whose_former_values_are_not_sent_are_refused():
    with pytest.raises(
        ConfigError, match="The partition of a row that is updated or deleted would not be known"
    ):
        chosen(PartitionRule("public.*", ("note",))).columns(DEFAULT, KEYS)


def test_two_rules_for_a_table_are_refused():
    rules = chosen(PartitionRule("public.*", ("id",)), PartitionRule("*.t", ("id",)))
    with pytest.raises(ConfigError, match=r"both match table public\.t"):
        rules.columns(FULL, KEYS)


def test_a_protected_column_is_refused_because_the_partition_would_tell_of_it():
    protected = ColumnRule(parse_column_pattern("public.t.note", "columns.mask"), "mask", mask="***")
    partitions = ChosenPartitions((PartitionRule("public.t", ("note",)),), Protections((protected,)))
    with pytest.raises(ConfigError, match="the partition would tell of the value"):
        partitions.columns(FULL, KEYS)
    assert ChosenPartitions((PartitionRule("public.t", ("id",)),), Protections((protected,))).columns(
        FULL, KEYS
    ) == ("id",)


@pytest.mark.parametrize(
    ("relation", "columns", "table", "expected"),
    [
        (FULL, ("tenant",), KEYS, False),
        (FULL, ("id", "tenant"), KEYS, False),
        (FULL, ("tenant", "note"), KEYS, True),
        (FULL, ("id",), TableDescription(), True),
        (DEFAULT, ("id",), KEYS, False),
        (FULL, (), TableDescription(), False),
    ],
)
def test_records_of_a_key_lie_in_one_partition_if_the_columns_are_of_the_key(
    relation, columns, table, expected
):
    assert moves(columns, relation, table) is expected


def test_the_key_may_be_one_that_is_chosen_too():
    table = ChosenKeys((KeyRule("public.t", ("note", "tenant")),)).applied(FULL, KEYS)
    assert not moves(("note",), FULL, table)
    assert moves(("id",), FULL, table)
