"""Which attribute numbers the columns of a Relation message have.

The message has names and types as of its place in the WAL. The catalog has names and numbers as of now, and former
descriptions have them as of earlier places. In between columns may have been renamed, dropped and added.

The rule: a column gets a number if no other one can be its own, else none. What can be follows from how PostgreSQL
numbers columns (`ATExecAddColumn` in tablecmds.c, `RemoveAttributeById` in heap.c):

- A message lists its columns in the order of their numbers.
- Numbers are never used twice, and a new column's is greater than all before it. So a number that a former description
  passes over, and that the catalog has no column for, was dropped before that description.
- A column that a former description and the catalog both have was there in between, hence is in the message.

A column that the catalog or the last description has with the same name and type is taken for that one, if that is
possible. Wrong numbers come from that alone: while the daemon was behind, a column was dropped and another one got its
name and its type. Of a table that was never described, the catalog's names may be from much later. So the numbers of
its columns with other names follow from the order alone.
"""

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from cdcd.core.catalog.relations import CatalogColumn, ColumnForm, TableDescription
from cdcd.core.protocol.messages import Column

_Names = tuple[str, int]
"""Name and oid of the type of a column."""


@dataclass(frozen=True, slots=True)
class _Place:
    """A number that a column of the message may have.

    Attributes:
        now: the column in the catalog; None: it is not there.
        then: the column in the last description; None: it is not there.
        lasts: the column is in the message.
    """

    id: int
    now: _Names | None
    then: _Names | None
    lasts: bool


def column_ids(columns: Sequence[Column], table: TableDescription) -> list[int | None]:
    """The attribute number of each column, None where it cannot be told.

    Args:
        columns: those of the message that are described.
        table: what the catalog and former descriptions say.
    """
    asked = [_names(column) for column in columns]
    last = {column.id for column in table.former[0]} if table.former else set()
    by_name = _by_name(asked, table.columns, last.intersection([column.id for column in table.columns]))
    if by_name is not None:
        return by_name
    found = _in_order(asked, table) if table.last_id else None
    # Without `found`, the catalog does not bound the numbers: the table was dropped, or the message is of a
    # subtransaction that was rolled back, and has columns that the catalog never had.
    return found or _in_order(asked, table, more=len(asked) + 1) or [None] * len(asked)


def is_certain(columns: Sequence[Column], now: Sequence[CatalogColumn]) -> bool:
    """Whether the catalog alone tells the numbers; if not, former descriptions are needed."""
    asked = [_names(column) for column in columns]
    return _by_name(asked, now, {column.id for column in now}) is not None


def _names(column: Column | CatalogColumn | ColumnForm) -> _Names:
    return column.name, column.type_oid


def _by_name(
    asked: Sequence[_Names], now: Sequence[CatalogColumn], lasting: AbstractSet[int | None]
) -> list[int | None] | None:
    """The numbers that the catalog has for these names and types. None: some column has none, or they cannot be right.

    Args:
        lasting: columns that are in the message, unless they are not published.
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
    """The numbers of the columns with these names and types; None: there is no way that they have any.

    Args:
        more: so many numbers may there be above those that the catalog has ever given.
    """
    places = _places(len(asked), table, more)
    anywhere = [[True] * len(places) for _ in asked]
    seen = _possible([[names in {place.now, place.then} for place in places] for names in asked])
    by_names = [row if any(row) else every for row, every in zip(seen, anywhere, strict=True)]
    for lasting in (True, False):
        by_order = _only_ones(anywhere, places, lasting=lasting)
        if by_order is None:
            # A column left the publication: it lasts, but is in no message any more.
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
    """The numbers that columns of a message may have, rising.

    Args:
        rows: how many columns the message has.
        more: as `_in_order` has it.
    """
    now = {column.id: _names(column) for column in table.columns}
    numbered = [
        {column.id: _names(column) for column in each if column.id is not None} for each in table.former
    ]
    # A description that lacks the number of a column does not tell which numbers it passes over.
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
        # Of more numbers in a row than there are columns, none is the only one.
        if unseen <= rows + 1:
            lasts = number in now and number in described
            found.append(_Place(number, now.get(number), last.get(number), lasts))
    return found


def _possible(seen: Sequence[list[bool]]) -> list[list[bool]]:
    """Where columns were seen, without those columns that contradict each other, because names were swapped.

    Args:
        seen: for each column, the places where its name and its type were seen.
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
class Place:
    """An attribute number that a column of a message may have. `lasts`: some column of the message must have it."""

    id: int
    lasts: bool


def bounds(
    fits: Sequence[Sequence[bool]], places: Sequence[Place], *, lasting: bool
) -> list[tuple[int, int]] | None:
    """For each column the lowest and the highest number that it has in any way. None: there is no way.

    A way gives each column a number, so that they rise.

    Args:
        fits: for each column, whether it can have each of the places.
        lasting: every place that lasts is given to a column.
    """
    rows = len(fits)
    needed = [lasting and place.lasts for place in places]
    # Whether the columns from a row on can have places from a place on.
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
        """Each column has the first place that it may have, or the last."""
        row = 0
        for at, place in enumerate(places):
            takes = row < rows and fits[row][at] and can[row + 1][at + 1]
            if takes and (first or needed[at] or not can[row][at + 1]):
                yield place.id
                row += 1

    # Of two ways, the lower numbers of both are a way, and so are the higher ones: so these two are the outermost.
    return list(zip(way(first=True), way(first=False), strict=True))


def _only_ones(
    fits: Sequence[Sequence[bool]], places: Sequence[_Place], *, lasting: bool
) -> list[int | None] | None:
    """For each column the number that it has in all possible ways, None where it has several. None: there is no way."""
    found = bounds(fits, [Place(place.id, place.lasts) for place in places], lasting=lasting)
    return None if found is None else [low if low == high else None for low, high in found]
