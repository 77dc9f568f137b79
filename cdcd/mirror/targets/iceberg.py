"""Where Iceberg tables are, in any catalog that Spark knows, and the properties that they are made with."""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Final

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from cdcd.mirror.jars import ICEBERG
from cdcd.mirror.platform.sql import parts, quoted
from cdcd.mirror.platform.tables import listed
from cdcd.mirror.records.schema import TableSchema
from cdcd.mirror.targets.target import Kind, Target

FORMAT: Final = "format-version"

VARIANT_SINCE: Final = 3
"""The first version of Iceberg's format that has columns of the type VARIANT."""

_VARIANT: Final = re.compile(r"\bvariant\b")
_QUOTED: Final = re.compile(r"`(?:[^`]|``)*`|'[^']*'")

PROPERTIES: Final = {
    # Every engine reads it. A table with VARIANT columns gets a later one.
    FORMAT: "2",
    # A commit marks changed rows as deleted and writes their new versions into new files; existing files stay. With
    # batches of 500,000 changes, copy-on-write took 25 % longer, and merge-on-read in format 3 took 67 % longer.
    "write.merge.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.delete.mode": "merge-on-read",
    # A batch is small; one more shuffle would only sort it.
    "write.distribution-mode": "none",
    "write.merge.distribution-mode": "none",
    # Each commit writes a metadata file with all that is known of the table; without this they stay for ever.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "write.parquet.compression-codec": "zstd",
}
"""Properties of tables."""

PARTITIONED: Final = {
    # Otherwise each task writes a file into each partition.
    "write.distribution-mode": "hash",
    "write.merge.distribution-mode": "hash",
}
"""Properties of tables that have partitions. They override `PROPERTIES`."""


def has_variant(columns: str) -> bool:
    """True if one of these columns, with their types in SQL, is or has a VARIANT."""
    return _VARIANT.search(_QUOTED.sub("", columns)) is not None


class IcebergTarget(Target):
    """A `Target` of Iceberg tables: `<catalog>.<namespace>.<table>`.

    Args:
        catalog: configured in Spark (`session.catalog_conf` makes one of a folder).
        namespace: of all tables, whose names are then `<schema>_<table>`; None: the source's schema is the
            namespace.
        properties: of the tables, beside or in place of those given here, when they are created.
    """

    format = ICEBERG
    own_properties = PROPERTIES
    # org.apache.iceberg.MetadataColumns: what a MERGE asks for beside the columns of a table.
    reserved = frozenset(
        {"_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number"}
    )

    def __init__(
        self,
        catalog: str,
        namespace: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(properties)
        self._catalog = catalog
        self._namespace = namespace

    def name_of(self, schema: TableSchema, kind: Kind) -> str:
        suffix = "_changes" if kind is Kind.CHANGELOG and schema.key else ""
        if self._namespace is None:
            return self._name(schema.namespace, schema.name + suffix)
        return self._name(self._namespace, f"{schema.namespace}_{schema.name}{suffix}")

    def own_name(self, name: str) -> str:
        return self._name(self._namespace or "cdcd", name)

    def _name(self, namespace: str, name: str) -> str:
        return ".".join(map(quoted, [self._catalog, *namespace.split("."), name]))

    def list_tables(self, spark: SparkSession) -> Iterator[str]:
        if self._namespace is not None:
            spaces = [".".join(map(quoted, [self._catalog, *self._namespace.split(".")]))]
        else:
            spaces = _below(spark, quoted(self._catalog), quoted(self._catalog))
        for space in spaces:
            for row in listed(spark, f"SHOW TABLES IN {space}"):
                if not row.isTemporary:
                    yield f"{space}.{quoted(row.tableName)}"

    def _make_namespace(self, spark: SparkSession, name: str) -> None:
        # In some catalogs, not everyone may create a namespace. If it is missing, creating the table fails and says so.
        with suppress(AnalysisException):
            super()._make_namespace(spark, name)


def _below(spark: SparkSession, catalog: str, space: str) -> list[str]:
    """The namespaces in a catalog or namespace, and in those, by their names in SQL."""
    # Spark gives their whole names, quoted where they have to be.
    rows = listed(spark, f"SHOW NAMESPACES IN {space}")
    found = [".".join([catalog, *map(quoted, parts(row[0]))]) for row in rows]
    return [name for each in found for name in (each, *_below(spark, catalog, each))]
