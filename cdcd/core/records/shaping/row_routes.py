"""The routes of one table: which of its topics a row goes to.

The rule: at each place in the stream, a row is in one of its table's topics. The rules are asked in their order, and
the first one that is true says which; if there is none, it is the table's own topic. So an update by which a row goes
elsewhere is a delete for the consumers of the former topic, and an insert for those of the new one.

That needs the row as it was before, as with a filter (`row_filters.py`). So rules may ask for columns of the replica
identity only, for all columns under REPLICA IDENTITY FULL. With `old_row: assumed` they may ask for others too. A row
of which they are not known may have been in several topics (`went`): then each of them gets a delete.

Where a rule has no answer for a row whose values are known, it has none each time, so the row was where it goes now.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from cdcd.core.catalog.protection import Protections
from cdcd.core.catalog.relations import TableDescription, TypeDescription
from cdcd.core.catalog.table_rules import TableRules, both_match
from cdcd.core.errors import ConfigError
from cdcd.core.protocol.messages import Relation, Value
from cdcd.core.records.shaping.column_values import UNSENT, ColumnValues
from cdcd.core.records.shaping.compiling import ExpressionError, compile_expression
from cdcd.core.records.shaping.evaluation import BOOL, Condition, Missing, Node, Values
from cdcd.core.records.shaping.expressions import columns_of
from cdcd.core.records.shaping.row_values import NOT_SENT, ORDINARY, RowValues, unknown_columns, used_columns
from cdcd.core.records.shaping.settings import OWN_TOPIC, REQUIRED, TableRoutes

KEY: Final = "routes.tables"


class ChosenRoutes:
    """The routes of a configuration, by table. ConfigError: a pattern is malformed."""

    def __init__(self, routes: Sequence[TableRoutes]) -> None:
        self._rules = TableRules(KEY, [(each.table, each) for each in routes])

    def of_table(self, relation: Relation) -> list[TableRoutes]:
        """The routes of a table, which should be one or none (`contradiction`)."""
        return self._rules.of_table(relation)

    def unmatched(self, relations: Sequence[Relation]) -> list[str]:
        """The patterns that match none of these tables."""
        return [each.table for each in self._rules.unmatched(relations)]


def contradiction(found: Sequence[TableRoutes]) -> str:
    """Why a table cannot have these routes; "": it can."""
    return both_match(KEY, [each.table for each in found])


class RouteRule(Condition):
    """A rule that fits its table. See `Condition` for further attributes.

    Attributes:
        topic: where a row goes for which it is true.
        places: of the columns that it asks for, among the values of a row.
    """

    def __init__(self, node: Node, topic: str, places: list[int]) -> None:
        Condition.__init__(self, node)
        self.topic = topic
        self.places = places

    def lacks_values(self, row: Values) -> bool:
        """Whether PostgreSQL did not send a value that it asks for."""
        for place in self.places:
            value = row[place]
            if isinstance(value, Missing) and value.reason in (NOT_SENT, UNSENT):
                return True
        return False


class RowRoutes(RowValues):
    """The routes of a table. An altered table gets new ones. See `RowValues` for further attributes.

    Attributes:
        topics: all topics of the table, each once; the first is its own.

    Args:
        topics: the table's own topic, and those of the rules in their order.
    """

    def __init__(
        self,
        relation: Relation,
        chosen: TableRoutes,
        topics: Sequence[str],
        types: Mapping[int, TypeDescription],
        protections: Protections,
        *,
        problem: str = "",
        table: TableDescription = ORDINARY,
    ) -> None:
        RowValues.__init__(self, relation, problem, table)
        self.topics = tuple(dict.fromkeys(topics))
        self._own = topics[0]
        self._ends_unanswered = chosen.on_error == OWN_TOPIC
        self._rules: list[RouteRule] = []
        if problem:
            return
        number = 0
        try:
            columns = self._use(_columns(relation, chosen, types, protections, table))
            for rule, topic in zip(chosen.rules, topics[1:], strict=True):
                number += 1
                places = [columns[name][0] for name in columns_of(rule.when)]
                self._rules.append(RouteRule(compile_expression(rule.when, columns, BOOL), topic, places))
        except ExpressionError as error:
            self.problem = f"rule {number}: {error}" if number else str(error)
            self._rules = []

    def goes(self, values: Sequence[Value]) -> str:
        """The topic of a row with these values, of the columns `indexes`."""
        self.reason = self.problem
        row = self._new_values(values)
        for rule in self._rules:
            found = rule.answer(row)
            if found:
                return rule.topic
            if found is None:
                self.reason = self.reason or rule.reason
                if self._ends_unanswered:
                    break
        return self._own

    def went(self, old: Sequence[Value], *, whole: bool) -> list[str]:
        """The topics in which a row with these values, of the columns `indexes`, may be; each once.

        Args:
            old: what PostgreSQL has sent of the old row.
            whole: it is all of it; else it is the replica identity, and other columns are not known.
        """
        if self.problem:
            # The table was altered: nobody knows where its rows went before.
            return list(self.topics)
        row = self._old_values(old, whole)
        found: dict[str, None] = {}
        for rule in self._rules:
            answer = rule.answer(row)
            if answer:
                found[rule.topic] = None
                return list(found)
            if answer is None:
                unknown = rule.lacks_values(row)
                if unknown:
                    found[rule.topic] = None
                if self._ends_unanswered:
                    found[self._own] = None
                    if not unknown:
                        return list(found)
        found[self._own] = None
        return list(found)

    def goes_line(self, line: bytes) -> str:
        """The topic of this row of COPY, with its newline."""
        values = self._line_values(line)
        return self._own if values is None else self.goes(values)


def _columns(
    relation: Relation,
    chosen: TableRoutes,
    types: Mapping[int, TypeDescription],
    protections: Protections,
    table: TableDescription,
) -> list[ColumnValues]:
    """The columns that the rules ask for. ExpressionError: one cannot be asked for."""
    names = dict.fromkeys([name for rule in chosen.rules for name in columns_of(rule.when)])
    return used_columns(relation, names, types, protections, table=table, shown="which topic a row goes to")


def check_routes(
    relation: Relation,
    routes: Sequence[TableRoutes],
    types: Mapping[int, TypeDescription],
    protections: Protections,
    table: TableDescription = ORDINARY,
) -> None:
    """ConfigError: routes do not fit their table, or ask for what PostgreSQL does not send of old rows.

    Args:
        routes: of the table, at least one.
    """
    name = f"{relation.schema}.{relation.name}"
    chosen = routes[0]
    twice = contradiction(routes)
    if twice:
        raise ConfigError(
            f"The rows of the table {name} can be routed by one list of rules, and {twice}.",
            hint=f"Narrow one of the patterns of {KEY}.",
        )
    found = RowRoutes(
        relation, chosen, ["", *[rule.topic for rule in chosen.rules]], types, protections, table=table
    )
    if found.problem:
        raise ConfigError(
            f"The rules of {KEY}.{chosen.table} do not fit the table {name}: {found.problem}.",
            hint=f"Correct {KEY}.{chosen.table}.rules, or narrow the pattern. docs/filters.md lists what an expression "
            "can have, and the types of columns.",
        )
    if chosen.old_row != REQUIRED:
        return
    unknown = unknown_columns(relation, table, _columns(relation, chosen, types, protections, table))
    if unknown is not None:
        raise ConfigError(
            f"The rules of {KEY}.{chosen.table} ask for {unknown.columns} of {name}{unknown.reason}",
            hint=f"{unknown.remedy} Or set {KEY}.{chosen.table}.old_row: assumed, and a row whose old values "
            "are not known gets a delete in each topic where it may be (docs/routes.md).",
        )
