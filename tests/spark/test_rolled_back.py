"""The owner of a mirror's table rolls it back or restores it: the mirror finds out, and reads later changes again."""

import pytest
from pyspark.sql import SparkSession

from cdcd.core.errors import PositionError
from cdcd.mirror.jars import DELTA
from cdcd.mirror.targets.lakehouse import Lakehouse
from cdcd.mirror.targets.state import RolledBackError
from cdcd.mirror.targets.target import Kind, Maintenance
from tests.spark.conftest import MakeTarget
from tests.spark.source_model import frame
from tests.spark.test_target_tables import FORM, change, rows, start

KINDS = pytest.mark.parametrize("kind", [Kind.MIRROR, Kind.CHANGELOG])


def roll_back(spark: SparkSession, target: Lakehouse, name: str, version: int | None) -> None:
    """Do what the owner of a table does."""
    if target.format == DELTA:
        spark.sql(f"RESTORE TABLE {name} TO VERSION AS OF {version}")
    else:
        table = name.partition(".")[2].replace("`", "")
        spark.sql(f"CALL lake.system.rollback_to_snapshot('{table}', {version})")


@KINDS
def test_a_table_that_was_rolled_back_gets_the_later_changes_again(
    spark: SparkSession, make_target: MakeTarget, kind: Kind
):
    # GIVEN a table with two commits, which its owner rolls back to the first one while the mirror runs
    target = make_target()
    name = start(spark, target, kind=kind)
    target.apply(name, frame(spark, [change("c", 10, (1, 1, "a"))], FORM))
    first = target.pin(spark, name)
    target.apply(name, frame(spark, [change("c", 20, (2, 2, "b"))], FORM))
    roll_back(spark, target, name, first)
    assert rows(spark, name, "id") == [(1,)]
    # WHEN the next batch comes, THEN nothing is committed
    later = frame(spark, [change("c", 30, (3, 3, "c"))], FORM)
    with pytest.raises(RolledBackError, match="was rolled back or restored"):
        target.apply(name, later)
    assert rows(spark, name, "id") == [(1,)]
    # AND this process and a new one know the position that the rows have
    assert target.reached(spark, name).commit_lsn == 10
    assert make_target().reached(spark, name).commit_lsn == 10
    # AND the topic from there on makes the table whole
    target.apply(name, frame(spark, [change("c", 20, (2, 2, "b")), change("c", 30, (3, 3, "c"))], FORM))
    assert rows(spark, name, "id") == [(1,), (2,), (3,)]
    assert make_target().reached(spark, name).commit_lsn == 30


def test_a_table_without_changes_that_was_rolled_back_is_found_by_its_maintenance(
    spark: SparkSession, make_target: MakeTarget
):
    target = make_target()
    name = start(spark, target)
    target.apply(name, frame(spark, [change("c", 10, (1, 1, "a"))], FORM))
    first = target.pin(spark, name)
    target.apply(name, frame(spark, [change("c", 20, (2, 2, "b"))], FORM))
    roll_back(spark, target, name, first)
    with pytest.raises(RolledBackError):
        target.check_newest(spark, name)
    # The commits of a maintenance would carry a position that the rows do not have.
    with pytest.raises(RolledBackError):
        target.maintain(spark, name, Maintenance())
    target.forget(name)
    target.check_newest(spark, name)
    assert target.reached(spark, name).commit_lsn == 10


def test_a_table_that_was_restored_twice_has_the_position_of_the_version_that_is_there(
    spark: SparkSession, make_target: MakeTarget
):
    target = make_target()
    name = start(spark, target)
    versions = []
    for number in (1, 2, 3):
        target.apply(name, frame(spark, [change("c", 10 * number, (number, number, "a"))], FORM))
        versions.append(target.pin(spark, name))
    for number in (1, 2):
        roll_back(spark, target, name, versions[number - 1])
        assert len(rows(spark, name, "id")) == number
        assert make_target().reached(spark, name).commit_lsn == 10 * number


def test_a_delta_table_that_was_restored_to_a_time_is_refused_with_a_way_on(
    spark: SparkSession, make_target: MakeTarget
):
    target = make_target()
    if target.format != DELTA:
        pytest.skip("Iceberg's snapshots name their parents")
    name = start(spark, target)
    target.apply(name, frame(spark, [change("c", 10, (1, 1, "a"))], FORM))
    version = target.pin(spark, name)
    target.apply(name, frame(spark, [change("c", 20, (2, 2, "b"))], FORM))
    history = spark.sql(f"DESCRIBE HISTORY {name}").where(f"version = {version}").head()
    assert history is not None
    spark.sql(f"RESTORE TABLE {name} TO TIMESTAMP AS OF '{history.timestamp}'")
    with pytest.raises(PositionError, match="was restored to a time") as refused:
        make_target().reached(spark, name)
    assert f"RESTORE TABLE {name} TO VERSION AS OF <version>" in refused.value.hint
    # WHEN the owner does what the hint says, THEN the mirror goes on
    spark.sql(f"RESTORE TABLE {name} TO VERSION AS OF {version}")
    assert make_target().reached(spark, name).commit_lsn == 10


BRANCHES = {
    "set_current_snapshot": ["CALL lake.system.set_current_snapshot('{table}', {first})"],
    "rollback_to_timestamp": ["CALL lake.system.rollback_to_timestamp('{table}', TIMESTAMP '{time}')"],
    "another branch": [
        "ALTER TABLE lake.{table} CREATE BRANCH ahead AS OF VERSION {second}",
        "CALL lake.system.rollback_to_snapshot('{table}', {first})",
        "ALTER TABLE lake.{table} REPLACE BRANCH main AS OF VERSION {first}",
    ],
}
"""Ways to bring a table of Iceberg back to a former version, beside `rollback_to_snapshot`."""


@pytest.mark.parametrize("way", BRANCHES)
def test_whatever_moves_the_branch_of_an_iceberg_table_is_found(
    spark: SparkSession, make_target: MakeTarget, way: str
):
    target = make_target()
    if target.format == DELTA:
        pytest.skip("Delta has no branches")
    name = start(spark, target)
    versions = []
    for number in (1, 2):
        target.apply(name, frame(spark, [change("c", 10 * number, (number, number, "a"))], FORM))
        versions.append(target.pin(spark, name))
    table = name.partition(".")[2].replace("`", "")
    second = spark.sql(f"SELECT made_current_at FROM {name}.history ORDER BY made_current_at DESC").head()
    assert second is not None
    for statement in BRANCHES[way]:
        spark.sql(statement.format(table=table, first=versions[0], second=versions[1], time=second[0]))
    assert rows(spark, name, "id") == [(1,)]
    with pytest.raises(RolledBackError):
        target.apply(name, frame(spark, [change("c", 30, (3, 3, "c"))], FORM))
    for each in (target, make_target()):
        assert each.reached(spark, name).commit_lsn == 10
    if way != "another branch":
        return
    # WHEN the branch goes forward again under a mirror that knows the former version, THEN that is found too
    spark.sql(f"CALL lake.system.fast_forward('{table}', 'main', 'ahead')")
    with pytest.raises(RolledBackError):
        target.apply(name, frame(spark, [change("c", 20, (2, 2, "b"))], FORM))
    assert target.reached(spark, name).commit_lsn == 20
    target.apply(name, frame(spark, [change("c", 30, (3, 3, "c"))], FORM))
    assert rows(spark, name, "id") == [(1,), (2,), (3,)]


def test_a_table_without_any_version_that_has_a_position_stops_with_a_way_on(
    spark: SparkSession, make_target: MakeTarget
):
    target = make_target()
    if target.format == DELTA:
        pytest.skip("Delta's history ends with the files of its log, which tests cannot wait for")
    name = start(spark, target)
    for number in (1, 2):
        target.apply(name, frame(spark, [change("c", 10 * number, (number, number, "a"))], FORM))
    # GIVEN an owner whose program compacts the table, and lets go of all other versions
    table = name.partition(".")[2].replace("`", "")
    spark.sql(
        f"CALL lake.system.rewrite_data_files(table => '{table}', options => map('rewrite-all', 'true'))"
    )
    spark.sql(
        f"CALL lake.system.expire_snapshots(table => '{table}', retain_last => 1,"
        " older_than => TIMESTAMP '2100-01-01')"
    )
    # THEN neither the mirror that runs nor a new one takes the table for empty
    with pytest.raises(RolledBackError):
        target.apply(name, frame(spark, [change("c", 30, (3, 3, "c"))], FORM))
    for each in (target, make_target()):
        each.forget(name)
        with pytest.raises(PositionError, match="says how far it has come is left") as caught:
            each.reached(spark, name)
        assert "--snapshot public.items" in caught.value.hint
    assert rows(spark, name, "id") == [(1,), (2,)]
