"""Bugs of the bindings: a rule that protects a column loses it."""

from collections.abc import Collection

from cdcd.core.catalog.bindings import Bindings, Numbers
from cdcd.core.catalog.numbering import column_ids
from cdcd.core.catalog.relations import TableDescription
from cdcd.core.protocol.messages import Relation


class ForgetsAtTheStart(Bindings):
    """The checkpoint's bindings are not taken, so a session begins with the names of its time."""

    def load(self, text: str, digests: Collection[str]) -> None:
        pass


class FollowsNoRename(Bindings):
    """A rule holds for the names that it matches."""

    def of_table(self, digest: str, oid: int) -> Collection[int]:
        return ()


class FollowsNoTable(Bindings):
    """A table with another name is another table."""

    def __init__(self) -> None:
        super().__init__()
        self._names: dict[int, str] = {}

    def numbers(self, relation: Relation, table: TableDescription) -> list[Numbers]:
        if self._names.setdefault(relation.oid, relation.name) != relation.name:
            self._names[relation.oid] = relation.name
            for tables in self._rules.values():
                tables.pop(relation.oid, None)
        return super().numbers(relation, table)


class NumbersByNames(Bindings):
    """A column of a message is the one that has its name in the catalog of now."""

    def _numbers(self, relation: Relation, table: TableDescription) -> list[Numbers]:
        now = {column.name: column.id for column in table.columns}
        guessed = column_ids(relation.columns, table)
        return [
            Numbers((now.get(column.name, number or 0),))
            for column, number in zip(relation.columns, guessed, strict=True)
        ]


class NumbersByOrder(Bindings):
    """The columns of a message are those that the catalog has now, in their order."""

    def _numbers(self, relation: Relation, table: TableDescription) -> list[Numbers]:
        now = [column.id for column in table.columns]
        return [Numbers((now[at] if at < len(now) else at + 1,)) for at in range(len(relation.columns))]


class ForgetsWhatIsGone(Bindings):
    """A column that the catalog lacks is no longer bound. Rows from before it was dropped may still come."""

    def numbers(self, relation: Relation, table: TableDescription) -> list[Numbers]:
        live = {column.id for column in table.columns}
        for tables in self._rules.values():
            if relation.oid in tables:
                tables[relation.oid] &= live
        return super().numbers(relation, table)


class BindsLate(Bindings):
    """The bindings come with the first checkpoint behind the start."""

    def __init__(self) -> None:
        super().__init__()
        self._is_started = False

    def text(self, delivered: int) -> str:
        made = super().text(delivered)
        if self._is_started:
            return made
        self._is_started = True
        return ""
