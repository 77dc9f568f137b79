"""The changes of one batch of a stream: in a real Spark, without Kafka."""

from collections.abc import Collection
from typing import cast

import pytest
from pyspark.sql import SparkSession

from cdcd.core.catalog.relations import ColumnForm
from cdcd.core.errors import SourceError
from cdcd.mirror.records.descriptions import Descriptions, Form
from cdcd.mirror.records.table_changes import batch_changes
from tests.spark.topic_model import NEW, NOTE, OLD, TABLE, TOPIC, Topic, form, record

TEXT = form("text", ColumnForm("id", 1, "text", 25, -1, "text"), NOTE)


class Described:
    def __init__(self, *forms: Form) -> None:
        self._forms = {one.schema.schema_id: one for one in forms}

    def newest(self, _: str) -> Form:
        return list(self._forms.values())[-1]

    def find(self, _: str, ids: Collection[str]) -> dict[str, Form]:
        return {schema_id: form for schema_id, form in self._forms.items() if schema_id in ids}


def test_a_batch_is_cut_where_its_forms_cannot_be_brought_to_one(spark: SparkSession):
    values = (
        record("old", 10, {"id": 1}),
        record("text", 40, {"id": "three", "note": None}),
        record("new", 20, {"id": 2, "note": "two"}),
        "{",
    )
    batch = Topic(*values).read(spark, TOPIC, {0: 0}, {0: 4})
    forms = cast("Descriptions", Described(OLD, NEW, TEXT))
    first, second = batch_changes(batch, forms, TOPIC, TABLE)
    assert (first.schema, second.schema) == (NEW.schema, TEXT.schema)
    assert [tuple(row["after"]) for row in first.changes.orderBy("offset").collect()] == [
        (1, None),
        (2, "two"),
    ]
    assert [tuple(row["after"]) for row in second.changes.collect()] == [("three", None)]
    assert [row["problem"] for row in first.rejected.collect()] == ["its JSON is not that of a change"]
    assert second.rejected.collect() == []
    assert first.end == second.end == {0: 4}


def test_a_batch_of_former_forms_has_the_newest_and_one_that_is_not_described_ends_the_query(
    spark: SparkSession,
):
    batch = Topic(record("old", 10, {"id": 1})).read(spark, TOPIC, {0: 0}, {0: 1})
    (found,) = batch_changes(batch, cast("Descriptions", Described(OLD, NEW)), TOPIC, TABLE)
    assert [tuple(row["after"]) for row in found.changes.collect()] == [(1, None)]
    with pytest.raises(SourceError, match=r"public\.item: no description of source\.schema_id old"):
        list(batch_changes(batch, cast("Descriptions", Described(NEW)), TOPIC, TABLE))
