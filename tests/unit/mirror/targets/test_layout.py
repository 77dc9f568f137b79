import pytest
from pyspark.sql import SparkSession

from cdcd.core.errors import ConfigError
from cdcd.mirror.targets.layout import DELETED, PLAIN, Deletes, Layout, check_deletes, laid_out

MARKS = Layout(deletes=Deletes.MARK)


@pytest.mark.parametrize(("has", "wanted"), [(PLAIN, MARKS), (Layout(8, Deletes.MARK), PLAIN)])
def test_a_mirror_that_treats_deletes_otherwise_stops_with_both_ways_on(has: Layout, wanted: Layout):
    with pytest.raises(ConfigError) as raised:
        check_deletes("public.orders", has, wanted)
    assert f"made with `deletes: {has.deletes}`" in raised.value.message
    assert "cdcd mirror --config FILE --relayout public.orders" in raised.value.hint
    assert f"tables.deletes_for: {{public.orders: {has.deletes}}}" in raised.value.hint


def test_a_new_mirror_and_one_in_other_buckets_go_on():
    check_deletes("public.orders", None, MARKS)
    check_deletes("public.orders", Layout(8, Deletes.MARK), MARKS)


def test_rows_are_all_live_at_first_and_marked_ones_go_when_deletes_are_removed(spark: SparkSession):
    rows = spark.createDataFrame([(1,), (2,)], "id int")
    marked = laid_out(rows, PLAIN, MARKS)
    assert [row[DELETED] for row in marked.collect()] == [False, False]
    some = spark.createDataFrame([(1, True), (2, False)], f"id int, {DELETED} boolean")
    assert [tuple(row) for row in laid_out(some, MARKS, Layout(4)).collect()] == [(2,)]
    assert laid_out(some, MARKS, Layout(4, Deletes.MARK)) is some
