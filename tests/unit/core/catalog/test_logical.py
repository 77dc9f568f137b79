from typing import Any

import pytest

from cdcd.core.catalog.logical import logical_type, require_binary, unreadable_binary
from cdcd.core.catalog.relations import TypeDescription
from cdcd.core.catalog.types import BUILTIN_TYPES, MONEY
from cdcd.core.errors import TransientError, WithoutBinaryError
from cdcd.core.protocol.messages import Column, Relation

SEG, SEGS, GEOMETRY = 70_000, 70_001, 70_002
INTEGER = 23
TYPES = {
    **BUILTIN_TYPES,
    SEG: TypeDescription(SEG, "public", "seg", "b", "U", 0, 0, -1, sends=False),
    SEGS: TypeDescription(SEGS, "public", "_seg", "b", "A", SEG, 0, -1),
    GEOMETRY: TypeDescription(GEOMETRY, "gis", "geometry", "b", "U", 0, 0, -1),
}
OIDS = {kind.name: oid for oid, kind in TYPES.items()}


def with_columns(*oids: int) -> Relation:
    columns = tuple([Column(0, f"c{number}", oid, -1) for number, oid in enumerate(oids)])
    return Relation(None, 1, "public", "t", "d", columns)


UNREADABLE = {
    "regproc", "regprocedure", "regoper", "regoperator", "regclass", "regtype", "regconfig", "regdictionary",
    "regnamespace", "regrole", "regcollation", "pg_node_tree", "pg_ndistinct", "pg_dependencies", "pg_mcv_list",
    "pg_brin_bloom_summary", "pg_brin_minmax_multi_summary",
}  # fmt: skip


def test_every_built_in_type_is_readable_but_those_whose_text_only_the_catalog_knows():
    unreadable = {
        kind.name
        for oid, kind in BUILTIN_TYPES.items()
        if not kind.is_array and unreadable_binary(with_columns(oid), {})
    }
    assert unreadable == UNREADABLE


def test_an_array_is_readable_if_its_elements_are():
    for oid, kind in BUILTIN_TYPES.items():
        if kind.is_array:
            element = BUILTIN_TYPES[kind.element_oid]
            readable = element.name not in UNREADABLE and element.sends
            assert (unreadable_binary(with_columns(oid), {}) == ()) == readable, kind.name


def test_what_the_server_sends_as_text_is_no_obstacle_but_what_holds_it_is():
    assert unreadable_binary(with_columns(SEG, OIDS["aclitem"]), TYPES) == ()
    assert unreadable_binary(with_columns(23, SEGS, OIDS["_aclitem"]), TYPES) == ("public.seg[]", "aclitem[]")


def test_each_type_is_named_once_in_the_order_of_the_columns():
    relation = with_columns(99_999, 25, GEOMETRY, OIDS["regclass"], GEOMETRY)
    assert unreadable_binary(relation, TYPES) == ("with oid 99999", "gis.geometry", "regclass")
    assert unreadable_binary(with_columns(), TYPES) == ()


def test_a_relation_is_refused_by_the_first_column_that_cannot_be_read():
    require_binary(with_columns(23, SEG), TYPES)
    with pytest.raises(
        WithoutBinaryError, match=r"Column 'c1' of public\.t has the type gis\.geometry,"
    ) as caught:
        require_binary(with_columns(23, GEOMETRY, 99_999), TYPES)
    assert isinstance(caught.value, TransientError)
    assert "postgres.binary" in caught.value.hint


class Counted(dict[int, TypeDescription]):
    """Descriptions of types that count how often one is looked at."""

    looks = 0

    def get(self, oid: int, default: Any = None) -> Any:
        self.looks += 1
        assert self.looks < 1000, "the time doubles with each level"
        return super().get(oid, default)


@pytest.mark.parametrize("leaf", [INTEGER, MONEY])
def test_types_that_have_the_next_one_three_times_are_looked_at_once_each(leaf: int):
    types = Counted({level: composite(level, (level + 1,) * 3) for level in range(80_000, 80_030)})
    types[80_030] = composite(80_030, (leaf,))
    logical = logical_type(80_000, -1, types, money_digits=0)
    assert logical.read is not None
    assert (logical.rewrite is not None) == (leaf == MONEY)


def composite(oid: int, parts: tuple[int, ...]) -> TypeDescription:
    return TypeDescription(oid, "public", f"t{oid}", "c", "C", 0, 0, -1, parts=parts)
