"""The points of a consistent mirror: commit LSNs at which all tables agree, with the version of each table there.

The rule: a point is listed after all of its tables are there, in one commit that has the LSN and the versions. A
process that is killed before that commit leaves versions, and perhaps tags, that no point names. They go as old ones
do.

The time of a point is taken before the first of its versions is looked up. So whatever took the place of a version,
took it after that time, and maintenance that keeps what was there at that time keeps the version.

A version is part of a point only if it was found to equal the source at the bound of the round: its commit followed the
version that its fold had read. A point that says nothing new is not listed, so an idle source costs no commit.
"""

import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from cdcd.core.protocol.lsn import Lsn
from cdcd.mirror.base.branches import tag_version
from cdcd.mirror.platform.tables import exists
from cdcd.mirror.targets.pinned import CONTROL, Pinned, Tag
from cdcd.mirror.targets.target import Target
from cdcd.mirror.watching.progress import Observer, SetChanged, TableFailed, first_lines

_NO_POINT: Final = sys.maxsize
"""Stands for the LSN of the oldest point if no point is listed and none will be: then all tags go."""


@dataclass(frozen=True, slots=True)
class Point:
    """A point that is being made. `tag`: what its versions are tagged with; None: no tag is due."""

    commit_lsn: int
    at: datetime
    tag: Tag | None


class Points:
    """Makes points: `begin`, then the versions of all tables, then `list_`.

    Args:
        tag_interval_s: least time from one point with tags to the next, in seconds; None: points have no tags.
    """

    def __init__(self, spark: SparkSession, target: Target, tag_interval_s: float | None) -> None:
        self._spark = spark
        self._target = target
        self._tag_interval_s = tag_interval_s

    def begin(self, commit_lsn: int) -> Point:
        """Begin a point, before the versions of its tables are looked up."""
        now = datetime.now(UTC)
        return Point(commit_lsn, now, self._tag(commit_lsn, now.timestamp()))

    def _tag(self, commit_lsn: int, now: float) -> Tag | None:
        if self._tag_interval_s is None:
            return None
        name = self._target.own_name(CONTROL)
        if not exists(self._spark, name):
            return Tag(commit_lsn, 0)
        points = self._spark.table(name)
        tagged = sf.col("tag").isNotNull() if "tag" in points.columns else sf.lit(False)
        found = points.agg(
            sf.min("commit_lsn").alias("since"),
            sf.max(sf.when(tagged, sf.unix_micros("at"))).alias("tagged_us"),
        ).head()
        assert found is not None, "an aggregate has one row"
        return due_tag(commit_lsn, found["since"] or 0, found["tagged_us"], now, self._tag_interval_s)

    def is_newest(self, without: Sequence[str], versions: Mapping[str, int]) -> bool:
        """True if the newest point has these tables in `without` and these versions, so a further one says nothing."""
        name = self._target.own_name(CONTROL)
        if not exists(self._spark, name):
            return False
        points = self._spark.table(name)
        if "versions" not in points.columns:
            # A former version listed the point.
            return False
        newest = points.orderBy(sf.desc("commit_lsn")).select("without", "versions").head()
        return newest is not None and (newest["without"], newest["versions"]) == ([*without], {**versions})

    def list_(self, point: Point, batch_id: int, without: Sequence[str], versions: Mapping[str, int]) -> None:
        """List a point, whose tables are all there."""
        tag = None if point.tag is None else point.tag.name
        row = self._spark.range(1).select(
            sf.lit(point.commit_lsn).cast("bigint").alias("commit_lsn"),
            sf.lit(str(Lsn(point.commit_lsn))).alias("lsn"),
            sf.lit(batch_id).cast("bigint").alias("batch_id"),
            sf.lit(point.at).cast("timestamp").alias("at"),
            sf.array(*map(sf.lit, without)).cast("array<string>").alias("without"),
            _map(versions).alias("versions"),
            sf.lit(tag).cast("string").alias("tag"),
        )
        self._target.append(self._target.own_name(CONTROL), row, ["commit_lsn"])


def _map(versions: Mapping[str, int]) -> Any:
    names, numbers = [sf.lit(name) for name in versions], [sf.lit(number) for number in versions.values()]
    return sf.map_from_arrays(
        sf.array(*names).cast("array<string>"), sf.array(*numbers).cast("array<bigint>")
    )


def due_tag(
    commit_lsn: int, since_lsn: int, tagged_us: int | None, now: float, interval_s: float
) -> Tag | None:
    """The tag of a point at `now`, if the last point with tags is old enough.

    Args:
        since_lsn: of the oldest point that is listed.
        tagged_us: when the last point with tags was made, in microseconds since 1970; None: there is none.
        now: seconds since 1970.
    """
    if tagged_us is not None and now - tagged_us / 1_000_000 < interval_s:
        return None
    return Tag(commit_lsn, since_lsn)


class RoundPoint:
    """Collects the versions of one round after the other, and lists a point for each.

    Args:
        target: names the tables.
        points: where points are listed.
        observe: gets facts.

    Attributes:
        versions: by `schema.table`, name in SQL and version of each table that this round has brought to its bound.
    """

    def __init__(self, spark: SparkSession, target: Target, points: Points, observe: Observer) -> None:
        self.versions: dict[str, tuple[str, int]] = {}
        self._spark = spark
        self._target = target
        self._points = points
        self._observe = observe
        self._point: Point | None = None
        self._without: tuple[str, ...] = ()
        """The tables that the last fact SetChanged named as missing from the points."""

    def begin(self, bound: int) -> None:
        """Begin a round, before its versions are looked up. `bound`: the LSN of the round."""
        self._point = self._points.begin(bound)
        self.versions.clear()

    def list_(self, number: int, tables: Collection[str]) -> None:
        """List the point with the versions of these tables (`schema.table`), unless the newest point has the same.

        Args:
            number: of the round.
        """
        point = self._point
        assert point is not None, "a round has begun"
        is_new = not self._points.is_newest(*self._there(tables))
        if is_new and point.tag is not None:
            self._tag(point.tag)
        without, versions = self._there(tables)
        if tuple(without) != self._without:
            self._without = tuple(without)
            self._observe(SetChanged(point.commit_lsn, self._without))
        if is_new and versions:
            self._points.list_(point, number, without, versions)

    def _there(self, tables: Collection[str]) -> tuple[list[str], dict[str, int]]:
        """The tables that this round has not brought to its bound, and the versions of the others by bare name."""
        versions = {self._target.bare_name(name): version for name, version in self.versions.values()}
        return sorted({*tables} - self.versions.keys()), versions

    def _tag(self, tag: Tag) -> None:
        """Give the versions of this round a tag. A version that cannot get the tag is left out of the point."""
        for table, (name, version) in list(self.versions.items()):
            try:
                tag_version(self._spark, name, version, tag)
            except Exception as error:  # noqa: BLE001  formats raise classes of Java, of which PySpark knows a part
                del self.versions[table]
                hint = (
                    "The point lists the table in `without`. The next point names the table's next version."
                )
                self._observe(TableFailed(table, f"tag {tag.name}: {first_lines(error)}", hint))


@dataclass(frozen=True, slots=True)
class Pins:
    """What the points that are listed need of all tables. `of` is a table's part of it.

    Attributes:
        since_lsn, since_us: as in `Pinned`.
        versions: as `Pinned.version`, by the name of a table without its catalog.
    """

    since_lsn: int
    since_us: int
    versions: Mapping[str, int] = field(default_factory=dict)

    def of(self, table: str) -> Pinned:
        """What the points need of the table with this name."""
        return Pinned(self.since_lsn, self.since_us, self.versions.get(table))


def look_up_pins(spark: SparkSession, target: Target, *, consistent: bool) -> Pins | None:
    """What the points need of the tables by now. None: points were never listed.

    Args:
        consistent: the mirror makes points. If none is listed, one may be about to be, so that all tags stay.
    """
    name = target.own_name(CONTROL)
    if not exists(spark, name):
        return None
    points = spark.table(name)
    found = points.agg(
        sf.min("commit_lsn").alias("since"), sf.min(sf.unix_micros("at")).alias("since_us")
    ).head()
    assert found is not None, "an aggregate has one row"
    if found["since"] is None:
        return Pins(0 if consistent else _NO_POINT, int(time.time() * 1_000_000))
    versions = {}
    if "versions" in points.columns:
        each = points.select("commit_lsn", sf.explode("versions").alias("name", "version"))
        oldest = each.groupBy("name").agg(sf.min_by("version", "commit_lsn").alias("version"))
        versions = {row["name"]: row["version"] for row in oldest.collect()}
    return Pins(found["since"], found["since_us"], versions)
