"""The keys of `partitioner`: which partition a record goes to."""

from pydantic import Field, model_validator

from cdcd.config.sections.key import KeyColumns
from cdcd.config.types import Section, TablePattern
from cdcd.core.catalog.chosen_partitions import PartitionRule


class PartitionerConfig(Section):
    """Which partition a record goes to (docs/partitions.md)."""

    columns: dict[TablePattern, KeyColumns] = Field(
        default_factory=dict,
        description="<schema>.<table> (a pattern like those of postgres.tables) to the columns whose values choose the "
        "partition of its records, in place of the key: Murmur2 over the values' texts, joined by commas. An update "
        "that changes one of the values is a delete in the former partition and an insert in the new one. PostgreSQL "
        "must send the former values: the columns are in the replica identity, or it is FULL. Where columns are not "
        "of the key, cdcd mirror and cdcd verify leave the table out.",
    )

    @model_validator(mode="after")
    def _columns_are_distinct(self) -> "PartitionerConfig":
        for pattern, columns in self.columns.items():
            if len(set(columns)) < len(columns):
                raise ValueError(f"columns.{pattern} must have each column once")
        return self

    @property
    def rules(self) -> tuple[PartitionRule, ...]:
        """What the encoder is given."""
        return tuple([PartitionRule(pattern, columns) for pattern, columns in self.columns.items()])
