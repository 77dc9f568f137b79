"""Rules of the configuration for tables."""

from dataclasses import dataclass, replace

import pytest

from cdcd.core.catalog.patterns import parse_column_pattern
from cdcd.core.catalog.protection import ColumnRule, Protections
from cdcd.core.catalog.relations import TableDescription, key_columns
from cdcd.core.catalog.table_rules import (
    ChosenKeys,
    ChosenPartitions,
    KeyFormRule,
    KeyRule,
    PartitionRule,
    TableRules,
    both_match,
    moves,
)
from cdcd.core.errors import ConfigError
from cdcd.core.protocol.messages import Column, Relation

KEYS = TableDescription(primary_key=("tenant", "id"), unique_key=("code",))


def keyed_relation(identity: str, *flagged: str) -> Relation:
    columns = [
        Column(int(identity == "f" or name in flagged), name, 23, -1)
        for name in ("id", "tenant", "code", "note")
    ]
    return Relation(None, 16384, "public", "t", identity, tuple(columns))


FULL = keyed_relation("f")
DEFAULT = keyed_relation("d", "id", "tenant")


def chosen(
    relation: Relation,
    *columns: str,
    table: TableDescription = KEYS,
    has_schemas: bool = False,
) -> TableDescription:
    return ChosenKeys((KeyRule("public.*", columns),), has_schemas=has_schemas).applied(relation, table)


@pytest.mark.parametrize(
    ("relation", "columns", "key", "repeats"),
    [
        (FULL, ("tenant", "id"), ("id", "tenant"), False),
        (FULL, ("code",), ("code",), False),
        (FULL, ("code", "tenant"), ("tenant", "code"), False),
        (FULL, ("tenant",), ("tenant",), True),
        (FULL, ("note",), ("note",), True),
        # It tells rows apart, but a part of it may be NULL, by which no row can be read again.
        (FULL, ("tenant", "id", "note"), ("id", "tenant", "note"), True),
        (DEFAULT, ("tenant", "id"), ("id", "tenant"), False),
        (DEFAULT, ("id",), ("id",), True),
        (keyed_relation("i", "code"), ("code",), ("code",), False),
    ],
)
def test_a_chosen_key_has_the_tables_order_and_is_known_to_tell_rows_apart_or_not(
    relation, columns, key, repeats
):
    found = chosen(relation, *columns)
    assert key_columns(relation, found) == key
    assert found.repeats is repeats


def test_without_a_key_of_the_table_rows_may_share_the_chosen_one():
    assert chosen(FULL, "id", table=TableDescription()).repeats


@pytest.mark.parametrize(
    ("relation", "columns", "says", "hint"),
    [
        (FULL, ("nmae",), "has column nmae, which public.t does not have", "case included"),
        (
            DEFAULT,
            ("tenant", "note"),
            "PostgreSQL does not send its former value",
            "REPLICA IDENTITY FULL;",
        ),
        (
            keyed_relation("i", "code"),
            ("id",),
            "is not in the replica identity",
            "REPLICA IDENTITY FULL;",
        ),
        (keyed_relation("n"), ("id",), "is not in the replica identity", "REPLICA IDENTITY FULL;"),
    ],
)
def test_a_key_whose_former_values_are_not_known_is_refused(relation, columns, says, hint):
    with pytest.raises(ConfigError) as caught:
        chosen(relation, *columns)
    assert "key.columns (public.*)" in caught.value.message
    assert says in caught.value.message
    assert hint in caught.value.hint


def test_of_a_partitioned_table_only_the_primary_key_is_sure_to_be_sent():
    table = replace(KEYS, is_partitioned=True)
    assert chosen(FULL, "tenant", table=table).chosen_key == ("tenant",)
    with pytest.raises(ConfigError, match="is partitioned"):
        chosen(FULL, "code", table=table)


def test_schemas_of_keys_have_no_null():
    assert chosen(FULL, "tenant", has_schemas=True).repeats
    with pytest.raises(ConfigError, match="may be NULL"):
        chosen(FULL, "note", has_schemas=True)


def test_two_rules_for_a_table_are_refused_and_other_tables_are_left_alone():
    keys = ChosenKeys((KeyRule("public.*", ("id",)), KeyRule("*.t", ("id",)), KeyRule("x.y", ("id",))))
    with pytest.raises(ConfigError, match=r"both match table public\.t"):
        keys.applied(FULL, KEYS)
    other = replace(FULL, namespace="a", name="b")
    assert keys.applied(other, KEYS) is KEYS
    assert [str(rule) for rule in keys.unmatched([FULL, other])] == ["key.columns (x.y)"]
    assert keys
    assert not ChosenKeys()


@dataclass(frozen=True)
class Rule:
    pattern: str

    def __str__(self) -> str:
        return f"some.key ({self.pattern})"


def relation(schema: str, name: str) -> Relation:
    return Relation(None, 1, schema, name, "d", ())


ORDERS, ITEMS = relation("public", "orders"), relation("public", "items")


def rules(*patterns: str) -> TableRules[Rule]:
    return TableRules("some.key", [(each, Rule(each)) for each in patterns])


def test_rules_match_tables_by_their_patterns():
    some = rules("public.o*", "sales.*", "public.orders")
    assert some.of_table(ORDERS) == [Rule("public.o*"), Rule("public.orders")]
    assert some.matched([ORDERS, ITEMS])[0] == (Rule("public.o*"), [ORDERS])
    assert some.unmatched([ORDERS, ITEMS]) == [Rule("sales.*")]
    assert (bool(some), bool(rules())) == (True, False)


def test_one_rule_decides():
    assert rules("public.o*").only(ORDERS, "decides") == Rule("public.o*")
    assert rules("public.o*").only(ITEMS, "decides") is None
    with pytest.raises(
        ConfigError, match=r"some\.key \(public\.\*\) and some\.key \(\*\.orders\) both"
    ) as caught:
        rules("public.*", "*.orders").only(ORDERS, "decides what it is")
    assert caught.value.hint == "Narrow one of the patterns, so that only one rule decides what it is."


def test_two_patterns_of_a_table_contradict_each_other():
    assert both_match("some.key", ["a.b"]) == both_match("some.key", []) == ""
    assert both_match("some.key", ["a.b", "a.*"]) == "some.key.a.b and some.key.a.* both match it"


def test_a_malformed_pattern_is_refused_with_its_key():
    with pytest.raises(ConfigError, match=r"some\.key"):
        rules("orders")


def chosen_partitions(*rules: PartitionRule) -> ChosenPartitions:
    return ChosenPartitions(rules)


def test_the_columns_stay_in_the_order_of_the_configuration():
    rule = PartitionRule("public.*", ("note", "id"))
    assert chosen_partitions(rule).columns(FULL, KEYS) == ("note", "id")
    assert chosen_partitions(PartitionRule("a.*", ("id",))).columns(FULL, KEYS) == ()
    assert [str(each) for each in chosen_partitions(PartitionRule("a.b", ("id",))).unmatched([FULL])] == [
        "partitioner.columns (a.b)"
    ]
    assert chosen_partitions(rule)
    assert not chosen_partitions()


def test_columns_whose_former_values_are_not_sent_are_refused():
    with pytest.raises(
        ConfigError, match="cdcd would not know the partition of a row that is updated or deleted"
    ):
        chosen_partitions(PartitionRule("public.*", ("note",))).columns(DEFAULT, KEYS)


def test_two_rules_for_a_table_are_refused():
    rules = chosen_partitions(PartitionRule("public.*", ("id",)), PartitionRule("*.t", ("id",)))
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


BARE = KeyFormRule("public.t", bare=True)


def test_the_form_of_keys_is_that_of_the_rule():
    keys = ChosenKeys(
        (KeyRule("public.t", ("code",)),), forms=(BARE, KeyFormRule("x.*", constants=(("a", "b"),)))
    )
    assert keys
    assert keys.applied(FULL, KEYS).bare_key
    elsewhere = keys.applied(replace(FULL, namespace="x"), KEYS)
    assert (elsewhere.bare_key, elsewhere.key_constants) == (False, (("a", "b"),))
    assert [str(rule) for rule in keys.unmatched([FULL])] == ["key.forms (x.*)"]


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        (("tenant", "id"), "has 2 columns: "),
        (("note",), "column note of public.t, which key.columns chooses, may"),
    ],
)
def test_a_bare_key_has_one_column_that_is_never_null(columns: tuple[str, ...], says: str):
    keys = ChosenKeys((KeyRule("public.t", columns),), forms=(BARE,))
    with pytest.raises(ConfigError, match=says) as refused:
        keys.applied(FULL, KEYS)
    assert refused.value.hint
