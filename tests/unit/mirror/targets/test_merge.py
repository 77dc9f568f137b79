from dataclasses import replace

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import LongType, StringType

from cdcd.mirror.platform.sql import quoted, text
from cdcd.mirror.records.schema import ColumnSchema, TableSchema
from cdcd.mirror.targets.buckets import NAMED_MAX
from cdcd.mirror.targets.layout import DELETED, Deletes, Layout
from cdcd.mirror.targets.merge import merge, own_values
from cdcd.mirror.targets.reduction import prepared, reduced
from tests.spark import source_model

FORM = TableSchema(
    "shop.public.t",
    "public",
    "t",
    "1",
    ("id",),
    (
        ColumnSchema("id", 1, "bigint", 20, -1, LongType()),
        ColumnSchema("it's `odd`", 2, "text", 25, -1, StringType()),
    ),
)


MARKS = Layout(deletes=Deletes.MARK)


def test_names_and_texts_stand_for_themselves():
    assert quoted("a`b") == "`a``b`"
    assert text("it's \\ ${x}") == "it\\'s \\\\ \\u0024{x}"


def test_every_clause_changes_only_rows_that_are_older_than_the_batch():
    lines = merge("lake.t", "batch", FORM).splitlines()
    assert lines[0] == "MERGE INTO lake.t t USING batch s ON t.`id` = s.`id`"
    assert [line.split()[1] for line in lines[1:]] == ["MATCHED", "MATCHED", "NOT"]
    assert all("t._cdcd_commit_lsn < s._cdcd_commit_lsn" in line for line in lines[1:3])
    assert not any("BY SOURCE" in line for line in lines)


def test_a_column_that_a_row_may_keep_is_taken_from_the_target():
    sql = merge("lake.t", "batch", FORM, keeps={"it's `odd`"})
    assert "CASE WHEN array_contains(s._cdcd_keep, 'it\\'s `odd`') THEN t.`it's ``odd```" in sql
    assert "_cdcd_unknown = nullif(" in sql


def test_a_truncate_removes_what_is_older_and_looks_at_all_rows():
    sql = merge("lake.t", "batch", FORM, truncated=(7, 2), key_range=(1, 9))
    assert "NOT MATCHED BY SOURCE AND (t._cdcd_commit_lsn < 7 OR" in sql
    assert "BETWEEN" not in sql


def test_bounds_of_the_key_leave_files_out():
    assert "t.`id` BETWEEN 1 AND 9" in merge("lake.t", "batch", FORM, key_range=(1, 9))


def test_a_batch_names_its_hashes_and_the_buckets_of_a_table_that_has_some():
    of_row = "CAST(pmod(pmod(xxhash64(t.`id`), 65536), 65536) AS INT)"
    sql = merge("lake.t", "batch", FORM, hashes={3, 70_000 % 65536, 11}, layout=Layout(8))
    assert f"t._cdcd_bucket IN (0, 3) AND {of_row} IN (3, 11, 4464)" in sql
    assert sql.endswith(
        "s._cdcd_event_no, NULL, pmod(CAST(pmod(pmod(xxhash64(s.`id`), 65536), 65536) AS INT), 8))"
    )
    assert "_cdcd_bucket" not in merge("lake.t", "batch", FORM, hashes={3})
    # A batch that touches them all, or has too many keys, says nothing by it.
    assert "t._cdcd_bucket" not in merge("lake.t", "batch", FORM, hashes={0, 1}, layout=Layout(2))
    assert "xxhash64(t" not in merge("lake.t", "batch", FORM, hashes=range(NAMED_MAX + 1), layout=Layout(2))
    # What a truncate removes lies in every bucket.
    assert " IN (" not in merge("lake.t", "batch", FORM, hashes={3}, layout=Layout(8), truncated=(7, 2))


def test_a_key_of_several_columns_is_compared_whole():
    both = replace(FORM, key=("id", "it's `odd`"))
    assert "ON t.`id` = s.`id` AND t.`it's ``odd``` = s.`it's ``odd```" in merge("lake.t", "batch", both)


def test_a_mirror_that_marks_deletes_deletes_no_row():
    lines = merge("lake.t", "batch", FORM, layout=MARKS, truncated=(7, 2)).splitlines()
    assert not any("THEN DELETE" in line for line in lines)
    assert [line.partition(" THEN ")[0].split(" AND ")[0] for line in lines[1:]] == [
        "WHEN MATCHED",
        "WHEN MATCHED",
        "WHEN MATCHED",
        "WHEN NOT MATCHED",
        "WHEN NOT MATCHED BY SOURCE",
    ]
    # What a truncate marks has its place; a row that is marked already keeps its own.
    ends = "_cdcd_commit_lsn = 7, _cdcd_event_no = 2, _cdcd_deleted = true"
    assert all(f"NOT t.{DELETED}" in lines[number] and ends in lines[number] for number in (3, 5))


def test_values_of_a_marked_row_are_kept_by_its_own_change_alone():
    kept = "array_contains(s._cdcd_keep, 'it\\'s `odd`') AND NOT (t._cdcd_deleted"
    assert f"{kept})" in merge("lake.t", "batch", FORM, keeps={"it's `odd`"}, layout=MARKS)
    same = "t._cdcd_commit_lsn = s._cdcd_commit_lsn AND t._cdcd_event_no = s._cdcd_event_no"
    again = merge("lake.t", "batch", FORM, keeps={"it's `odd`"}, layout=MARKS, again=True)
    assert f"{kept} AND NOT ({same}))" in again


def test_the_first_rows_of_a_mirror_that_marks_deletes_have_the_deleted_ones(spark: SparkSession):
    changes = [
        source_model.change("c", 10, 1, n=5),
        source_model.change("c", 11, 2, n=6),
        source_model.change("d", 12, 2),
        source_model.change("d", 13, 3),
        source_model.change("c", 30, 4, n=7),
    ]
    form = source_model.FORM
    source = reduced(prepared(source_model.frame(spark, changes)), form, (), marks=True)
    for truncated, first in ((None, (1, 5, 10, False)), ((20, 1), (1, 5, 20, True))):
        own = [sf.expr(value).alias(name) for name, value in own_values(MARKS, truncated).items()]
        rows = source.filter("_cdcd_op <> 'd'").select("id", "n", *own).orderBy("id").collect()
        found = [(row.id, row.n, row["_cdcd_commit_lsn"], row[DELETED]) for row in rows]
        assert found == [first, (2, 6, 12, True), (4, 7, 30, False)]
