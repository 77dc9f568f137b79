"""What a table format does in its own way. `Lakehouse` is given one, and has the rest."""

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime
from threading import Lock
from typing import Final, NamedTuple
from uuid import uuid4

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

from cdcd.core.errors import ConfigError
from cdcd.mirror.platform.sql import parts, quoted
from cdcd.mirror.platform.tables import set_properties
from cdcd.mirror.records.schema import ColumnSchema, TableSchema
from cdcd.mirror.targets.pinned import Pinned, Tag
from cdcd.mirror.targets.state import State
from cdcd.mirror.targets.target import Files, Kind, Maintained, Maintenance, Metadata

_ABSENT: Final = re.compile(r"SCHEMA_NOT_FOUND|NoSuchNamespaceException")


class Commit(NamedTuple):
    """A commit of a table: its version, the state that it carries, and when it was made."""

    version: int
    state: State
    at: datetime


class TableFormat(ABC):
    """Tables by their names in SQL, whose commits carry a `State`."""

    format: str
    has_transforms: bool = True
    """Whether tables can be partitioned by transforms of columns. Without them, the values are columns of their own."""
    reserved: Collection[str] = ()
    """Names that no column of a table of this format can have."""

    def __init__(self) -> None:
        # Position and data meet in settings of the session: one commit at a time in each.
        self._sessions: dict[str, Lock] = {}

    def committing(self, spark: SparkSession) -> Lock:
        return self._sessions.setdefault(str(spark._jsparkSession.sessionUUID()), Lock())

    @abstractmethod
    def name_of(self, schema: TableSchema, kind: Kind) -> str: ...

    @abstractmethod
    def own_name(self, name: str) -> str: ...

    def bare_name(self, name: str) -> str:
        return ".".join(parts(name)[1:])

    @abstractmethod
    def maintain(
        self,
        spark: SparkSession,
        name: str,
        policy: Maintenance,
        pinned: Pinned | None = None,
        state: State | None = None,
        buckets: int = 1,
    ) -> Maintained:
        """As `Target.maintain`.

        Args:
            state: what the commits carry on; None: of a table of our own, which has no position.
            buckets: how many the table has.
        """

    def tag(self, spark: SparkSession, name: str, version: int, tag: Tag) -> None:
        """Give a version a tag. Tags of points that are not listed any more go in the same commit.

        Raises:
            ConfigError: the format has no tags.
        """
        raise ConfigError(
            f"Version {version} of {name} cannot get the tag {tag.name}: {self.format} has no tags.",
            hint="Remove batches.tag_interval_s. The column `versions` of cdcd.consistent has each table's version.",
        )

    @abstractmethod
    def exists(self, spark: SparkSession, name: str) -> bool: ...

    @abstractmethod
    def properties(self, spark: SparkSession, name: str) -> Mapping[str, str]: ...

    def columns(self, spark: SparkSession, name: str) -> list[str]:
        """The names of a table's columns, in their order."""
        return [part.name for part in spark.table(name).schema]

    @abstractmethod
    def create(
        self,
        spark: SparkSession,
        name: str,
        columns: str,
        properties: Mapping[str, str],
        *,
        view: str | None = None,
        by: str | None = None,
    ) -> None:
        """Create a table; with `view`, in the place of the one that is there, with its rows, in one commit.

        Args:
            columns: with their types; the view's are the same.
            by: what the table is partitioned by, as SQL.
        """

    @abstractmethod
    def carrying(self, spark: SparkSession, state: State) -> AbstractContextManager[None]:
        """Commits that are made meanwhile carry `state`."""

    def record(self, spark: SparkSession, name: str, properties: Mapping[str, str], state: State) -> None:
        """Set properties of a table in a commit that carries `state`, so that other processes find the commit.

        The caller is in `carrying(spark, state)`.
        """
        set_properties(spark, name, properties)

    def merging(self, spark: SparkSession, name: str, keys: int | None) -> AbstractContextManager[None]:
        """What a format has to have set for a MERGE into a table.

        Args:
            keys: number of rows of the source; None: the MERGE changes all rows of the table.
        """
        return nullcontext()

    @abstractmethod
    def list_tables(self, spark: SparkSession) -> Iterator[str]: ...

    @abstractmethod
    def commits(self, spark: SparkSession, name: str) -> Iterator[Commit]:
        """Each commit that carries a state, newest first."""

    @abstractmethod
    def take_back(self, spark: SparkSession, name: str, version: int) -> None:
        """Bring the table back to a former version. Versions after it are not part of the table any more."""

    @abstractmethod
    def files(self, spark: SparkSession, name: str) -> Files: ...

    def metadata(self, spark: SparkSession, name: str) -> Metadata | None:
        """The metadata that each commit writes again. None: the format has none."""
        return None

    @abstractmethod
    def is_whole(self, spark: SparkSession, name: str) -> bool:
        """No version is gone yet, from the empty table on."""

    @abstractmethod
    def current(self, spark: SparkSession, name: str) -> int | None:
        """The newest version, whoever made it and whether or not it carries a state. None: there is none yet."""

    @abstractmethod
    def version(self, spark: SparkSession, name: str, version: int) -> DataFrame: ...

    @abstractmethod
    def append(self, rows: DataFrame, name: str) -> None: ...

    def bound(self, spark: SparkSession, name: str) -> Collection[str]:
        """Columns that cannot be dropped, because the table is or was partitioned by them."""
        return ()

    def taken(self, spark: SparkSession, name: str) -> Collection[str]:
        """Names that no column can get, because fields have them by which the table is or was partitioned."""
        return ()

    def widen(self, spark: SparkSession, name: str, column: str, type_: str) -> None:
        spark.sql(f"ALTER TABLE {name} ALTER COLUMN {quoted(column)} TYPE {type_}")

    def add_filled(self, spark: SparkSession, name: str, column: ColumnSchema) -> bool:
        """Add a column that has its default in the rows that are there, without writing them. It may have been added so
        before. False: the table cannot have it. Nothing was done then."""
        return False

    def add(self, spark: SparkSession, name: str, column: str, type_: str) -> None:
        spark.sql(f"ALTER TABLE {name} ADD COLUMN {quoted(column)} {type_}")


def creation(name: str, columns: str, format_: str, properties: str, view: str | None, by: str | None) -> str:
    """The statement that creates a table, or replaces it by the rows of a view."""
    partitioned = "" if by is None else f" PARTITIONED BY ({by})"
    if view is None:
        return f"CREATE TABLE {name} ({columns}) USING {format_}{partitioned} TBLPROPERTIES ({properties})"
    return (
        f"CREATE OR REPLACE TABLE {name} USING {format_}{partitioned} TBLPROPERTIES ({properties})"
        f" AS SELECT * FROM {view}"
    )


def listed(spark: SparkSession, statement: str) -> list[Row]:
    """The rows of a SHOW statement; none if the place that it is about is not there yet."""
    try:
        return list(spark.sql(statement).collect())
    except (PySparkException, Py4JJavaError) as error:
        # Iceberg's own exception for a folder comes as Java raised it, that of other catalogs as Spark's.
        if _ABSENT.search(str(error)):
            return []
        raise


@contextmanager
def as_view(rows: DataFrame) -> Iterator[str]:
    """Give the rows a name for SQL, which is gone afterwards."""
    view = f"cdcd_rows_{uuid4().hex}"
    rows.createOrReplaceTempView(view)
    try:
        yield view
    finally:
        rows.sparkSession.catalog.dropTempView(view)


@contextmanager
def having(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """The session has `settings` meanwhile, and none of them afterwards."""
    for key, value in settings.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key in settings:
            spark.conf.unset(key)
