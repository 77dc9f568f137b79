"""The log of a pipeline's topics: real Kafka, real Spark, both formats; records are written by the test."""

import json
import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession

from cdcd.core.errors import ConfigError, SinkUnavailableError
from cdcd.mirror.jars import DELTA, ICEBERG
from cdcd.mirror.kafka import KafkaSource
from cdcd.mirror.log import positions, upkeep
from cdcd.mirror.log.job import LogJob
from cdcd.mirror.log.table import COLUMNS, LogPlace
from cdcd.mirror.log.upkeep import LogUpkeep
from cdcd.mirror.settings import MirrorSettings
from cdcd.mirror.targets.target import Maintenance
from cdcd.mirror.watching.progress import (
    LogAppended,
    LogExpired,
    LogShortened,
    Retrying,
    TableMaintained,
    TableRolledBack,
    TableStopped,
)
from deploy.local import KafkaBroker
from tests.integration.daemon import until
from tests.spark.stage import Stage, target_for


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="cdcd-log-") as folder:
        broker = KafkaBroker(Path(folder))
        broker.start()
        try:
            yield broker.bootstrap_servers
        finally:
            broker.kill()


class Pipeline:
    """Topics of a pipeline without a daemon, and logs of them."""

    def __init__(self, spark: SparkSession, servers: str, folder: Path, name: str, table_format: str) -> None:
        self.spark, self.servers, self.prefix = spark, servers, name
        self.facts: list[Any] = []
        self.admin = AdminClient({"bootstrap.servers": servers})
        table = f"delta.`{folder}/log`" if table_format == DELTA else f"`lake`.`{name}`.`log`"
        self.place = LogPlace(table, table_format, str(folder / "checkpoint"))
        self.settings = MirrorSettings(
            name, KafkaSource(servers), name, f"{name}.schemas", f"{name}.checkpoint", "", interval_s=1.0,
            maintenance_interval_s=None,
        )  # fmt: skip
        self.make("schemas")

    def make(self, *topics: str) -> None:
        asked = self.admin.create_topics([NewTopic(f"{self.prefix}.{topic}", 1, 1) for topic in topics])
        for made in asked.values():
            made.result()

    def delete(self, table: str) -> None:
        topic = f"{self.prefix}.public.{table}"
        self.admin.delete_topics([topic])[topic].result()
        until(lambda: True if topic not in self.admin.list_topics(timeout=10).topics else None, "deleted")

    def describe(self, *tables: str) -> None:
        self.make(*[f"public.{table}" for table in tables])
        for table in tables:
            form = {
                "schema": "public", "table": table, "topic": f"{self.prefix}.public.{table}", "oid": 1,
                "key": ["id"], "last_id": 1, "rewritten": 0, "fingerprint": f"f{table}",
                "columns": [{"name": "id", "id": 1, "type": "integer", "type_oid": 23, "modifier": -1,
                             "form": "int32", "default": None}],
            }  # fmt: skip
            self.produce("schemas", json.dumps(form).encode(), b"k")

    def produce(self, topic: str, *values: bytes | str | None, **given: Any) -> None:
        producer = Producer({"bootstrap.servers": self.servers})
        key = given.pop("key", b"{}") if "key" in given else b"{}"
        for value in values:
            producer.produce(f"{self.prefix}.{topic}", value, key, **given)
        assert producer.flush(30) == 0

    def shorten(self, table: str, end: int) -> None:
        """Delete the records of a table's topic before an offset."""
        place = TopicPartition(f"{self.prefix}.public.{table}", 0, end)
        for done in self.admin.delete_records([place]).values():
            done.result()

    def job(self) -> LogJob:
        return LogJob(
            self.spark, self.settings, self.place, {"bootstrap.servers": self.servers}, self.facts.append
        )

    def once(self) -> LogJob:
        job = self.job()
        job.run(once=True, stop=threading.Event())
        return job

    def upkeep(self, policy: Maintenance, needs: Mapping[str, int] | None = None) -> LogUpkeep:
        return LogUpkeep(self.spark, self.place, policy, None, lambda _: needs or {}, self.facts.append)

    def age(self, days: int) -> None:
        """Let all records of the log have been appended this number of days before."""
        self.refresh()
        self.spark.sql(
            f"UPDATE {self.place.name} SET appended = appended - INTERVAL {days} DAYS, day = day - {days} "
            "WHERE day IS NOT NULL"
        )

    def refresh(self) -> None:
        if not self.place.is_path:
            # Another session may have written: Iceberg keeps a version in mind.
            self.spark.catalog.refreshTable(self.place.name)

    def files(self) -> int:
        if self.place.table_format == DELTA:
            files: int = self.spark.sql(f"DESCRIBE DETAIL {self.place.name}").collect()[0]["numFiles"]
            return files
        count: int = self.spark.table(f"{self.place.name}.files").count()
        return count

    def rows(self, condition: str = "day IS NOT NULL") -> list[Row]:
        rows: list[Row] = (
            self.spark.table(self.place.name).filter(condition).orderBy("topic", "part", "off").collect()
        )
        return rows

    def has(self, table: str) -> list[tuple[int, str]]:
        topic = f"{self.prefix}.public.{table}"
        return [(row["off"], row["kind"]) for row in self.rows(f"topic = '{topic}' AND day IS NOT NULL")]


@pytest.fixture(params=[ICEBERG, DELTA])
def pipeline(request: pytest.FixtureRequest, spark: SparkSession, servers: str, tmp_path: Path) -> Pipeline:
    return Pipeline(spark, servers, tmp_path, f"p{abs(hash(request.node.nodeid)) % 10**8}", request.param)


def change(n: int, *, op: str = "c", after: str | None = None) -> bytes:
    source = f'{{"schema":"public","table":"t","commit_lsn":{100 + n},"event_serial_no":1,"schema_id":"ft"}}'
    row = after if after is not None else f'{{"id":{n}}}'
    return f'{{"before":null,"after":{row},"source":{source},"op":"{op}"}}'.encode()


def test_what_comes_is_kept_and_what_cannot_be_read_is_a_row_with_its_reason(pipeline: Pipeline) -> None:
    # GIVEN changes among records of every bad kind
    pipeline.describe("t")
    row = '{"id":1,"x":1.10,"y":"a\\u00e9","z":{"b": [1,2]}}'
    poison = [
        b"", b"{", b"\xff\xfe\xfd", b"\x00\x00\x00\x00\x05abc", b"[" * 5000, b'{"op":' + b"9" * 5000 + b"}",
        b'{"op":"c","source":{"commit_lsn":"many"},"after":{}}', b"null", b"7", b'{"op":"x","source":{}}',
        b'{"source":{"commit_lsn":99999999999999999999999},"op":"c","after":{}}',
        b'{"after":' + b'{"a":' * 3000 + b"1" + b"}" * 3001,
    ]  # fmt: skip
    pipeline.produce("public.t", change(1, after=row))
    pipeline.produce("public.t", *poison)
    pipeline.produce(
        "public.t", b'{"op":"c","op":"u","source":{"commit_lsn":5},"after":{"id":2,"id":3}}', None
    )
    pipeline.produce("public.t", change(2, op="t", after="null"), b"{}", headers={"cdcd.watermark": b"7"})
    pipeline.produce(
        "public.t", change(3), key=None, headers={"cdcd.unchanged": b'["x"]', "__debezium.oldkey": b"\xff"}
    )
    # WHEN they are appended, twice
    pipeline.once()
    pipeline.once()
    # THEN each is one row, in order
    rows = pipeline.rows(f"topic = '{pipeline.prefix}.public.t'")
    assert [row["off"] for row in rows] == list(range(len(poison) + 6))
    first, *bad = rows[: len(poison) + 1]
    assert (first["kind"], first["tbl"], first["lsn"], first["ord"]) == ("change", "public.t", 101, 1)
    assert (first["schema_id"], first["op"], bytes(first["key"])) == ("ft", "c", b"{}")
    assert bytes(first["value"]) == change(1, after=row)
    assert json.loads(first["after"]) == json.loads(row)
    assert {row["kind"] for row in bad} == {"unreadable"}
    assert [bytes(row["value"]) for row in bad] == poison
    assert all(row["reason"] for row in bad)
    assert "zero byte" in bad[3]["reason"]
    double, tombstone, truncate, *beats, last = rows[len(poison) + 1 :]
    assert (double["kind"], double["after"], tombstone["kind"]) == ("change", '{"id":2,"id":3}', "tombstone")
    assert [row["kind"] for row in (truncate, *beats)] == ["heartbeat", "heartbeat"]
    assert (last["kind"], last["key"], last["unchanged"]) == ("change", None, '["x"]')


def test_an_aborted_transaction_is_not_in_the_log(pipeline: Pipeline) -> None:
    pipeline.describe("t")
    producer = Producer({"bootstrap.servers": pipeline.servers, "transactional.id": pipeline.prefix})
    producer.init_transactions()
    for number, ends in enumerate(
        (producer.commit_transaction, producer.abort_transaction, producer.commit_transaction)
    ):
        producer.begin_transaction()
        producer.produce(f"{pipeline.prefix}.public.t", change(number), b"{}")
        producer.flush()
        ends()
    pipeline.once()
    assert pipeline.has("t") == [(0, "change"), (4, "change")]


def test_a_lost_checkpoint_and_a_new_topic_give_no_record_twice(pipeline: Pipeline) -> None:
    pipeline.describe("t")
    pipeline.produce("public.t", change(1), change(2))
    pipeline.once()
    # WHEN the checkpoint is lost
    checkpoint = Path(pipeline.place.checkpoint)
    checkpoint.rename(checkpoint.with_name("lost"))
    pipeline.produce("public.t", change(3))
    pipeline.once()
    assert [row[0] for row in pipeline.has("t")] == [0, 1, 2]
    # AND when a topic joins
    pipeline.describe("u")
    pipeline.produce("public.u", change(1))
    pipeline.produce("public.t", change(4))
    pipeline.once()
    assert [row[0] for row in pipeline.has("t")] == [0, 1, 2, 3]
    assert [row[0] for row in pipeline.has("u")] == [0]


def test_a_batch_that_is_repeated_after_a_kill_overwrites_no_file_of_the_log(pipeline: Pipeline) -> None:
    if pipeline.place.is_path:
        pytest.skip("Delta draws the name of each file")

    def folders() -> set[str]:
        paths = pipeline.spark.sql(f"SELECT file_path FROM {pipeline.place.name}.files").collect()
        return {row[0].partition("/day=")[0] for row in paths}

    pipeline.describe("t")
    pipeline.produce("public.t", *[change(n) for n in range(4)])
    pipeline.once()
    before = folders()
    # WHEN a process is killed after the commit of a batch, and before Spark has noted that
    notes = sorted(Path(pipeline.place.checkpoint).glob("*/commits/[0-9]*"))
    assert notes
    for note in notes:
        note.unlink()
        note.with_name(f".{note.name}.crc").unlink(missing_ok=True)
    pipeline.produce("public.t", change(4))
    pipeline.once()
    # THEN the next process repeats the batch in another folder, and the log has each record once
    assert [off for off, _ in pipeline.has("t")] == [0, 1, 2, 3, 4]
    assert len(before) == 1
    assert before < folders()
    assert all("/run-" in folder for folder in folders())


def test_a_topic_that_was_made_again_stops_alone_and_goes_on_when_it_is_told_to(pipeline: Pipeline) -> None:
    pipeline.describe("t", "u", "v")
    for table in ("t", "u", "v"):
        pipeline.produce(f"public.{table}", change(1), change(2))
    pipeline.once()
    # WHEN one topic is deleted, and another one is made again
    pipeline.delete("t")
    pipeline.delete("u")
    pipeline.make("public.u")
    pipeline.produce("public.u", change(7))
    pipeline.produce("public.v", change(3))
    job = pipeline.once()
    # THEN both stop by name, and the third goes on
    assert sorted(job.stopped) == [f"{pipeline.prefix}.public.{table}" for table in ("t", "u")]
    told = {fact.table: fact for fact in pipeline.facts if isinstance(fact, TableStopped)}
    assert "made again" in told[f"{pipeline.prefix}.public.u"].message
    assert [len(pipeline.has(table)) for table in ("t", "u", "v")] == [2, 2, 3]
    assert len(pipeline.rows("kind = 'stopped'")) == 2
    # AND the hint is the way on
    pipeline.spark.sql(told[f"{pipeline.prefix}.public.u"].hint.partition("statement in Spark: ")[2])
    pipeline.once()
    assert [len(pipeline.has(table)) for table in ("t", "u", "v")] == [2, 3, 3]


def test_a_topic_that_was_shortened_beyond_what_the_log_has_stops(pipeline: Pipeline) -> None:
    pipeline.describe("t")
    pipeline.produce("public.t", change(1))
    pipeline.once()
    pipeline.produce("public.t", *[change(n) for n in range(2, 8)])
    pipeline.shorten("t", 5)
    job = pipeline.once()
    assert (
        "begins at offset 5, and the log has it up to 1" in job.stopped[f"{pipeline.prefix}.public.t"].message
    )
    assert pipeline.has("t") == [(0, "change")]
    # AND the hint is the way on: the log reads it from its present beginning
    (told,) = [fact for fact in pipeline.facts if isinstance(fact, TableStopped)]
    pipeline.spark.sql(told.hint.partition("statement in Spark: ")[2])
    for _ in range(2):
        assert pipeline.once().stopped == {}
        assert [off for off, _ in pipeline.has("t")] == [0, 5, 6]


def test_a_log_that_is_made_again_names_the_topics_that_have_lost_records_by_then(pipeline: Pipeline) -> None:
    pipeline.describe("t", "u", "v")
    for table in ("t", "u"):
        pipeline.produce(f"public.{table}", *[change(n) for n in range(6)])
    pipeline.once()
    assert positions.read(pipeline.spark, pipeline.place.name).began == {}
    # WHEN the log is dropped, but not its checkpoint, and records of one topic go
    if pipeline.place.is_path:
        shutil.rmtree(pipeline.place.name.removeprefix("delta.`").removesuffix("`"))
    else:
        pipeline.spark.sql(f"DROP TABLE {pipeline.place.name} PURGE")
    pipeline.shorten("t", 4)
    job = pipeline.once()
    # THEN the log has all records that there are, and says where the topic began
    assert [off for off, _ in pipeline.has("t")] == [4, 5]
    assert [off for off, _ in pipeline.has("u")] == [0, 1, 2, 3, 4, 5]
    topic = f"{pipeline.prefix}.public.t"
    (began,) = positions.read(pipeline.spark, pipeline.place.name).began.values()
    assert (began.first, began.ends) == ({0: 4}, {0: 6})
    assert job.appended.began == {topic: began}
    assert job.appended.ends[topic] == {0: 6}
    assert job.stopped == {}
    # AND records that go from a partition of which the log has none are found by a later process
    pipeline.produce("public.v", *[change(n) for n in range(6)])
    pipeline.shorten("v", 4)
    assert list(pipeline.once().stopped) == [f"{pipeline.prefix}.public.v"]


def test_records_that_go_while_a_batch_is_read_stop_their_topic(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN two topics that the log has
    pipeline.describe("t", "u")
    pipeline.produce("public.t", change(1))
    pipeline.produce("public.u", change(1))
    pipeline.once()
    pipeline.produce("public.t", *[change(n) for n in range(2, 8)])
    pipeline.produce("public.u", *[change(n) for n in range(2, 8)])
    # WHEN records go after the comparison and before the batch, and of the other topic after the batch
    job = pipeline.job()
    start, compare = job._start, job._compare

    def started(writer: Any) -> Any:
        pipeline.shorten("t", 5)
        return start(writer)

    def compared(has: Any, after: Any) -> Any:
        if after is not None:
            pipeline.shorten("u", 5)
        return compare(has, after)

    monkeypatch.setattr(job, "_start", started)
    monkeypatch.setattr(job, "_compare", compared)
    job.run(once=True, stop=threading.Event())
    # THEN the topic whose records the log lacks stops, and the other one does not
    assert [off for off, _ in pipeline.has("t")] == [0, 5, 6]
    assert [off for off, _ in pipeline.has("u")] == [0, 1, 2, 3, 4, 5, 6]
    assert list(job.stopped) == [f"{pipeline.prefix}.public.t"]
    # AND a batch is told with its figures
    (batch,) = [fact for fact in pipeline.facts if isinstance(fact, LogAppended)][-1:]
    assert (batch.records, batch.changes, batch.commit_lsn) == (8, 8, 107)


def test_retention_deletes_old_days_and_waits_for_a_topic_that_is_needed(pipeline: Pipeline) -> None:
    # GIVEN records that were appended 10 days ago, 40 days ago, and today
    pipeline.describe("t", "u", "v")
    topics = {table: f"{pipeline.prefix}.public.{table}" for table in ("t", "u", "v")}
    pipeline.produce("public.v", change(1))
    pipeline.once()
    pipeline.age(30)
    for table in topics:
        pipeline.produce(f"public.{table}", change(2))
    pipeline.once()
    pipeline.age(10)
    for table in topics:
        pipeline.produce(f"public.{table}", change(3))
    pipeline.once()
    # WHEN a table of `u` has not folded LSN 102, and that of `v` none
    first = pipeline.upkeep(Maintenance(), {topics["t"]: 102, topics["u"]: 101, topics["v"]: 100})
    assert first.round(datetime.now(UTC)), pipeline.facts[-1]
    # THEN the log keeps what they need, but for records that are too old
    assert [off for off, _ in pipeline.has("t")] == [1]
    assert [off for off, _ in pipeline.has("u")] == [0, 1]
    assert [off for off, _ in pipeline.has("v")] == [1, 2]
    (unheld,) = [fact for fact in pipeline.facts if isinstance(fact, LogExpired)]
    assert "cdcd tables stop public.t" in unheld.hint
    (shortened,) = [fact for fact in pipeline.facts if isinstance(fact, LogShortened)]
    assert (shortened.held, positions.read(pipeline.spark, pipeline.place.name).summary.deleted) == (
        2,
        {topics["t"]: 102, topics["v"]: 101, f"{pipeline.prefix}.schemas": 0},
    )
    # AND when they have folded it, the records go; the log still knows its offsets
    assert pipeline.upkeep(Maintenance()).round(datetime.now(UTC)), pipeline.facts[-1]
    assert [len(pipeline.has(table)) for table in topics] == [1, 1, 1]
    pipeline.age(10)
    assert pipeline.upkeep(Maintenance()).round(datetime.now(UTC)), pipeline.facts[-1]
    assert pipeline.rows() == []
    Path(pipeline.place.checkpoint).rename(Path(pipeline.place.checkpoint).with_name("lost"))
    pipeline.produce("public.t", change(4))
    pipeline.once()
    assert [off for off, _ in pipeline.has("t")] == [2]
    assert [len(pipeline.has(table)) for table in ("u", "v")] == [0, 0]


def test_small_files_and_former_versions_go_and_no_record_with_them(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "_LAST", 2)
    # GIVEN a log of many small commits, a part of them of a day that has ended
    pipeline.describe("t", "u")
    for n in range(4):
        pipeline.produce("public.t", change(2 * n))
        pipeline.produce("public.u", change(2 * n + 1))
        pipeline.once()
        if n == 1:
            pipeline.age(1)
    before = [(row["topic"], row["off"], bytes(row["value"]), row["appended"]) for row in pipeline.rows()]
    files = pipeline.files()
    # WHEN it is maintained, twice
    policy = Maintenance(keep_s=0, keep_versions=2, versions_max=10, small_files_min=2)
    for _ in range(2):
        assert pipeline.upkeep(policy).round(datetime.now(UTC)), pipeline.facts[-1]
    # THEN there are fewer files, each sorted, and the records are those from before
    done = [fact for fact in pipeline.facts if isinstance(fact, TableMaintained)]
    assert done[0].compacted_files > done[0].written_files > 0
    assert pipeline.files() < files
    after = [(row["topic"], row["off"], bytes(row["value"]), row["appended"]) for row in pipeline.rows()]
    assert after == before
    if pipeline.place.table_format == ICEBERG:
        assert sum(fact.expired_versions for fact in done) > 0
        assert pipeline.spark.table(f"{pipeline.place.name}.snapshots").count() <= 6
    # AND a second round finds nothing to do: it has no commit
    versions = pipeline.spark.sql(
        f"DESCRIBE HISTORY {pipeline.place.name}"
        if pipeline.place.table_format == DELTA
        else f"SELECT * FROM {pipeline.place.name}.snapshots"
    ).count()
    assert pipeline.upkeep(Maintenance()).round(datetime.now(UTC)), pipeline.facts[-1]
    assert versions == pipeline.spark.sql(
        f"DESCRIBE HISTORY {pipeline.place.name}"
        if pipeline.place.table_format == DELTA
        else f"SELECT * FROM {pipeline.place.name}.snapshots"
    ).count()  # fmt: skip
    # AND the log goes on
    pipeline.produce("public.t", change(9))
    pipeline.once()
    assert [off for off, _ in pipeline.has("t")] == [0, 1, 2, 3, 4]


def test_a_log_is_read_from_its_newest_positions_on(pipeline: Pipeline) -> None:
    pipeline.describe("t")
    pipeline.produce("public.t", change(1), change(2))
    pipeline.once()
    whole = positions.read(pipeline.spark, pipeline.place.name)
    assert pipeline.upkeep(Maintenance()).round(datetime.now(UTC)), pipeline.facts[-1]
    saved = positions.read(pipeline.spark, pipeline.place.name)
    assert (saved.ends, saved.ids, saved.topics) == (whole.ends, whole.ids, whole.topics)
    # WHEN a later record comes, THEN both are counted
    pipeline.produce("public.t", change(3))
    pipeline.once()
    now = positions.read(pipeline.spark, pipeline.place.name)
    assert now.ends[f"{pipeline.prefix}.public.t"] == {0: 3}
    # AND superseded rows of the log itself are gone after the next round
    assert pipeline.upkeep(Maintenance()).round(datetime.now(UTC)), pipeline.facts[-1]
    assert sorted(row["kind"] for row in pipeline.rows("day IS NULL")) == ["positions", "started"]


def test_a_second_mirror_does_not_append_to_the_log_of_the_first(pipeline: Pipeline) -> None:
    pipeline.describe("t")
    pipeline.once()
    pipeline.settings = replace(pipeline.settings, name="another")
    with pytest.raises(ConfigError, match="appends to the log") as raised:
        pipeline.once()
    assert "target.log_table" in raised.value.hint


def test_the_query_runs_on_takes_new_topics_and_ends_when_told(pipeline: Pipeline) -> None:
    pipeline.describe("t")
    pipeline.produce("public.t", change(1))
    stop = threading.Event()
    thread = threading.Thread(target=lambda: pipeline.job().run(once=False, stop=stop))
    thread.start()
    try:
        until(lambda: True if _there(pipeline, "t", 1) else None, "appended", 120)
        pipeline.describe("u")
        pipeline.produce("public.u", change(1))
        until(lambda: True if _there(pipeline, "u", 1) else None, "appended", 120)
    finally:
        stop.set()
        thread.join(60)
    assert not thread.is_alive()
    assert pipeline.has("t") == pipeline.has("u") == [(0, "change")]


def test_a_second_driver_of_the_same_application_does_not_end_the_query_of_the_first(
    pipeline: Pipeline,
) -> None:
    pipeline.describe("t")
    pipeline.produce("public.t", change(1))
    stop = threading.Event()
    first = pipeline.job()
    thread = threading.Thread(target=lambda: first.run(once=False, stop=stop))
    thread.start()
    try:
        until(lambda: True if _there(pipeline, "t", 1) else None, "appended", 120)
        with pytest.raises(SinkUnavailableError) as raised:
            pipeline.once()
        assert "already active" in raised.value.message
        assert "one mirror for each log" in raised.value.hint
        pipeline.produce("public.t", change(2))
        until(lambda: True if _there(pipeline, "t", 2) else None, "appended", 120)
    finally:
        stop.set()
        thread.join(60)
    assert not [fact for fact in pipeline.facts if isinstance(fact, Retrying)]


def _there(pipeline: Pipeline, table: str, count: int) -> bool:
    try:
        return len(pipeline.has(table)) == count
    except PySparkException:
        # The log is not there yet.
        return False


@pytest.mark.parametrize("table_format", [ICEBERG, DELTA])
def test_a_daemons_changes_are_in_the_log_once_after_kills_in_the_midst_of_batches(
    stage: Stage, spark: SparkSession, table_format: str
) -> None:
    with stage.source(f"log_{table_format}", "CREATE TABLE t (id int PRIMARY KEY, n numeric)") as source:
        mirror = source.mirror(table_format, change_log="only")
        name = target_for(spark, mirror, f"log_{table_format}").own_name("log")
        # WHEN the process is killed twice while changes come
        for life in range(2):
            mirror.start()
            for n in range(20):
                source.execute(
                    "INSERT INTO t SELECT g, 1.10 FROM generate_series(%s::int, %s::int) g", *_ids(life, n)
                )
            until(partial(_more_than, spark, name, 200 * life), "appended", 180)
            mirror.kill()
        source.deliver()
        assert mirror.once() == 0
        # THEN each record is there once, byte for byte
        sent = {(raw.partition, raw.offset): raw.value for raw in source.records("public.t")}
        rows = spark.table(name).filter("tbl = 'public.t'").collect()
        assert len(rows) == len(sent) == 400
        assert {(row["part"], row["off"]): bytes(row["value"]) for row in rows} == sent
        kinds = {row["kind"] for row in spark.table(name).select("kind").distinct().collect()}
        assert {"change", "schema", "checkpoint", "started"} <= kinds


def _ids(life: int, n: int) -> tuple[int, int]:
    first = 200 * life + 10 * n
    return first, first + 9


def _more_than(spark: SparkSession, name: str, had: int) -> bool | None:
    """True if the log has more than `had` changes."""
    try:
        if not name.startswith("delta."):
            # Spark refuses to refresh a table that is a path, and Delta reads its newest version each time.
            spark.catalog.refreshTable(name)
        return spark.table(name).filter("kind = 'change'").count() > had or None
    except PySparkException:
        # The log is not there yet.
        return None


@pytest.mark.parametrize("appends", [False, True])
def test_records_that_an_owners_rollback_took_away_are_appended_again(
    pipeline: Pipeline, appends: bool
) -> None:
    # GIVEN a log with records of two runs, of which the second has another set of topics
    pipeline.describe("t")
    pipeline.produce("public.t", change(1), change(2))
    first = pipeline.once()
    chosen = first.appended.version
    pipeline.describe("u")
    pipeline.produce("public.t", change(3))
    pipeline.produce("public.u", change(4))
    pipeline.once()
    assert pipeline.has("t") == [(0, "change"), (1, "change"), (2, "change")]
    # WHEN its owner brings back the first version, in one case behind a process that goes on appending
    if pipeline.place.table_format == DELTA:
        pipeline.spark.sql(f"RESTORE TABLE {pipeline.place.name} TO VERSION AS OF {chosen}")
    else:
        table = pipeline.place.name.removeprefix("lake.")
        pipeline.spark.sql(f"CALL lake.system.rollback_to_snapshot('{table}', {chosen})")
    assert pipeline.has("t") == [(0, "change"), (1, "change")]
    pipeline.produce("public.t", change(5))
    if appends:
        columns = ", ".join(each if each != "off" else "3 AS off" for each in COLUMNS)
        rows = pipeline.spark.sql(
            f"SELECT {columns} FROM {pipeline.place.name} WHERE kind = 'change' AND off = 1"
        )
        if pipeline.place.table_format == DELTA:
            rows.write.format("delta").mode("append").insertInto(pipeline.place.name)
        else:
            rows.writeTo(pipeline.place.name).append()
    pipeline.facts.clear()
    job = pipeline.once()
    # THEN no record is missing, and the owner is told
    assert {off for off, _ in pipeline.has("t")} == {0, 1, 2, 3}
    assert pipeline.has("u") == [(0, "change")]
    assert len(pipeline.has("t")) == (5 if appends else 4)
    (told,) = [fact for fact in pipeline.facts if isinstance(fact, TableRolledBack)]
    assert told.table == pipeline.place.name
    assert job.appended.version != chosen
    # AND the next run has nothing more to say
    pipeline.facts.clear()
    pipeline.once()
    assert [fact for fact in pipeline.facts if isinstance(fact, TableRolledBack)] == []
    assert len(pipeline.has("t")) == (5 if appends else 4)
