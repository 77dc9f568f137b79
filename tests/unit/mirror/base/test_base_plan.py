from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql.types import StringType

from cdcd.mirror.base.plan import begins_anew, has_other_labels
from cdcd.mirror.records.schema import ColumnSchema, TableSchema
from cdcd.mirror.targets.evolution import IncompatibleSchemaError
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


def test_other_words_of_labels_are_told_from_every_other_difference():
    mood = ColumnSchema("mood", 9, "mood", 16400, -1, StringType(), labels=((1, "sad"), (2, "ok")))

    def form(*labels: str, **column: Any) -> TableSchema:
        told = replace(mood, labels=tuple(enumerate(labels, 1)), **column)
        return replace(TOLD, columns=(*TOLD.columns, told))

    had = form("sad", "ok")
    assert has_other_labels(had, form("blue", "ok"))
    # Labels that are added, and other columns, come with a row.
    assert not has_other_labels(had, had)
    assert not has_other_labels(had, form("sad", "ok", "fine"))
    assert not has_other_labels(had, form("blue", "ok", name="feeling"))
    assert not has_other_labels(had, replace(form("blue", "ok"), oid=2))
    with pytest.raises(IncompatibleSchemaError, match="labels of mood"):
        has_other_labels(had, form("ok", "sad"))
