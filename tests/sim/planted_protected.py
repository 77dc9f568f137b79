"""Bugs of the bindings: a rule no longer protects a column that it protected."""

from collections.abc import Collection, Iterable

from cdcd.core.catalog.attribute_numbers import column_ids
from cdcd.core.catalog.bindings import Bindings, Numbers
from cdcd.core.catalog.relations import TableDescription
from cdcd.core.protocol.messages import Relation


class ForgetsAtTheStart(Bindings):
    """A session ignores the checkpoint's bindings, so that it binds columns by their present names."""

    def load(self, text: str, digests: Collection[str]) -> None:
        pass


class FollowsNoRename(Bindings):
    """A rule protects a column only as long as it matches the column's name."""

    def of_table(self, digest: str, oid: int) -> Collection[int]:
        return ()


class FollowsNoTable(Bindings):
    """A renamed table loses its bindings."""

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
    """A column of a message is identified by its name in the present catalog."""

    def _numbers(self, relation: Relation, table: TableDescription) -> list[Numbers]:
        now = {column.name: column.id for column in table.columns}
        guessed = column_ids(relation.columns, table)
        return [
            Numbers((now.get(column.name, number or 0),))
            for column, number in zip(relation.columns, guessed, strict=True)
        ]


class NumbersByOrder(Bindings):
    """A column of a message is identified by its place among the columns of the present catalog."""

    def _numbers(self, relation: Relation, table: TableDescription) -> list[Numbers]:
        now = [column.id for column in table.columns]
        return [Numbers((now[at] if at < len(now) else at + 1,)) for at in range(len(relation.columns))]


class ForgetsWhatIsGone(Bindings):
    """A dropped column loses its binding, although rows from before the drop may still be delivered."""

    def numbers(self, relation: Relation, table: TableDescription) -> list[Numbers]:
        live = {column.id for column in table.columns}
        for tables in self._rules.values():
            if relation.oid in tables:
                tables[relation.oid] &= live
        return super().numbers(relation, table)


class ForgetsTablesTooEarly(Bindings):
    """A dropped table loses its bindings at once, although rows from before the drop may still be delivered."""

    def dropped(self, oids: Iterable[int], after: int) -> None:
        super().dropped(oids, 0)


class BindsLate(Bindings):
    """The checkpoint that the start writes lacks the bindings; only later checkpoints have them."""

    def __init__(self) -> None:
        super().__init__()
        self._is_started = False

    def text(self, delivered: int) -> str:
        made = super().text(delivered)
        if self._is_started:
            return made
        self._is_started = True
        return ""
