"""Where the tables of a mirror are, and how they are called.

A target keeps one table for each source table, in one of two kinds: a MIRROR equals the source table; a CHANGELOG has
one row for each change, and is what a table without a key gets, and what `history` adds beside a mirror. Tables of the
target's own, such as the list of consistent points, have no source table.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from threading import Lock
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from cdcd.core.errors import PositionError
from cdcd.core.protocol.lsn import Lsn
from cdcd.mirror.platform.sql import assigned, parts, quoted
from cdcd.mirror.platform.tables import exists
from cdcd.mirror.records.schema import TableSchema
from cdcd.mirror.targets.layout import Layout
from cdcd.mirror.targets.pinned import CONTROL, listed_point
from cdcd.mirror.targets.state import State
from cdcd.mirror.watching.progress import TableLaidOut

QUARANTINE: Final = "quarantine"
"""The table of a target's own for records that are no changes. A mirror with a log has them in the log."""


class Kind(StrEnum):
    """What the rows of a target table are."""

    MIRROR = "mirror"
    CHANGELOG = "changelog"


def kind_of(schema: TableSchema) -> Kind:
    """A mirror needs a key."""
    return Kind.MIRROR if schema.key else Kind.CHANGELOG


@dataclass(frozen=True, slots=True)
class Maintenance:
    """What maintenance keeps and how much it tidies up.

    Attributes:
        keep_s: how long former versions can be read, in seconds.
        keep_versions: how many are kept whatever their age.
        versions_max: number of versions above which the oldest go whatever their age, except those that a consistent
            point needs. None: no limit. Iceberg writes all of them into the table's metadata at each commit; Delta
            does not, and ignores this.
        small_files_min: so many small files are written together; fewer are left alone.
        target_file_bytes: how large files should be.
        log_keep_days: number of days after which a log's records are deleted. The current day is kept in addition.
        log_held_days: number of days after which a log's records are deleted although a table needs them.
        orphans_s: after so long a file goes that belongs to no version: a commit that was killed leaves such, and one
            that is under way has some too. As long as Iceberg waits by itself; Delta goes by a rule of its own.
    """

    keep_s: int = 24 * 3600
    keep_versions: int = 10
    versions_max: int | None = 500
    small_files_min: int = 8
    target_file_bytes: int = 128 * 1024 * 1024
    log_keep_days: int = 7
    log_held_days: int = 30
    orphans_s: int = 3 * 24 * 3600


@dataclass(frozen=True, slots=True)
class Maintained:
    """What maintenance did: data files written together, files written for them, former versions that are gone."""

    compacted_files: int
    written_files: int
    expired_versions: int


@dataclass(frozen=True, slots=True)
class LaidOut:
    """What a relayout did: the layout before and after. If both are the same, it wrote nothing."""

    before: Layout
    after: Layout

    def told(self, table: str, seconds: float) -> TableLaidOut:
        """The fact that says so of a table (`schema.table`)."""
        before, after = self.before, self.after
        return TableLaidOut(
            table,
            before.buckets,
            after.buckets,
            before.deletes,
            after.deletes,
            seconds,
            tuple(map(str, before.fields)),
            tuple(map(str, after.fields)),
        )


class Target(ABC):
    """Tables of one format in one place.

    Attributes:
        format: ICEBERG or DELTA.
        given: further properties of tables when they are made.
        reserved: names that no column of a table of this format can have.
        brought: by the name of a table in SQL, what this process has brought into it (`base/given.py`).
    """

    format: str
    own_properties: Mapping[str, str]
    """Properties that each table of the format is made with."""
    reserved: Collection[str] = ()

    def __init__(self, given: Mapping[str, str] | None = None) -> None:
        self.given = dict(given or {})
        self.brought: dict[str, State] = {}
        self._own_tables = Lock()

    @abstractmethod
    def name_of(self, schema: TableSchema, kind: Kind) -> str:
        """The table's name in SQL."""

    @abstractmethod
    def own_name(self, name: str) -> str:
        """The name in SQL of a table that no source table has."""

    def bare_name(self, name: str) -> str:
        """The name of a table without catalog, folder and quotes: `public.orders`."""
        return ".".join(parts(name)[1:])

    @abstractmethod
    def list_tables(self, spark: SparkSession) -> Iterator[str]:
        """The names in SQL of all tables in the place, also of those that are no target's."""

    def read(self, spark: SparkSession, name: str, consistent_lsn: int | None = None) -> DataFrame:
        """The table, now or as it was at a consistent point.

        Args:
            name: in SQL.
            consistent_lsn: commit LSN of a point (`consistent_points`).

        Raises:
            PositionError: there is no such point, or it does not have the table.
        """
        if consistent_lsn is None:
            return spark.table(name)
        control, at = self.own_name(CONTROL), Lsn(consistent_lsn)
        point = listed_point(spark, control, consistent_lsn) if exists(spark, control) else None
        if point is None:
            raise PositionError(
                f"{control} lists no point at LSN {at}.",
                hint=f"Choose a commit_lsn of {control}, which the mirror makes with batches.consistent. Points are "
                "listed for as long as maintenance.keep_s says.",
            )
        version: int | None = point["versions"].get(self.bare_name(name))
        if version is None:
            raise PositionError(
                f"{name} is not as of LSN {at}: the table was stopped then, was read again later, or had no row yet.",
                hint=f"Choose an LSN whose row in {control} does not have the table in `without`.",
            )
        return spark.sql(f"SELECT * FROM {name} VERSION AS OF {version}")

    def append(self, name: str, rows: DataFrame, unique: Sequence[str]) -> int:
        """Append to a table of the target's own the rows whose columns `unique` are not in it. Return how many.

        The table is made as needed, and gets the columns that it lacks.
        """
        spark = rows.sparkSession
        rows = rows.dropDuplicates(list(unique)).persist()
        try:
            with self._own_tables:
                self._create_for(rows, name)
                there = spark.table(name).columns
                for part in rows.schema:
                    if part.name not in there:
                        kind = part.dataType.simpleString()
                        spark.sql(f"ALTER TABLE {name} ADD COLUMN {quoted(part.name)} {kind}")
                had = spark.table(name).select(*unique)
                new = rows.join(had, list(unique), "left_anti").select(rows.columns).persist()
                count: int = new.count()
                if count:
                    self._add(new, name)
                new.unpersist()
        finally:
            rows.unpersist()
        return count

    def _create_for(self, rows: DataFrame, name: str) -> None:
        spark = rows.sparkSession
        if exists(spark, name):
            return
        columns = ", ".join(f"{quoted(part.name)} {part.dataType.simpleString()}" for part in rows.schema)
        try:
            self._create(spark, name, columns)
        except Exception:
            # Another driver may have made the table meanwhile.
            if not exists(spark, name):
                raise

    def _create(self, spark: SparkSession, name: str, columns: str) -> None:
        self._make_namespace(spark, name)
        properties = assigned({**self.own_properties, **self.given})
        spark.sql(f"CREATE TABLE {name} ({columns}) USING {self.format} TBLPROPERTIES ({properties})")

    def _add(self, rows: DataFrame, name: str) -> None:
        rows.writeTo(name).append()

    def _make_namespace(self, spark: SparkSession, name: str) -> None:
        spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {name.rpartition('.')[0]}")

    def prune(self, spark: SparkSession, name: str, order: str, policy: Maintenance) -> int:
        """Let go of old rows of a table of the target's own. Return how many.

        These are rows with an `at` before what `policy` keeps, but not the last `keep_versions` of them by the column
        `order`. That number may be 0 here.
        """
        if not exists(spark, name):
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
