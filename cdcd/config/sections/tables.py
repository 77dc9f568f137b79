"""The keys of `tables`: which published tables the pipeline has."""

from pydantic import Field

from cdcd.config.types import Section, TablePatterns
from cdcd.core.catalog.selection import TableSelection


class TablesConfig(Section):
    """Which tables of the publication the pipeline has. PostgreSQL sends the changes of the others all the same."""

    include: TablePatterns | None = Field(
        None,
        description="Tables that the pipeline has, as patterns like those of postgres.tables. null: all that are "
        "published. For a publication that others use too; if it is cdcd's alone, leave tables out of the publication, "
        "which spares the network.",
    )
    exclude: TablePatterns | None = Field(
        None,
        description="Of these, tables that the pipeline leaves out. They have no topic, description or snapshot, "
        "and their changes are skipped. A table that comes in later is read like one that is added to the publication "
        "(snapshot.added_tables).",
    )

    @property
    def selection(self) -> TableSelection:
        """What the engine and the catalog's queries are given."""
        return TableSelection(self.include, self.exclude or ())
