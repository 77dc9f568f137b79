"""Tables in Apache Iceberg, in any catalog that Spark knows.

A snapshot's summary carries the position (`cdcd.state`, and `cdcd.lsn` for people); snapshots that others make, a
compaction for one, are passed over when it is looked for, and those that `maintain` makes carry it on.
"""

import json
import re
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from datetime import UTC, datetime
from typing import Any, Final

from pyspark.errors import AnalysisException, IllegalArgumentException
from pyspark.sql import DataFrame, SparkSession

from cdcd.core.protocol.lsn import Lsn
from cdcd.mirror.jars import ICEBERG
from cdcd.mirror.platform.java import elements, java, mapped, texts
from cdcd.mirror.platform.sql import assigned, quoted
from cdcd.mirror.records.schema import ColumnSchema, TableSchema
from cdcd.mirror.session import REWRITING, activate
from cdcd.mirror.targets.iceberg_defaults import add_with_default
from cdcd.mirror.targets.lakehouse import Lakehouse
from cdcd.mirror.targets.pinned import Pinned, Tag, tagged_lsn
from cdcd.mirror.targets.state import PROPERTY, State
from cdcd.mirror.targets.table_format import Commit, TableFormat, creation, having, listed
from cdcd.mirror.targets.target import Files, Kind, Maintained, Maintenance, Metadata

LSN_PROPERTY: Final = "cdcd.lsn"
"""Of a snapshot's summary: the commit LSN of the newest change in it, in PostgreSQL's notation."""

LISTED_S: Final = 24 * 3600
"""How often orphans are looked for in a table, in seconds; and once by each process."""

_SNAPSHOT_CONF: Final = "spark.sql.iceberg.snapshot-property."
"""org.apache.iceberg.spark.SparkSQLProperties: what stands behind it becomes part of the summary of each commit."""

_FORMAT: Final = "format-version"
_VARIANT: Final = re.compile(r"\bvariant\b")
_VARIANT_SINCE: Final = 3
_QUOTED: Final = re.compile(r"`(?:[^`]|``)*`")

_TABLE: Final = {
    # Every engine reads it. A table with VARIANT columns gets the next one, which alone has them.
    _FORMAT: "2",
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

_BY_PARTITION: Final = {
    # Rows of one bucket come together, so that a commit writes one file for each bucket and not one for each task.
    "write.distribution-mode": "hash",
    "write.merge.distribution-mode": "hash",
    # A task sorts its rows, which may go to disk, and has one file open. Otherwise it has one open for each bucket,
    # each with megabytes of buffers.
    "write.spark.fanout.enabled": "false",
}


class IcebergTables(TableFormat):
    """The format of `IcebergTarget`, whose arguments it has."""

    format = ICEBERG
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
        super().__init__()
        self._catalog = catalog
        self._namespace = namespace
        self._properties_given = dict(properties or {})
        self._listed: dict[str, float] = {}

    def name_of(self, schema: TableSchema, kind: Kind) -> str:
        suffix = "_changes" if kind is Kind.CHANGELOG and schema.key else ""
        if self._namespace is None:
            return self._name(schema.namespace, schema.name + suffix)
        return self._name(self._namespace, f"{schema.namespace}_{schema.name}{suffix}")

    def own_name(self, name: str) -> str:
        return self._name(self._namespace or "cdcd", name)

    def _name(self, namespace: str, name: str) -> str:
        return ".".join(map(quoted, [self._catalog, *namespace.split("."), name]))

    def tag(self, spark: SparkSession, name: str, version: int, tag: Tag) -> None:
        table = self._load(spark, name)
        gone = _tags_before(table, tag.since_lsn)
        is_there = table.refs().containsKey(tag.name)
        if is_there and not gone:
            # A process that was killed put it there. What it names is as of the same LSN.
            return
        changes = table.manageSnapshots()
        for each in gone:
            changes = changes.removeTag(each)
        if not is_there:
            changes = changes.createTag(tag.name, version)
        changes.commit()

    def maintain(
        self,
        spark: SparkSession,
        name: str,
        policy: Maintenance,
        pinned: Pinned | None = None,
        state: State | None = None,
        buckets: int = 1,
    ) -> Maintained:
        summary = {} if state is None else _summary(state)
        for key, value in REWRITING.items():
            spark.conf.set(key, value)
        actions = java(spark, "org.apache.iceberg.spark.actions.SparkActions").get(spark._jsparkSession)
        compacted = written = 0
        table = self._load(spark, name)
        oldest = java(spark, "java.lang.System").currentTimeMillis() - policy.keep_s * 1000
        if pinned is not None:
            oldest = min(oldest, _let_go(table, pinned))
        if table.currentSnapshot() is not None:
            rewrite = (
                actions.rewriteDataFiles(table)
                .option("min-input-files", str(policy.small_files_min))
                .option("target-file-size-bytes", str(policy.target_file_bytes))
                .option("delete-file-threshold", str(policy.small_files_min))
                .option("remove-dangling-deletes", "true")
            )
            for key, value in summary.items():
                rewrite = rewrite.snapshotProperty(key, value)
            done = rewrite.execute()
            compacted, written = done.rewrittenDataFilesCount(), done.addedDataFilesCount()
            table.refresh()
        before = table.snapshots().spliterator().getExactSizeIfKnown()
        actions.rewriteManifests(table).execute()
        table.refresh()
        newest = table.currentSnapshot()
        if state is not None and newest is not None and not summary.keys() <= set(newest.summary()):
            # What expires may be all that carries the position; not every one of these commits does.
            _carry(table, state)
            table.refresh()
        if policy.versions_max is not None and before > policy.versions_max:
            by_number = _age_of(spark, name, policy.versions_max)
            oldest = max(oldest, by_number if pinned is None else min(by_number, _let_go(table, pinned)))
        actions.expireSnapshots(table).expireOlderThan(oldest).retainLast(policy.keep_versions).execute()
        table.refresh()
        after = table.snapshots().spliterator().getExactSizeIfKnown()
        self._remove_orphans(spark, actions, table, policy)
        spark.sql(f"REFRESH TABLE {name}")
        return Maintained(compacted, written, max(0, before - after))

    def _remove_orphans(self, spark: SparkSession, actions: Any, table: Any, policy: Maintenance) -> None:
        """Files that no version has: all that is below the table's folder is listed, so once a day is enough."""
        now = time.monotonic()
        listed = self._listed.get(table.name())
        if listed is not None and now - listed < min(policy.orphans_s, LISTED_S):
            return
        modes = java(spark, "org.apache.iceberg.actions.DeleteOrphanFiles$PrefixMismatchMode")
        ignore = modes.fromString("ignore")
        oldest = java(spark, "java.lang.System").currentTimeMillis() - policy.orphans_s * 1000
        # The same folder under another scheme (s3, s3a) is no orphan, nor a reason to fail.
        actions.deleteOrphanFiles(table).olderThan(oldest).prefixMismatchMode(ignore).execute()
        self._listed[table.name()] = now

    def exists(self, spark: SparkSession, name: str) -> bool:
        return bool(spark.catalog.tableExists(name))

    def properties(self, spark: SparkSession, name: str) -> Mapping[str, str]:
        try:
            return texts(spark, self._load(spark, name).properties())
        except IllegalArgumentException as error:
            # A catalog that wraps Spark's own lists tables of other formats too.
            if "not an Iceberg table" in str(error):
                return {}
            raise

    def columns(self, spark: SparkSession, name: str) -> list[str]:
        # Without a plan of Spark.
        text: str = java(spark, "org.apache.iceberg.SchemaParser").toJson(self._load(spark, name).schema())
        return [field["name"] for field in json.loads(text)["fields"]]

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
        namespace = name.rpartition(".")[0]
        # There are catalogs in which not everyone may make one; where it is missing, the table's creation says so.
        with suppress(AnalysisException):
            spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {namespace}")
        own = _TABLE if by is None else _TABLE | _BY_PARTITION
        given = own | self._properties_given | dict(properties)
        if _VARIANT.search(_QUOTED.sub("", columns)) and int(given[_FORMAT]) < _VARIANT_SINCE:
            given[_FORMAT] = str(_VARIANT_SINCE)
        spark.sql(creation(name, columns, ICEBERG, assigned(given), view, by))

    def bound(self, spark: SparkSession, name: str) -> Collection[str]:
        table = self._load(spark, name)
        found = {table.schema().findColumnName(field.sourceId()) for field in _partition_fields(table)}
        return {str(column) for column in found if column is not None}

    def taken(self, spark: SparkSession, name: str) -> Collection[str]:
        return {str(field.name()) for field in _partition_fields(self._load(spark, name))}

    def add_filled(self, spark: SparkSession, name: str, column: ColumnSchema) -> bool:
        done = add_with_default(spark, self._load(spark, name), column)
        if done:
            spark.sql(f"REFRESH TABLE {name}")
        return done

    def add(self, spark: SparkSession, name: str, column: str, type_: str) -> None:
        version = (
            self._load(spark, name).properties().get(_FORMAT) or (_TABLE | self._properties_given)[_FORMAT]
        )
        if _VARIANT.search(type_) and int(version) < _VARIANT_SINCE:
            spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('{_FORMAT}' = '{_VARIANT_SINCE}')")
        super().add(spark, name, column, type_)

    def carrying(self, spark: SparkSession, state: State) -> AbstractContextManager[None]:
        return having(spark, {_SNAPSHOT_CONF + key: value for key, value in _summary(state).items()})

    def record(self, spark: SparkSession, name: str, properties: Mapping[str, str], state: State) -> None:
        # A change of properties makes no snapshot. Other processes find this one by its snapshots only.
        transaction = self._load(spark, name).newTransaction()
        changes = transaction.updateProperties()
        for key, value in properties.items():
            changes = changes.set(key, value)
        changes.commit()
        _carry(transaction, state)
        transaction.commitTransaction()
        spark.sql(f"REFRESH TABLE {name}")

    def list_tables(self, spark: SparkSession) -> Iterator[str]:
        if self._namespace is not None:
            spaces = [".".join(map(quoted, [self._catalog, *self._namespace.split(".")]))]
        else:
            spaces = _below(spark, quoted(self._catalog), quoted(self._catalog))
        for space in spaces:
            for row in listed(spark, f"SHOW TABLES IN {space}"):
                if not row.isTemporary:
                    yield f"{space}.{quoted(row.tableName)}"

    def files(self, spark: SparkSession, name: str) -> Files:
        newest = self._load(spark, name).currentSnapshot()
        found = {} if newest is None else newest.summary()
        data, deletes, size = [
            int(found.get(f"total-{what}") or 0) for what in ("data-files", "delete-files", "files-size")
        ]
        return Files(data, deletes, size)

    def metadata(self, spark: SparkSession, name: str) -> Metadata | None:
        table = self._load(spark, name)
        place = table.operations().current().metadataFileLocation()
        versions = int(table.snapshots().spliterator().getExactSizeIfKnown())
        return None if place is None else Metadata(versions, int(table.io().newInputFile(place).getLength()))

    def commits(self, spark: SparkSession, name: str) -> Iterator[Commit]:
        table = self._load(spark, name)
        # A catalog may keep the metadata of a table in memory, without commits that another process has made since.
        table.refresh()
        snapshot = table.currentSnapshot()
        while snapshot is not None:
            found = snapshot.summary().get(PROPERTY)
            if found is not None:
                at = datetime.fromtimestamp(snapshot.timestampMillis() / 1000, UTC)
                yield Commit(snapshot.snapshotId(), State.from_json(found), at)
            parent = snapshot.parentId()
            snapshot = None if parent is None else table.snapshot(parent)

    def take_back(self, spark: SparkSession, name: str, version: int) -> None:
        self._load(spark, name).manageSnapshots().rollbackTo(version).commit()
        spark.sql(f"REFRESH TABLE {name}")

    def is_whole(self, spark: SparkSession, name: str) -> bool:
        table = self._load(spark, name)
        snapshot = table.currentSnapshot()
        while snapshot is not None and snapshot.parentId() is not None:
            parent = table.snapshot(snapshot.parentId())
            if parent is None:
                return False
            snapshot = parent
        return True

    def current(self, spark: SparkSession, name: str) -> int | None:
        table = self._load(spark, name)
        table.refresh()
        snapshot = table.currentSnapshot()
        return None if snapshot is None else int(snapshot.snapshotId())

    def version(self, spark: SparkSession, name: str, version: int) -> DataFrame:
        return spark.sql(f"SELECT * FROM {name} VERSION AS OF {version}")

    def append(self, rows: DataFrame, name: str) -> None:
        rows.writeTo(name).append()

    def _load(self, spark: SparkSession, name: str) -> Any:
        """The table as Iceberg's own object: its metadata is there without a job of Spark's."""
        activate(spark)
        return java(spark, "org.apache.iceberg.spark.Spark3Util").loadIcebergTable(spark._jsparkSession, name)


class IcebergTarget(Lakehouse):
    """A `Target` of Iceberg tables: `<catalog>.<namespace>.<table>`.

    Args:
        catalog: configured in Spark (`session.catalog_conf` makes one of a folder).
        namespace: of all tables, whose names are then `<schema>_<table>`; None: the source's schema is the
            namespace.
        properties: of the tables, beside or in place of those given here, when they are created.
    """

    def __init__(
        self,
        catalog: str,
        namespace: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(IcebergTables(catalog, namespace, properties))


def _partition_fields(table: Any) -> list[Any]:
    """The fields of all specifications that a table has or had."""
    return [field for spec in mapped(table.specs()).values() for field in elements(spec.fields())]


def _tags_before(table: Any, commit_lsn: int) -> list[str]:
    """The tags of points before this one."""
    tags = [name for name, ref in mapped(table.refs()).items() if ref.isTag()]
    return [name for name in tags if (at := tagged_lsn(name)) is not None and at < commit_lsn]


def _let_go(table: Any, pinned: Pinned) -> int:
    """Let go of tags that no point needs. Returns the time in ms since 1970 from which on no version may go."""
    gone = _tags_before(table, pinned.since_lsn)
    if gone:
        changes = table.manageSnapshots()
        for name in gone:
            changes = changes.removeTag(name)
        changes.commit()
        table.refresh()
    # A table that no point has yet may be in one that is being made.
    newest = table.currentSnapshot()
    first = newest if pinned.version is None else table.snapshot(pinned.version)
    return sys.maxsize if first is None else int(first.timestampMillis())


def _below(spark: SparkSession, catalog: str, space: str) -> list[str]:
    """The namespaces in a catalog or namespace, and in those, by their names in SQL."""
    # Spark gives their whole names, quoted where they have to be.
    found = [f"{catalog}.{row[0]}" for row in listed(spark, f"SHOW NAMESPACES IN {space}")]
    return [name for each in found for name in (each, *_below(spark, catalog, each))]


def _carry(table: Any, state: State) -> None:
    """Make a snapshot without files that carries the state. `table`: Iceberg's own object, or a transaction."""
    snapshot = table.newFastAppend()
    for key, value in _summary(state).items():
        snapshot = snapshot.set(key, value)
    snapshot.commit()


def _age_of(spark: SparkSession, name: str, number: int) -> int:
    """When the `number`-th newest snapshot was made, in milliseconds since 1970. There are more snapshots than that."""
    found = spark.sql(
        f"SELECT unix_millis(committed_at) FROM {name}.snapshots ORDER BY 1 DESC LIMIT 1 OFFSET {number - 1}"
    ).head()
    assert found is not None, "there are more snapshots"
    return int(found[0])


def _summary(state: State) -> dict[str, str]:
    """What a snapshot's summary says of it."""
    return {PROPERTY: state.to_json(), LSN_PROPERTY: str(Lsn(state.commit_lsn))}
