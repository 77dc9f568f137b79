"""Attribute numbers of the columns of a Relation message.

The message has names and types at its position in the WAL. The catalog has the present names and numbers, and
former descriptions have those of earlier positions. In between, columns may have been renamed, dropped and added.

The rule: a column gets a number if no other number is possible, else none. The possible numbers follow from how
PostgreSQL numbers columns (`ATExecAddColumn` in tablecmds.c, `RemoveAttributeById` in heap.c):

- A message lists its columns in the order of their numbers.
- Numbers are never reused, and a new column's number is greater than all before it. So a number that a former
  description skips, and for which the catalog has no column, was dropped before that description.
- A column in both a former description and the catalog existed in between, so it is in the message.

A column with the same name and type as in the catalog or the last description is considered that column, if this is
possible. Only this can give wrong numbers: if a column was dropped while the daemon was behind, and another one got
its name and its type. For a table that was never described, the catalog's names may be much later. So the numbers
of its columns with other names follow from the order alone.
"""

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from cdcd.core.catalog.relations import CatalogColumn, ColumnForm, TableDescription
from cdcd.core.protocol.messages import Column

_Names = tuple[str, int]
"""(name, oid of the type) of a column."""


@dataclass(frozen=True, slots=True)
class _Place:
    """A possible number of a column in the message.

    Attributes:
        now: column in the catalog; None: not there.
        then: column in the last description; None: not there.
        lasts: True if the column is in the message.
    """

    id: int
    now: _Names | None
    then: _Names | None
    lasts: bool


def column_ids(columns: Sequence[Column], table: TableDescription) -> list[int | None]:
    """Return the attribute number of each column; None if it is uncertain.

    Args:
        columns: columns of the message.
        table: description from the catalog, with former descriptions.
    """
    asked = [_names(column) for column in columns]
    last = {column.id for column in table.former[0]} if table.former else set()
    by_name = _by_name(asked, table.columns, last.intersection([column.id for column in table.columns]))
    if by_name is not None:
        return by_name
    found = _in_order(asked, table) if table.last_id else None
    # Without `found`, the catalog does not limit the numbers: the table was dropped, or the message is from a
    # rolled-back subtransaction and has columns that the catalog never had.
    return found or _in_order(asked, table, more=len(asked) + 1) or [None] * len(asked)


def is_certain(columns: Sequence[Column], now: Sequence[CatalogColumn]) -> bool:
    """Return True if the catalog alone determines the numbers; False: former descriptions are needed."""
    asked = [_names(column) for column in columns]
    return _by_name(asked, now, {column.id for column in now}) is not None


def _names(column: Column | CatalogColumn | ColumnForm) -> _Names:
    return column.name, column.type_oid


def _by_name(
    asked: Sequence[_Names], now: Sequence[CatalogColumn], lasting: AbstractSet[int | None]
) -> list[int | None] | None:
    """Return the catalog's numbers for these names and types.

    None: a column has no number, or the numbers cannot be right.

    Args:
        lasting: numbers of columns that are in the message, unless they are not published.
    """
    today = {_names(column): column.id for column in now}
    found: list[int | None] = []
    last = 0
    for names in asked:
        number = today.get(names)
        if number is None or number <= last:
            return None
        found.append(number)
        last = number
    return None if any(number < last for number in lasting - set(found) if number is not None) else found


def _in_order(asked: Sequence[_Names], table: TableDescription, more: int = 0) -> list[int | None] | None:
    """Return the numbers of the columns with these names and types; None if no assignment is possible.

    Args:
        more: how many numbers may exist above those that the catalog has ever used.
    """
    places = _places(len(asked), table, more)
    anywhere = [[True] * len(places) for _ in asked]
    seen = _possible([[names in {place.now, place.then} for place in places] for names in asked])
    by_names = [row if any(row) else every for row, every in zip(seen, anywhere, strict=True)]
    for lasting in (True, False):
        by_order = _only_ones(anywhere, places, lasting=lasting)
        if by_order is None:
            # A column left the publication: it exists, but is no longer in messages.
            continue
        found = _only_ones(by_names, places, lasting=lasting)
        if found is None:
            return by_order
        if table.former:
            return found
        return [
            named if any(row) else number for row, named, number in zip(seen, found, by_order, strict=True)
        ]
    return None


def _places(rows: int, table: TableDescription, more: int) -> list[_Place]:
    """Return the possible numbers of columns in a message, in ascending order.

    Args:
        rows: number of columns in the message.
        more: as in `_in_order`.
    """
    now = {column.id: _names(column) for column in table.columns}
    numbered = [
        {column.id: _names(column) for column in each if column.id is not None} for each in table.former
    ]
    # A description that lacks the number of a column does not show which numbers it skips.
    whole = [
        (max(each), each)
        for each, former in zip(numbered, table.former, strict=True)
        if each and len(each) == len(former)
    ]
    last = numbered[0] if numbered else {}
    described = set().union(*numbered)
    found: list[_Place] = []
    unseen = 0
    for number in range(1, max([table.last_id, *now, *last]) + more + 1):
        if number not in now and any(number < highest and number not in each for highest, each in whole):
            continue
        unseen = 0 if number in now or number in last else unseen + 1
        # If there are more consecutive numbers than columns, no number is the only possible one.
        if unseen <= rows + 1:
            lasts = number in now and number in described
            found.append(_Place(number, now.get(number), last.get(number), lasts))
    return found


def _possible(seen: Sequence[list[bool]]) -> list[list[bool]]:
    """Return where columns were seen, without columns that contradict each other because names were swapped.

    Args:
        seen: for each column, the places at which its name and its type were seen.
    """
    spans = [(row.index(True), len(row) - row[::-1].index(True)) if any(row) else None for row in seen]
    found: list[list[bool]] = []
    for at, (row, span) in enumerate(zip(seen, spans, strict=True)):
        crosses = span is not None and (
            any(other is not None and other[0] + 1 >= span[1] for other in spans[:at])
            or any(other is not None and other[1] - 1 <= span[0] for other in spans[at + 1 :])
        )
        found.append([False] * len(row) if crosses else row)
    return found


@dataclass(frozen=True, slots=True)
class NumberedPlace:
    """A possible attribute number of a column in a message. `lasts`: True if a column of the message must have it."""

    id: int
    lasts: bool


def bounds(
    fits: Sequence[Sequence[bool]], places: Sequence[NumberedPlace], *, lasting: bool
) -> list[tuple[int, int]] | None:
    """Return the lowest and the highest number of each column in any assignment. None: no assignment is possible.

    An assignment gives each column a number in ascending order.

    Args:
        fits: for each column and place, True if the column can have the place.
        lasting: True if every place that lasts must be assigned.
    """
    rows = len(fits)
    needed = [lasting and place.lasts for place in places]
    # True if the columns from a row on can have places from a place on.
    can = [[False] * (len(places) + 1) for _ in range(rows + 1)]
    can[-1][-1] = True
    for row in range(rows, -1, -1):
        for at in range(len(places) - 1, -1, -1):
            can[row][at] = (not needed[at] and can[row][at + 1]) or (
                row < rows and fits[row][at] and can[row + 1][at + 1]
            )
    if not can[0][0]:
        return None

    def way(*, first: bool) -> Iterator[int]:
        """Return the assignment with the first possible place for each column, or the last."""
        row = 0
        for at, place in enumerate(places):
            takes = row < rows and fits[row][at] and can[row + 1][at + 1]
            if takes and (first or needed[at] or not can[row][at + 1]):
                yield place.id
                row += 1

    # The lower numbers of two assignments form an assignment, and so do the higher ones, so these two are the
    # outermost.
    return list(zip(way(first=True), way(first=False), strict=True))


def _only_ones(
    fits: Sequence[Sequence[bool]], places: Sequence[_Place], *, lasting: bool
) -> list[int | None] | None:
    """Return the number that each column has in all assignments, None if it varies. None: no assignment is possible."""
    found = bounds(fits, [NumberedPlace(place.id, place.lasts) for place in places], lasting=lasting)
    return None if found is None else [low if low == high else None for low, high in found]
