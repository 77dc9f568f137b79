"""Maintenance of folded tables: few files and versions, and the next fold continues at the position."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cdcd.mirror.base.branches import drop_tags, tag_version
from cdcd.mirror.base.upkeep import BaseUpkeep
from cdcd.mirror.jars import DELTA, ICEBERG
from cdcd.mirror.kafka import KafkaSource
from cdcd.mirror.settings import MirrorSettings
from cdcd.mirror.targets.delta import DeltaTarget
from cdcd.mirror.targets.iceberg import IcebergTarget
from cdcd.mirror.targets.pinned import Tag
from cdcd.mirror.targets.target import Maintenance
from cdcd.mirror.watching.progress import Fact, TableFailed, TableMaintained
from tests.spark.base_model import Lake, expected
from tests.spark.source_model import Source


@pytest.mark.parametrize("table_format", [ICEBERG, DELTA])
def test_maintenance_joins_files_and_expires_versions_and_folds_continue(
    spark: SparkSession, tmp_path: Path, unique: str, table_format: str
) -> None:
    lake = Lake(spark, str(tmp_path), unique, table_format)
    # GIVEN a table with a commit and files of each fold
    source, folds = Source(11, truncates=False), 6
    for _ in range(folds):
        source.run(4)
        lake.write(source)
        lake.fold(source.lsn)
    before = lake.format.version(spark, lake.table)
    facts: list[Fact] = []
    target = DeltaTarget(str(tmp_path)) if table_format == DELTA else IcebergTarget("lake", unique)
    policy = Maintenance(keep_s=0, keep_versions=1, versions_max=2, small_files_min=2)
    settings = MirrorSettings(
        "m", KafkaSource("nowhere:1"), "m", "m.schemas", "m.checkpoint", "", maintenance=policy
    )
    upkeep = BaseUpkeep(spark, settings, lake.format, target, facts.append)
    # WHEN it is maintained
    assert upkeep.is_due()
    assert upkeep.round([lake.table], [lake.table], None) == set()
    # THEN it has few files and versions, and the same rows and position
    assert [fact for fact in facts if isinstance(fact, TableFailed)] == []
    (done,) = [fact for fact in facts if isinstance(fact, TableMaintained)]
    assert done.compacted_files > done.written_files
    if table_format == ICEBERG:
        assert done.expired_versions >= folds - 1
        assert spark.table(f"{lake.table}.snapshots").count() <= 2
    assert lake.rows() == expected(source, source.lsn)
    after = lake.format.version(spark, lake.table)
    assert (after.pin, after.position) != (before.pin, None)
    assert after.position == before.position
    # AND folds continue, and a round without changes does nothing
    source.run(4)
    lake.write(source)
    lake.fold(source.lsn)
    assert lake.rows() == expected(source, source.lsn)
    facts.clear()
    assert upkeep.round([], [lake.table], None) == set()
    assert facts == []


def test_a_version_is_read_by_its_tag_until_its_point_is_no_longer_listed(
    spark: SparkSession, tmp_path: Path, unique: str
) -> None:
    lake, source = Lake(spark, str(tmp_path), unique, ICEBERG), Source(12)
    tags: list[Tag] = []

    def names() -> set[str]:
        return {row["name"] for row in spark.table(f"{lake.table}.refs").collect()} - {"main"}

    # GIVEN two points with tags, and a tag of the owner's
    for _ in range(2):
        source.run(6)
        lake.write(source)
        done = lake.fold(source.lsn)
        tags.append(Tag(source.lsn, 0))
        tag_version(spark, lake.table, int(done.version), tags[-1])
        tag_version(spark, lake.table, int(done.version), tags[-1])
    spark.sql(f"ALTER TABLE {lake.table} CREATE TAG mine")
    # WHEN the table changes, THEN each tag has the rows of its point
    source.run(6)
    lake.write(source)
    done = lake.fold(source.lsn)
    for tag in tags:
        assert lake.rows(f"'{tag.name}'") == expected(source, tag.commit_lsn)
    # WHEN the first point is no longer listed, THEN its tag goes, and the others stay
    newest = Tag(source.lsn, tags[1].commit_lsn)
    tag_version(spark, lake.table, int(done.version), newest)
    assert names() == {tags[1].name, newest.name, "mine"}
    assert drop_tags(spark, lake.table, source.lsn) == {newest.name, "mine"}
    assert names() == {newest.name, "mine"}
    assert lake.rows() == expected(source, source.lsn)
