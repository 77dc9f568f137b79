"""The library over changes that are made up: no Kafka."""

import pytest
from pyspark.sql import SparkSession

from cdcd.core.errors import ConfigError, SourceError
from cdcd.mirror import api
from cdcd.mirror.kafka import KafkaSource
from cdcd.mirror.records.descriptions import Descriptions
from tests.spark.topic_model import NEW, TABLE, TOPIC, Described, Topic, record
from tests.unit.mirror.targets.views import Views


def test_changes_of_every_form_come_in_the_newest_and_what_is_none_beside_them(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
):
    topic = Topic(
        record("old", 10, {"id": 1}),
        record("new", 20, {"id": 2, "note": "two"}),
        record("unheard", 30, {"id": 3}),
        "{",
    )
    monkeypatch.setattr(api, "_described", lambda *_args, **_more: (TOPIC, Described()))
    got = api.read_changes(spark, topic, "shop", TABLE, start={0: 0}, end={0: 4})
    assert (got.schema, got.end) == (NEW.schema, {0: 4})
    assert got.changes.schema["after"].dataType == NEW.schema.row_type
    assert [tuple(row["after"]) for row in got.changes.orderBy("offset").collect()] == [(1, None), (2, "two")]
    assert [(row["offset"], row["problem"]) for row in got.rejected.orderBy("offset").collect()] == [
        (2, "no description is known of its source.schema_id"),
        (3, "its JSON is not that of a change"),
    ]


def test_a_table_without_a_changelog_is_named(spark: SparkSession):
    with pytest.raises(ConfigError, match=r"no changelog of public\.docs as docs\.changelog"):
        api.scd2(spark, Views(), "public.docs")


def test_a_table_that_is_not_described_is_named(spark: SparkSession, monkeypatch: pytest.MonkeyPatch):
    class Undescribed(Descriptions):
        def refresh(self) -> None: ...

    monkeypatch.setattr(api, "Descriptions", Undescribed)
    with pytest.raises(SourceError, match=r"No description of public\.item is known in shop\.schemas"):
        api.stream_changes(spark, KafkaSource("nobody:1"), "shop", TABLE)
