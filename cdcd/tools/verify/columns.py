"""Rows in the columns that their table has now, whatever columns it had when they were sent.

The rule: a column is known by its number (`attnum`), which a description in the schemas topic gives; where no
description does, by its name. A column that a row lacks has the default with which it was added. A value that was sent
while the column had another type cannot be held against one of now, and neither can an array of an enum whose labels
have been renamed: such a value is equal if its bytes are, and else it is not compared.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cdcd.core.catalog.relations import ColumnForm
from cdcd.core.records.schemas import TableForm
from cdcd.tools.verify.values import NULL, join, pack, split

Shape = tuple[tuple[bytes, ...], str]
"""The columns of a row as it was sent, as JSON strings, and the fingerprint of the description, "" for none."""


def quoted(name: str) -> bytes:
    """A name as it stands in a record."""
    return json.dumps(name, ensure_ascii=False).encode()


@dataclass(frozen=True, slots=True)
class Plan:
    """How rows of one shape become rows of now.

    Attributes:
        places: for each column of now, where it stands in the row; None: the row lacks it.
        unlike: the columns of now whose type or labels were others; or nobody knows whether they were there.
        doubtful: the columns of now of which nobody knows which ones they were.
        labels: for each column of now, the labels that were renamed, each packed.
        same: nothing is to be done.
    """

    places: tuple[int | None, ...]
    unlike: frozenset[int]
    doubtful: frozenset[int]
    labels: tuple[Mapping[bytes, bytes], ...]
    same: bool


class Difference(NamedTuple):
    """A column whose values differ, each packed."""

    column: int
    source: bytes
    topics: bytes


class Columns:
    """The columns of a table now.

    Args:
        form: the description of the table at the snapshot.
        defaults: the JSON of what rows have that are older than the column; None for NULL.
        former: descriptions of the table by their fingerprints.
    """

    def __init__(
        self, form: TableForm, defaults: Sequence[bytes | None], former: Mapping[str, TableForm]
    ) -> None:
        self.names = [column.name for column in form.columns]
        self.key = form.key
        self._columns = form.columns
        self._names = tuple([quoted(name) for name in self.names])
        self._defaults = [NULL if default is None else pack(default) for default in defaults]
        self._former = former
        self._plans: dict[Shape, Plan] = {}

    def plan(self, shape: Shape) -> Plan:
        """How rows of this shape become rows of now."""
        found = self._plans.get(shape)
        if found is None:
            found = self._plans[shape] = self._make(shape)
        return found

    def _make(self, shape: Shape) -> Plan:
        names, fingerprint = shape
        then = self._former.get(fingerprint)
        place = {name: at for at, name in enumerate(names)}
        numbers = (
            {} if then is None else {column.id: column for column in then.columns if column.id is not None}
        )
        by_name = {} if then is None else {column.name: column for column in then.columns}
        unnumbered = then is not None and any(column.id is None for column in then.columns)
        places: list[int | None] = []
        unlike: set[int] = set()
        doubtful: set[int] = set()
        labels: list[Mapping[bytes, bytes]] = []
        for at, column in enumerate(self._columns):
            known = numbers.get(column.id) if column.id is not None else None
            if known is None and unnumbered:
                doubtful.add(at)
            named = by_name.get(column.name)
            if known is None and named is not None and (column.id is None or named.id is None):
                known = named
            name = self._names[at] if known is None else quoted(known.name)
            found = place.get(name) if known is not None or then is None else None
            places.append(found)
            renamed: Mapping[bytes, bytes] = {}
            if found is None:
                if then is None:
                    unlike.add(at)
            elif known is not None:
                renamed = renamed_labels(known, column)
                if (known.form, known.type_oid) != (column.form, column.type_oid) or (
                    known.labels != column.labels and column.form.endswith("[]")
                ):
                    unlike.add(at)
            labels.append(renamed)
        same = names == self._names and places == list(range(len(names))) and not any(labels)
        return Plan(tuple(places), frozenset(unlike), frozenset(doubtful), tuple(labels), same)

    def now(self, shape: Shape, packed: bytes) -> bytes:
        """A row in the columns of now."""
        plan = self.plan(shape)
        if plan.same:
            return packed
        values = split(packed)
        return join(
            [
                self._defaults[at] if place is None else plan.labels[at].get(values[place], values[place])
                for at, place in enumerate(plan.places)
            ]
        )


def place_in(former: Mapping[str, TableForm], name: bytes, shape: Shape, earlier: Shape) -> int | None:
    """Where the column with this name in `shape` stands in a row of the shape `earlier`; None: nowhere.

    Args:
        former: descriptions of the table by their fingerprints.
    """
    then, before = former.get(shape[1]), former.get(earlier[1])
    if then is not None and before is not None and shape[1] != earlier[1]:
        number = next((column.id for column in then.columns if quoted(column.name) == name), None)
        if number is not None:
            names = [quoted(column.name) for column in before.columns if column.id == number]
            return earlier[0].index(names[0]) if names and names[0] in earlier[0] else None
    return earlier[0].index(name) if name in earlier[0] else None


def renamed_labels(then: ColumnForm, now: ColumnForm) -> dict[bytes, bytes]:
    """The labels of an enum that have another name now: what was sent to what would be sent, each packed."""
    names = dict(now.labels)
    return {
        pack(quoted(label)): pack(quoted(names[oid]))
        for oid, label in then.labels
        if names.get(oid, label) != label
    }
