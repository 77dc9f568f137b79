"""Row filters: whether a table's topic has a row.

The rule: a filter is about rows and not about events. Consumers of the topic have exactly the rows for which the
expression is true. So an update after which the expression is false becomes a delete, and one after which it
becomes true becomes an insert, as in PostgreSQL's own row filters (manual, "Row Filters", UPDATE Transformations).

This needs the old row. PostgreSQL sends only the columns of the replica identity, and nothing if these did not
change: then the new row has the same values in them. So an expression may only use columns of the replica identity,
which are all columns under REPLICA IDENTITY FULL. With `old_row: assumed`, it may use other columns too. If their
old values are not known, the old row is assumed to be in the topic. Consumers then get deletes of rows that they
never had, and an update in place of an insert, but they never keep a row that should be gone.

The same is assumed wherever the expression has no answer for the old row. For a new row without an answer,
`on_error` decides.
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
    """The filters of a configuration, by table; ConfigError if a pattern is malformed."""

    def __init__(self, filters: Sequence[TableFilter]) -> None:
        self._rules = TableRules(KEY, [(each.table, each) for each in filters])

    def of_table(self, relation: Relation) -> list[TableFilter]:
        """Return the filters of a table; there should be one or none (`contradiction`)."""
        return self._rules.of_table(relation)

    def unmatched(self, relations: Sequence[Relation]) -> list[str]:
        """Return the patterns that match none of these tables."""
        return [each.table for each in self._rules.unmatched(relations)]


def contradiction(found: Sequence[TableFilter]) -> str:
    """Return why a table cannot have these filters; "" if it can."""
    return both_match(KEY, [each.table for each in found])


class RowFilter(RowValues):
    """The filter of a table, by the table's latest description. See `RowValues` for further attributes."""

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
        """Return whether the topic has a row. `values` are the row's values in the columns `indexes`."""
        found = self._answer(self._new_values(values))
        return self._keeps_unanswered if found is None else found

    def kept(self, old: Sequence[Value], *, whole: bool) -> bool:
        """Return whether the topic may have had a row before it was changed.

        Args:
            old: the old row's values in the columns `indexes`, as far as PostgreSQL has sent them.
            whole: whether this is the complete row; if not, only the replica identity is known.
        """
        found = self._answer(self._old_values(old, whole))
        if found is None and not self._requires_old:
            # This is expected, and not a failure.
            self.reason = ""
        return found is not False

    def keeps_line(self, line: bytes) -> bool:
        """Return whether the topic has this row, which is a line of COPY with its newline."""
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
    """Raise ConfigError if a filter does not match its table, or needs values of old rows that PostgreSQL does not
    send.

    Args:
        filters: the filters of the table, at least one.
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
