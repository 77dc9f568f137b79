"""How Iceberg and Delta replace a table by its own rows in another layout, in one commit."""

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from pyspark.sql import SparkSession

from cdcd.core.errors import ConfigError
from cdcd.mirror.base import branches
from cdcd.mirror.base.layout import FIELDS
from cdcd.mirror.base.position import KEPT, NO_VERSION
from cdcd.mirror.jars import DELTA
from cdcd.mirror.platform.sql import assigned
from cdcd.mirror.targets import iceberg

_DELTAS_OWN: Final = ("delta.columnMapping.max", "delta.min", "delta.feature.", "delta.rowTracking.material")
"""Begin the names of properties that Delta sets by itself."""


class Replacing(Protocol):
    """A table format. All names are in SQL."""

    def size(self, spark: SparkSession, name: str) -> int:
        """Return the bytes of the table's files."""

    def check(self, spark: SparkSession, name: str, has: Mapping[str, str]) -> None:
        """ConfigError: the table cannot be replaced. `has`: its properties."""

    def parent(self, pin: str) -> str:
        """The parent of the commit that replaces the version `pin`."""

    def replace(
        self,
        spark: SparkSession,
        name: str,
        view: str,
        has: Mapping[str, str],
        given: Mapping[str, str],
        fields: Sequence[str],
    ) -> None:
        """Replace the table by the rows of a view.

        Args:
            has: properties of the table, which it keeps.
            given: properties that it gets.
            fields: what stands in `PARTITIONED BY`.
        """


class _Iceberg:
    """A table that is replaced keeps its former versions, and the properties that are not given."""

    def size(self, spark: SparkSession, name: str) -> int:
        size = spark.table(f"{name}.files").selectExpr("sum(file_size_in_bytes)").collect()[0][0]
        return int(size or 0)

    def check(self, spark: SparkSession, name: str, has: Mapping[str, str]) -> None:
        if branches.are_needed(spark):
            raise ConfigError(
                f"{name} cannot be written again by Spark {spark.version}: the commit would lose the position.",
                hint="Run the command with Spark 4.1 or later.",
            )

    def parent(self, pin: str) -> str:
        return NO_VERSION

    def replace(
        self,
        spark: SparkSession,
        name: str,
        view: str,
        has: Mapping[str, str],
        given: Mapping[str, str],
        fields: Sequence[str],
    ) -> None:
        ours = {**(iceberg.PARTITIONED if fields else {}), **given}
        spark.sql(_statement(name, "iceberg", ours, view, fields))
        if "sort-order" in has:
            spark.sql(f"ALTER TABLE {name} WRITE ORDERED BY {has['sort-order']}")


class _Delta:
    """A table that is replaced keeps its former versions, and loses the properties that are not given."""

    def size(self, spark: SparkSession, name: str) -> int:
        return int(spark.sql(f"DESCRIBE DETAIL {name}").collect()[0]["sizeInBytes"])

    def check(self, spark: SparkSession, name: str, has: Mapping[str, str]) -> None:
        if has.get("delta.enableChangeDataFeed") == "true":
            raise ConfigError(
                f"{name} has a change data feed, whose readers would get all rows again if it were written again.",
                hint=f"Run in Spark: ALTER TABLE {name} UNSET TBLPROPERTIES ('delta.enableChangeDataFeed')",
            )
        if spark.sql(f"DESCRIBE DETAIL {name}").collect()[0]["clusteringColumns"]:
            raise ConfigError(
                f"{name} is clustered, and would lose its clustering if it were written again.",
                hint=f"Run in Spark: ALTER TABLE {name} CLUSTER BY NONE",
            )

    def parent(self, pin: str) -> str:
        return pin

    def replace(
        self,
        spark: SparkSession,
        name: str,
        view: str,
        has: Mapping[str, str],
        given: Mapping[str, str],
        fields: Sequence[str],
    ) -> None:
        kept = {
            key: value
            for key, value in has.items()
            if key not in {KEPT, FIELDS} and not key.startswith(_DELTAS_OWN)
        }
        spark.sql(_statement(name, "delta", {**kept, **given}, view, fields))


def _statement(
    name: str, table_format: str, properties: Mapping[str, str], view: str, fields: Sequence[str]
) -> str:
    by = f" PARTITIONED BY ({', '.join(fields)})" if fields else ""
    return (
        f"CREATE OR REPLACE TABLE {name} USING {table_format}{by} TBLPROPERTIES ({assigned(properties)})"
        f" AS SELECT * FROM {view}"
    )


def replacing_of(table_format: str) -> Replacing:
    """Return how tables of this format are replaced."""
    return _Delta() if table_format == DELTA else _Iceberg()
