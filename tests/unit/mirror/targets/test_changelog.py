from dataclasses import replace

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from cdcd.mirror.targets.changelog import columns, dropped, rows
from cdcd.mirror.targets.reduction import UNFIT, prepared
from tests.spark.source_model import FORM, change, frame


def test_its_own_columns_come_first():
    assert columns(FORM)[:5] == [
        "_cdcd_op", "_cdcd_commit_lsn", "_cdcd_event_no", "_cdcd_commit_time", "_cdcd_unchanged",
    ]  # fmt: skip
    assert columns(FORM)[5:] == ["`id`", "`n`", "`title`", "`body`"]


def test_a_dropped_column_takes_a_name_that_is_free():
    assert dropped("a", ["b"]) == "a__dropped"
    assert dropped("a", ["a__dropped", "a__dropped_2"]) == "a__dropped_3"


def test_each_change_is_a_row_as_it_was_after_it_or_before_a_delete(spark: SparkSession):
    changes = [change("c", 10, 1, n=1), change("d", 20, 1, n=1), change("t", 30, None, partition=1)]
    made = rows(prepared(frame(spark, changes)), FORM)
    assert [(*tuple(row)[:3], row["id"], row["n"]) for row in made.orderBy("_cdcd_commit_lsn").collect()] == [
        ("c", 10, 1, 1, 1),
        ("d", 20, 1, 1, 1),
        ("t", 30, 1, None, None),
    ]
    places = made.orderBy("_cdcd_commit_lsn").select(
        "_cdcd_partition", "_cdcd_offset", "_cdcd_half", "_cdcd_unfit"
    )
    assert [tuple(row) for row in places.collect()] == [
        (0, 10, 1, False),
        (0, 20, 0, False),
        (1, 30, 1, False),
    ]


def test_what_is_unfit_is_marked(spark: SparkSession):
    changes = frame(spark, [change("c", 10, 1), change("c", 20, 2)]).withColumn(
        UNFIT, sf.col("commit_lsn") > 10
    )
    assert rows(prepared(changes), FORM).filter("_cdcd_unfit").count() == 1


def test_without_a_key_the_old_row_of_an_update_is_a_row_before_it(spark: SparkSession):
    form = replace(FORM, key=())
    update = change("u", 10, 1, n=2) | {"before": (1, 1, "a", "b"), "key": None}
    made = rows(prepared(frame(spark, [update], form)), form).collect()
    assert [(row["_cdcd_op"], row["n"]) for row in made] == [("b", 1), ("u", 2)]
