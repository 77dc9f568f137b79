"""What was in quarantine comes back in its place among the changes, or stays there. In both formats."""

import json
from collections.abc import Collection
from dataclasses import replace
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from cdcd.mirror.kafka import KafkaSource
from cdcd.mirror.records.changes import PROBLEM, parse
from cdcd.mirror.records.descriptions import Form
from cdcd.mirror.stream.replay import replay_quarantine
from cdcd.mirror.stream.settings import MirrorSettings
from cdcd.mirror.targets.lakehouse import Lakehouse
from cdcd.mirror.targets.quarantine import QUARANTINE
from cdcd.mirror.targets.target import Kind
from cdcd.mirror.watching.progress import Replayed, TableFailed
from tests.spark.topic_model import NEW, TABLE, TOPIC, Described, Topic, record


class Known(Described):
    def refresh(self) -> None:
        pass

    def known(self, _: str, ids: Collection[str]) -> dict[str, Form]:
        return self.find(_, ids)


class FakeAdmin:
    def beginnings(self, _topics: Any) -> dict[str, dict[int, int]]:
        return {TOPIC: {0: 0}}


def deleted(lsn: int, id_: int) -> str:
    source = {"commit_lsn": lsn, "event_serial_no": 1, "ts_us": lsn * 1_000_000, "schema_id": "new"}
    return json.dumps({"op": "d", "before": {"id": id_, "note": None}, "after": None, "source": source})


RECORDS = (
    record("new", 1, {"id": 1, "note": "there"}),
    record("old", 2, {"id": 2}),
    record("new", 3, {"id": 3, "note": "deleted since"}),
    record("new", 4, {"id": 4, "note": "changed since"}),
    "{",
    deleted(6, 3),
    record("new", 7, {"id": 4, "note": "later"}),
)
IN_QUARANTINE = (1, 2, 3, 4)


@pytest.mark.parametrize("history", [False, True])
def test_records_in_quarantine_that_are_understood_by_now_come_back_in_their_place(
    spark: SparkSession, target: Lakehouse, *, history: bool
) -> None:
    # GIVEN a table that lacks what went to quarantine, of which one record is no change and one is gone
    topic = Topic(*RECORDS)
    had = parse(topic.read(spark, TOPIC, {}, {0: 7}), NEW.schema, NEW.rules).filter(
        ~sf.col("offset").isin(*IN_QUARANTINE)
    )
    names = {kind: target.name_of(NEW.schema, kind) for kind in Kind}
    for kind, name in names.items():
        target.prepare(spark, name, NEW.schema, kind, (7, 1))
        target.apply(name, had.drop(PROBLEM))
    quarantine = target.own_name(QUARANTINE)
    places = [(TABLE, TOPIC, 0, offset) for offset in IN_QUARANTINE] + [(TABLE, TOPIC, 5, 0)]
    rows = spark.createDataFrame(places, "table string, topic string, partition int, offset bigint")
    target.append(quarantine, rows, ["topic", "partition", "offset"])
    settings = MirrorSettings(
        "shop", KafkaSource("b:1"), "shop", "s", "c", "/c", history=(TABLE,) if history else ()
    )
    given = cast("Any", (topic, FakeAdmin(), Known(), target, settings))

    def content() -> dict[int, str | None]:
        return {row["id"]: row["note"] for row in spark.table(names[Kind.MIRROR]).collect()}

    assert content() == {1: "there", 4: "later"}
    state = target.reached(spark, names[Kind.MIRROR])
    # WHEN it is replayed, once more than there is need for
    assert list(replay_quarantine(spark, *given)) == [Replayed(TABLE, 3, 1, 1)]
    assert list(replay_quarantine(spark, *given)) == [Replayed(TABLE, 0, 1, 1)]
    # THEN the table is as if no record had been missing, and a record that is no change stays in quarantine
    assert content() == {1: "there", 2: None, 4: "later"}
    # AND its position is the same. Only the stamps tell that there were more commits
    now = target.reached(spark, names[Kind.MIRROR])
    assert replace(now, stamp=state.stamp, made_on=state.made_on) == state
    left = spark.table(quarantine).select("partition", "offset").collect()
    assert sorted(map(tuple, left)) == [(0, 4), (5, 0)]
    log = spark.table(names[Kind.CHANGELOG]).select("_cdcd_commit_lsn").collect()
    assert sorted(row[0] for row in log) == ([1, 2, 3, 4, 6, 7] if history else [1, 6, 7])


def test_what_lies_before_a_snapshot_leaves_quarantine_whatever_its_form_and_what_lies_after_it_comes_back(
    spark: SparkSession, target: Lakehouse
) -> None:
    # GIVEN records in quarantine of a form that the table cannot be brought from, and one of its own form
    topic = Topic(
        record("other", 1, {"id": 1, "note": 5}),
        record("other", 2, {"id": 2, "note": 6}),
        record("new", 3, {"id": 3, "note": "there"}),
        record("new", 7, {"id": 4, "note": "later"}),
    )
    name = target.name_of(NEW.schema, Kind.MIRROR)
    target.prepare(spark, name, NEW.schema, Kind.MIRROR, (3, 1))
    had = parse(topic.read(spark, TOPIC, {0: 2}, {0: 3}), NEW.schema, NEW.rules)
    target.apply(name, had.drop(PROBLEM))
    quarantine = target.own_name(QUARANTINE)
    rows = spark.createDataFrame(
        [(TABLE, TOPIC, 0, offset) for offset in (0, 3)],
        "table string, topic string, partition int, offset bigint",
    )
    target.append(quarantine, rows, ["topic", "partition", "offset"])
    settings = MirrorSettings("shop", KafkaSource("b:1"), "shop", "s", "c", "/c")
    given = cast("Any", (topic, FakeAdmin(), Known(), target, settings))
    # WHEN nothing was read from the database since, THEN it is told, and they stay where they are
    (failed,) = replay_quarantine(spark, *given)
    assert isinstance(failed, TableFailed)
    assert failed.table == TABLE
    assert failed.message.startswith(
        f"quarantine is not replayed: {TABLE}: column note changed from bigint to text"
    )
    assert f"--snapshot {TABLE} " in failed.hint
    assert spark.table(quarantine).count() == 2
    # WHEN the table is read from the database
    there = spark.range(1).select(
        sf.struct(sf.lit(1).cast("bigint").alias("id"), sf.lit("1").alias("note")).alias("after")
    )
    target.load(name, there, 5, {0: 2})
    # THEN the record from before is in that, and the one from after it comes back
    assert list(replay_quarantine(spark, *given)) == [Replayed(TABLE, 2, 0, 0)]
    assert {row["id"]: row["note"] for row in spark.table(name).collect()} == {1: "1", 4: "later"}
    assert spark.table(quarantine).count() == 0
