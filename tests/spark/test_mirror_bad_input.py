"""What is wrong with what comes in, or is not there, is named; what is sound goes on. Real broker, daemon and Spark."""

import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from cdcd.core.errors import SinkError, SinkUnavailableError
from cdcd.core.records.schemas import read_form
from cdcd.mirror.jars import DELTA, ICEBERG
from cdcd.mirror.watching.progress import (
    BatchDone,
    Fact,
    LogAppended,
    MirrorStarted,
    Retrying,
    TableFailed,
)
from tests.integration.daemon import until
from tests.spark.jobs import Job
from tests.spark.stage import Source, Stage, change

TABLES = (
    "CREATE TABLE kept (id int PRIMARY KEY, n int)",
    "CREATE TABLE altered (id int PRIMARY KEY, n int)",
)
QUICK = {"default.api.timeout.ms": 4000, "request.timeout.ms": 2000}
"""Of Kafka's client: how soon it says that nobody answers. Where somebody should, a busy machine may take longer."""
WAIT_S = 120.0
STOP = {"on_incompatible": "stop"}


@pytest.fixture
def source(stage: Stage, request: pytest.FixtureRequest) -> Iterator[Source]:
    with stage.source(f"b{abs(hash(request.node.nodeid)) % 10**8}", *TABLES) as source:
        for table in ("kept", "altered"):
            source.execute(f"INSERT INTO {table} SELECT n, n FROM generate_series(1, 10) n")
        source.deliver()
        yield source


def quick(servers: str) -> dict[str, Any]:
    return {"bootstrap_servers": servers, "properties": QUICK}


@pytest.mark.parametrize("table_format", [ICEBERG, DELTA])
def test_a_table_that_cannot_be_followed_stops_alone_and_poison_is_kept_with_its_place(
    source: Source, spark: SparkSession, tmp_path: Path, table_format: str
) -> None:
    # GIVEN a mirror that has both tables
    job = Job(spark, source, tmp_path, table_format)
    job.once(tables=STOP)
    numbers = [(n, n) for n in range(1, 11)]
    assert job.rows(source, "kept") == job.rows(source, "altered") == numbers
    # WHEN one gets a type that its target cannot have, and the other's topic has records that are none
    source.execute("ALTER TABLE altered ALTER n TYPE text")
    source.execute("INSERT INTO altered VALUES (11, 'eleven')")
    source.deliver()
    source.produce("public.kept", b"{", b"[1", partition=1)
    source.execute("INSERT INTO kept VALUES (11, 11)")
    source.deliver()
    stopped = job.once(tables=STOP)
    # THEN the one says what is to be done and is left as it was, and the other goes on
    (failed,) = job.all(TableFailed)
    assert (failed.table, failed.stopped) == ("public.altered", True)
    assert failed.message.startswith("public.altered: column n changed from integer to text")
    assert "tables stop public.altered" in failed.hint
    assert list(stopped) == ["public.altered"]
    assert job.rows(source, "altered") == numbers
    assert job.rows(source, "kept") == [*numbers, (11, 11)]
    # AND what is no change is kept once
    for _ in range(2):
        topic, reason = f"{source.name}.public.kept", "its JSON is not that of a change"
        assert [(each.topic, each.partition, each.reason) for each in job.quarantine()] == [
            (topic, 1, reason)
        ] * 2
        # Also when all of it comes again.
        shutil.rmtree(tmp_path / "checkpoint_log")
        job.once(tables=STOP)


@pytest.mark.parametrize("table_format", [ICEBERG, DELTA])
def test_a_form_that_is_not_described_yet_holds_its_table(
    source: Source, spark: SparkSession, tmp_path: Path, table_format: str
) -> None:
    # GIVEN a change in a form of which the description is late
    job = Job(spark, source, tmp_path, table_format)
    job.once(tables=STOP)
    last = change(source.records("public.kept")[-1])
    with source.connect() as connection:
        (lsn,) = connection.execute("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint").fetchone() or (0,)
    of_late = {**last["source"], "schema_id": "00000000000000aa", "commit_lsn": lsn + 1, "event_serial_no": 1}
    late = {**last, "op": "c", "before": None, "after": {"id": 11, "n": 11}, "source": of_late}
    source.produce("public.kept", json.dumps(late).encode())
    # The daemon's checkpoint comes after it.
    source.execute("INSERT INTO altered VALUES (11, 11)")
    source.deliver()
    # WHEN it is mirrored
    stopped = job.once(tables=STOP)
    # THEN its table waits, and says for what; nothing goes to quarantine
    (failed,) = job.all(TableFailed)
    assert failed.table == "public.kept"
    assert "no description of source.schema_id 00000000000000aa" in failed.message
    assert list(stopped) == ["public.kept"]
    assert sum(batch.unreadable for batch in job.all(LogAppended)) == 0
    assert len(job.rows(source, "kept")) == 10
    # AND with the description the change is in
    (described,) = [
        form
        for record in source.topic("schemas")
        for _, form in [read_form(record.value or b"")]
        if form.table == "kept"
    ]
    key, value = described.record()
    told = json.loads(value) | {"fingerprint": "00000000000000aa"}
    source.produce_to("schemas", key, json.dumps(told).encode())
    assert job.once() == {}
    assert (11, 11) in job.rows(source, "kept")


def test_a_broker_that_is_away_is_named(source: Source, spark: SparkSession, tmp_path: Path) -> None:
    nobody = "127.0.0.1:1"
    with pytest.raises(SinkUnavailableError, match=f"Kafka at {nobody} does not answer"):
        Job(spark, source, tmp_path).once(kafka=quick(nobody))


def test_a_topic_that_is_missing_is_named(source: Source, spark: SparkSession, tmp_path: Path) -> None:
    job = Job(spark, source, tmp_path)
    for wrong in ({"prefix": "other"}, {"checkpoint": "other.checkpoint"}):
        with pytest.raises(SinkError, match=r"no topic other\.checkpoint") as raised:
            job.once(topics=wrong)
        assert "topics.prefix" in raised.value.hint
    with pytest.raises(SinkError, match=r"no topic other\.schemas") as raised:
        job.once(topics={"schemas": "other.schemas"})
    assert "topics.prefix" in raised.value.hint


def test_a_topic_that_was_deleted_before_it_was_read_is_no_silent_gap(
    stage: Stage, source: Source, spark: SparkSession, tmp_path: Path
) -> None:
    job = Job(spark, source, tmp_path)
    job.once(tables=STOP)
    source.execute("INSERT INTO kept VALUES (11, 11)")
    source.deliver()
    source.daemon.kill()
    admin = AdminClient({"bootstrap.servers": source.servers})
    topic = f"{source.name}.public.kept"
    admin.delete_topics([topic])[topic].result()
    until(lambda: topic not in admin.list_topics(timeout=10).topics or None, "deleted", WAIT_S)
    # The table stops by name, and says what to do.
    (stopped,) = job.once(kafka=quick(source.servers), tables=STOP).values()
    assert stopped.message.startswith(f"{topic}: the topic was deleted, so records")
    assert "Start the daemon, which makes the topic again" in stopped.hint


def test_a_broker_that_goes_away_is_waited_for(
    stage: Stage, source: Source, spark: SparkSession, tmp_path: Path
) -> None:
    # GIVEN a mirror that runs
    job = Job(spark, source, tmp_path)
    mirror, stop = job.mirror(kafka=quick(source.servers)), threading.Event()
    failure: list[BaseException] = []

    def run() -> None:
        try:
            mirror.run(once=False, stop=stop)
        except BaseException as error:  # noqa: BLE001 - shown by the test
            failure.append(error)

    running = threading.Thread(target=run)
    running.start()
    try:
        until(lambda: job.all(BatchDone) or failure or None, "the first batch", WAIT_S)
        # WHEN the broker is away for a while
        stage.broker.kill()
        until(lambda: job.all(Retrying) or failure or None, "it is said", WAIT_S)
        seen = len(job.facts)
        stage.broker.start()
        # THEN it is said that the broker is back, also while no table changes
        until(lambda: _saw(job, MirrorStarted, seen) or failure or None, "it goes on", WAIT_S)
        source.execute("INSERT INTO kept VALUES (11, 11)")
        source.deliver()
        # AND it goes on by itself
        until(lambda: (11, 11) in job.rows(source, "kept") or failure or None, "the row", WAIT_S)
    finally:
        stop.set()
        running.join()
    assert failure == []
    assert all(f"Kafka at {source.servers} does not answer" in fact.message for fact in job.all(Retrying))


@pytest.mark.parametrize("table_format", [ICEBERG, DELTA])
def test_a_value_without_a_form_stops_its_table_with_the_reason_until_the_record_is_set_aside(
    stage: Stage, spark: SparkSession, tmp_path: Path, table_format: str
) -> None:
    tables = ["CREATE TABLE exact (id int PRIMARY KEY, n numeric(9, 2))", *TABLES]
    precise = {"decimal_handling_mode": "precise"}
    with stage.source(f"exact_{table_format}", *tables, format=precise) as source:
        job = Job(spark, source, tmp_path, table_format)
        # GIVEN a row with a value that its format has no form for
        source.execute("INSERT INTO exact VALUES (1, 1.5), (2, 'NaN'); INSERT INTO kept VALUES (1, 1)")
        source.deliver()
        # WHEN it is mirrored, THEN the table stops with the reason, and the others go on
        (error,) = job.once(tables=STOP).values()
        assert "cannot be folded: its format has no form for a value of n" in error.message
        assert job.rows(source, "kept") == [(1, 1)]
        # AND the table has the other rows after the statement of the hint
        statement = error.hint.partition("UPDATE ")[2].partition(". If a program")[0]
        job.spark.sql(f"UPDATE {statement}")
        assert job.once(tables=STOP) == {}
        assert [row["id"] for row in job.table(source, "exact").collect()] == [1]


def _saw(job: Job, kind: type[Fact], after: int) -> bool:
    """True if the job has told such a fact after this number of facts."""
    return any(isinstance(fact, kind) for fact in job.facts[after:])
