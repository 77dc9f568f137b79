import random
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import LongType, StringType

from cdcd.core.catalog.attribute_numbers import column_ids
from cdcd.core.catalog.relations import CatalogColumn, TableDescription
from cdcd.core.protocol.messages import Column
from cdcd.mirror.records.schema import ColumnSchema, TableSchema
from cdcd.mirror.targets.evolution import IncompatibleSchemaError, plan
from cdcd.mirror.targets.same_columns import crossed, doubtful, numbered, pairs

TEXT, BIGINT = 25, 20
TYPES = {TEXT: StringType(), BIGINT: LongType()}


def column(name: str, id_: int | None, type_: int = TEXT) -> ColumnSchema:
    return ColumnSchema(name, id_, str(type_), type_, -1, TYPES[type_])


def table(*columns: ColumnSchema) -> TableSchema:
    form = ",".join(f"{part.name}:{part.id}" for part in columns)
    return TableSchema("shop.public.t", "public", "t", form, ("id",), columns)


ID = column("id", 1, BIGINT)
A, B, C = column("a", None), column("b", None), column("c", None)


def test_columns_that_changed_places_are_crossed():
    old = table(ID, A, B, C)
    assert crossed(old, table(ID, column("b", 7), column("a", 9), column("c", 10))) == ["b", "a"]
    # A known number tells what the order does not.
    known = table(ID, column("a", 2), column("b", 3), column("c", 10))
    assert crossed(known, table(ID, column("b", 2), column("a", 3), column("c", 10))) == []


def test_columns_with_no_room_between_their_numbers_are_crossed():
    # A column between 3 and 4 there never was.
    assert crossed(table(ID, A, B, C), table(ID, column("a", 3), column("c", 4))) == ["a", "c"]
    assert crossed(table(ID, A, B, C), table(ID, column("a", 3), column("c", 5))) == []
    # Nor one before 2 that is not 1.
    assert crossed(table(ID, A, B), table(ID, column("b", 2))) == ["id", "b"]
    assert crossed(table(A, B), table(column("b", 1))) == ["b"]


def test_another_relation_may_have_its_columns_in_any_order():
    old = replace(table(ID, A, B), oid=1)
    new = replace(table(ID, column("b", 7), column("a", 9), column("d", 10)), oid=2)
    assert crossed(old, new) == []
    assert doubtful(old, new) is None


@given(st.permutations(range(6)), st.sets(st.integers(0, 5)))
def test_columns_that_are_crossed_are_those_with_another_on_the_wrong_side(places: list[int], left: set[int]):
    old = table(*[column(f"c{number}", None) for number in range(6)])
    new = table(*[column(f"c{number}", None) for number in places if number not in left])
    now = [int(part.name[1:]) for part in new.columns]
    wrong = {
        f"c{one}"
        for at, one in enumerate(now)
        if any(other > one for other in now[:at]) or any(other < one for other in now[at:])
    }
    assert set(crossed(old, new)) == wrong


def test_a_column_that_is_gone_may_be_one_that_is_new_if_a_number_is_lacking_and_the_places_are_the_same():
    d = column("d", 4)
    assert doubtful(table(ID, A, B), table(ID, column("a", 2), d)) == ("b", "d")
    # The number of either tells that it is another one.
    assert doubtful(table(ID, A, column("b", 3)), table(ID, column("a", 2), d)) is None
    # b stood before c, and d stands after it.
    assert doubtful(table(ID, B, C), table(ID, column("c", 3), d)) is None
    assert doubtful(table(ID, A), table(ID, column("a", 2), d)) is None
    assert doubtful(table(ID, A, B), table(ID, column("a", 2))) is None


def altered(dice: random.Random) -> tuple[list[list[CatalogColumn]], TableDescription]:
    """A table from when it was made: its columns at some moments, and what the catalog says at last."""
    columns = [CatalogColumn("id", 1, "bigint", BIGINT, 0, None)]
    number = 1
    seen = []

    def free() -> list[str]:
        return sorted(set("abcd") - {column.name for column in columns})

    for step in range(dice.randrange(4, 12)):
        which = dice.choice(range(1, len(columns))) if len(columns) > 1 else 0
        action = dice.random()
        if (step < 2 or not which or action < 0.4) and free():
            number += 1
            type_ = dice.choice((TEXT, BIGINT))
            columns.append(CatalogColumn(dice.choice(free()), number, str(type_), type_, 0, None))
        elif which and action < 0.7:
            del columns[which]
        elif which and free():
            columns[which] = replace(columns[which], name=dice.choice(free()))
        if step > 1 and dice.random() < 0.5:
            seen.append(list(columns))
    return seen, TableDescription(columns=tuple(columns), last_id=number)


def described(columns: Iterable[CatalogColumn], now: TableDescription) -> TableSchema:
    """As the daemon describes a table of which it knows nothing but what the catalog says at last."""
    message = [Column(0, each.name, each.type_oid, -1) for each in columns]
    ids = column_ids(message, now)
    return table(*[column(each.name, id_, each.type_oid) for each, id_ in zip(message, ids, strict=True)])


@pytest.mark.parametrize("first", range(0, 2000, 500))
def test_a_mirror_of_a_table_that_was_altered_before_it_was_ever_described_is_equal_or_stops(first: int):
    followed = stopped = 0
    for seed in range(first, first + 500):
        seen, now = altered(random.Random(seed))
        new = described(now.columns, now)
        for columns in seen:
            old = described(columns, now)
            try:
                plan(old, numbered(old, new))
            except IncompatibleSchemaError:
                stopped += 1
                continue
            followed += 1
            had = {each.name: each for each in columns}
            same = {after.name: had[before.name] for before, after in pairs(old, numbered(old, new))}
            for each in now.columns:
                was = next((one for one in columns if one.id == each.id), None)
                taken = same.get(each.name)
                if taken is not None and (taken.name, taken.type_oid) == (each.name, each.type_oid):
                    # It may be another one that has its name and type by now (docs/mirror.md).
                    continue
                assert (taken and taken.id) == (was and was.id), (seed, columns, now)
    assert followed > stopped > 0
