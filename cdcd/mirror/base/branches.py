"""The position of a fold in Iceberg where a MERGE cannot carry it: before Spark 4.1, Iceberg has no setting for that.

The statement changes a branch of its own, which begins at the version that was pinned. A property of the table names
the position of the branch's snapshot. Then `fast_forward` makes this snapshot the current one, which fails if another
commit came first. The rule: the property is there before the snapshot is an ancestor of `main`, so no fold is ever
current without its position. A process that is killed leaves a branch that nobody reads.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from pyspark.sql import SparkSession

from cdcd.mirror.base.part import OvertakenError
from cdcd.mirror.base.position import NO_VERSION, PROPERTY, Carried, Node
from cdcd.mirror.platform.sql import catalog_of, quoted, text
from cdcd.mirror.targets.pinned import Tag, tagged_lsn

BRANCH: Final = "cdcd_fold_"
"""What the name of a fold's branch begins with."""

KEPT_MOST: Final = 100
"""Number of snapshots whose positions are properties. Each metadata file has all of them."""

_PREFIX: Final = f"{PROPERTY}."

_MIN_SPARK: Final = (4, 1)
"""The first Spark whose Iceberg has `spark.sql.iceberg.snapshot-property.*` (Iceberg 1.12)."""


def are_needed(spark: SparkSession) -> bool:
    """True if a MERGE cannot carry a position in this version of Spark."""
    return tuple([int(part) for part in spark.version.split(".")[:2]]) < _MIN_SPARK


def call(name: str, procedure: str) -> str:
    """The statement that calls a procedure of the catalog of the table `name` in SQL."""
    return f"CALL {catalog_of(name)}.system.{procedure}"


@contextmanager
def committing(spark: SparkSession, name: str, carried: Carried, has: Mapping[str, str]) -> Iterator[str]:
    """Give a name for SQL. What is written to it becomes the current version at the end, and carries the position.

    Args:
        has: properties of the table.

    Raises:
        Errors of Spark: another commit came first. The table is then unchanged.
    """
    pin, branch = carried.pin, f"{BRANCH}{carried.fold}"
    if pin == NO_VERSION:
        # A branch begins at a snapshot, and the fold must name it. So the next attempt pins this one.
        spark.sql(f"INSERT INTO {name} SELECT * FROM {name} WHERE false")
        raise OvertakenError(
            f"{name} had no snapshot.", hint="The next attempt begins at the snapshot of now."
        )
    spark.sql(f"ALTER TABLE {name} CREATE BRANCH {branch} AS OF VERSION {int(pin)} RETAIN 1 DAYS")
    try:
        yield f"{name}.branch_{branch}"
        head = _head(spark, name, branch)
        if head != pin:
            said = text(carried.to_json())
            spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('{_PREFIX}{head}' = '{said}')")
            to = f"table => '{text(name)}', branch => 'main', to => '{branch}'"
            spark.sql(call(name, f"fast_forward({to})")).collect()
    finally:
        spark.sql(f"ALTER TABLE {name} DROP BRANCH IF EXISTS {branch}")
    _forget(spark, name, has)


def drop_tags(spark: SparkSession, name: str, since_lsn: int) -> set[str]:
    """Drop the tags of consistent points from before an LSN. Return the names of the tags that the table has then."""
    tags = {row["name"] for row in spark.table(f"{name}.refs").filter("type = 'TAG'").collect()}
    gone = {tag for tag in tags if (lsn := tagged_lsn(tag)) is not None and lsn < since_lsn}
    for tag in sorted(gone):
        spark.sql(f"ALTER TABLE {name} DROP TAG {quoted(tag)}")
    return tags - gone


def tag_version(spark: SparkSession, name: str, version: int, tag: Tag) -> None:
    """Give a version the tag of a consistent point, and drop the tags of points that are not listed any more."""
    # A process that was killed may have made the tag. The version that it names is as of the same LSN.
    if tag.name not in drop_tags(spark, name, tag.since_lsn):
        spark.sql(f"ALTER TABLE {name} CREATE TAG {quoted(tag.name)} AS OF VERSION {version}")


def _head(spark: SparkSession, name: str, ref: str) -> str:
    return str(spark.sql(f"SELECT snapshot_id FROM {name}.refs WHERE name = '{ref}'").collect()[0][0])


def _forget(spark: SparkSession, name: str, has: Mapping[str, str]) -> None:
    """Remove the oldest positions, so that metadata files stay small."""
    lsns = {key: said.lsn for key, said in _said(has).items()}
    old = sorted(lsns, key=lsns.__getitem__)[: max(0, len(lsns) + 1 - KEPT_MOST)]
    if old:
        keys = ", ".join([f"'{_PREFIX}{snapshot}'" for snapshot in old])
        spark.sql(f"ALTER TABLE {name} UNSET TBLPROPERTIES IF EXISTS ({keys})")


def _said(properties: Mapping[str, str]) -> dict[str, Carried]:
    found = {}
    for key, value in properties.items():
        if key.startswith(_PREFIX):
            try:
                found[key.removeprefix(_PREFIX)] = Carried.from_json(value)
            except ValueError:
                continue
    return found


def with_positions(nodes: Mapping[str, Node], properties: Mapping[str, str]) -> dict[str, Node]:
    """The commits, with the positions that are properties. Such a position also counts if its commit is expired."""
    found = dict(nodes)
    for snapshot, carried in _said(properties).items():
        parent = found[snapshot].parent if snapshot in found else carried.pin
        found[snapshot] = Node(parent, carried)
    return found
