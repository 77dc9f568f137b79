"""Attribute numbers of columns, between what was said of a table and what the catalog says by now."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from cdcd.core.catalog.attribute_numbers import column_ids, is_certain
from cdcd.core.catalog.relations import CatalogColumn, ColumnForm, TableDescription
from cdcd.core.protocol.messages import Column

TEXT, INT = 25, 23


def message(*names: str) -> list[Column]:
    """A name ending in # has the type int."""
    return [Column(0, name.rstrip("#"), INT if name.endswith("#") else TEXT, -1) for name in names]


def catalog(**numbers: int) -> list[CatalogColumn]:
    found = [CatalogColumn(name, number, "text", TEXT, 0, None) for name, number in numbers.items()]
    return sorted(found, key=lambda column: column.id)


def described(**numbers: int) -> tuple[ColumnForm, ...]:
    return tuple([ColumnForm(name, number, "text", TEXT, -1, "text") for name, number in numbers.items()])


def told(
    now: list[CatalogColumn], *former: tuple[ColumnForm, ...], last_id: int | None = None
) -> TableDescription:
    """What the catalog and former descriptions say. Without `last_id`, no number is greater than those of `now`."""
    highest = max([column.id for column in now], default=0)
    return TableDescription(columns=tuple(now), former=former, last_id=last_id or highest)


@pytest.mark.parametrize(
    ("asked", "known", "now", "expected"),
    [
        (("a", "b"), {}, {"a": 1, "b": 4}, [1, 4]),
        # Renamed, after a column was dropped: alone the catalog cannot tell.
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
        # Names that contradict each other say nothing, and the others do.
        (("b", "a", "c"), {"a": 1, "b": 2, "c": 7}, {"y": 2, "c": 7, "z": 10}, [1, 2, 7]),
        # It may be either, renamed before or after.
        (("a", "z"), {"a": 1, "b": 2}, {"a": 1, "c": 3}, [1, None]),
        # So it may with a type that only one of them has.
        (("a", "z#"), {"a": 1, "b": 2}, {"a": 1, "c": 3}, [1, None]),
        # 2 was dropped before the description, which passes over it.
        (("a", "z"), {"a": 1, "b": 3}, {"a": 1}, [1, 3]),
        (("a", "c"), {"a": 1, "c": 3}, {"a": 1, "b": 2, "x": 3, "y": 4}, [1, 3]),
    ],
)
def test_numbers_are_those_that_fit_both(
    asked: tuple[str, ...], known: dict[str, int], now: dict[str, int], expected: list[int | None]
) -> None:
    former = [described(**known)] if known else []
    assert column_ids(message(*asked), told(catalog(**now), *former)) == expected


def test_a_column_that_was_dropped_since_keeps_others_from_its_number():
    # Column 5 was added when the daemon was behind, and dropped. Or it is 3, renamed, and 5 was never looked at.
    assert column_ids(message("a", "z"), told(catalog(a=1), described(a=1, b=3), last_id=5)) == [1, None]
    assert column_ids(message("a", "z"), told(catalog(a=1), described(a=1, b=3), last_id=3)) == [1, 3]
    # The table was never described. With three numbers given, `z` may be 2 or 3; with two, it is 2.
    assert column_ids(message("a", "z"), told(catalog(a=1), last_id=3)) == [1, None]
    assert column_ids(message("a", "z"), told(catalog(a=1), last_id=2)) == [1, 2]


def test_a_table_that_nobody_knows_has_no_numbers():
    assert column_ids(message("a", "b"), TableDescription()) == [None, None]
    assert column_ids(message("a", "b"), TableDescription(former=(described(a=1, c=2),))) == [1, None]


def test_a_column_of_a_subtransaction_that_was_rolled_back_takes_no_numbers_from_others():
    assert column_ids(message("a", "b", "c", "d"), told(catalog(a=1, b=2), described(a=1, b=2))) == [
        1,
        2,
        None,
        None,
    ]


def test_many_numbers_that_nobody_saw_are_not_all_tried():
    assert column_ids(message("z", "b"), told(catalog(b=1600))) == [None, 1600]


def test_an_older_description_is_looked_at_where_it_is_the_messages():
    # Column 2 is in the first description and in the catalog, hence in the message. Column 3 came later.
    former = [described(a=1, c=2), described(a=1, b=2)]
    assert column_ids(message("a", "b"), told(catalog(x=1, y=2, z=3), *former)) == [1, 2]
    # The last one knows no number of the column, and the one before says that none was passed over.
    unnumbered = (*described(a=1), ColumnForm("x", None, "text", TEXT, -1, "text"))
    assert column_ids(message("a", "b"), told(catalog(a=1), unnumbered, last_id=4)) == [1, None]
    assert column_ids(message("a", "b"), told(catalog(a=1), unnumbered, described(a=1, c=4), last_id=4)) == [
        1,
        4,
    ]


def test_a_column_whose_number_a_description_lacks_may_stand_anywhere():
    known = (*described(a=1), ColumnForm("x", None, "text", TEXT, -1, "text"), *described(b=7))
    assert column_ids(message("a", "x", "b", "c"), told(catalog(a=1, b=7), known, last_id=8)) == [
        1,
        None,
        7,
        8,
    ]
    assert column_ids(message("a", "y", "c"), told(catalog(a=1, c=7), known)) == [1, None, 7]


def test_a_column_of_another_type_is_told_by_its_place():
    now = [CatalogColumn("a", 1, "integer", INT, 0, None), *catalog(b=3, c=4)]
    assert column_ids(message("a", "w", "c"), told(now, described(a=1, v=3, c=4))) == [1, 3, 4]


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

    def message(self) -> list[Column]:
        return [Column(0, name, kind, -1) for name, kind in self.columns.values()]

    def catalog(self) -> tuple[CatalogColumn, ...]:
        return tuple(
            [CatalogColumn(name, number, "", kind, 0, None) for number, (name, kind) in self.columns.items()]
        )

    def form(self, ids: Sequence[int | None] | None = None) -> tuple[ColumnForm, ...]:
        return tuple(
            [
                ColumnForm(name, number, "", kind, -1, "text")
                for number, (name, kind) in zip(ids or self.columns, self.columns.values(), strict=True)
            ]
        )


def test_a_row_of_the_described_form_is_numbered_whatever_was_renamed_swapped_and_dropped_since():
    """Only names that a new column has taken over can mislead, and there the numbers rise."""
    right = 0
    for seed in range(2000):
        table = Table(random.Random(seed), {1: ("a", TEXT), 3: ("b", TEXT), 4: ("c", INT), 6: ("d", TEXT)}, 7)
        asked = table.message()
        ids = list(table.columns)
        former = table.form()
        for _ in range(table.dice.randrange(1, 6)):
            table.change()
        now = table.catalog()
        found = column_ids(asked, TableDescription(columns=now, former=(former,), last_id=table.next - 1))
        taken_over = any(
            number > 6 and (name, kind) in {(column.name, column.type_oid) for column in asked}
            for number, (name, kind) in table.columns.items()
        )
        assert found == ids or taken_over, (seed, found, ids, now)
        right += found == ids
    assert right > 1900


def history(dice: random.Random) -> list[Table]:
    """A table after each time that it was altered. No name is used twice."""
    names = iter(range(1000))
    now = Table(dice, {1: ("id", INT), 2: ("n", INT)}, 3)
    seen = [now]
    for _ in range(25):
        now = Table(dice, dict(now.columns), now.next)
        for _ in range(dice.choice((1, 1, 1, 2, 3))):
            others = [number for number in now.columns if number > 1]
            match dice.randrange(5) if others else 0:
                case 0 | 1 if len(others) < 6:
                    now.columns[now.next] = (f"c{next(names)}", dice.choice((TEXT, INT)))
                    now.next += 1
                case 2:
                    number = dice.choice(others)
                    now.columns[number] = (now.columns[number][0], dice.choice((TEXT, INT)))
                case 3:
                    number = dice.choice(others)
                    now.columns[number] = (f"c{next(names)}", now.columns[number][1])
                case _:
                    del now.columns[dice.choice(others)]
        seen.append(now)
    return seen


@pytest.mark.parametrize(("behind", "known"), [(0.0, 1.0), (0.1, 0.9), (0.5, 0.5)])
def test_no_column_gets_the_number_of_another_one_however_far_the_daemon_is_behind(
    behind: float, known: float
):
    asked = numbered = 0
    for seed in range(100):
        dice = random.Random(seed)
        forms = history(dice)
        former: list[tuple[ColumnForm, ...]] = []
        at = 0
        for place, form in enumerate(forms):
            if dice.random() < 0.3:
                # No row came between two changes.
                continue
            at = max(at, place)
            while at < len(forms) - 1 and dice.random() < behind:
                at += 1
            ids = column_ids(
                form.message(),
                TableDescription(
                    columns=forms[at].catalog(), former=tuple(former), last_id=forms[at].next - 1
                ),
            )
            for number, right in zip(ids, form.columns, strict=True):
                assert number in (right, None), (seed, place, ids, form.columns)
                asked += 1
                numbered += number is not None
            former.insert(0, form.form(ids))
    assert numbered >= asked * known
