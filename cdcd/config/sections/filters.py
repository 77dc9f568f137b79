"""The keys of `filters`: which rows of tables the topics have."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from cdcd.config.types import Section, TablePattern, Text
from cdcd.core.records.shaping.expressions import columns_of
from cdcd.core.records.shaping.settings import TableFilter


def _check_expression(text: str) -> str:
    # Only where there is a filter: the parser takes a tenth of a second to load.
    from cdcd.config.expressions import parse_expression  # noqa: PLC0415

    if not columns_of(parse_expression(text)):
        raise ValueError("asks for no column, so it is the same for every row; a column is row.name")
    return text


ExpressionText = Annotated[Text, AfterValidator(_check_expression)]


class FilterConfig(Section):
    """A filter of the tables that a pattern matches."""

    keep: ExpressionText = Field(
        description="A condition in CEL, such as row.status != 'draft' && row.total > 100. The topic has the rows for "
        "which it is true. An update that makes it true is an insert for consumers, one that makes it false a delete.",
    )
    on_error: Literal["keep", "leave_out"] = Field(
        "keep",
        description="What becomes of a row for which keep has no answer, such as after a division by zero or an "
        "ordering of NULL. The event filter.failed tells of it either way.",
    )
    old_row: Literal["required", "assumed"] = Field(
        "required",
        description="required: keep may ask only for columns of the table's replica identity, for all columns under "
        "REPLICA IDENTITY FULL. assumed: for any column. A row whose old values PostgreSQL does not send is then taken "
        "for one that the topic has, so consumers get deletes, with their keys, of rows that they never had.",
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
