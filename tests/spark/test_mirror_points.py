"""Points of a consistent mirror in plain SQL: by the version that is listed, and in Iceberg by a tag."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from pyiceberg.table import StaticTable
from pyspark.sql import Row, SparkSession

from cdcd.core.errors import PositionError
from cdcd.mirror.jars import DELTA, ICEBERG
from cdcd.mirror.records.schema import TableSchema
from cdcd.mirror.targets.target import Kind
from cdcd.mirror.watching.progress import TableFailed
from tests.spark.jobs import Job
from tests.spark.stage import Source, Stage

TABLES = ("one", "two", "idle")
FORMATS = pytest.mark.parametrize("table_format", [ICEBERG, DELTA])
Content = dict[str, list[tuple[Any, ...]]]


@pytest.fixture
def source(stage: Stage, request: pytest.FixtureRequest) -> Iterator[Source]:
    name = f"p{abs(hash(request.node.nodeid)) % 10**8}"
    tables = [f"CREATE TABLE {table} (id int PRIMARY KEY, n int)" for table in TABLES]
    with stage.source(name, *tables, partitions=2) as made:
        yield made


class Lake:
    """A consistent mirror, what its source was at each point, and its tables as SQL has them."""

    def __init__(self, spark: SparkSession, source: Source, place: Path, table_format: str) -> None:
        self.job = Job(spark, source, place, table_format)
        self.had: dict[int, Content] = {}
        self._spark, self._source, self._place = spark, source, place
        self.has_tags = table_format == ICEBERG

    def change(self, number: int) -> None:
        """One transaction over two tables, another one in the first of them."""
        self._source.execute(
            f"INSERT INTO one VALUES ({number}, {number}); INSERT INTO two VALUES ({number}, {number});"
            " UPDATE one SET n = n + 1"
        )
        self._source.execute("UPDATE one SET n = n * 2")
        self._source.deliver()

    def point(self, **sections: Any) -> Row:
        """Mirror up to now; the point of it."""
        stopped = self.job.once(**self.consistent(), **sections)
        assert (stopped, self.job.all(TableFailed)) == ({}, [])
        point = self.job.points()[0]
        self.had[point["commit_lsn"]] = self.content()
        return point

    def consistent(self, tag_interval_s: float | None = 0) -> dict[str, Any]:
        tags = {"tag_interval_s": tag_interval_s} if self.has_tags else {}
        return {"batches": {"interval_s": 0, "consistent": True, **tags}}

    def content(self) -> Content:
        with self._source.connect() as connection:
            return {
                table: connection.execute(f"SELECT id, n FROM {table} ORDER BY id").fetchall()
                for table in TABLES
            }

    def name(self, table: str) -> str:
        return self.job.target.name_of(TableSchema("", "public", table, "", ("id",), ()), Kind.MIRROR)

    def bare(self, table: str) -> str:
        return self.job.target.bare_name(self.name(table))

    def by_versions(self, point: Row) -> Content:
        return self._read({table: str(point["versions"][self.bare(table)]) for table in TABLES})

    def by_tag(self, point: Row) -> Content:
        return self._read(dict.fromkeys(TABLES, f"'{point['tag']}'"))

    def _read(self, versions: dict[str, str]) -> Content:
        return {
            table: [
                tuple(row)
                for row in self._spark.sql(
                    f"SELECT id, n FROM {self.name(table)} VERSION AS OF {version} ORDER BY id"
                ).collect()
            ]
            for table, version in versions.items()
        }

    def by_others(self, point: Row, warehouse: Path) -> Content:
        """By PyIceberg, which takes the tag, or by delta-rs, which takes the version."""
        found: Content = {}
        for table in TABLES:
            if self.has_tags:
                folder = warehouse / "iceberg" / self._source.name / f"public_{table}"
                number = (folder / "metadata" / "version-hint.text").read_text().strip()
                opened = StaticTable.from_metadata(str(folder / "metadata" / f"v{number}.metadata.json"))
                rows = opened.scan().use_ref(point["tag"]).to_arrow().to_pylist()
            else:
                path = str(self._place / "public" / table)
                at = DeltaTable(path, version=point["versions"][self.bare(table)])
                query = QueryBuilder().register("t", at).execute("SELECT id, n FROM t")
                rows = pa.table(query.read_all()).to_pylist()
            found[table] = sorted((row["id"], row["n"]) for row in rows)
        return found

    def check(self, points: list[Row]) -> None:
        """Each of the points is what the source was."""
        for point in points:
            want = self.had[point["commit_lsn"]]
            assert self.by_versions(point) == want
            if self.has_tags:
                assert self.by_tag(point) == want

    def tags(self, table: str) -> set[str]:
        refs = self._spark.sql(f"SELECT name FROM {self.name(table)}.refs WHERE type = 'TAG'")
        return {row["name"] for row in refs.collect()}


@FORMATS
def test_each_point_is_read_by_any_engine_in_tables_that_changed_and_in_those_that_did_not(
    source: Source, spark: SparkSession, warehouse: Path, tmp_path: Path, table_format: str
) -> None:
    lake = Lake(spark, source, tmp_path, table_format)
    # GIVEN tables that were mirrored without points, of which one never changes again
    source.execute("INSERT INTO idle VALUES (1, 1)")
    lake.change(0)
    assert lake.job.once() == {}
    # WHEN points are made
    for number in (1, 2):
        lake.change(number)
        lake.point()
    # THEN SQL reads each of them
    points = lake.job.points()
    assert len(points) >= 2
    mine = [point for point in points if point["commit_lsn"] in lake.had]
    lake.check(mine)
    # AND so do other readers
    for point in mine:
        assert lake.by_others(point, warehouse) == lake.had[point["commit_lsn"]]
    # AND Python, with the table that had its last change before the first point
    for point in mine:
        rows = lake.job.target.read(spark, lake.name("idle"), point["commit_lsn"]).select("id", "n")
        assert [tuple(row) for row in rows.collect()] == [(1, 1)]
    # AND a run that finds nothing new adds none, and changes no table
    before = {table: lake.tags(table) for table in TABLES} if lake.has_tags else None
    lake.point()
    assert lake.job.points() == points
    assert before is None or {table: lake.tags(table) for table in TABLES} == before


@FORMATS
def test_what_a_listed_point_needs_stays_and_what_no_point_needs_goes(
    source: Source, spark: SparkSession, tmp_path: Path, table_format: str
) -> None:
    lake = Lake(spark, source, tmp_path, table_format)
    often = {"interval_s": 3600, "keep_s": 0, "keep_versions": 2, "small_files_min": 2}
    source.execute("INSERT INTO idle VALUES (1, 1)")
    # GIVEN maintenance after each point, which keeps nothing for its age
    for number in range(4):
        lake.change(number)
        lake.point(maintenance=often)
    # THEN the last two points are listed, and SQL reads them
    points = lake.job.points()
    assert len(points) == 2
    lake.check(points)
    if lake.has_tags:
        # AND no table has other tags, not even one that has not changed since
        for table in ("one", "two"):
            assert lake.tags(table) == {point["tag"] for point in points}
        assert len(lake.tags("idle")) <= 3
        snapshots = spark.sql(f"SELECT * FROM {lake.name('one')}.snapshots").count()
        assert snapshots <= 8
    # WHEN the mirror makes no more points, THEN the last ones stay
    lake.change(9)
    lake.job.once(maintenance=often)
    assert lake.job.all(TableFailed) == []
    assert lake.job.points() == points
    lake.check(points)


@FORMATS
def test_a_point_is_listed_when_all_of_its_tables_are_there(
    source: Source, spark: SparkSession, tmp_path: Path, table_format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(spark, source, tmp_path, table_format)
    source.execute("INSERT INTO idle VALUES (1, 1)")
    lake.change(1)
    first = lake.point()
    lake.change(2)

    # WHEN a mirror ends after the commits of the tables, and before the point is listed
    class KilledError(Exception):
        pass

    def die(*_: Any) -> None:
        raise KilledError("KilledError")

    mirror = lake.job.mirror(**lake.consistent())
    monkeypatch.setattr(mirror._point, "list_", die)
    with pytest.raises(Exception, match="KilledError"):
        mirror.run(once=True, stop=threading.Event())
    # THEN the point is not listed, and the one before is as it was
    assert lake.job.points() == [first]
    lake.check([first])
    # AND the next run lists it, or a later one, and nothing is left out
    again = lake.point()
    assert again["commit_lsn"] > first["commit_lsn"]
    lake.check(lake.job.points())


def test_points_get_tags_no_more_often_than_they_are_asked_for(
    source: Source, spark: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(spark, source, tmp_path, ICEBERG)
    source.execute("INSERT INTO idle VALUES (1, 1)")
    for number in range(2):
        lake.change(number)
        # Each run is another process's: the last tag is known from the table.
        lake.job.once(**lake.consistent(3600))
    *later, first = lake.job.points()
    assert first["tag"] is not None
    assert [point["tag"] for point in later] == [None]
    assert [lake.tags(table) for table in TABLES] == [{first["tag"]}] * 3


@FORMATS
def test_a_point_without_a_table_lists_no_version_of_it(
    source: Source, spark: SparkSession, tmp_path: Path, table_format: str
) -> None:
    lake = Lake(spark, source, tmp_path, table_format)
    source.execute("INSERT INTO idle VALUES (1, 1)")
    lake.change(1)
    before = lake.point()
    # WHEN a table stops
    source.execute("ALTER TABLE two ALTER n TYPE text")
    source.execute("INSERT INTO two VALUES (7, 'seven')")
    source.execute("INSERT INTO one VALUES (7, 7)")
    source.deliver()
    stopped = lake.job.once(**lake.consistent(), tables={"on_incompatible": "stop"})
    assert list(stopped) == ["public.two"]
    # THEN the point says so, has no version of it, and reads it by no other one
    point = lake.job.points()[0]
    assert point["without"] == ["public.two"]
    assert set(point["versions"]) == {lake.bare("one"), lake.bare("idle")}
    with pytest.raises(PositionError, match="is not as of LSN"):
        lake.job.target.read(spark, lake.name("two"), point["commit_lsn"])
    if lake.has_tags:
        assert point["tag"] in lake.tags("one")
        assert point["tag"] not in lake.tags("two")
    # WHEN it is read again, THEN the point from before still has what it was
    lake.job.load(["public.two"])
    lake.check([before])
