"""Conversion of rows to the table's present columns, whatever columns the table had when the record was written; and
the descriptions of tables that records name.

The rule: a column is identified by its number (`attnum`) from a description in the schemas topic, or without a
description by its name. If a row lacks a column, its value is the default with which the column was added. A value
that was sent while the column had another type cannot be compared with a present value, and neither can an array of
an enum with renamed labels. Such a value is equal if its bytes are equal, and otherwise it is not compared.

A description is in the Kafka transaction of the first record that names it, or in an earlier transaction. So after
such a record was read, its description is in the topic, although a `read_committed` reader may not see it yet.
Reading waits until it is visible (`kafka/bounded_reading.py`).
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from cdcd.adapters.kafka.bounded_reading import BoundedReader
from cdcd.adapters.kafka.client import Properties
from cdcd.core.catalog.relations import ColumnForm
from cdcd.core.records.schemas import TableForm, read_form
from cdcd.tools.verify.values import NULL, join, pack, split

Shape = tuple[tuple[bytes, ...], str]
"""Columns of a row as it was sent, as JSON strings, and the fingerprint of its description; "" for none."""


def quoted(name: str) -> bytes:
    """Return a column's name as it is written in a record."""
    return json.dumps(name, ensure_ascii=False).encode()


@dataclass(frozen=True, slots=True)
class ConversionPlan:
    """Conversion of rows of one shape to the present columns.

    Attributes:
        places: for each present column, its index in the row; None: the row lacks the column.
        unlike: present columns that had another type or other labels, or whose former existence is unknown.
        doubtful: present columns whose former identity is unknown.
        labels: for each present column, its renamed labels, packed.
        same: True if rows need no conversion.
    """

    places: tuple[int | None, ...]
    unlike: frozenset[int]
    doubtful: frozenset[int]
    labels: tuple[Mapping[bytes, bytes], ...]
    same: bool


class Columns:
    """The present columns of a table.

    Args:
        form: the description of the table at the snapshot.
        defaults: for each column, the JSON value of rows that are older than the column; None for NULL.
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
        self._plans: dict[Shape, ConversionPlan] = {}

    def plan(self, shape: Shape) -> ConversionPlan:
        """Return the conversion of rows of this shape to the present columns."""
        found = self._plans.get(shape)
        if found is None:
            found = self._plans[shape] = self._make(shape)
        return found

    def _make(self, shape: Shape) -> ConversionPlan:
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
        return ConversionPlan(tuple(places), frozenset(unlike), frozenset(doubtful), tuple(labels), same)

    def now(self, shape: Shape, packed: bytes) -> bytes:
        """Return a row in the present columns."""
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
    """Return the index of `shape`'s column `name` in a row of the shape `earlier`; None if the row lacks it.

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
    """Return the present name of each renamed label of an enum by its former name, each packed."""
    names = dict(now.labels)
    return {
        pack(quoted(label)): pack(quoted(names[oid]))
        for oid, label in then.labels
        if names.get(oid, label) != label
    }


class TopicDescriptions:
    """Descriptions in the schemas topic of the tables with these topics. The caller owes `close`.

    Args:
        topic: name of the schemas topic; None: the pipeline has none.
        timeout_s: seconds to wait for an open transaction in the schemas topic.
    """

    def __init__(self, client: Properties, group: str, topic: str | None, timeout_s: float) -> None:
        self._topics = [] if topic is None else [topic]
        self._timeout_s = timeout_s
        self._reader = BoundedReader(client, group)
        self._begins: dict[tuple[str, int], int] = {}
        self._forms: dict[str, dict[str, TableForm]] = {}

    def close(self) -> None:
        self._reader.close()

    def of(self, topic: str) -> Mapping[str, TableForm]:
        """Return the descriptions of the table with this topic, by fingerprint. `read` adds to the returned mapping."""
        if topic not in self._forms:
            self._forms[topic] = {}
            # Earlier reads did not keep the descriptions of this topic.
            for place, begin in self._begins.items():
                self._reader.rewind(place, begin)
        return self._forms[topic]

    def read(self) -> None:
        """Read the descriptions that exist now, from the end of the last read. Raises as `BoundedReader`."""
        self._begins |= self._reader.add(self._topics)
        for _, _, message in self._reader.read(self._reader.ends(), self._timeout_s):
            with suppress(ValueError):
                fingerprint, form = read_form(message.value() or b"")
                forms = self._forms.get(form.topic)
                if forms is not None:
                    forms[fingerprint] = form
