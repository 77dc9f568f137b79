import pytest

from cdcd.core.catalog.chosen_keys import ChosenKeys, KeyRule
from cdcd.core.catalog.former_values import check_former_values
from cdcd.core.catalog.relations import TableDescription
from cdcd.core.errors import ConfigError
from cdcd.core.protocol.messages import Relation
from tests.unit.core.catalog.test_chosen_keys import DEFAULT, FULL, KEYS, relation


def check(of: Relation, *columns: str, table: TableDescription = KEYS) -> None:
    check_former_values("a.rule (public.*)", columns, of, table, "It could not be deleted.")


def test_columns_of_the_replica_identity_and_all_under_full_are_sent():
    check(FULL, "id", "note")
    check(DEFAULT, "id", "tenant")
    check(relation("i", "code"), "code")


@pytest.mark.parametrize("of", [DEFAULT, relation("n"), relation("i", "code")])
def test_other_columns_are_refused_with_what_could_not_be_done(of):
    with pytest.raises(ConfigError) as caught:
        check(of, "note")
    assert "a.rule (public.*) has column note, of which PostgreSQL does not send the former value" in str(
        caught.value
    )
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
