"""Which former values are known of rows of a partitioned table."""

import pytest

from cdcd.core.catalog.partition_identity import check_partitions, known_before
from cdcd.core.catalog.relations import TableDescription
from cdcd.core.errors import ConfigError
from cdcd.core.protocol.messages import Column, Relation

NAMES = ("id", "code", "note")


def relation(identity: str, *flagged: str) -> Relation:
    columns = [Column(int(identity == "f" or name in flagged), name, 23, -1) for name in NAMES]
    return Relation(None, 16384, "public", "t", identity, tuple(columns))


def table(*unsent: str) -> TableDescription:
    pairs = tuple((name, "public.t_1") for name in unsent)
    return TableDescription(("id",), ("code",), is_partitioned=True, unsent=pairs)


@pytest.mark.parametrize("identity", ["d", "f"])
def test_a_key_that_a_partition_does_not_send_is_refused_with_what_to_do(identity: str):
    with pytest.raises(ConfigError) as caught:
        check_partitions(relation(identity, "id"), table("id", "note"))
    assert "The key of public.t has column id" in caught.value.message
    assert "partition public.t_1" in caught.value.message
    assert "ALTER TABLE public.t_1 REPLICA IDENTITY FULL;" in caught.value.hint


def test_columns_beside_the_key_may_be_unsent():
    check_partitions(relation("f"), table("code", "note"))
    check_partitions(relation("d", "id"), TableDescription(("id",)))


@pytest.mark.parametrize(
    ("of", "described", "known"),
    [
        (relation("d", "id"), table(), [True, False, False]),
        (relation("i", "code"), table(), [False, True, False]),
        (relation("i", "code"), table("code"), [False, False, False]),
        # Whatever a partition sends in part, a replica identity has columns of a key only.
        (relation("f"), table(), [True, True, False]),
        (relation("f"), table("code", "note"), [True, False, False]),
        (relation("n"), table(), [False, False, False]),
    ],
)
def test_a_former_value_is_known_if_every_partition_sends_it(
    of: Relation, described: TableDescription, known: list[bool]
):
    assert known_before(of, described) == known
