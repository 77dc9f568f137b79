"""Bugs of the descriptions of tables."""

from collections.abc import Mapping
from dataclasses import replace

from cdcd.core.catalog.relations import CatalogColumn, TableDescription, TypeDescription
from cdcd.core.protocol.messages import Relation
from tests.sim.planted_stream import PlantedStream


class GuessesNumbers(PlantedStream):
    """A column that the catalog does not have under its name is taken for the next one that has its type."""

    def define(
        self, relation: Relation, table: TableDescription, types: Mapping[int, TypeDescription]
    ) -> None:
        here = {(column.name, column.type_oid) for column in table.columns}
        asked = [(column.name, column.type_oid) for column in relation.columns]
        gone = [names for names in asked if names not in here]
        columns: list[CatalogColumn] = []
        for column in table.columns:
            names = (column.name, column.type_oid)
            if names not in asked and gone and gone[0][1] == column.type_oid:
                names = gone.pop(0)
            columns.append(replace(column, name=names[0]))
        super().define(relation, replace(table, columns=tuple(columns)), types)
