import pytest

from cdcd.core.catalog.relations import TableDescription
from cdcd.core.catalog.replica_identity import check_former_values, check_partitions, known_before
from cdcd.core.catalog.table_rules import ChosenKeys, KeyRule
from cdcd.core.errors import ConfigError
from cdcd.core.protocol.messages import Column, Relation
from tests.unit.core.catalog.test_table_rules import DEFAULT, FULL, KEYS, keyed_relation


def check(of: Relation, *columns: str, table: TableDescription = KEYS) -> None:
    check_former_values("a.rule (public.*)", columns, of, table, "It could not be deleted.")


def test_columns_of_the_replica_identity_and_all_under_full_are_sent():
    check(FULL, "id", "note")
    check(DEFAULT, "id", "tenant")
    check(keyed_relation("i", "code"), "code")


@pytest.mark.parametrize("of", [DEFAULT, keyed_relation("n"), keyed_relation("i", "code")])
def test_other_columns_are_refused_with_what_could_not_be_done(of):
    with pytest.raises(ConfigError) as caught:
        check(of, "note")
    assert "a.rule (public.*) has column note. PostgreSQL does not send its former value" in str(caught.value)
    assert "It could not be deleted." in caught.value.message
    assert 'ALTER TABLE "public"."t" REPLICA IDENTITY FULL;' in caught.value.hint


def test_a_column_that_is_not_there_is_refused():
    with pytest.raises(ConfigError, match="has column nmae, which"):
        check(FULL, "nmae")


def test_partitions_may_send_less_than_their_table():
    table = TableDescription(primary_key=("tenant", "id"), is_partitioned=True)
    check(FULL, "tenant", table=table)
    with pytest.raises(ConfigError, match="is partitioned"):
        check(FULL, "note", table=table)
    assert ChosenKeys((KeyRule("public.t", ("tenant",)),)).applied(FULL, table).chosen_key == ("tenant",)


def test_a_partition_that_does_not_send_a_column_is_named():
    table = TableDescription(
        primary_key=("tenant", "id"), is_partitioned=True, unsent=(("tenant", "public.t_1"),)
    )
    with pytest.raises(ConfigError, match=r"rows of partition public\.t_1") as caught:
        check(FULL, "tenant", table=table)
    assert "ALTER TABLE public.t_1 REPLICA IDENTITY FULL;" in caught.value.hint
    check(FULL, "id", table=table)


NAMES = ("id", "code", "note")


def partitioned_relation(identity: str, *flagged: str) -> Relation:
    columns = [Column(int(identity == "f" or name in flagged), name, 23, -1) for name in NAMES]
    return Relation(None, 16384, "public", "t", identity, tuple(columns))


def table(*unsent: str) -> TableDescription:
    pairs = tuple((name, "public.t_1") for name in unsent)
    return TableDescription(("id",), ("code",), is_partitioned=True, unsent=pairs)


@pytest.mark.parametrize("identity", ["d", "f"])
def test_a_key_that_a_partition_does_not_send_is_refused_with_what_to_do(identity: str):
    with pytest.raises(ConfigError) as caught:
        check_partitions(partitioned_relation(identity, "id"), table("id", "note"))
    assert "The key of public.t has column id" in caught.value.message
    assert "partition public.t_1" in caught.value.message
    assert "ALTER TABLE public.t_1 REPLICA IDENTITY FULL;" in caught.value.hint


def test_columns_beside_the_key_may_be_unsent():
    check_partitions(partitioned_relation("f"), table("code", "note"))
    check_partitions(partitioned_relation("d", "id"), TableDescription(("id",)))


@pytest.mark.parametrize(
    ("of", "described", "known"),
    [
        (partitioned_relation("d", "id"), table(), [True, False, False]),
        (partitioned_relation("i", "code"), table(), [False, True, False]),
        (partitioned_relation("i", "code"), table("code"), [False, False, False]),
        # Whatever a partition sends in part, a replica identity has columns of a key only.
        (partitioned_relation("f"), table(), [True, True, False]),
        (partitioned_relation("f"), table("code", "note"), [True, False, False]),
        (partitioned_relation("n"), table(), [False, False, False]),
    ],
)
def test_a_former_value_is_known_if_every_partition_sends_it(
    of: Relation, described: TableDescription, known: list[bool]
):
    assert known_before(of, described) == known
