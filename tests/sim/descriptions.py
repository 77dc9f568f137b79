"""The topic of schemas as a reader of it sees it: no column has the number of another one."""

from collections.abc import Collection, Mapping

from cdcd.core.engine.checkpoint import AsideTable
from cdcd.core.records.gaps import Aside
from cdcd.core.records.schemas import read_form
from tests.sim.catalog import ColumnDefinition
from tests.sim.expected import PromiseBrokenError, Record

TOPIC = "sim.schemas"


class DescriptionsSeen:
    """The descriptions of tables.

    Args:
        columns: by oid of a table and name: every column that any table ever had. No two have one name.
    """

    def __init__(self, columns: Mapping[int, Mapping[str, ColumnDefinition]]) -> None:
        self.numbered = 0
        self.unnumbered = 0
        """Columns whose number the daemon does not say."""
        self.aside: dict[int, Aside] = {}
        """By oid: the last record of each table that is or was set aside."""
        self._columns = columns

    def compare(self, tables: Collection[AsideTable]) -> None:
        """The topic and the checkpoint name the same tables that are set aside."""
        said = {
            AsideTable(each.oid, each.since, each.fault) for each in self.aside.values() if each.until is None
        }
        if said != set(tables):
            raise PromiseBrokenError(
                f"G13: set aside by the schemas topic: {said}, by the checkpoint: {tables}"
            )

    def description(self, record: Record) -> None:
        """A description became visible."""
        value = record[2]
        assert value is not None
        aside = Aside.read(value)
        if aside is not None:
            self.aside[aside.oid] = aside
            return
        _, form = read_form(value)
        assert form.oid is not None
        known = self._columns[form.oid]
        for column in form.columns:
            # The made-up column changes without a lock on the table, which no column of a table does.
            its = known.get(column.name)
            if its is None:
                continue
            if column.id is None:
                self.unnumbered += 1
                continue
            self.numbered += 1
            if column.id != its.attnum:
                raise PromiseBrokenError(
                    f"{form.schema}.{form.table}: column {column.name} is described as number {column.id}, and is "
                    f"{its.attnum}"
                )
