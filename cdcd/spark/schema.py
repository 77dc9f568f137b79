"""What a source table looks like, as the daemon described it in the schemas topic, with Spark's types beside PostgreSQL's.

A table has as many descriptions as it had forms; each has an id, the fingerprint that every change names
(`source.schema_id`). Ids of columns are PostgreSQL's attribute numbers, which tell a rename from a drop and an add.
"""

from dataclasses import dataclass

from pyspark.sql.types import DataType, StructField, StructType


@dataclass(frozen=True, slots=True)
class ColumnSchema:
    """A column.

    Attributes:
        id: `pg_attribute.attnum`: a renamed column keeps it, a new one never takes an old one's. None where the
            catalog had moved on before the daemon could ask.
        type: PostgreSQL's name of the type with its modifier (`format_type`), such as `numeric(12,2)`.
        type_oid: of the declared type, a domain's own included.
        modifier: `atttypmod`, -1 for none.
        spark: the type of the column's values in a DataFrame of changes.
        missing: what rows that are older than the column have in it (ADD COLUMN ... DEFAULT), in the text form of
            the type; None: NULL.
    """

    name: str
    id: int | None
    type: str
    type_oid: int
    modifier: int
    spark: DataType
    missing: str | None = None


@dataclass(frozen=True, slots=True)
class TableSchema:
    """One form of a table.

    Attributes:
        topic: where its changes are.
        namespace: PostgreSQL's schema.
        schema_id: the fingerprint of this form.
        key: the names of the columns of the records' key, in its order; () for a table without one.
        columns: in the order of the table.
    """

    topic: str
    namespace: str
    name: str
    schema_id: str
    key: tuple[str, ...]
    columns: tuple[ColumnSchema, ...]

    @property
    def table(self) -> str:
        """`namespace.name`, as people call it."""
        return f"{self.namespace}.{self.name}"

    @property
    def row_type(self) -> StructType:
        """The type of `before` and `after`."""
        return StructType([StructField(column.name, column.spark) for column in self.columns])

    @property
    def key_type(self) -> StructType:
        """The type of `key`; without fields for a table without a key."""
        by_name = {column.name: column for column in self.columns}
        return StructType([StructField(name, by_name[name].spark) for name in self.key])

    def column(self, name: str) -> ColumnSchema:
        """The column of that name. KeyError: there is none."""
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(name)
