"""What all formats have alike by nature."""

from types import SimpleNamespace
from typing import Any

from tests.unit.mirror.targets.test_lakehouse import FakeFormat, FakeSpark


def session(uuid: str) -> Any:
    return SimpleNamespace(_jsparkSession=SimpleNamespace(sessionUUID=lambda: uuid))


def test_of_one_session_one_commit_is_made_at_a_time():
    tables = FakeFormat()
    assert tables.committing(session("one")) is tables.committing(session("one"))
    assert tables.committing(session("one")) is not tables.committing(session("two"))


def test_a_column_is_added_under_whatever_name():
    spark: Any = FakeSpark()
    FakeFormat().add(spark, "t", "it`s", "bigint")
    assert spark.said == ["ALTER TABLE t ADD COLUMN `it``s` bigint"]
