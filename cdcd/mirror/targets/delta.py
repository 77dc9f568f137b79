"""Tables in Delta Lake, in Spark's catalog or below a path.

A commit's `userMetadata` carries the position, as JSON with the one member `cdcd.state`. Commits that others make are
passed over when it is looked for.
"""

import json
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from cdcd.core.errors import PositionError
from cdcd.mirror.jars import DELTA
from cdcd.mirror.platform.java import PATH, identifier, java, texts
from cdcd.mirror.platform.sql import assigned, quoted
from cdcd.mirror.records.schema import TableSchema
from cdcd.mirror.session import activate
from cdcd.mirror.targets.lakehouse import Lakehouse
from cdcd.mirror.targets.pinned import Pinned
from cdcd.mirror.targets.state import PROPERTY, State
from cdcd.mirror.targets.table_format import Commit, TableFormat, creation, having, listed
from cdcd.mirror.targets.target import Files, Kind, Maintained, Maintenance

_DELTA: Final = "org.apache.spark.sql.delta"

DEFAULT_CATALOG: Final = "spark_catalog"
"""The name of Spark's own catalog, which also finds tables by their paths."""

LOOKED_AT: Final = 5
"""Number of the newest commits that are read one by one. Some may be those of an OPTIMIZE or a VACUUM by others."""

_METADATA: Final = "spark.databricks.delta.commitInfo.userMetadata"

_MERGE: Final = {
    # Delta reads the source of a MERGE three times, and writes the source to disk first unless it can prove that each
    # read gives the same rows, which it never can for a cached DataFrame (MergeIntoMaterializeSource). A batch gives
    # the same rows at each read: it is cached, and if a part is lost with an executor, Spark computes the part again
    # from the same offsets, with a result that does not depend on the order of the changes. If the topic no longer has
    # these records, the computation fails, and the merge fails with it.
    "spark.databricks.delta.merge.materializeSource": "none",
    "spark.databricks.delta.merge.failSourceCachedAfterMaterialization": "false",
}

_REWRITING: Final = {
    # A MERGE joins its source with the table three times: for the files to change, for the new rows, and for the
    # deletion vectors. Without deletion vectors, there are two joins, and Delta replaces the files to change.
    "spark.databricks.delta.merge.deletionVectors.persistent": "false",
}

_REWRITTEN_BYTES: Final = 256 * 1024
"""A MERGE replaces the files of each table up to this size, however few keys the MERGE has."""
_REWRITTEN_BYTES_A_KEY: Final = 128
"""A MERGE also replaces the files of a larger table that has no more bytes than this for each key of the MERGE. A row
in Parquet has about this size.
"""

_TABLE: Final = {
    # Columns have an identity of their own, so that renames and drops leave the files alone.
    "delta.columnMapping.mode": "name",
    # Changed rows are marked; the files they were in stay.
    "delta.enableDeletionVectors": "true",
    "delta.checkpointInterval": "20",
}


_NTZ: Final = "timestamp_ntz"
_NTZ_FEATURE: Final = "delta.feature.timestampNtz"
"""A table that is made with such a column has the feature. One that gets such a column later must be given it first."""


_MARGIN_S: Final = 60.0
"""VACUUM reads the clock later than this program, in seconds at most."""


_WIDENING: Final = "delta.enableTypeWidening"
"""Readers must know the feature, and delta-rs does not. So a table gets it with the first column that grows."""


RESTORE: Final = "RESTORE"
"""The operation that the log names for RESTORE TABLE (DeltaOperations.scala)."""


class _Entry(NamedTuple):
    """A commit in the log of a table.

    Attributes:
        metadata: its userMetadata.
        operation: what made it, such as MERGE.
        target: the version that a RESTORE names. None: any other operation, or a RESTORE that names a time.
    """

    version: int
    metadata: str | None
    at: datetime
    operation: str | None
    target: str | int | None


def _restored(name: str, entry: _Entry) -> int:
    """The version that a RESTORE brought back. PositionError: the log does not name it."""
    if entry.target is None:
        raise PositionError(
            f"{name} was restored to a time (version {entry.version}), so its position is unknown.",
            hint=f"Find the version of that time (DESCRIBE HISTORY {name}), run RESTORE TABLE {name} TO VERSION AS OF"
            " <version>, then start the mirror again: it reads the later changes from the topic.",
        )
    return int(entry.target)


class DeltaTables(TableFormat):
    """The format of `DeltaTarget`, whose arguments it has."""

    format = DELTA
    has_transforms = False

    def __init__(
        self,
        path: str | None = None,
        *,
        catalog: str = DEFAULT_CATALOG,
        namespace: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        self._path = None if path is None else path.rstrip("/")
        self._catalog = catalog
        self._namespace = namespace
        self._table_properties = _TABLE | dict(properties or {})
        self._parsed: dict[str, tuple[str, str, str]] = {}
        self._loaded: dict[str, Any] = {}

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

    def maintain(
        self,
        spark: SparkSession,
        name: str,
        policy: Maintenance,
        pinned: Pinned | None = None,
        state: State | None = None,
        buckets: int = 1,
    ) -> Maintained:
        settings = {
            "spark.databricks.delta.optimize.maxFileSize": str(policy.target_file_bytes),
            "spark.databricks.delta.optimize.minFileSize": str(policy.target_file_bytes // 2),
        }
        compacted = written = 0
        files = self.files(spark, name)
        # Each of these commits carries the position: it is looked for in the newest.
        with self.committing(spark), nullcontext() if state is None else self.carrying(spark, state):
            if files.data >= policy.small_files_min * buckets:
                with having(spark, settings):
                    metrics = spark.sql(f"OPTIMIZE {name}").select("metrics.*").head()
                if metrics is not None:
                    compacted, written = metrics.numFilesRemoved, metrics.numFilesAdded
            spark.sql(f"VACUUM {name} RETAIN {_kept_hours(policy, pinned)} HOURS")
        return Maintained(compacted, written, 0)

    def exists(self, spark: SparkSession, name: str) -> bool:
        if self._path is not None:
            return bool(self._delta(spark).isDeltaTable(spark._jsparkSession, _path_of(name)))
        return bool(spark.catalog.tableExists(name))

    def properties(self, spark: SparkSession, name: str) -> Mapping[str, str]:
        # SHOW TBLPROPERTIES is a plan of Spark's each time, and only answers where the catalog's tables are of another
        # class.
        with suppress(PySparkException, Py4JError):
            found = self._load(spark, name).update().getProperties()
            return texts(spark, java(spark, "scala.jdk.javaapi.CollectionConverters").asJava(found))
        rows = spark.sql(f"SHOW TBLPROPERTIES {name}").collect()
        return {row.key: row.value for row in rows}

    def columns(self, spark: SparkSession, name: str) -> list[str]:
        # Without a plan of Spark.
        with suppress(PySparkException, Py4JError):
            form = json.loads(self._load(spark, name).update().metadata().schemaString())
            return [field["name"] for field in form["fields"]]
        return super().columns(spark, name)

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
        if self._path is None:
            spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {name.rpartition('.')[0]}")
        given = assigned(self._table_properties | dict(properties))
        spark.sql(creation(name, columns, DELTA, given, view, by))

    def add(self, spark: SparkSession, name: str, column: str, type_: str) -> None:
        if _NTZ in type_ and _NTZ_FEATURE not in self.properties(spark, name):
            spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('{_NTZ_FEATURE}' = 'supported')")
        super().add(spark, name, column, type_)

    def widen(self, spark: SparkSession, name: str, column: str, type_: str) -> None:
        if self.properties(spark, name).get(_WIDENING) != "true":
            spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('{_WIDENING}' = 'true')")
        super().widen(spark, name, column, type_)

    def carrying(self, spark: SparkSession, state: State) -> AbstractContextManager[None]:
        return having(spark, {_METADATA: json.dumps({PROPERTY: state.to_json()})})

    def merging(self, spark: SparkSession, name: str, keys: int | None) -> AbstractContextManager[None]:
        rewrites = keys is None or self.files(spark, name).size <= _rewritten_bytes(keys)
        return having(spark, _MERGE | (_REWRITING if rewrites else {}))

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
        session: Any = spark._jsparkSession
        root = java(spark, PATH)(path)
        files = root.getFileSystem(session.sessionState().newHadoopConf())
        if not files.exists(root):
            return
        for space in files.listStatus(root):
            for table in files.listStatus(space.getPath()) if space.isDirectory() else ():
                if files.exists(java(spark, PATH)(table.getPath(), "_delta_log")):
                    yield self._name(space.getPath().getName(), table.getPath().getName())

    def files(self, spark: SparkSession, name: str) -> Files:
        # Delta writes both numbers beside each commit. The methods of its snapshot that tell them read the whole log in
        # two statements all the same (4.4). The snapshot is the one that Delta read last in this process: nothing
        # depends on what others did since then, and a newer one would list the folder of the log.
        with suppress(PySparkException, Py4JError):
            checksum = self._load(spark, name).deltaLog().unsafeVolatileSnapshot().checksumOpt()
            if checksum.isDefined():
                return Files(int(checksum.get().numFiles()), None, int(checksum.get().tableSizeBytes()))
        found = spark.sql(f"DESCRIBE DETAIL {name}").select("numFiles", "sizeInBytes").head()
        assert found is not None, "a table has one line of details"
        return Files(int(found.numFiles), None, int(found.sizeInBytes))

    def commits(self, spark: SparkSession, name: str) -> Iterator[Commit]:
        # The newest commits nearly always have it; the whole history is read where they do not.
        seen: int | None = None
        restored: int | None = None
        for look in (self._newest, self._history):
            for entry in look(spark, name):
                if seen is not None and entry.version >= seen:
                    continue
                seen = entry.version
                # A RESTORE by the owner took back the versions between itself and the version that it names.
                if restored is not None and entry.version > restored:
                    continue
                found = _state(entry.metadata)
                if found is not None:
                    yield Commit(entry.version, found, entry.at)
                elif entry.operation == RESTORE:
                    restored = _restored(name, entry)
            if seen == 0:
                return

    def _newest(self, spark: SparkSession, name: str) -> Iterator["_Entry"]:
        """The newest commits, newest first, from Delta's own objects.

        They are looked at before and after each commit, and DESCRIBE HISTORY is a job of Spark's each time.
        """
        # What Delta does not tell in this way, the history has: of another catalog's class of tables, or of a commit
        # whose file is gone.
        with suppress(PySparkException, Py4JError):
            commit_info = java(spark, f"{_DELTA}.DeltaHistoryManager").getCommitInfoOpt
            table = self._load(spark, name)
            snapshot, log = table.update(), table.deltaLog()
            files = java(spark, f"{_DELTA}.util.DeltaCommitFileProvider").apply(snapshot)
            store, conf, newest = log.store(), log.newDeltaHadoopConf(), snapshot.version()
            for version in range(newest, max(-1, newest - LOOKED_AT), -1):
                info = commit_info(store, files.deltaFile(version), conf)
                if info.isEmpty():
                    return
                said = json.loads(info.get().json())["commitInfo"]
                at = datetime.fromtimestamp(said["timestamp"] / 1000, UTC)
                target = said.get("operationParameters", {}).get("version")
                yield _Entry(version, said.get("userMetadata"), at, said.get("operation"), target)

    def _load(self, spark: SparkSession, name: str) -> Any:
        """The table as Delta's own object."""
        activate(spark)
        # A folder stays the same table for Delta. A catalog may have another table by this name next time.
        if name in self._loaded:
            return self._loaded[name]
        state = spark._jsparkSession.sessionState()
        if name not in self._parsed:
            parts = state.sqlParser().parseMultipartIdentifier(name)
            catalog = DEFAULT_CATALOG if self._path is not None else parts.head()
            self._parsed[name] = catalog, parts.apply(parts.size() - 2), parts.last()
        catalog, namespace, last = self._parsed[name]
        loaded = state.catalogManager().catalog(catalog).loadTable(identifier(spark, [namespace], last))
        if self._path is not None:
            self._loaded[name] = loaded
        return loaded

    def _history(self, spark: SparkSession, name: str) -> Iterator["_Entry"]:
        """All commits that the table's log has, newest first."""
        history = spark.sql(f"DESCRIBE HISTORY {name}").select(
            "version", "userMetadata", "timestamp", "operation", sf.col("operationParameters")["version"]
        )
        for version, metadata, at, operation, target in history.collect():
            yield _Entry(version, metadata, at.astimezone(UTC), operation, target)

    def take_back(self, spark: SparkSession, name: str, version: int) -> None:
        spark.sql(f"RESTORE TABLE {name} TO VERSION AS OF {version}")

    def is_whole(self, spark: SparkSession, name: str) -> bool:
        first = spark.sql(f"DESCRIBE HISTORY {name}").agg(sf.min("version")).head()
        return first is not None and first[0] == 0

    def current(self, spark: SparkSession, name: str) -> int | None:
        with suppress(PySparkException, Py4JError):
            return int(self._load(spark, name).update().version())
        newest = spark.sql(f"DESCRIBE HISTORY {name}").agg(sf.max("version")).head()
        return None if newest is None else newest[0]

    def version(self, spark: SparkSession, name: str, version: int) -> DataFrame:
        return spark.sql(f"SELECT * FROM {name} VERSION AS OF {version}")

    def append(self, rows: DataFrame, name: str) -> None:
        rows.writeTo(name).append()

    def _delta(self, spark: SparkSession) -> Any:
        return java(spark, "io.delta.tables.DeltaTable")


class DeltaTarget(Lakehouse):
    """A `Target` of Delta tables: `<catalog>.<namespace>.<table>`, or folders `<path>/<schema>/<table>`.

    Args:
        path: below which the tables are, if they are in no catalog.
        catalog: if they are.
        namespace: of all tables of a catalog, whose names are then `<schema>_<table>`; None: the source's schema is the
            namespace.
        properties: of the tables, beside or in place of those given here, when they are created.
    """

    def __init__(
        self,
        path: str | None = None,
        *,
        catalog: str = DEFAULT_CATALOG,
        namespace: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(
            DeltaTables(
                path,
                catalog=catalog,
                namespace=namespace,
                properties=properties,
            )
        )


def _rewritten_bytes(keys: int) -> int:
    """The size of a table, in bytes, up to which a MERGE with this number of keys replaces its files. In a larger
    table, the MERGE marks rows by deletion vectors.
    """
    return max(_REWRITTEN_BYTES, keys * _REWRITTEN_BYTES_A_KEY)


def _kept_hours(policy: Maintenance, pinned: Pinned | None) -> int:
    """For how long files stay that no newer version has. VACUUM rounds to whole hours (VacuumCommand.scala), so that
    less than half an hour would be none.
    """
    kept_s: float = policy.keep_s
    if pinned is not None:
        # What the oldest point needs was replaced later than the point was made.
        kept_s = max(kept_s, time.time() - pinned.since_us / 1_000_000 + _MARGIN_S)
    return math.ceil(kept_s / 3600)


def _namespaces(spark: SparkSession, catalog: str) -> list[str]:
    """The namespaces of a catalog."""
    # Spark gives their names quoted where they have to be.
    found = [row[0] for row in listed(spark, f"SHOW NAMESPACES IN {quoted(catalog)}")]
    return [name[1:-1].replace("``", "`") if name.startswith("`") else name for name in found]


def _path_of(name: str) -> str:
    return name.removeprefix("delta.`").removesuffix("`").replace("``", "`")


def _state(metadata: str | None) -> State | None:
    if metadata is None or PROPERTY not in metadata:
        return None
    return State.from_json(json.loads(metadata)[PROPERTY])
