"""The keys of `fields`: names of fields, and constant fields."""

from typing import Self

from pydantic import Field, model_validator

from cdcd.config.types import Section, TablePattern, Text
from cdcd.core.catalog.field_names import FieldRule


class TableFieldsConfig(Section):
    """What the records of the tables that a pattern matches have."""

    rename: dict[Text, Text] = Field(
        default_factory=dict,
        description="Columns whose field has another name: column to field. It has that name in rows, keys, schemas "
        "and descriptions. All other keys of the configuration go by the name of the column.",
    )
    constants: dict[Text, Text] = Field(
        default_factory=dict,
        description="Further fields of each row, before and after a change: name to text, such as region: eu.",
    )

    @model_validator(mode="after")
    def _names_are_distinct(self) -> Self:
        if not self.rename and not self.constants:
            raise ValueError("has neither rename nor constants")
        names = [*self.rename.values(), *self.constants]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"two fields would have the name {twice}")
        return self


class FieldsConfig(Section):
    """Names of fields, and constant fields, by table (docs/fields.md)."""

    tables: dict[TablePattern, TableFieldsConfig] = Field(
        default_factory=dict,
        description="<schema>.<table> (a pattern like those of postgres.tables) to what its records have. A table is "
        "matched by one pattern at most. Two fields of a table with one name are refused, also when a column is added "
        "later: cdcd then ends before it delivers a change with that column.",
    )

    @property
    def rules(self) -> tuple[FieldRule, ...]:
        """What the encoder is given."""
        return tuple(
            [
                FieldRule(pattern, tuple(given.rename.items()), tuple(given.constants.items()))
                for pattern, given in self.tables.items()
            ]
        )

    @property
    def renames(self) -> bool:
        """Whether any field has another name than its column."""
        return any(given.rename for given in self.tables.values())
