"""Folded tables that are written again in another layout have the same rows, and folds continue."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cdcd.core.errors import ConfigError, SinkError
from cdcd.mirror.base.columns import present
from cdcd.mirror.base.position import Carried
from cdcd.mirror.base.relayout import relayout
from cdcd.mirror.base.replacing import replacing_of
from cdcd.mirror.jars import DELTA, ICEBERG
from cdcd.mirror.platform.tables import properties
from cdcd.mirror.targets.layout import PLAIN, Deletes, Layout
from cdcd.mirror.targets.partitions import Field
from cdcd.mirror.targets.target import LaidOut
from tests.spark.base_model import DOCS, Lake, as_row, expected, form_of
from tests.spark.source_model import Source

pytestmark = pytest.mark.timeout(2400)

FIELDS = (Field("n"), Field("id", "bucket", 4))
LAYOUTS = (
    Layout(fields=FIELDS),
    Layout(buckets=4, fields=FIELDS[:1], deletes=Deletes.MARK),
    Layout(buckets=2),
)


@pytest.fixture(params=[ICEBERG, DELTA])
def lake(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path, unique: str) -> Lake:
    return Lake(spark, str(tmp_path), unique, request.param)


def written_again(lake: Lake, layout: Layout, format_: Any = None) -> LaidOut:
    replacing = replacing_of(lake.table_format)
    return relayout(lake.spark, format_ or lake.format, replacing, lake.place(), lambda _: layout)


def live(lake: Lake, marks: bool) -> set[tuple[Any, ...]]:
    table = lake.spark.table(lake.table)
    rows = (
        (table.filter("NOT _cdcd_deleted") if marks else table).select("id", "n", "title", "body").collect()
    )
    assert len(rows) == len({row["id"] for row in rows}), "a key is there twice"
    return set(map(tuple, rows))


def test_a_table_that_is_written_again_follows_its_source(lake: Lake) -> None:
    source = Source(5, wanders=True)
    source.run(10)
    lake.write(source)
    lake.fold(source.lsn)
    lake.spark.sql(f"ALTER TABLE {lake.table} SET TBLPROPERTIES ('note' = 'mine')")
    if lake.table_format == ICEBERG:
        lake.spark.sql(f"ALTER TABLE {lake.table} WRITE ORDERED BY title")
    before = PLAIN
    for layout in LAYOUTS:
        then, position = source.lsn, lake.format.version(lake.spark, lake.table).position
        done = written_again(lake, layout)
        assert (done.before.fields, done.after.fields) == (before.fields, layout.fields)
        assert (done.before.buckets, done.after.buckets) == (before.buckets, layout.buckets)
        assert (done.before.marks, done.after.marks) == (before.marks, layout.marks)
        # The same layout again is no commit.
        pin = lake.format.version(lake.spark, lake.table).pin
        assert written_again(lake, layout).before == done.after
        assert lake.format.version(lake.spark, lake.table).pin == pin
        # It has the rows, the position, the numbers of its columns, and what its owner gave it.
        assert live(lake, layout.marks) == expected(source, then)
        assert position is not None
        assert lake.format.version(lake.spark, lake.table).position == replace(position, clean=False)
        columns = {each.name: each.number for each in present(lake.spark.table(lake.table).schema)}
        assert {name: columns[name] for name, *_ in DOCS} == {name: (16384, n) for name, n, _ in DOCS}
        has = properties(lake.spark, lake.table)
        assert has["note"] == "mine"
        assert (lake.table_format == ICEBERG) == has.get("sort-order", "").startswith("title")
        # Folds continue.
        source.run(6)
        lake.write(source)
        lake.fold(source.lsn, layout=layout)
        assert live(lake, layout.marks) == expected(source, source.lsn)
        before = layout
    # A column that gets another name is the same column.
    lake.forms["renamed"] = form_of("renamed", DOCS[0], ("number", 2, "int32"), *DOCS[2:])
    record = {"commit_lsn": source.lsn + 10, "event_no": 1, "partition": 0, "offset": 9000, "before": None}
    more = {**record, "schema_id": "renamed", "op": "c", "after": (77, 7, None, None), "key": (77,)}
    lake.append([as_row(more, ("id", "number", "title", "body"))])
    lake.fold(source.lsn + 10, layout=before)
    names = lake.spark.table(lake.table).columns
    assert "number" in names
    assert "n" not in names


def test_a_fold_that_commits_while_a_table_is_written_again_is_folded_again(lake: Lake) -> None:
    source = Source(7)
    source.run(8)
    lake.write(source)
    lake.fold(source.lsn)
    source.run(4)
    lake.write(source)

    class Overtaken:
        """The table format. Another process folds the table after its version was read and before the statement."""

        def __getattr__(self, name: str) -> Any:
            return getattr(lake.format, name)

        @contextmanager
        def carrying(self, spark: SparkSession, name: str, carried: Carried) -> Iterator[str]:
            lake.fold(source.lsn, spark=lake.spark.newSession())
            with lake.format.carrying(spark, name, carried) as to:
                yield to

    written_again(lake, LAYOUTS[0], Overtaken())
    lake.fold(source.lsn)
    assert lake.rows() == expected(source, source.lsn)


def test_a_table_that_cannot_be_written_again_is_refused_by_name(lake: Lake) -> None:
    source = Source(8)
    source.run(4)
    lake.write(source)
    lake.fold(source.lsn)
    with pytest.raises(ConfigError, match="which the table does not have"):
        written_again(lake, Layout(fields=(Field("nope"),)))
    if lake.table_format == DELTA:
        lake.spark.sql(f"ALTER TABLE {lake.table} SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')")
        with pytest.raises(ConfigError, match="change data feed"):
            written_again(lake, LAYOUTS[0])
    else:
        # If all commits with a position are gone, nothing says which rows the table has.
        lake.spark.sql(f"INSERT INTO {lake.table} SELECT * FROM {lake.table} WHERE false")
        now = lake.spark.sql("SELECT CAST(current_timestamp() AS string)").collect()[0][0]
        lake.spark.sql(
            f"CALL lake.system.expire_snapshots(table => '{lake.table.removeprefix('lake.')}', "
            f"older_than => TIMESTAMP '{now}', retain_last => 1)"
        )
        with pytest.raises(SinkError, match="cannot be written again"):
            written_again(lake, LAYOUTS[0])
    assert lake.rows() == expected(source, source.lsn)
