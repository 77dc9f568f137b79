"""The consistent point of a round of folds: the versions of all tables that the round has brought to its bound.

A version is part of the point only if it was found to equal the source at the bound: its commit followed the version
that its fold had read. A point that says nothing new is not listed, so a source without changes costs no commit.
"""

from collections.abc import Collection

from pyspark.sql import SparkSession

from cdcd.mirror.base.branches import tag_version
from cdcd.mirror.base.points import Point, Points
from cdcd.mirror.targets.pinned import Tag
from cdcd.mirror.targets.target import Target
from cdcd.mirror.watching.progress import Observer, SetChanged, TableFailed, first_lines


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
        """The tables that the last point lacked, as far as it was told."""

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
