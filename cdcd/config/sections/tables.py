"""The keys of `tables`, `key`, `partitioner` and `fields`: which tables there are, and rules for their records."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from cdcd.config.sections.routes import ExpressionText
from cdcd.config.types import Section, TablePattern, TablePatterns, Text
from cdcd.core.catalog.field_names import FieldRule
from cdcd.core.catalog.patterns import TableSelection
from cdcd.core.catalog.table_rules import KeyFormRule, KeyRule, PartitionRule
from cdcd.core.records.shaping.settings import TableComputed

KeyColumns = Annotated[tuple[Text, ...], Field(strict=False, min_length=1)]


class KeyFormConfig(Section):
    """The form of the keys of the tables that a pattern matches."""

    bare: bool = Field(
        False,
        description="Whether a key is the bare value of its one column instead of an object, as Kafka Connect's "
        'ExtractField$Key makes it: 7 instead of {"id":7}. In Avro and json_registry the schema of keys is that of '
        "the value. A table is set aside if its key has several columns.",
    )
    constants: dict[Text, Text] = Field(
        default_factory=dict,
        description="Further fields of each key behind its columns: name and constant text. Debezium's "
        "ByLogicalTableRouter adds __dbz__physicalTableIdentifier so.",
    )

    @model_validator(mode="after")
    def _has_one_form(self) -> Self:
        if self.bare == bool(self.constants):
            raise ValueError("must have either bare: true or constants")
        return self


class KeyConfig(Section):
    """The columns that make the keys of records, and the form of keys."""

    columns: dict[TablePattern, KeyColumns] = Field(
        default_factory=dict,
        description="Debezium's message.key.columns: <schema>.<table> (a pattern like those of postgres.tables) to the "
        "columns that make the key of its records, instead of the primary key or the replica identity. The key has "
        "them in the table's order. PostgreSQL must send their former values: they are in the replica identity, or it "
        "is FULL. If several rows may have the same key, the table is read at the slot's exported snapshot only, and "
        "cdcd mirror and cdcd verify leave it out.",
    )

    forms: dict[TablePattern, KeyFormConfig] = Field(
        default_factory=dict,
        description="Form of the keys of records, by table: a pattern <schema>.<table> like those of "
        "postgres.tables, and the form. At most one pattern may match a table. Tables without a key are not affected. "
        "cdcd mirror and cdcd verify leave tables with a form out.",
    )

    @model_validator(mode="after")
    def _columns_are_distinct(self) -> "KeyConfig":
        for pattern, columns in self.columns.items():
            if len(set(columns)) < len(columns):
                raise ValueError(f"columns.{pattern} must have each column once")
        return self

    @property
    def form_rules(self) -> tuple[KeyFormRule, ...]:
        """The forms of keys, for the encoder."""
        return tuple(
            [
                KeyFormRule(pattern, given.bare, tuple(given.constants.items()))
                for pattern, given in self.forms.items()
            ]
        )

    @property
    def rules(self) -> tuple[KeyRule, ...]:
        """What the encoder is given."""
        return tuple([KeyRule(pattern, columns) for pattern, columns in self.columns.items()])


class TablesConfig(Section):
    """Tables of the publication that the pipeline delivers. PostgreSQL sends the changes of the others all the same."""

    include: TablePatterns | None = Field(
        None,
        description="Tables that the pipeline has, as patterns like those of postgres.tables. null: all that are "
        "published. Use it for a publication that others use too. If only cdcd uses the publication, leave tables out "
        "of the publication, which saves network traffic.",
    )
    exclude: TablePatterns | None = Field(
        None,
        description="Tables that the pipeline leaves out, as patterns, although include names them. These tables have "
        "no topic, description or "
        "snapshot, and their changes are skipped. If later patterns add a table, cdcd reads it like a table that is "
        "added to "
        "the publication (snapshot.added_tables).",
    )

    on_error: Literal["set_aside", "stop"] = Field(
        "set_aside",
        description="Reaction to a fault of one table: its topic is refused, a record is too large, a "
        "rule cannot be followed, its rows cannot be read. set_aside: its changes have no records from then on, all "
        "other tables continue, and the table comes back by `cdcd tables resume` or by itself. stop: cdcd ends. With "
        "outbox.messages, a refused topic of the outbox ends cdcd in both cases, because its events belong to no "
        "table.",
    )

    @property
    def selection(self) -> TableSelection:
        """What the engine and the catalog's queries are given."""
        return TableSelection(self.include, self.exclude or ())


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


class TableFieldsConfig(Section):
    """What the records of the tables that a pattern matches have."""

    rename: dict[Text, Text] = Field(
        default_factory=dict,
        description="Columns whose field has another name: name of the column and name of the field. The field has "
        "the new name in rows, keys, "
        "schemas and descriptions. All other keys of the configuration use the name of the column.",
    )
    constants: dict[Text, Text] = Field(
        default_factory=dict,
        description="Further fields of each row, in before and after: name and constant text, such as region: eu.",
    )

    computed: dict[Text, ExpressionText] = Field(
        default_factory=dict,
        description="Further fields whose values expressions in CEL make of the row's columns, such as full_name: "
        'row.first + " " + row.last. The type is that of the expression: text, bigint, double precision or boolean. A '
        "name of a column that is not in the key replaces the column: total: double(row.total). A field is null if its "
        "expression has no value (fields.failed). cdcd mirror and cdcd verify leave such tables out.",
    )

    @model_validator(mode="after")
    def _names_are_distinct(self) -> Self:
        if not self.rename and not self.constants and not self.computed:
            raise ValueError("has neither rename nor constants nor computed")
        names = [
            *self.rename.values(),
            *self.constants,
            *[name for name in self.computed if name not in self.rename],
        ]
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
    def computed(self) -> tuple[TableComputed, ...]:
        """The computed fields, for the encoder."""
        chosen = {pattern: given.computed for pattern, given in self.tables.items() if given.computed}
        if not chosen:
            return ()
        from cdcd.config.expressions import parse_expression  # noqa: PLC0415  the parser loads slowly

        return tuple(
            [
                TableComputed(
                    pattern, tuple([(name, parse_expression(text)) for name, text in fields.items()])
                )
                for pattern, fields in chosen.items()
            ]
        )

    @property
    def renames(self) -> bool:
        """Whether any field has another name than its column."""
        return any(given.rename for given in self.tables.values())
