"""The filter of one table: whether the topic has a row.

The rule: a filter is about rows, not about events. Consumers of the topic have exactly the rows for which the
expression is true. So an update that takes a row out of the filter is a delete for them, and one that brings a row into
it is an insert, as in PostgreSQL's own row filters (manual, "Row Filters", UPDATE Transformations).

That needs the row as it was before. PostgreSQL sends of it what the replica identity has, and nothing if the identity
did not change: then its columns are those of the new row. So an expression may ask for columns of the replica identity
only, for all columns under REPLICA IDENTITY FULL. With `old_row: assumed` it may ask for others too. A row of which
they are not known counts as one that the topic has: consumers then get deletes of rows that they never had, and an
update where a row enters, and still no row stays with them that should be gone.

The same holds wherever the expression has no answer for the old row. What an unanswered new row does, `on_error` says.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from cdcd.core.catalog.protection import Protections
from cdcd.core.catalog.relations import TableDescription, TypeDescription
from cdcd.core.catalog.table_rules import TableRules, both_match
from cdcd.core.errors import ConfigError
from cdcd.core.protocol.messages import Relation, Value
from cdcd.core.records.shaping.column_values import ColumnValues
from cdcd.core.records.shaping.compiling import ExpressionError, compile_expression
from cdcd.core.records.shaping.evaluation import BOOL, Condition, Values
from cdcd.core.records.shaping.expressions import columns_of
from cdcd.core.records.shaping.row_values import ORDINARY, RowValues, unknown_columns, used_columns
from cdcd.core.records.shaping.settings import KEEP, REQUIRED, TableFilter

KEY: Final = "filters.tables"


class TableFilters:
    """The filters of a configuration, by table. ConfigError: a pattern is malformed."""

    def __init__(self, filters: Sequence[TableFilter]) -> None:
        self._rules = TableRules(KEY, [(each.table, each) for each in filters])

    def of_table(self, relation: Relation) -> list[TableFilter]:
        """The filters of a table, which should be one or none (`contradiction`)."""
        return self._rules.of_table(relation)

    def unmatched(self, relations: Sequence[Relation]) -> list[str]:
        """The patterns that match none of these tables."""
        return [each.table for each in self._rules.unmatched(relations)]


def contradiction(found: Sequence[TableFilter]) -> str:
    """Why a table cannot have these filters; "": it can."""
    return both_match(KEY, [each.table for each in found])


class RowFilter(RowValues):
    """A filter for a table as it was last described. See `RowValues` for further attributes."""

    def __init__(
        self,
        relation: Relation,
        chosen: TableFilter,
        types: Mapping[int, TypeDescription],
        protections: Protections,
        problem: str = "",
        *,
        table: TableDescription = ORDINARY,
    ) -> None:
        RowValues.__init__(self, relation, problem, table)
        self._keeps_unanswered = chosen.on_error == KEEP
        self._requires_old = chosen.old_row == REQUIRED
        self._condition: Condition | None = None
        if problem:
            return
        try:
            places = self._use(_columns(relation, chosen, types, protections, table))
            self._condition = Condition(compile_expression(chosen.keep, places, BOOL))
        except ExpressionError as error:
            self.problem = str(error)

    def keeps(self, values: Sequence[Value]) -> bool:
        """Whether the topic has a row with these values, of the columns `indexes`."""
        found = self._answer(self._new_values(values))
        return self._keeps_unanswered if found is None else found

    def kept(self, old: Sequence[Value], *, whole: bool) -> bool:
        """Whether the topic has had a row with these values, of the columns `indexes`: also if that is not known.

        Args:
            old: what PostgreSQL has sent of the old row.
            whole: it is all of it; else it is the replica identity, and other columns are not known.
        """
        found = self._answer(self._old_values(old, whole))
        if found is None and not self._requires_old:
            # As it is meant to be, and no failure.
            self.reason = ""
        return found is not False

    def keeps_line(self, line: bytes) -> bool:
        """Whether the topic has this row of COPY, with its newline."""
        values = self._line_values(line)
        return True if values is None else self.keeps(values)

    def _answer(self, values: Values) -> bool | None:
        found = None if self._condition is None else self._condition.answer(values)
        self.reason = ""
        if found is None:
            self.reason = self.problem if self._condition is None else self._condition.reason
        return found


def _columns(
    relation: Relation,
    chosen: TableFilter,
    types: Mapping[int, TypeDescription],
    protections: Protections,
    table: TableDescription,
) -> list[ColumnValues]:
    shown = "which rows a topic has"
    return used_columns(relation, columns_of(chosen.keep), types, protections, table=table, shown=shown)


def check_filter(
    relation: Relation,
    filters: Sequence[TableFilter],
    types: Mapping[int, TypeDescription],
    protections: Protections,
    table: TableDescription = ORDINARY,
) -> None:
    """ConfigError: a filter does not fit its table, or asks for what PostgreSQL does not send of old rows.

    Args:
        filters: of the table, at least one.
    """
    name = f"{relation.schema}.{relation.name}"
    chosen = filters[0]
    twice = contradiction(filters)
    if twice:
        raise ConfigError(
            f"The table {name} can have one filter, and {twice}.",
            hint=f"Narrow one of the patterns of {KEY}.",
        )
    found = RowFilter(relation, chosen, types, protections, table=table)
    if found.problem:
        raise ConfigError(
            f"The filter {KEY}.{chosen.table} does not fit the table {name}: {found.problem}.",
            hint=f"Correct {KEY}.{chosen.table}.keep, or narrow the pattern. docs/filters.md lists what an expression "
            "can have, and the types of columns.",
        )
    if chosen.old_row != REQUIRED:
        return
    unknown = unknown_columns(relation, table, _columns(relation, chosen, types, protections, table))
    if unknown is not None:
        raise ConfigError(
            f"The filter {KEY}.{chosen.table} asks for {unknown.columns} of {name}{unknown.reason}",
            hint=f"{unknown.remedy} Or set {KEY}.{chosen.table}.old_row: assumed, and consumers get deletes of "
            "rows that they never had (docs/filters.md).",
        )
