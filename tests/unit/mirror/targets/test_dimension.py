"""States between commits, from changelogs that are written down here; in a real Spark."""

import datetime as dt
from typing import Any

from pyspark.sql import SparkSession

from cdcd.mirror.targets.changelog import columns
from cdcd.mirror.targets.dimension import scd2
from tests.spark.source_model import EPOCH, FORM

TYPE = (
    "_cdcd_op string, _cdcd_commit_lsn bigint, _cdcd_event_no bigint, _cdcd_commit_time timestamp,"
    " _cdcd_unchanged array<string>, id bigint, n int, title string, body string"
)


def entry(op: str, lsn: int, key: int | None, n: int | None = 0, **more: Any) -> tuple[Any, ...]:
    values = {
        "_cdcd_op": op,
        "_cdcd_commit_lsn": lsn,
        "_cdcd_event_no": 1,
        "_cdcd_commit_time": EPOCH + dt.timedelta(seconds=lsn),
        "id": key,
        "n": n,
    }
    return tuple([(values | more).get(name.strip("`")) for name in columns(FORM)])


def states(spark: SparkSession, *entries: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    spark.createDataFrame(list(entries), TYPE).createOrReplaceTempView("changes_of_docs")
    found = spark.sql(scd2("changes_of_docs", FORM))
    assert found.columns == [
        "id", "n", "title", "body", "valid_from", "valid_to", "valid_from_lsn", "valid_to_lsn", "is_current",
    ]  # fmt: skip
    for row in found.collect():
        assert row["valid_from"].timestamp() == EPOCH.timestamp() + row["valid_from_lsn"]
        assert row["is_current"] == (row["valid_to"] is None) == (row["valid_to_lsn"] is None)
    shown = found.select("id", "n", "title", "valid_from_lsn", "valid_to_lsn").collect()
    return sorted([tuple(row) for row in shown], key=str)


def test_a_state_holds_until_the_next_change_of_its_key(spark: SparkSession):
    log = [entry("c", 10, 1, 1), entry("u", 20, 1, 2), entry("c", 20, 2, 7), entry("d", 30, 1, 2)]
    assert states(spark, *log) == [(1, 1, None, 10, 20), (1, 2, None, 20, 30), (2, 7, None, 20, None)]


def test_what_one_transaction_made_and_changed_again_was_never_a_state(spark: SparkSession):
    log = [
        entry("c", 10, 1, 1),
        entry("u", 10, 1, 2, _cdcd_event_no=2),
        entry("d", 10, 1, 2, _cdcd_event_no=3),
    ]
    assert states(spark, *log[:2]) == [(1, 2, None, 10, None)]
    assert states(spark, *log) == []


def test_a_truncate_ends_what_is_there_and_nothing_that_comes_after(spark: SparkSession):
    log = [
        entry("c", 10, 1, 1), entry("t", 20, None, None), entry("c", 20, 1, 2, _cdcd_event_no=2),
        entry("t", 30, None, None), entry("t", 40, None, None),
    ]  # fmt: skip
    assert states(spark, *log) == [(1, 1, None, 10, 20), (1, 2, None, 20, 30)]


def test_a_value_that_was_not_sent_is_the_rows_own_and_no_former_rows(spark: SparkSession):
    unsent: dict[str, Any] = {"_cdcd_unchanged": ["title"]}
    log = [
        entry("c", 10, 1, 1, title="a"), entry("u", 20, 1, 2, **unsent), entry("d", 30, 1, 2, title="a"),
        # The row came from another key.
        entry("c", 40, 1, 3, **unsent), entry("u", 50, 1, 4, title="b"), entry("t", 60, None, None),
        entry("c", 70, 1, 5, **unsent),
    ]  # fmt: skip
    assert [(n, title) for _, n, title, _, _ in states(spark, *log)] == [
        (1, "a"), (2, "a"), (3, None), (4, "b"), (5, None),
    ]  # fmt: skip
