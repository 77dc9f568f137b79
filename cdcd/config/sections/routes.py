"""The keys of `filters` and `routes`: which rows of tables the topics have, and which topics the rows go to."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator

from cdcd.config.types import Section, TablePattern, Text
from cdcd.core.catalog.routing import RoutedTopics, check_routed
from cdcd.core.records.shaping.expressions import columns_of
from cdcd.core.records.shaping.settings import Route, TableFilter, TableRoutes


def _check_expression(text: str) -> str:
    # Only where there is a filter: the parser takes a tenth of a second to load.
    from cdcd.config.expressions import parse_expression  # noqa: PLC0415

    if not columns_of(parse_expression(text)):
        raise ValueError(
            "uses no column of the row, so its result is the same for every row. Write a column as row.name"
        )
    return text


ExpressionText = Annotated[Text, AfterValidator(_check_expression)]


class FilterConfig(Section):
    """A filter of the tables that a pattern matches."""

    keep: ExpressionText = Field(
        description="A condition in CEL, such as row.status != 'draft' && row.total > 100. The topic has only rows "
        "for which the condition is true. If an update makes the condition true, consumers get an insert; if an "
        "update makes it false, they get a delete.",
    )
    on_error: Literal["keep", "leave_out"] = Field(
        "keep",
        description="Treatment of a row for which keep cannot be evaluated, for example because of a division by zero "
        "or because NULL is compared by <. The event filter.failed reports such rows.",
    )
    old_row: Literal["required", "assumed"] = Field(
        "required",
        description="required: keep may ask only for columns of the table's replica identity, for all columns under "
        "REPLICA IDENTITY FULL. assumed: for any column. cdcd then assumes that the topic has a row whose old values "
        "PostgreSQL does not send, so consumers get deletes (with keys) of rows that they never had.",
    )


class FiltersConfig(Section):
    """Which rows of tables the topics have (docs/filters.md)."""

    tables: dict[TablePattern, FilterConfig] = Field(
        default_factory=dict,
        description="Filters by table: a pattern <schema>.<table>, and what rows its topic has. Tables that no pattern "
        "matches have all of their rows. A table has one filter at most. `cdcd verify` does not compare filtered "
        "tables.",
    )

    @property
    def settings(self) -> tuple[TableFilter, ...]:
        """What the engine is given."""
        if not self.tables:
            return ()
        from cdcd.config.expressions import parse_expression  # noqa: PLC0415  as above

        return tuple(
            [
                TableFilter(pattern, given.keep, parse_expression(given.keep), given.on_error, given.old_row)
                for pattern, given in self.tables.items()
            ]
        )


RULES_MAX: int = 100
"""Rules of a table. Each is asked for each row until one is true."""


class RouteConfig(Section):
    """A rule that sends rows to a topic."""

    when: ExpressionText = Field(
        description="A condition in CEL, such as row.region == 'eu'. A row for which the condition is true goes to "
        "this topic."
    )
    topic: Text = Field(
        description="A topic: a name, or a text with {prefix}, {schema} and {table}. A topic that does not begin with "
        "the prefix is claimed (topics.claims). If the pattern of the table has * or ?, the topic must have {table} or "
        "{schema} in its place, because a topic has the rows of one table."
    )


class TableRoutesConfig(Section):
    """The routes of the tables that a pattern matches."""

    rules: list[RouteConfig] = Field(
        min_length=1,
        max_length=RULES_MAX,
        description="The first rule that is true for a row names its topic. If no rule is true, the row goes to the "
        "table's own topic. An update that moves a row to another topic is a delete in the former topic, and an "
        "insert in the new one.",
    )
    on_error: Literal["own_topic", "next_rule"] = Field(
        "own_topic",
        description="Topic of a row if a rule cannot be evaluated, for example because NULL is compared by <. "
        "own_topic: the table's own topic. next_rule: the rule counts as false. The event route.failed reports such "
        "rows.",
    )
    old_row: Literal["required", "assumed"] = Field(
        "required",
        description="required: rules may ask only for columns of the table's replica identity, for all columns under "
        "REPLICA IDENTITY FULL. assumed: for any column. A row whose old values PostgreSQL does not send is then "
        "deleted in each topic where it may have been.",
    )


class RoutesConfig(Section):
    """Which topics the rows of tables go to (docs/routes.md)."""

    tables: dict[TablePattern, TableRoutesConfig] = Field(
        default_factory=dict,
        description="Routes by table: a pattern <schema>.<table>, and the rules. Rows of tables that no pattern "
        "matches go to the table's own topic. A table has one list of rules at most. `cdcd mirror` stops at such "
        "tables, and `cdcd verify` does not compare them.",
    )

    @field_validator("tables")
    @classmethod
    def _templates(cls, tables: dict[str, TableRoutesConfig]) -> dict[str, TableRoutesConfig]:
        for pattern, given in tables.items():
            for rule in given.rules:
                check_routed(rule.topic, pattern)
        return tables

    @property
    def topics(self) -> tuple[RoutedTopics, ...]:
        """The topics beside the tables' own."""
        return tuple(
            [
                RoutedTopics(pattern, tuple([rule.topic for rule in given.rules]))
                for pattern, given in self.tables.items()
            ]
        )

    @property
    def settings(self) -> tuple[TableRoutes, ...]:
        """What the engine is given."""
        if not self.tables:
            return ()
        # Only where there are rules: the parser takes a tenth of a second to load.
        from cdcd.config.expressions import parse_expression  # noqa: PLC0415

        return tuple(
            [
                TableRoutes(
                    pattern,
                    tuple(
                        [Route(rule.when, parse_expression(rule.when), rule.topic) for rule in given.rules]
                    ),
                    given.on_error,
                    given.old_row,
                )
                for pattern, given in self.tables.items()
            ]
        )
