"""The library over changes that are made up: no Kafka."""

from typing import Any, cast

import pytest
from pyspark.sql import DataFrame, SparkSession

from cdcd.core.errors import ConfigError, SourceError
from cdcd.mirror import api
from cdcd.mirror.kafka import KafkaSource
from cdcd.mirror.platform.read_ends import ReadEnds
from cdcd.mirror.records.descriptions import Descriptions
from cdcd.mirror.records.schema import TableSchema
from cdcd.mirror.targets.lakehouse import Lakehouse
from cdcd.mirror.targets.target import Applied, Kind
from tests.spark.source_model import FORM, change, frame
from tests.spark.topic_model import NEW, TABLE, TOPIC, Described, Topic, record


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


class Remembers:
    """A target that says what was asked of it."""

    def __init__(self, has: TableSchema) -> None:
        self.has = has
        self.asked: list[Any] = []

    def name_of(self, schema: TableSchema, kind: Kind) -> str:
        return f"{schema.name}.{kind}"

    def prepare(self, _: SparkSession, name: str, schema: TableSchema, kind: Kind, at: Any) -> TableSchema:
        self.asked.append((name, schema.schema_id, kind, at))
        return self.has

    def apply(self, name: str, changes: DataFrame, *, batch_id: int) -> Applied:
        self.asked.append((name, batch_id, sorted(row["key"]["id"] for row in changes.collect())))
        return cast("Applied", None)

    def schema(self, _: SparkSession, name: str) -> TableSchema | None:
        return None

    def own_name(self, name: str) -> str:
        return name


def test_a_batch_goes_into_a_table_that_is_made_ready_for_its_last_change(spark: SparkSession):
    target = Remembers(FORM)
    changes = frame(spark, [change("c", 20, 2, event_no=None), change("c", 10, 1, event_no=7)])
    api.apply_changes(cast("Lakehouse", target), changes, FORM, batch_id=3)
    api.apply_changes(cast("Lakehouse", target), changes.filter("false"), FORM, kind=Kind.CHANGELOG)
    assert target.asked == [
        ("docs.mirror", "form-1", Kind.MIRROR, (20, 0)),
        ("docs.mirror", 3, [1, 2]),
        ("docs.changelog", "form-1", Kind.CHANGELOG, (0, 0)),
        ("docs.changelog", 0, []),
    ]


def test_a_table_without_a_changelog_is_named(spark: SparkSession):
    with pytest.raises(ConfigError, match=r"no changelog of public\.docs as docs\.changelog"):
        api.scd2(spark, cast("Lakehouse", Remembers(FORM)), "public.docs")


def test_a_reader_over_spark_connect_needs_no_broker(monkeypatch: pytest.MonkeyPatch):
    # A login that librdkafka cannot have shows which client is made.
    source = KafkaSource("b:1", {"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"})
    monkeypatch.setattr(api, "is_connect", lambda _: True)
    assert isinstance(api._asking(cast("SparkSession", None), source), ReadEnds)
    monkeypatch.setattr(api, "is_connect", lambda _: False)
    with pytest.raises(ConfigError, match="GSSAPI"):
        api._asking(cast("SparkSession", None), source)


def test_a_table_that_is_not_described_is_named(spark: SparkSession, monkeypatch: pytest.MonkeyPatch):
    class Undescribed(Descriptions):
        def refresh(self) -> None: ...

    monkeypatch.setattr(api, "Descriptions", Undescribed)
    with pytest.raises(SourceError, match=r"No description of public\.item is known in shop\.schemas"):
        api.stream_changes(spark, KafkaSource("nobody:1"), "shop", TABLE)
