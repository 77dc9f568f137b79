"""The keys of `key`: what makes the keys of records."""

from typing import Annotated

from pydantic import Field, model_validator

from cdcd.config.types import Section, TablePattern, Text
from cdcd.core.catalog.chosen_keys import KeyRule

KeyColumns = Annotated[tuple[Text, ...], Field(strict=False, min_length=1)]


class KeyConfig(Section):
    """The columns that make the keys of records."""

    columns: dict[TablePattern, KeyColumns] = Field(
        default_factory=dict,
        description="Debezium's message.key.columns: <schema>.<table> (a pattern like those of postgres.tables) to the "
        "columns that make the key of its records, instead of the primary key or the replica identity. The key has "
        "them in the table's order. PostgreSQL must send their former values: they are in the replica identity, or it "
        "is FULL. If several rows may have the same key, the table is read at the slot's exported snapshot only, and "
        "cdcd mirror and cdcd verify leave it out.",
    )

    @model_validator(mode="after")
    def _columns_are_distinct(self) -> "KeyConfig":
        for pattern, columns in self.columns.items():
            if len(set(columns)) < len(columns):
                raise ValueError(f"columns.{pattern} must have each column once")
        return self

    @property
    def rules(self) -> tuple[KeyRule, ...]:
        """What the encoder is given."""
        return tuple([KeyRule(pattern, columns) for pattern, columns in self.columns.items()])
