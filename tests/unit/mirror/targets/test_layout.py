from pyspark.sql import SparkSession

from cdcd.mirror.targets.layout import DELETED, PLAIN, Deletes, Layout, laid_out

MARKS = Layout(deletes=Deletes.MARK)


def test_rows_are_all_live_at_first_and_marked_ones_go_when_deletes_are_removed(spark: SparkSession):
    rows = spark.createDataFrame([(1,), (2,)], "id int")
    marked = laid_out(rows, PLAIN, MARKS)
    assert [row[DELETED] for row in marked.collect()] == [False, False]
    some = spark.createDataFrame([(1, True), (2, False)], f"id int, {DELETED} boolean")
    assert [tuple(row) for row in laid_out(some, MARKS, Layout(4)).collect()] == [(2,)]
    assert laid_out(some, MARKS, Layout(4, Deletes.MARK)) is some
