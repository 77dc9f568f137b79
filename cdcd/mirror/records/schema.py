"""What a source table looks like, as the daemon described it in the schemas topic, in Spark's types and PostgreSQL's.

A table has as many descriptions as it had forms; each has an id, the fingerprint that every change names
(`source.schema_id`). Ids of columns are PostgreSQL's attribute numbers, which tell a rename from a drop and an add.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql.types import DataType, StructField, StructType

from cdcd.core.catalog.relations import Labels
from cdcd.core.table_names import table_text

OWN: Final = "_cdcd_"
"""What the names of a target's own columns begin with."""

RESERVED: Final = frozenset(
    {
        # Iceberg's MetadataColumns: a MERGE asks for some of them beside the columns of a table, and its view of
        # changes has others.
        "_file",
        "_pos",
        "_deleted",
        "_spec_id",
        "_partition",
        "_row_id",
        "_last_updated_sequence_number",
        "_content_offset",
        "_content_size_in_bytes",
        "_change_ordinal",
        "_commit_snapshot_id",
        # Delta's change data (CDCReader), also Iceberg's.
        "_change_type",
        "_commit_version",
        "_commit_timestamp",
        # Spark's metadata of files, which Delta asks for beside the columns of a table.
        "_metadata",
    }
)
"""Names, in lower case, that Iceberg, Delta or Spark keep for columns of their own."""

_BESIDE: Final = "source_"
"""What stands before the name of a source's column, if the mirror's column cannot have that name."""


def mirrored_names(columns: Iterable[str]) -> dict[str, str]:
    """The names that columns of a source have in its mirror, by their names at the source.

    A column with a name that a table format or the mirror keeps for itself is called `source_<name>`, or, if another
    column of the table has that name, `source_source_<name>`, and so on. The same names hold for both formats. Neither
    format tells upper case from lower case.
    """
    names = list(columns)
    taken = {name.casefold() for name in names}
    found = {}
    for name in names:
        mirrored = name
        if name.casefold() in RESERVED or name.casefold().startswith(OWN):
            while (mirrored := _BESIDE + mirrored).casefold() in taken:
                pass
            taken.add(mirrored.casefold())
        found[name] = mirrored
    return found


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
        form: encoding of the column's values in records (`cdcd.core.records.schemas`). None: an older mirror has stored
            the schema.
        default: what rows that are older than the column have in it (ADD COLUMN ... DEFAULT), as JSON in that form;
            None: NULL.
        missing: the same in the text form of the type, where an older daemon described the table.
        default_lost: rows that are older than the column may have another value, because PostgreSQL may have forgotten
            it before the daemon asked, or because a former column is taken for this one.
        labels: of an enum (also of a domain over one, or an array of one), by the oids that they keep.
        source: name of the column at the source, if the mirror calls it otherwise (`mirrored_names`). None: it has the
            name `name`.
    """

    name: str
    id: int | None
    type: str
    type_oid: int
    modifier: int
    spark: DataType
    missing: str | None = None
    labels: Labels = ()
    form: str | None = None
    default: str | None = None
    default_lost: bool = False
    source: str | None = None

    @property
    def sent_as(self) -> str:
        """The name of the column at the source, which records have."""
        return self.name if self.source is None else self.source

    @property
    def has_default(self) -> bool:
        """Rows that are older than the column have a value in it."""
        return self.default is not None or self.missing is not None


@dataclass(frozen=True, slots=True)
class TableSchema:
    """One form of a table.

    Attributes:
        topic: where its changes are.
        namespace: PostgreSQL's schema.
        schema_id: the fingerprint of this form.
        key: the names of the columns of the records' key, in its order; () for a table without one.
        columns: in the order of the table.
        oid: `pg_class.oid`, which tells the table from another one that has its name; None where the description is of
            a former version, which did not say.
    """

    topic: str
    namespace: str
    name: str
    schema_id: str
    key: tuple[str, ...]
    columns: tuple[ColumnSchema, ...]
    oid: int | None = None

    @property
    def table(self) -> str:
        """`namespace.name`, as people call it."""
        return table_text(self.namespace, self.name)

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

    def to_json(self) -> str:
        """As text, which a target keeps as a property; `from_json` reads it."""
        columns = [
            {
                "name": column.name,
                "id": column.id,
                "type": column.type,
                "type_oid": column.type_oid,
                "modifier": column.modifier,
                "spark": column.spark.jsonValue(),
                "missing": column.missing,
                "labels": [list(label) for label in column.labels],
                "form": column.form,
                "default": column.default,
                **({"default_lost": True} if column.default_lost else {}),
                **({} if column.source is None else {"source": column.source}),
            }
            for column in self.columns
        ]
        return json.dumps(
            {
                "topic": self.topic,
                "namespace": self.namespace,
                "name": self.name,
                "schema_id": self.schema_id,
                "oid": self.oid,
                "key": list(self.key),
                "columns": columns,
            },
            ensure_ascii=False,
            separators=(",", ":"),
        )

    @classmethod
    def from_json(cls, text: str) -> "TableSchema":
        """What `to_json` wrote. ValueError, KeyError: it is something else."""
        data = json.loads(text)
        return cls(
            topic=data["topic"],
            namespace=data["namespace"],
            name=data["name"],
            schema_id=data["schema_id"],
            key=tuple(data["key"]),
            columns=tuple([_column(column) for column in data["columns"]]),
            oid=data.get("oid"),
        )


def _column(data: dict[str, Any]) -> ColumnSchema:
    spark = StructField.fromJson({"name": "", "type": data["spark"], "nullable": True, "metadata": {}})
    labels = tuple([(int(oid), str(label)) for oid, label in data.get("labels", ())])
    return ColumnSchema(**{**data, "spark": spark.dataType, "labels": labels})
