"""Compares topics with their tables after a gap, as the daemon's comparer does, with the topics of the oracle."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cdcd.core.engine.actions import Compared, Differences, NotComparable
from cdcd.core.snapshot.reading import SourceTable, Visibility
from tests.sim.catalog import Definition, Row
from tests.sim.client import Client, line_of
from tests.sim.expected import key_bytes, topic_of
from tests.sim.fold import Fold, Values
from tests.sim.healed import OPS
from tests.sim.settings import Settings


@dataclass(slots=True)
class Comparer:
    """What the daemon's comparer does, with the topics that the oracle has folded."""

    settings: Settings
    client: Client
    fold: Fold
    left: list[tuple[str, Any]] = field(default_factory=list)
    """Differences that were not returned yet: their operation, and key values or a line of COPY."""

    def compare(self, table: SourceTable, held: Visibility) -> Compared | NotComparable:
        settings, database = self.settings, self.client.database
        if settings.filters or settings.routes or settings.parted or settings.protected or settings.skipped:
            return NotComparable("rules shape its rows")
        found = database.by_name(table.name.rpartition(".")[2])
        if found is None or found.oid != table.oid or found.fingerprint != table.columns:
            return NotComparable("it was altered")
        if found.keyless:
            return NotComparable("it has no key")
        topic = self.fold.topics.get(topic_of(found))
        there: Mapping[bytes, Values] = {} if topic is None else topic.rows
        here = {key_bytes(found, each.row): each.row for each in database.heap(found).visible(held)}
        names = [column.name for column in found.columns if column.name in found.key]
        self.left = []
        for key in there.keys() - here.keys():
            members = json.loads(key)
            if list(members) != names:
                return NotComparable("the columns of the key were changed")
            self.left.append(("d", tuple([str(value).encode() for value in members.values()])))
        for key, row in here.items():
            if key not in there or is_other(self.fold, found, row, there[key]):
                line = line_of(table.relation, found, row)
                self.left.append(("c" if key not in there else "u", line))
        ops = [op for op, _ in self.left]
        return Compared(*[ops.count(op) for op in OPS])

    def next(self) -> Differences:
        some, self.left = self.left[:3], self.left[3:]
        deletes, updates, inserts = (tuple([data for each, data in some if each == op]) for op in OPS)
        return Differences(deletes, updates, inserts)


def is_other(fold: Fold, table: Definition, row: Row, there: Values) -> bool:
    """Return whether a value of the row is another one in the topic, or is not there."""
    names: dict[int, list[str]] = {}
    for each, column in fold.database.columns[table.oid].items():
        names.setdefault(column.attnum, []).append(each)
    return any(
        next((there[each] for each in names[column.attnum] if each in there), column.missing)
        != table.value(row, column)
        for column in table.columns
    )
