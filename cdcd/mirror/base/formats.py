"""What Iceberg and Delta do in their own way for base tables, by SQL alone."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from cdcd.core.errors import ConfigError, SinkError
from cdcd.mirror.base import branches
from cdcd.mirror.base.position import (
    BASE,
    KEPT,
    NO_VERSION,
    PROPERTY,
    Carried,
    Kept,
    Node,
    Position,
    position_of,
)
from cdcd.mirror.jars import DELTA
from cdcd.mirror.platform.sql import assigned, condition, text
from cdcd.mirror.platform.tables import having, location, properties, set_properties
from cdcd.mirror.targets import delta, iceberg, state

MADE_BY: Final = "cdcd.base"
"""The property of tables that folds have made. Its value is `BASE`, `STATES` or `CHANGES`."""

STATES: Final = "scd2"
"""A table with a row for each state of a row (`states.py`)."""
CHANGES: Final = "changes"
"""A table with a row for each change (`changes.py`)."""
GIVEN: Final = "given"
GIVEN_CHANGES: Final = "given-changes"
"""A mirror, and a changelog, into which a job brings the changes (`given.py`)."""

PARTITION: Final = "_cdcd_partition"
OFFSET: Final = "_cdcd_offset"
PLACE_COLUMNS: Final = {PARTITION: "INT", OFFSET: "BIGINT"}
"""Columns of a folded changelog for the partition and the offset of each record. NULL: a mirror without a log has added
the row."""

TOPIC_ID: Final = "cdcd.topic_id"
"""The property that has Kafka's id of the topic whose changes the table has."""

_FORM: Final = "cdcd.form."
"""What the property of a form is called, before the form's digest."""


class OtherMakerError(SinkError):
    """A table has the name of a folded table, and no fold made it."""


@dataclass(frozen=True, slots=True)
class Version:
    """A table as its commits show it.

    Attributes:
        pin: the current version.
        nodes: the commits that are known.
        position: of `pin`. None: it is not known.
    """

    pin: str
    nodes: Mapping[str, Node]
    position: Position | None


class BaseFormat(Protocol):
    """A table format, for tables whose names are in SQL.

    Attributes:
        guarding: properties without which two folds of a table could both commit.
        computed: partition fields are columns of the table's own, because the format has no transforms.
        always_commits: a statement that changes no row is a commit too.
    """

    guarding: Mapping[str, str]
    computed: bool
    always_commits: bool

    def create(
        self,
        spark: SparkSession,
        name: str,
        columns: str,
        properties: Mapping[str, str],
        fields: Sequence[str] = (),
    ) -> None:
        """Create the table, if there is no table with the name. `fields`: what stands in `PARTITIONED BY`."""

    def version(self, spark: SparkSession, name: str) -> Version:
        """Read the current version."""

    def carrying(self, spark: SparkSession, name: str, carried: Carried) -> AbstractContextManager[str]:
        """Gives a name of the table for SQL. The commit that the session makes to it meanwhile carries this."""

    def guard(self, name: str, pin: str) -> str:
        """Condition of SQL that is true, and that ends the statement with an error if the table has another version."""

    def keep(self, spark: SparkSession, name: str, version: str, position: Position) -> None:
        """Keep the position of a version apart from its commit. In Delta, this is a commit."""

    def alter(self, spark: SparkSession, name: str, change: str) -> None:
        """Run `ALTER TABLE name change`, where `change` changes a column."""

    def rewrite(self, spark: SparkSession, name: str) -> None:
        """Write files with deleted rows again, without these rows. No metadata of the version names the former files,
        as far as the format can.
        """

    def former_files(self, spark: SparkSession, name: str) -> int:
        """Return the number of former files whose bounds of values the metadata of the newest version has."""

    def check_versions(self, spark: SparkSession, name: str) -> None:
        """ConfigError: something keeps former versions, so that `drop_versions` would leave them."""

    def drop_versions(self, spark: SparkSession, name: str) -> None:
        """Remove all versions but the current one, with their files. No other process may write to a Delta table."""

    def former_state(self, spark: SparkSession, name: str, version: str) -> str:
        """Return the state (`targets.state`) in the commit of a mirror without a log, as JSON."""

    def files(self, spark: SparkSession, name: str) -> tuple[str, set[str]]:
        """Return the table's folder, and the names of the data files that a version has."""


def read_form(spark: SparkSession, name: str, digest: str) -> str | None:
    """Return the form with this digest as JSON. None: the table does not have it."""
    return properties(spark, name).get(_FORM + digest)


def form_property(digest: str, form: str) -> dict[str, str]:
    """The property that has a form, as JSON. A table gets it before rows of the form are there."""
    return {_FORM + digest: form}


def _partitioned(fields: Sequence[str]) -> str:
    return f"PARTITIONED BY ({', '.join(fields)})" if fields else ""


def _kept(found: Mapping[str, str]) -> Kept | None:
    return Kept.from_json(found.get(KEPT, ""))


class IcebergBase:
    """Tables of Iceberg. Its versions for Spark before 4.1 lose the position of a MERGE in silence (`branches.py`)."""

    guarding: Mapping[str, str] = {}
    computed = False
    always_commits = True

    def __init__(self, given: Mapping[str, str] | None = None) -> None:
        self._given = dict(given or {})

    def create(
        self,
        spark: SparkSession,
        name: str,
        columns: str,
        properties: Mapping[str, str],
        fields: Sequence[str] = (),
    ) -> None:
        spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {name.rpartition('.')[0]}")
        ours = {
            **iceberg.PROPERTIES,
            **(iceberg.PARTITIONED if fields else {}),
            **self._given,
            MADE_BY: BASE,
            **properties,
        }
        if iceberg.has_variant(columns):
            ours[iceberg.FORMAT] = str(max(iceberg.VARIANT_SINCE, int(ours[iceberg.FORMAT])))
        spark.sql(
            f"CREATE TABLE IF NOT EXISTS {name} ({columns}) USING iceberg {_partitioned(fields)} "
            f"TBLPROPERTIES ({assigned(ours)})"
        )

    def version(self, spark: SparkSession, name: str) -> Version:
        # The reference first: each snapshot that it may name is in the list that is read afterwards.
        main = spark.sql(f"SELECT snapshot_id FROM {name}.refs WHERE name = 'main'").collect()
        pin = str(main[0][0]) if main else NO_VERSION
        rows = spark.sql(
            f"SELECT snapshot_id, parent_id, summary['{PROPERTY}'], summary['{FORMER}'] IS NOT NULL, "
            f"summary['total-records'] = '0' FROM {name}.snapshots"
        )
        nodes = {str(id_): _iceberg_node(*about) for id_, *about in rows.collect()}
        newest = nodes.get(pin)
        if newest is not None and newest.carried is not None and newest.carried.pin == newest.parent:
            return Version(pin, nodes, position_of(pin, nodes))
        has = properties(spark, name)
        nodes = branches.with_positions(nodes, has)
        position = position_of(pin, nodes)
        if position is None:
            position = position_of(pin, nodes, _kept(has))
        return Version(pin, nodes, position)

    def carrying(self, spark: SparkSession, name: str, carried: Carried) -> AbstractContextManager[str]:
        if branches.are_needed(spark):
            return branches.committing(spark, name, carried, properties(spark, name))
        said = {f"spark.sql.iceberg.snapshot-property.{PROPERTY}": carried.to_json()}
        return _named(name, having(spark, said))

    def guard(self, name: str, pin: str) -> str:
        same = "count(*) = 0" if pin == NO_VERSION else f"max(snapshot_id) = {int(pin)}"
        return (
            f"(SELECT CASE WHEN {same} THEN true ELSE CAST(raise_error('{MOVED_ON}') AS boolean) END"
            f" FROM {name}.refs WHERE name = 'main')"
        )

    def keep(self, spark: SparkSession, name: str, version: str, position: Position) -> None:
        set_properties(spark, name, {KEPT: Kept(version, position).to_json()})

    def alter(self, spark: SparkSession, name: str, change: str) -> None:
        if iceberg.has_variant(change):
            # Iceberg refuses to go back to an earlier version of the format.
            version = int(properties(spark, name).get(iceberg.FORMAT, iceberg.VARIANT_SINCE))
            if version < iceberg.VARIANT_SINCE:
                set_properties(spark, name, {iceberg.FORMAT: str(iceberg.VARIANT_SINCE)})
        spark.sql(f"ALTER TABLE {name} {change}")

    def rewrite(self, spark: SparkSession, name: str) -> None:
        options = "'delete-file-threshold', '1', 'remove-dangling-deletes', 'true'"
        self._call(spark, name, f"rewrite_data_files(table => '{text(name)}', options => map({options}))")
        # The manifests of this commit have the bounds of the files that it removed. The next commit drops a manifest
        # that has no other files, and the last step writes the other manifests again.
        spark.sql(f"INSERT INTO {name} SELECT * FROM {name} WHERE false")
        self._call(spark, name, f"rewrite_manifests('{text(name)}')")

    def former_files(self, spark: SparkSession, name: str) -> int:
        return int(spark.table(f"{name}.entries").filter("status = 2").count())

    def check_versions(self, spark: SparkSession, name: str) -> None:
        others = [row["name"] for row in spark.table(f"{name}.refs").collect() if row["name"] != "main"]
        if others:
            raise ConfigError(
                f"{name} has the tags or branches {', '.join(sorted(others))}, which keep former versions.",
                hint=f"Drop each of them (ALTER TABLE {name} DROP TAG …), and run the command again.",
            )

    def drop_versions(self, spark: SparkSession, name: str) -> None:
        now = spark.sql("SELECT CAST(current_timestamp() AS string)").collect()[0][0]
        last = f"older_than => TIMESTAMP '{now}', retain_last => 1"
        self._call(spark, name, f"expire_snapshots(table => '{text(name)}', {last})")

    def former_state(self, spark: SparkSession, name: str, version: str) -> str:
        found = spark.table(f"{name}.snapshots").filter(f"snapshot_id = {int(version)}")
        return str(found.selectExpr(f"summary['{FORMER}']").collect()[0][0])

    def files(self, spark: SparkSession, name: str) -> tuple[str, set[str]]:
        paths = spark.table(f"{name}.all_files").select("file_path").collect()
        return location(spark, name), {row[0].rpartition("/")[2] for row in paths}

    def _call(self, spark: SparkSession, name: str, call: str) -> None:
        spark.sql(branches.call(name, call)).collect()


class DeltaBase:
    """Tables of Delta Lake."""

    # A MERGE that did not see what another one committed fails, even if the two changed other files.
    guarding: Mapping[str, str] = {"delta.isolationLevel": "Serializable"}
    computed = True
    always_commits = False

    def __init__(self, given: Mapping[str, str] | None = None) -> None:
        self._properties = {**delta.PROPERTIES, **self.guarding, **(given or {})}

    def create(
        self,
        spark: SparkSession,
        name: str,
        columns: str,
        properties: Mapping[str, str],
        fields: Sequence[str] = (),
    ) -> None:
        if not name.startswith("delta.`"):
            spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {name.rpartition('.')[0]}")
        own = assigned({**self._properties, MADE_BY: BASE, **properties})
        spark.sql(
            f"CREATE TABLE IF NOT EXISTS {name} ({columns}) USING delta {_partitioned(fields)} TBLPROPERTIES ({own})"
        )

    def version(self, spark: SparkSession, name: str) -> Version:
        kept = _kept(properties(spark, name))
        for most in (f" LIMIT {_NEWEST}", ""):
            history = spark.sql(f"DESCRIBE HISTORY {name}{most}").select(
                "version", "operation", "operationParameters", "userMetadata"
            )
            entries = history.collect()
            nodes = {str(row["version"]): _delta_node(row) for row in entries}
            pin = str(max(row["version"] for row in entries))
            position = position_of(pin, nodes, kept)
            if position is not None or len(entries) < _NEWEST:
                break
        return Version(pin, nodes, position)

    def carrying(self, spark: SparkSession, name: str, carried: Carried) -> AbstractContextManager[str]:
        said = json.dumps({PROPERTY: carried.to_json()})
        return _named(
            name, having(spark, {"spark.databricks.delta.commitInfo.userMetadata": said, **READS_TWICE})
        )

    def guard(self, name: str, pin: str) -> str:
        # Delta has no table of its versions for a subquery. Its check of conflicts refuses a MERGE if another commit
        # added any row since to a partition that the MERGE reads, because the table is Serializable
        # (ConflictChecker.scala, getFirstFileMatchingPartitionPredicates). A fold reads the partitions of all its keys.
        # So two folds never insert one key twice. It lets a MERGE pass behind
        # a compaction, and behind a RESTORE that only removes files; the commit's pinned version then says so.
        return "true"

    def keep(self, spark: SparkSession, name: str, version: str, position: Position) -> None:
        set_properties(spark, name, {KEPT: Kept(version, position).to_json()})

    def alter(self, spark: SparkSession, name: str, change: str) -> None:
        has = properties(spark, name)
        for word, feature in _DELTA_FEATURES.items():
            if word in change and has.get(feature[0]) != feature[1]:
                set_properties(spark, name, dict([feature]))
        spark.sql(f"ALTER TABLE {name} {change}")

    def rewrite(self, spark: SparkSession, name: str) -> None:
        spark.sql(f"REORG TABLE {name} APPLY (PURGE)").collect()

    def former_files(self, spark: SparkSession, name: str) -> int:
        # Delta's transaction log has these bounds until its entries expire, which no statement can hasten.
        return 0

    def check_versions(self, spark: SparkSession, name: str) -> None:
        """Delta has no tags and branches."""

    def drop_versions(self, spark: SparkSession, name: str) -> None:
        with having(spark, {"spark.databricks.delta.retentionDurationCheck.enabled": "false"}):
            spark.sql(f"VACUUM {name} RETAIN 0 HOURS").collect()

    def former_state(self, spark: SparkSession, name: str, version: str) -> str:
        history = spark.sql(f"DESCRIBE HISTORY {name}").filter(f"version = {int(version)}")
        return str(json.loads(history.select("userMetadata").collect()[0][0])[FORMER])

    def files(self, spark: SparkSession, name: str) -> tuple[str, set[str]]:
        location = str(spark.sql(f"DESCRIBE DETAIL {name}").collect()[0]["location"])
        return location, {path.rpartition("/")[2] for path in spark.table(name).inputFiles()}


FORMER: Final = state.PROPERTY
"""The name under which commits of a mirror without a log carry their state. It also stands for the parent of such a
commit, which is no version, so that the position of the commit counts as unknown."""

_UNKNOWN: Final = "unknown"
"""Stands for the parent of a commit whose position cannot be known from its parent."""

MOVED_ON: Final = "cdcd: another commit came first"
"""What the guard says."""

_NEWEST: Final = 20
"""Number of versions that are read first to find the position."""

READS_TWICE: Final = {
    # The source of a fold gives the same rows each time: it is kept in memory, and read again from the log otherwise.
    "spark.databricks.delta.merge.materializeSource": "none",
    "spark.databricks.delta.merge.failSourceCachedAfterMaterialization": "false",
}

"""Settings of Spark under which a MERGE of Delta does not write its source to disk first."""

_DELTA_FEATURES: Final = {
    "timestamp_ntz": ("delta.feature.timestampNtz", "supported"),
    " TYPE ": ("delta.enableTypeWidening", "true"),
}
"""Properties that a table must have before a change with this word."""


@contextmanager
def _named(name: str, settings: AbstractContextManager[None]) -> Iterator[str]:
    with settings:
        yield name


def _carried(said: str | None) -> Carried | None:
    if said is None:
        return None
    try:
        return Carried.from_json(said)
    except ValueError:
        return None


def _parent(version: str, is_former: bool) -> str:
    """The parent of a commit. A commit of a mirror without a log has no position that can be read from its parent."""
    return FORMER if is_former else version


def former_version(there: Version) -> str | None:
    """The newest ancestor that a mirror without a log has committed. None: there is none, or a fold came after it."""
    version: str | None = there.pin
    while version is not None and (node := there.nodes.get(version)) is not None:
        if node.parent == FORMER:
            return version
        version = None if node.carried is not None else node.parent
    return None


def _iceberg_node(parent: int | None, said: str | None, is_former: bool, is_empty: bool | None) -> Node:
    """Return the commit of a snapshot.

    Args:
        said: the position that the summary of the snapshot carries, as text; None: the snapshot carries none.
        is_empty: True if the table has no rows at the snapshot; None: not known.
    """
    carried = _carried(said)
    # An owner who replaces the table begins it with another first snapshot.
    first = NO_VERSION if carried is not None or is_empty else _UNKNOWN
    return Node(_parent(first if parent is None else str(parent), is_former), carried)


def _delta_node(row: Any) -> Node:
    version, said = row["version"], row["userMetadata"]
    parameters = row["operationParameters"] or {}
    if row["operation"] == "RESTORE":
        # A RESTORE to a time names no version, so its position is not known.
        return Node(parameters.get("version") or _UNKNOWN)
    try:
        metadata = {} if said is None else dict(json.loads(said))
    except (ValueError, TypeError):
        metadata = {}
    parent = _parent(str(version - 1) if version else NO_VERSION, FORMER in metadata)
    return Node(parent, _carried(metadata.get(PROPERTY)))


def base_of(table_format: str, given: Mapping[str, str] | None = None) -> BaseFormat:
    """Return the operations of tables in this format. `given`: further properties of tables that are made."""
    return DeltaBase(given) if table_format == DELTA else IcebergBase(given)


def check_made(spark: SparkSession, name: str, table: str, kind: str = BASE) -> dict[str, str]:
    """Return the properties of a table of this kind that a fold made. OtherMakerError: something else made it."""
    try:
        found = properties(spark, name)
    except AnalysisException as error:
        raise SinkError(
            f"{table}: {name} is no table that a fold can change: {condition(error)}.",
            hint=f"Drop or rename {name}, or give target.namespace another value.",
        ) from error
    if (made_by := found.get(MADE_BY)) != kind:
        if kind in {GIVEN, GIVEN_CHANGES}:
            raise OtherMakerError(
                f"{table}: something else than apply_changes or load_snapshot made the table {name}, or the source "
                "table had a key then and has none now, or the other way round.",
                hint=f"Drop or rename {name}, or give the target another catalog, namespace or path.",
            )
        if {made_by, kind} == {BASE, CHANGES}:
            what = f"has a key now, and {name} is its changelog from before"
            if kind == CHANGES:
                what = f"has no key any more, so it gets a changelog, and {name} is its mirror from before"
            raise OtherMakerError(
                f"{table}: the table {what}.",
                hint=f"Rename or drop {name}: the next fold makes the new table from the log.",
            )
        also = (
            " If a mirror without a log made the table, run cdcd mirror --once, which takes the table over."
        )
        raise OtherMakerError(
            f"{table}: something else than a fold made the table {name}.",
            hint=f"Drop or rename {name}, or give target.namespace another value.{'' if kind == STATES else also}",
        )
    return found
