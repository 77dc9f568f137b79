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

from cdcd.errors import ConfigError
from cdcd.protocol.messages import UNCHANGED, Relation, TupleData, Value
from cdcd.rows.copytext import NULL, split_row, unescape
from cdcd.rows.partition_identity import known_before
from cdcd.rows.protection import Protections
from cdcd.rows.relations import TableDescription, TypeDescription
from cdcd.shaping.column_values import ColumnValues
from cdcd.shaping.compiling import ExpressionError, compile_expression
from cdcd.shaping.evaluation import BOOL, EvaluationError, Missing, Node, Values
from cdcd.shaping.expressions import columns_of
from cdcd.shaping.settings import KEEP, REQUIRED, TableFilter
from cdcd.snapshots.patterns import TablePattern, parse_pattern

KEY: Final = "filters.tables"

NOT_SENT: Final = "PostgreSQL did not send the old row"

NO_CATALOG: Final = TableDescription()
"""What the catalog says of a table that it does not know."""


class TableFilters:
    """The filters of a configuration, by table. ConfigError: a pattern is malformed."""

    def __init__(self, filters: Sequence[TableFilter]) -> None:
        self._filters = [(parse_pattern(each.table, KEY), each) for each in filters]

    def of_table(self, relation: Relation) -> list[TableFilter]:
        """The filters of a table, which should be one or none (`contradiction`)."""
        return [each for pattern, each in self._filters if _matches(pattern, relation)]

    def unmatched(self, relations: Sequence[Relation]) -> list[str]:
        """The patterns that match none of these tables."""
        return [
            each.table
            for pattern, each in self._filters
            if not any(_matches(pattern, relation) for relation in relations)
        ]


def contradiction(found: Sequence[TableFilter]) -> str:
    """Why a table cannot have these filters; "": it can."""
    if len(found) < 2:
        return ""
    return f"{KEY}.{found[0].table} and {KEY}.{found[1].table} both match it"


def _matches(pattern: TablePattern, relation: Relation) -> bool:
    return pattern.matches(relation.schema, relation.name)


class RowFilter:
    """A filter for a table as it was last described.

    Attributes:
        name: of the table, as `schema.table`.
        width: how many columns its rows have.
        indexes: the columns that the expression asks for, by their places in the relation, in rising order.
        problem: why the filter has no answer for any row: it does not fit the table, or is one of two; "": it fits. A
            start refuses such a filter (`check_filter`), so the table was altered or made since.
        reason: why there was no answer for the row that was looked at last; "": there was one.
    """

    def __init__(  # noqa: PLR0917  what the configuration and the catalog say of a table
        self,
        relation: Relation,
        chosen: TableFilter,
        types: Mapping[int, TypeDescription],
        protections: Protections,
        problem: str = "",
        table: TableDescription = NO_CATALOG,
    ) -> None:
        self.name = f"{relation.schema}.{relation.name}"
        self.problem = problem
        self.reason = ""
        self.width = len(relation.columns)
        self.indexes: list[int] = []
        self._keeps_unanswered = chosen.on_error == KEEP
        self._requires_old = chosen.old_row == REQUIRED
        self._columns: list[ColumnValues] = []
        self._identity = known_before(relation, table)
        self._unsent = frozenset([column for column, _ in table.unsent])
        self._node: Node | None = None
        if problem:
            return
        try:
            self._columns = used_columns(relation, chosen, types, protections)
            self.indexes = [each.index for each in self._columns]
            places = {each.name: (place, each.kind) for place, each in enumerate(self._columns)}
            self._node = compile_expression(chosen.keep, places, BOOL)
        except ExpressionError as error:
            self.problem = str(error)

    def keeps(self, values: Sequence[Value]) -> bool:
        """Whether the topic has a row with these values, of the columns `indexes`."""
        found = self._answer([each.of(value) for each, value in zip(self._columns, values, strict=True)])
        return self._keeps_unanswered if found is None else found

    def kept(self, old: Sequence[Value], *, whole: bool) -> bool:
        """Whether the topic has had a row with these values, of the columns `indexes`: also if that is not known.

        Args:
            old: what PostgreSQL has sent of the old row.
            whole: PostgreSQL calls it all of it; else it is the replica identity, and other columns are not known. A
                replica identity has no NULL, so NULL stands for a column that is not in it. PostgreSQL goes by the
                partitioned table here and sends what the partition has, so NULL may stand for that there too.
        """
        found = self._answer(
            [
                each.of(value) if self._is_known(each, value, whole) else Missing(NOT_SENT)
                for each, value in zip(self._columns, old, strict=True)
            ]
        )
        if found is None and not self._requires_old:
            # As it is meant to be, and no failure.
            self.reason = ""
        return found is not False

    def _is_known(self, column: ColumnValues, value: Value, whole: bool) -> bool:
        """Whether a column had this value, as `kept` says."""
        if value is None:
            return whole and column.name not in self._unsent
        return whole or self._identity[column.index]

    def keeps_line(self, line: bytes) -> bool:
        """Whether the topic has this row of COPY, with its newline."""
        fields = split_row(line)
        if len(fields) != self.width:
            # The format's encoder says what is wrong with it.
            return True
        values = [fields[index] for index in self.indexes]
        return self.keeps([None if field == NULL else unescape(field) for field in values])

    def completed_values(self, new: Sequence[Value], old: Sequence[Value], *, whole: bool) -> Sequence[Value]:
        """As `completed`, for the values of the columns `indexes`."""
        if UNCHANGED not in new:
            return new
        identity = self._identity
        return [
            before if value is UNCHANGED and before is not None and (whole or identity[each.index]) else value
            for each, value, before in zip(self._columns, new, old, strict=True)
        ]

    def old_of(self, new: TupleData) -> TupleData:
        """The replica identity of an updated row, if PostgreSQL sent none because it did not change."""
        return tuple([value if is_key else None for value, is_key in zip(new, self._identity, strict=True)])

    def completed(self, new: TupleData, old: TupleData | None, *, whole: bool) -> TupleData:
        """The new row, with the old row's values where the server has sent none because they did not change."""
        if old is None or UNCHANGED not in new:
            return new
        values: list[Value] = list(new)
        for index, value in enumerate(values):
            # NULL stands for a value that was not sent, because the row's partition has another replica identity.
            if value is UNCHANGED and old[index] is not None and (whole or self._identity[index]):
                values[index] = old[index]
        return tuple(values)

    def _answer(self, values: Values) -> bool | None:
        self.reason = ""
        if self._node is None:
            self.reason = self.problem
            return None
        try:
            found = self._node.value(values)
        except EvaluationError as error:
            self.reason = str(error)
            return None
        if not isinstance(found, bool):
            self.reason = "the expression is null"
            return None
        return found


def used_columns(
    relation: Relation,
    chosen: TableFilter,
    types: Mapping[int, TypeDescription],
    protections: Protections,
) -> list[ColumnValues]:
    """The columns that the expression asks for, in the table's order.

    Raises:
        ExpressionError: one is not there, has no CEL type or is protected.
    """
    found: list[ColumnValues] = []
    names = {column.name: index for index, column in enumerate(relation.columns)}
    for name in columns_of(chosen.keep):
        if name not in names:
            raise ExpressionError(f"there is no published column {name}")
        for rule in protections.rules:
            if rule.pattern.matches(relation.schema, relation.name, name):
                raise ExpressionError(
                    f"{rule} protects column {name}, and which rows a topic has would show its values"
                )
        each = ColumnValues(relation.columns[names[name]], names[name], types)
        if not each.kind:
            raise ExpressionError(f"the type of column {name} has no value in an expression")
        found.append(each)
    return sorted(found, key=_place)


def _place(column: ColumnValues) -> int:
    return column.index


def check_filter(
    relation: Relation,
    filters: Sequence[TableFilter],
    types: Mapping[int, TypeDescription],
    protections: Protections,
    table: TableDescription = NO_CATALOG,
) -> None:
    """ConfigError: a filter does not fit its table, or asks for what PostgreSQL does not send of old rows.

    Args:
        filters: of the table, at least one.
        table: what the catalog says of the table.
    """
    name = f"{relation.schema}.{relation.name}"
    chosen = filters[0]
    twice = contradiction(filters)
    if twice:
        raise ConfigError(
            f"The table {name} can have one filter, and {twice}.",
            hint=f"Narrow one of the patterns of {KEY}.",
        )
    found = RowFilter(relation, chosen, types, protections)
    if found.problem:
        raise ConfigError(
            f"The filter {KEY}.{chosen.table} does not fit the table {name}: {found.problem}.",
            hint=f"Correct {KEY}.{chosen.table}.keep, or narrow the pattern. docs/filters.md lists what an expression "
            "can have, and the types of columns.",
        )
    if chosen.old_row != REQUIRED:
        return
    used = used_columns(relation, chosen, types, protections)
    unsent = dict(table.unsent)
    for each in used:
        if each.name in unsent:
            raise ConfigError(
                f"The filter {KEY}.{chosen.table} asks for {each.name} of {name}. Of rows of partition "
                f"{unsent[each.name]} that are updated or deleted, PostgreSQL sends only the replica identity of the "
                f"partition, whatever that of {name} is.",
                hint="Have PostgreSQL send old rows as a whole, for each partition: ALTER TABLE "
                f"{unsent[each.name]} REPLICA IDENTITY FULL; Or set {KEY}.{chosen.table}.old_row: assumed, and "
                "consumers get deletes of rows that they never had (docs/filters.md).",
            )
    unknown = [each.name for each in used if not each.is_identity]
    has_identity = any(column.is_key for column in relation.columns)
    if unknown and has_identity:
        columns = ", ".join(unknown)
        raise ConfigError(
            f"The filter {KEY}.{chosen.table} asks for {columns} of {name}, and PostgreSQL sends only the replica "
            "identity of rows that are updated or deleted.",
            hint=f"Have PostgreSQL send old rows as a whole: ALTER TABLE {relation.schema}.{relation.name} REPLICA "
            f"IDENTITY FULL; Or set {KEY}.{chosen.table}.old_row: assumed, and consumers get deletes of rows that they "
            "never had (docs/filters.md).",
        )
