"""Tables of the mirror's own, which no source table has: the quarantine, the points of consistent batches, and the
tables that are stopped.

The first two only grow, and know each row by some columns: what is appended again is left out. `prune` lets go of what
is old. The last one has the rows that hold now (`put`).
"""

import time
from collections.abc import Iterator, Sequence
from threading import Lock

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from cdcd.mirror.platform.sql import quoted
from cdcd.mirror.targets.table_format import TableFormat, as_view
from cdcd.mirror.targets.target import Maintained, Maintenance


class OwnTables:
    """`append`, `put`, `prune` and `maintain_own` of a `Target`, for any format. Only one of them writes at a time."""

    def __init__(self, format_: TableFormat) -> None:
        self._format = format_
        self._own_tables = Lock()
        self._appended: set[str] = set()

    def maintain_own(self, spark: SparkSession, policy: Maintenance) -> Iterator[tuple[str, Maintained]]:
        for name in sorted(self._appended):
            with self._own_tables:
                done = self._format.maintain(spark, name, policy)
            yield name, done

    def append(self, name: str, rows: DataFrame, unique: Sequence[str]) -> int:
        spark = rows.sparkSession
        rows = rows.dropDuplicates(list(unique)).persist()
        try:
            with self._own_tables:
                self._create_for(rows, name)
                there = spark.table(name).columns
                for part in rows.schema:
                    if part.name not in there:
                        self._format.add(spark, name, part.name, part.dataType.simpleString())
                had = spark.table(name).select(*unique)
                new = rows.join(had, list(unique), "left_anti").select(rows.columns).persist()
                count: int = new.count()
                if count:
                    self._format.append(new, name)
                    self._appended.add(name)
                new.unpersist()
        finally:
            rows.unpersist()
        return count

    def _create_for(self, rows: DataFrame, name: str) -> None:
        """Create the table if it is not there. The caller holds the lock."""
        spark = rows.sparkSession
        if self._format.exists(spark, name):
            return
        columns = ", ".join(f"{quoted(part.name)} {part.dataType.simpleString()}" for part in rows.schema)
        try:
            self._format.create(spark, name, columns, {})
        except Exception:
            # Another driver may have made the table meanwhile.
            if not self._format.exists(spark, name):
                raise

    def put(self, name: str, rows: DataFrame, unique: str, gone: str) -> None:
        spark = rows.sparkSession
        columns = [column for column in rows.columns if column != gone]
        listed = ", ".join(map(quoted, columns))
        values = ", ".join(f"s.{quoted(column)}" for column in columns)
        changed = ", ".join(f"t.{quoted(column)} = s.{quoted(column)}" for column in columns)
        with as_view(rows) as view, self._own_tables:
            self._create_for(rows.drop(gone), name)
            spark.sql(
                f"MERGE INTO {name} t USING {view} s ON t.{quoted(unique)} = s.{quoted(unique)}"
                f" WHEN MATCHED AND s.{quoted(gone)} THEN DELETE WHEN MATCHED THEN UPDATE SET {changed}"
                f" WHEN NOT MATCHED AND NOT s.{quoted(gone)} THEN INSERT ({listed}) VALUES ({values})"
            )
            self._appended.add(name)

    def prune(self, spark: SparkSession, name: str, order: str, policy: Maintenance) -> int:
        if not self._format.exists(spark, name):
            return 0
        oldest_us = int((time.time() - policy.keep_s) * 1_000_000)
        gone = f"at < timestamp_micros({oldest_us})"
        if policy.keep_versions:
            column = sf.col(order)
            last = spark.table(name).orderBy(column.desc()).limit(policy.keep_versions)
            kept = last.agg(sf.min(column)).head()
            if kept is None or kept[0] is None:
                return 0
            gone += f" AND {quoted(order)} < {kept[0]}"
        count = spark.table(name).filter(gone).count()
        if count:
            with self._own_tables:
                spark.sql(f"DELETE FROM {name} WHERE {gone}")
        return int(count)
