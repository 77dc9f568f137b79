from dataclasses import replace

import pytest

from cdcd.core.catalog.chosen_keys import ChosenKeys, KeyRule
from cdcd.core.catalog.relations import TableDescription, key_columns
from cdcd.core.errors import ConfigError
from cdcd.core.protocol.messages import Column, Relation

KEYS = TableDescription(primary_key=("tenant", "id"), unique_key=("code",))


def relation(identity: str, *flagged: str) -> Relation:
    columns = [
        Column(int(identity == "f" or name in flagged), name, 23, -1)
        for name in ("id", "tenant", "code", "note")
    ]
    return Relation(None, 16384, "public", "t", identity, tuple(columns))


FULL = relation("f")
DEFAULT = relation("d", "id", "tenant")


def chosen(
    relation: Relation, *columns: str, table: TableDescription = KEYS, has_schemas: bool = False
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
        (relation("i", "code"), ("code",), ("code",), False),
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
            "of which PostgreSQL does not send the former value",
            "REPLICA IDENTITY FULL;",
        ),
        (relation("i", "code"), ("id",), "is not in the replica identity", "REPLICA IDENTITY FULL;"),
        (relation("n"), ("id",), "is not in the replica identity", "REPLICA IDENTITY FULL;"),
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
