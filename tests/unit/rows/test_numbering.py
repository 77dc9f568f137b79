"""Attribute numbers of columns, between what was said of a table and what the catalog says by now."""

import random
from dataclasses import dataclass, replace

import pytest

from cdcd.protocol.messages import Column
from cdcd.rows.numbering import column_ids, is_certain
from cdcd.rows.relations import CatalogColumn, ColumnForm

TEXT, INT = 25, 23


def message(*names: str) -> list[Column]:
    """A name ending in # has the type int."""
    return [Column(0, name.rstrip("#"), INT if name.endswith("#") else TEXT, -1) for name in names]


def catalog(**numbers: int) -> list[CatalogColumn]:
    found = [CatalogColumn(name, number, "text", TEXT, 0, None) for name, number in numbers.items()]
    return sorted(found, key=lambda column: column.id)


def described(**numbers: int) -> list[ColumnForm]:
    return [ColumnForm(name, number, "text", TEXT, -1, "text") for name, number in numbers.items()]


@pytest.mark.parametrize(
    ("asked", "known", "now", "expected"),
    [
        (("a", "b"), {}, {"a": 1, "b": 4}, [1, 4]),
        # Renamed, after a column was dropped: alone the catalog can not tell.
        (("a", "v"), {}, {"a": 1, "w": 3}, [1, None]),
        (("a", "v"), {"a": 1, "v": 3}, {"a": 1, "w": 3}, [1, 3]),
        # Names that were swapped fit by name, but their numbers do not rise.
        (("a", "b"), {}, {"b": 1, "a": 2}, [1, 2]),
        (("a", "b", "c"), {}, {"b": 1, "a": 2, "c": 4}, [None, None, 4]),
        (("a", "b", "c"), {"a": 1, "b": 2, "c": 4}, {"b": 1, "a": 2, "c": 4}, [1, 2, 4]),
        # The catalog's `a` is a later column's, because the first column is not in the message.
        (("a", "b"), {"a": 1, "b": 2}, {"x": 1, "a": 2, "b": 3}, [1, 2]),
        # A form that was never described lies between the last one and today's.
        (("a", "w"), {"a": 1, "v": 3}, {"a": 1, "x": 3}, [1, 3]),
        (("a", "w", "n"), {"a": 1, "v": 3}, {"a": 1, "x": 3, "n": 4, "m": 5}, [1, 3, 4]),
        (("b", "c"), {"a": 1, "b": 2}, {"b": 2, "d": 3}, [2, 3]),
        # Dropped since: its number is known from before.
        (("a", "b"), {"a": 1, "b": 2}, {"a": 1}, [1, 2]),
        (("a", "b"), {"a": 1, "b": 2}, {}, [1, 2]),
        # A column that is not published.
        (("a", "c"), {"a": 1, "c": 3}, {"a": 1, "b": 2, "c": 3}, [1, 3]),
        # Two swapped their names, then the one was dropped and the other got its name: none came between the others.
        (("o", "m", "b"), {"m": 4, "o": 5, "b": 7}, {"m": 4, "b": 7, "o": 10}, [4, 5, 7]),
        # It may be either, renamed before or after.
        (("a", "z"), {"a": 1, "b": 2}, {"a": 1, "c": 3}, [1, None]),
    ],
)
def test_numbers_are_those_that_fit_both(
    asked: tuple[str, ...], known: dict[str, int], now: dict[str, int], expected: list[int | None]
) -> None:
    former = [described(**known)] if known else []
    assert column_ids(message(*asked), catalog(**now), former) == expected


def test_an_older_description_is_looked_at_where_it_is_the_messages():
    former = [described(a=1, c=2), described(a=1, b=2)]
    assert column_ids(message("a", "b"), catalog(x=1, y=2, z=3), former) == [1, 2]


def test_a_column_that_nobody_knows_stands_where_a_description_has_one_without_a_number():
    known = [*described(a=1), ColumnForm("x", None, "text", TEXT, -1, "text"), *described(b=7)]
    assert column_ids(message("a", "x", "b", "c"), catalog(a=1, b=7), [known]) == [1, None, 7, None]
    assert column_ids(message("a", "y", "c"), catalog(a=1, c=7), [known]) == [1, None, 7]


def test_a_column_of_another_type_is_told_by_its_place():
    now = [CatalogColumn("a", 1, "integer", INT, 0, None), *catalog(b=3, c=4)]
    assert column_ids(message("a", "w", "c"), now, [described(a=1, v=3, c=4)]) == [1, 3, 4]


def test_the_catalog_is_certain_where_names_fit_and_numbers_rise():
    assert is_certain(message("a", "b"), catalog(a=1, b=4))
    assert not is_certain(message("a", "v"), catalog(a=1, w=2))
    assert not is_certain(message("a", "b"), catalog(b=1, a=2))
    assert not is_certain(message("a", "c"), catalog(a=1, b=2, c=3))


@dataclass
class Table:
    """A table whose columns change at random."""

    dice: random.Random
    columns: dict[int, tuple[str, int]]
    next: int

    def change(self) -> None:
        match self.dice.randrange(4):
            case 0 if len(self.columns) > 1:
                del self.columns[self.dice.choice(list(self.columns))]
            case 1:
                name = next(name for name in "abcdefghijklm" if name not in self.names())
                self.columns[self.next] = (name, self.dice.choice((TEXT, INT)))
                self.next += 1
            case 2 if len(self.columns) > 1:
                one, other = self.dice.sample(list(self.columns), 2)
                (first, kind), (second, another) = self.columns[one], self.columns[other]
                self.columns[one], self.columns[other] = (second, kind), (first, another)
            case _:
                number = self.dice.choice(list(self.columns))
                free = [name for name in "nopqrstuvw" if name not in self.names()]
                self.columns[number] = (self.dice.choice(free), self.columns[number][1])

    def names(self) -> set[str]:
        return {name for name, _ in self.columns.values()}


def test_a_row_of_the_described_form_is_numbered_whatever_was_renamed_swapped_and_dropped_since():
    """Only names that a new column has taken over can mislead, and there the numbers rise."""
    right = 0
    for seed in range(2000):
        table = Table(random.Random(seed), {1: ("a", TEXT), 3: ("b", TEXT), 4: ("c", INT), 6: ("d", TEXT)}, 7)
        asked = [Column(0, name, kind, -1) for name, kind in table.columns.values()]
        ids = list(table.columns)
        former = [
            replace(ColumnForm(name, number, "", kind, -1, "text"), name=name)
            for number, (name, kind) in table.columns.items()
        ]
        for _ in range(table.dice.randrange(1, 6)):
            table.change()
        now = [
            CatalogColumn(name, number, "", kind, 0, None) for number, (name, kind) in table.columns.items()
        ]
        found = column_ids(asked, now, [former])
        taken_over = any(
            number > 6 and (name, kind) in {(column.name, column.type_oid) for column in asked}
            for number, (name, kind) in table.columns.items()
        )
        assert found == ids or taken_over, (seed, found, ids, now)
        right += found == ids
    assert right > 1900
