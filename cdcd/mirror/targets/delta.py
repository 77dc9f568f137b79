"""Where tables of Delta Lake are, in Spark's catalog or below a path, and the properties that they are made with."""

from collections.abc import Iterator, Mapping
from typing import Final

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from cdcd.mirror.jars import DELTA
from cdcd.mirror.platform.sql import condition, quoted
from cdcd.mirror.platform.tables import listed
from cdcd.mirror.records.schema import TableSchema
from cdcd.mirror.targets.target import Kind, Target

DEFAULT_CATALOG: Final = "spark_catalog"
"""The name of Spark's own catalog, which also finds tables by their paths."""

PROPERTIES: Final = {
    # Columns have an identity of their own, so that renames and drops leave the files alone.
    "delta.columnMapping.mode": "name",
    # Changed rows are marked; the files they were in stay.
    "delta.enableDeletionVectors": "true",
}
"""Properties of tables."""

_FIRST_OR_CHECKPOINT: Final = "{00000000000000000000.json,*.checkpoint*}"
"""Files of a table's transaction log. A log without its first file has a checkpoint."""

_NO_FILE: Final = "PATH_NOT_FOUND"
"""The condition of Spark's error for a pattern without a file."""


class DeltaTarget(Target):
    """A `Target` of Delta tables: `<catalog>.<namespace>.<table>`, or folders `<path>/<schema>/<table>`.

    Args:
        path: below which the tables are, if they are in no catalog.
        catalog: if they are.
        namespace: of all tables of a catalog, whose names are then `<schema>_<table>`; None: the source's schema is the
            namespace.
        properties: of the tables, beside or in place of those given here, when they are created.
    """

    format = DELTA
    own_properties = PROPERTIES

    def __init__(
        self,
        path: str | None = None,
        *,
        catalog: str = DEFAULT_CATALOG,
        namespace: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(properties)
        self._path = None if path is None else path.rstrip("/")
        self._catalog = catalog
        self._namespace = namespace

    def name_of(self, schema: TableSchema, kind: Kind) -> str:
        suffix = "_changes" if kind is Kind.CHANGELOG and schema.key else ""
        if self._namespace is None or self._path is not None:
            return self._name(schema.namespace, schema.name + suffix)
        return self._name(self._namespace, f"{schema.namespace}_{schema.name}{suffix}")

    def own_name(self, name: str) -> str:
        return self._name(self._namespace or "cdcd", name)

    def _name(self, namespace: str, name: str) -> str:
        if self._path is not None:
            return f"delta.{quoted(f'{self._path}/{namespace}/{name}')}"
        return ".".join(map(quoted, [self._catalog, namespace, name]))

    def bare_name(self, name: str) -> str:
        return super().bare_name(name) if self._path is None else ".".join(_path_of(name).split("/")[-2:])

    def list_tables(self, spark: SparkSession) -> Iterator[str]:
        if self._path is not None:
            yield from self._folders(spark, self._path)
            return
        spaces = [self._namespace] if self._namespace is not None else _namespaces(spark, self._catalog)
        for space in spaces:
            for row in listed(spark, f"SHOW TABLES IN {quoted(self._catalog)}.{quoted(space)}"):
                if not row.isTemporary:
                    yield self._name(space, row.tableName)

    def _folders(self, spark: SparkSession, path: str) -> Iterator[str]:
        try:
            # Spark lists the files, and reads none of them.
            logs = spark.read.format("binaryFile").load(f"{path}/*/*/_delta_log/{_FIRST_OR_CHECKPOINT}")
        except AnalysisException as error:
            if condition(error) == _NO_FILE:
                return
            raise
        parts = logs.select(sf.split("path", "/").alias("parts"))
        found = parts.select(sf.try_element_at("parts", sf.lit(-4)), sf.try_element_at("parts", sf.lit(-3)))
        for space, table in sorted(found.distinct().collect()):
            yield self._name(space, table)

    def _make_namespace(self, spark: SparkSession, name: str) -> None:
        if self._path is None:
            super()._make_namespace(spark, name)


def _namespaces(spark: SparkSession, catalog: str) -> list[str]:
    """The namespaces of a catalog."""
    # Spark gives their names quoted where they have to be.
    found = [row[0] for row in listed(spark, f"SHOW NAMESPACES IN {quoted(catalog)}")]
    return [name[1:-1].replace("``", "`") if name.startswith("`") else name for name in found]


def _path_of(name: str) -> str:
    return name.removeprefix("delta.`").removesuffix("`").replace("``", "`")
