"""Which attribute numbers the columns of a Relation message have.

The message has names and types as of its place in the WAL. The catalog has names and numbers as of now, and former
descriptions have them as of earlier places. In between columns may have been renamed, dropped and added.

The rule: a message lists its columns in the order of their numbers, numbers are never used twice, and a new column's is
greater than all before it. So numbers that do not rise are wrong; a column that a former description and the catalog
both have was there in between, hence is in the message; and one that neither has came after all that the description
numbers, or stands where the description has a column without a number.

Where the names and types of today's catalog fit, they are taken. What they can not tell is a column that was dropped
and added again at the end under its name while the daemon was behind.
"""

from collections.abc import Sequence
from typing import Final

from cdcd.protocol.messages import Column
from cdcd.rows.relations import CatalogColumn, ColumnForm

_Names = tuple[str, int]
"""Name and oid of the type of a column."""

_IS: Final = 4
"""What it counts that a column has name and type of a numbered one; its name alone, or its type alone, count less."""
_NAME: Final = 2
_TYPE: Final = 1
_NOWHERE: Final = -1
"""What it counts that a column came after the one description and was gone before the other."""
_IMPOSSIBLE: Final = -(1 << 40)


def column_ids(
    columns: Sequence[Column], now: Sequence[CatalogColumn], former: Sequence[Sequence[ColumnForm]]
) -> list[int | None]:
    """The attribute number of each column, None where it can not be told.

    Args:
        now: the columns in the catalog.
        former: the columns of former descriptions of the same relation, the newest first.
    """
    asked = [(column.name, column.type_oid) for column in columns]
    known = [
        {column.id: (column.name, column.type_oid) for column in each if column.id is not None}
        for each in former
    ]
    today = {column.id: (column.name, column.type_oid) for column in now}
    by_name = _by_name(asked, today, known[0] if known else None)
    if by_name is not None:
        return by_name
    for each in known:
        if list(each.values()) == asked:
            return list(each)
    if known:
        return _aligned(asked, former[0], today)
    if list(today) == list(range(1, len(asked) + 1)):
        # No column was ever dropped and none came since.
        return list(today)
    return _rising(asked, today)


def is_certain(columns: Sequence[Column], now: Sequence[CatalogColumn]) -> bool:
    """Whether the catalog alone tells the numbers; if not, former descriptions are needed."""
    asked = [(column.name, column.type_oid) for column in columns]
    today = {column.id: (column.name, column.type_oid) for column in now}
    return _by_name(asked, today, today) is not None


def _by_name(
    asked: Sequence[_Names], today: dict[int, _Names], known: dict[int, _Names] | None
) -> list[int | None] | None:
    """The numbers of the columns with these names and types; None: that can not be all of them."""
    numbers = {names: number for number, names in today.items()}
    found: list[int | None] = []
    last = 0
    for names in asked:
        number = numbers.get(names)
        if number is None or number <= last:
            return None
        found.append(number)
        last = number
    # A column from before the last one was there. It may be one that is not published, and never was.
    if known is not None and any(
        number < last and number in known and number not in found for number in today
    ):
        return None
    return found


def _rising(asked: Sequence[_Names], today: dict[int, _Names]) -> list[int | None]:
    """Numbers by names and types, without those that contradict each other."""
    numbers = {names: number for number, names in today.items()}
    found = [numbers.get(names) for names in asked]
    return [
        number
        if number is not None
        and all(other is None or other < number for other in found[:index])
        and all(other is None or other > number for other in found[index + 1 :])
        else None
        for index, number in enumerate(found)
    ]


def _aligned(
    asked: Sequence[_Names], former: Sequence[ColumnForm], today: dict[int, _Names]
) -> list[int | None]:
    """The rising numbers that fit best between a former description and today's catalog; None where several do."""
    known = {column.id: (column.name, column.type_oid) for column in former if column.id is not None}
    numbers = sorted({*known, *today})
    free = _free(former, numbers)
    in_both = frozenset(known) & frozenset(today)
    nothing: frozenset[int] = frozenset()
    for lasting in (in_both, nothing):
        fits = [[_fit(names, known.get(number), today.get(number)) for number in numbers] for names in asked]
        left = _best(fits, [number in lasting for number in numbers], free)
        # From the other end: where several ways are equally good, the two differ.
        reverse = [number in lasting for number in numbers[::-1]]
        right = _best([row[::-1] for row in fits[::-1]], reverse, free[::-1])
        if left is None or right is None:
            # A column left the publication: it lasts, but is in no message any more.
            continue
        mirrored = [None if place is None else len(numbers) - 1 - place for place in right[::-1]]
        return [
            numbers[place] if place is not None and place == other else None
            for place, other in zip(left, mirrored, strict=True)
        ]
    return [None] * len(asked)


def _free(former: Sequence[ColumnForm], numbers: Sequence[int]) -> list[bool]:
    """Before each of `numbers`, and after the last one: whether a column without any of them may stand there."""
    free = [False] * (len(numbers) + 1)
    low, is_open = 0, False
    for column in former:
        if column.id is None:
            is_open = True
            continue
        if is_open:
            for place, number in enumerate(numbers):
                free[place] = free[place] or low < number <= column.id
        low, is_open = column.id, False
    for place in range(len(numbers)):
        free[place] = free[place] or numbers[place] > low
    free[len(numbers)] = True
    return free


def _fit(asked: _Names, *seen: _Names | None) -> int:
    fit = 0
    for names in seen:
        if names == asked:
            fit += _IS
        elif names is not None:
            fit += _NAME if names[0] == asked[0] else _TYPE if names[1] == asked[1] else 0
    return fit


def _best(fits: list[list[int]], lasting: list[bool], free: list[bool]) -> list[int | None] | None:
    """Give each row a column, so that the sum of `fits` is the largest. None: no way is possible.

    Later rows have later columns, and every column in `lasting` is given to a row. A row may have no column where
    `free` is true of the column that comes next. Of equal ways the one is taken that gives the first rows the last
    columns.
    """
    rows, columns = len(fits), len(lasting)
    sums = [[_IMPOSSIBLE] * (columns + 1) for _ in range(rows + 1)]
    sums[rows][columns] = 0
    for row in range(rows, -1, -1):
        for column in range(columns, -1, -1):
            best = sums[row][column]
            if column < columns and not lasting[column]:
                best = max(best, sums[row][column + 1])
            if row < rows and free[column]:
                best = max(best, sums[row + 1][column] + _NOWHERE)
            if row < rows and column < columns:
                best = max(best, sums[row + 1][column + 1] + fits[row][column])
            sums[row][column] = best
    if sums[0][0] <= _IMPOSSIBLE // 2:
        return None
    taken: list[int | None] = []
    row = column = 0
    while row < rows:
        best = sums[row][column]
        if column < columns and not lasting[column] and best == sums[row][column + 1]:
            column += 1
        elif column < columns and best == sums[row + 1][column + 1] + fits[row][column]:
            taken.append(column)
            row, column = row + 1, column + 1
        else:
            taken.append(None)
            row += 1
    return taken
