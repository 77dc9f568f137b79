"""Points over views: when tags are due, and what the points that are listed need."""

import sys
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from pyspark.sql import Row, SparkSession

from cdcd.mirror.base.points import Pins, Point, Points, due_tag, look_up_pins
from cdcd.mirror.targets.pinned import Pinned, Tag, listed_point
from tests.unit.mirror.targets.views import Views

AT = datetime(2026, 1, 1, tzinfo=UTC)
AT_US = int(AT.timestamp()) * 1_000_000


@pytest.fixture
def target(unique: str) -> Any:
    return Views(f"{unique}_")


@pytest.fixture
def unique(request: pytest.FixtureRequest) -> str:
    return f"points_{abs(hash(request.node.nodeid)):x}"


def test_a_tag_is_due_when_the_last_one_is_old_enough():
    assert due_tag(9, 4, None, 1000.0, 60) == Tag(9, 4)
    assert due_tag(9, 4, 940_000_001, 1000.0, 60) is None
    assert due_tag(9, 4, 940_000_000, 1000.0, 60) == Tag(9, 4)
    assert due_tag(9, 4, 1_000_000_000, 1000.0, 0) == Tag(9, 4)


def test_points_are_listed_with_the_versions_of_their_tables(spark: SparkSession, target: Any):
    points, control = Points(spark, target, 0), target.own_name("consistent")
    assert points.begin(7).tag == Tag(7, 0)
    assert look_up_pins(spark, target, consistent=True) is None
    assert not points.is_newest([], {})
    points.list_(Point(7, AT, None), 1, ["public.b"], {"public.a": 2**40})
    points.list_(Point(9, AT, Tag(9, 7)), 2, [], {"public.a": 2**41, "public.b": 5})
    # A point that is made again stays as it is.
    points.list_(Point(9, AT, None), 3, [], {})
    rows = spark.table(control).orderBy("commit_lsn").select("lsn", "batch_id", "without", "versions", "tag")
    assert [tuple(row) for row in rows.collect()] == [
        ("0/7", 1, ["public.b"], {"public.a": 2**40}, None),
        ("0/9", 2, [], {"public.a": 2**41, "public.b": 5}, "lsn-0-9"),
    ]
    # The newest point is the one with the greatest LSN, and is recognised by its tables and versions.
    assert points.is_newest([], {"public.b": 5, "public.a": 2**41})
    assert not points.is_newest(["public.b"], {"public.a": 2**40})
    assert not points.is_newest(["public.b"], {"public.b": 5, "public.a": 2**41})
    # THEN each table keeps what it was at the oldest point that has it
    pins = look_up_pins(spark, target, consistent=True)
    assert pins == Pins(7, AT_US, {"public.a": 2**40, "public.b": 5})
    assert (pins.of("public.a"), pins.of("public.c")) == (
        Pinned(7, AT_US, 2**40),
        Pinned(7, AT_US, None),
    )
    # AND the next tag knows from where on tags stay, and when the last one was put
    assert points.begin(11).tag == Tag(11, 7)
    assert Points(spark, target, 10**9).begin(11).tag is None
    assert Points(spark, target, None).begin(11).tag is None
    assert listed_point(spark, control, 7) == Row(versions={"public.a": 2**40}, without=["public.b"])
    assert listed_point(spark, control, 8) is None


def test_points_of_former_versions_keep_no_version(spark: SparkSession, target: Any):
    control = target.own_name("consistent")
    listed = spark.createDataFrame(
        [(7, AT, ["public.b"])], "commit_lsn bigint, at timestamp, without array<string>"
    )
    listed.createOrReplaceTempView(control)
    assert look_up_pins(spark, target, consistent=True) == Pins(7, AT_US)
    assert listed_point(spark, control, 7) is None
    assert not Points(spark, cast("Any", target), 0).is_newest(["public.b"], {})
    assert Points(spark, cast("Any", target), 10**9).begin(9).tag == Tag(9, 7)


@pytest.mark.parametrize(("consistent", "since_lsn"), [(True, 0), (False, sys.maxsize)])
def test_without_any_point_all_tags_go_unless_a_point_may_be_about_to_be_listed(
    spark: SparkSession, target: Any, consistent: bool, since_lsn: int
):
    spark.createDataFrame([], "commit_lsn bigint, at timestamp").createOrReplaceTempView(
        target.own_name("consistent")
    )
    pins = look_up_pins(spark, target, consistent=consistent)
    assert pins is not None
    assert (pins.since_lsn, pins.versions) == (since_lsn, {})
