"""Records of several forms in one pass: in a real Spark, without Kafka."""

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from cdcd.core.catalog.relations import ColumnForm
from cdcd.mirror.records.changes import parse
from cdcd.mirror.records.one_pass import OTHER_TYPES, UNKNOWN_FORM, parse_forms
from tests.spark.topic_model import ID, NEW, NOTE, OLD, TOPIC, Topic, form, record

RENAMED = form("renamed", ID, ColumnForm("remark", 2, "text", 25, -1, "text"))
TEXT = form("text", ColumnForm("id", 1, "text", 25, -1, "text"), NOTE)
FORMS = {"old": OLD, "new": NEW, "renamed": RENAMED, "text": TEXT, "lost": None}
STOP = {UNKNOWN_FORM: "unknown form", OTHER_TYPES: "other types"}


def records(spark: SparkSession, *values: str) -> DataFrame:
    return Topic(*values).read(spark, TOPIC, {0: 0}, {0: len(values)})


def test_each_record_is_read_in_its_own_form_and_brought_to_that_of_the_query(spark: SparkSession):
    read = records(
        spark,
        record("old", 10, {"id": 1}),
        record("new", 20, {"id": 2, "note": "two"}),
        record("renamed", 30, {"id": 3, "remark": "three"}),
        "{",
    )
    found = parse_forms(read, FORMS, NEW, stop=STOP)
    assert found.dtypes == parse(read, NEW.schema, NEW.rules).dtypes
    rows = found.orderBy("offset").collect()
    assert [row["after"] and tuple(row["after"]) for row in rows] == [
        (1, None),
        (2, "two"),
        (3, "three"),
        None,
    ]
    assert [row["schema_id"] for row in rows] == ["old", "new", "renamed", None]
    assert [row["problem"] for row in rows] == [None, None, None, "its JSON is not that of a change"]


@pytest.mark.parametrize(
    ("schema_id", "error", "problem"),
    [
        ("unheard", "unknown form", UNKNOWN_FORM),
        ("text", "other types", OTHER_TYPES),
        ("lost", "other types", OTHER_TYPES),
    ],
)
def test_a_form_that_does_not_fit_ends_the_query_whatever_it_selects_or_is_marked(
    spark: SparkSession, schema_id: str, error: str, problem: str
):
    read = records(spark, record("new", 20, {"id": 2, "note": "two"}), record(schema_id, 30, {"id": "x"}))
    ends = parse_forms(read, FORMS, NEW, stop=STOP)
    for query in (ends.select("offset"), ends.filter("op = 'c' AND problem IS NULL").select(sf.count("*"))):
        with pytest.raises(PySparkException, match=error):
            query.collect()
    marked = parse_forms(read, FORMS, NEW, stop=None).orderBy("offset")
    assert [row["problem"] for row in marked.collect()] == [None, problem]
