from dataclasses import replace

from pyspark.sql.types import StringType

from cdcd.mirror.base.plan import begins_anew
from tests.spark.source_model import FORM

TOLD = replace(FORM, oid=1)
ID, N, *REST = TOLD.columns
TEXT = replace(
    TOLD, schema_id="text", columns=(ID, replace(N, type="text", type_oid=25, spark=StringType()), *REST)
)
RENAMED = replace(TOLD, schema_id="renamed", columns=(ID, replace(N, name="number"), *REST))
OTHER = replace(TOLD, oid=2)


def test_a_truncate_marks_rows_of_forms_that_follow_from_each_other():
    assert not begins_anew(TOLD, [TOLD, RENAMED], is_new=False)
    assert not begins_anew(None, [TOLD, RENAMED], is_new=True)


def test_a_table_that_took_the_name_of_another_one_begins_with_its_truncate():
    assert begins_anew(TOLD, [OTHER], is_new=False)
    assert begins_anew(TOLD, [TOLD, OTHER], is_new=False)
    assert begins_anew(None, [TOLD, OTHER], is_new=True)


def test_forms_that_do_not_follow_from_each_other_stop_a_table_that_is_there_and_no_new_one():
    assert begins_anew(None, [TOLD, TEXT], is_new=True)
    assert not begins_anew(TOLD, [TOLD, TEXT], is_new=False)
