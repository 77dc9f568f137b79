"""A real daemon is recorded, and its recording is replayed: the same bytes, whatever happened meanwhile."""

import json
import re
import signal
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from cdcd.adapters.recording.segments import list_segments
from cdcd.core.protocol.lsn import Lsn
from cdcd.tools.operations.change_lines import ReadRecord, as_json
from cdcd.tools.operations.replay import Range, redact, replay
from deploy.demo.fold import await_flushed
from deploy.demo.topics import Reader
from deploy.local import KafkaBroker
from tests.integration.conftest import Database
from tests.integration.daemon import WAIT_S, Daemon, configuration, until
from tests.integration.forked import run_cdcd, start_cdcd
from tests.integration.visible_records import await_decided

TWO_PHASE_SINCE = 15
"""An earlier version sends a prepared transaction at its COMMIT PREPARED."""

StartDaemon = Callable[[dict[str, Any]], Daemon]


def topic_records(servers: str, prefix: str) -> dict[str, list[str]]:
    """What a `read_committed` reader finds in each topic with this prefix that has records. Each has one partition.

    No transaction may stay open: what is committed is in one topic a moment before it is in another.
    """
    settings = {"bootstrap.servers": servers, "group.id": uuid4().hex, "isolation.level": "read_committed"}
    consumer = Consumer({**settings, "enable.partition.eof": True})
    found: dict[str, list[str]] = {}
    try:
        names = [name for name in consumer.list_topics(timeout=30).topics if name.startswith(f"{prefix}.")]
        names = [name for name in names if not name.endswith("checkpoint")]
        await_decided(servers, *names)
        consumer.assign([TopicPartition(name, 0, 0) for name in names])
        open_topics = set(names)
        found = {name: [] for name in names}
        while open_topics:
            for message in consumer.consume(1000, 0.2):
                error = message.error()
                if error is None:
                    topic = str(message.topic())
                    found[topic].append(as_json(ReadRecord(topic, message.key(), message.value())))
                else:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    open_topics.discard(message.topic())
    finally:
        consumer.close()
    return {name: records for name, records in found.items() if records}


def replayed(folder: Path) -> tuple[dict[str, list[str]], list[str]]:
    """The records of an exact replay, by topic, and what was noted."""
    found: dict[str, list[str]] = {}
    notes: list[str] = []

    def show(line: str) -> None:
        found.setdefault(json.loads(line)["topic"], []).append(line)

    replay(folder, None, "stdout", Range(), show=show, notice=notes.append)
    return found, notes


def transaction(database: Database, *statements: str) -> None:
    with psycopg.connect(database.dsn()) as connection:
        for statement in statements:
            connection.execute(statement.encode())


@pytest.mark.postgres(only=18, also=[13, 14, 15, 16, 17])
def test_a_replay_writes_what_the_daemon_wrote(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str, scratch: Path
):
    # GIVEN a recorded daemon, whose tables have rows, and to which large transactions are streamed
    folder = scratch / f"recording-{unique}"
    database.execute(f'ALTER DATABASE "{database.name}" SET logical_decoding_work_mem = 64')
    database.execute("CREATE TABLE t (id bigint PRIMARY KEY, note text)")
    database.execute("INSERT INTO t SELECT i, 'row ' || i FROM generate_series(1, 2000) AS i")
    config = configuration(
        unique,
        database.dsn(),
        broker.bootstrap_servers,
        postgres={"two_phase": database.version >= TWO_PHASE_SINCE},
        snapshot={"mode": "initial", "added_tables": True},
        topics={"create": {"partitions": 1}},
        record={"directory": str(folder), "segment_bytes": 1 << 20},
    )
    process = daemon(config)
    process.await_event("recording.started")
    process.await_streaming()
    # WHEN there are small, large, prepared and rolled back transactions, and DDL
    transaction(
        database, "UPDATE t SET note = note || '!' WHERE id % 7 = 0", "DELETE FROM t WHERE id % 11 = 0"
    )
    transaction(
        database,
        "INSERT INTO t SELECT i, repeat('x', 60) || i FROM generate_series(10001, 14000) AS i",
        "SAVEPOINT a",
        "UPDATE t SET note = 'gone' WHERE id < 100",
        "ROLLBACK TO a",
        "UPDATE t SET id = -id WHERE id % 3 = 0",
    )
    with psycopg.connect(database.dsn(), autocommit=True) as connection:
        connection.execute("BEGIN")
        connection.execute("INSERT INTO t VALUES (50001, 'prepared')")
        connection.execute("PREPARE TRANSACTION 'one'")
    transaction(
        database, "CREATE TABLE u (id int PRIMARY KEY, at timestamptz)", "INSERT INTO u SELECT 1, now()"
    )
    database.execute("COMMIT PREPARED 'one'")
    transaction(
        database, "ALTER TABLE t ADD COLUMN more int DEFAULT 7", "UPDATE t SET more = 8 WHERE id < 50"
    )
    # AND the table that was added is read, and the recording has all: which tombstones a gap would hold, no record says
    process.await_event("table.read", table="public.u")
    await_flushed(database.dsn(), f"cdcd_{unique}")
    written = topic_records(broker.bootstrap_servers, unique)
    until(lambda: replayed(folder)[0] == written or None, "the recording never had what was delivered")
    # AND the daemon is killed in the middle of a load, and started again
    with psycopg.connect(database.dsn(), autocommit=True) as connection:
        for number in range(60_001, 60_200):
            connection.execute("INSERT INTO t VALUES (%s, 'load')", (number,))
    process.kill()
    process.start()
    process.await_streaming()
    transaction(
        database, "INSERT INTO t SELECT i, 'last' FROM generate_series(70001, 70100) AS i", "TRUNCATE u"
    )
    await_flushed(database.dsn(), f"cdcd_{unique}")
    assert process.metrics()["cdcd_recording_stopped"][()] == 0
    process.await_metric("cdcd_recorded_bytes_total", lambda size: size > 0)
    assert process.stop() == 0
    # THEN the replay has the same bytes, but for what the killed process had not written yet, which it tells
    found, notes = replayed(folder)
    missing = missing_in(notes)
    written = topic_records(broker.bootstrap_servers, unique)
    assert sum(map(len, written.values())) > 8000
    for topic, records in written.items():
        assert replays(found.get(topic, []), records, missing), topic
    assert any("2 of 2 sessions identical to the original" in note for note in notes)
    # AND nobody else may read it
    for segment in list_segments(folder):
        assert stat.S_IMODE(segment.path.stat().st_mode) == 0o600


def missing_in(notes: list[str]) -> list[tuple[Lsn, Lsn]]:
    """The gaps that a replay told, which are what a killed process had not written yet."""
    gaps = [re.search(r"between (\S+) and (\S+) is not", note) for note in notes]
    return [(Lsn.parse(gap[1]), Lsn.parse(gap[2])) for gap in gaps if gap]


def lies_in_gap(line: str, gaps: list[tuple[Lsn, Lsn]]) -> bool:
    """Whether the change of a record was committed within one of the gaps."""
    value = json.loads(line)["value"]
    if value is None or not gaps:
        return False
    lsn = int(value.get("source", {}).get("commit_lsn") or 0)
    return any(begin <= lsn < end for begin, end in gaps)


def replays(found: list[str], written: list[str], gaps: list[tuple[Lsn, Lsn]]) -> bool:
    """Whether a replay found all that is written in a topic, but for what the gaps hold.

    Descriptions of tables and notes of tables that are set aside have no place in the stream. A gap may hold them, and
    each session describes its tables again.
    """
    rest = iter(found)
    wanted = next(rest, None)
    for line in written:
        if line == wanted:
            wanted = next(rest, None)
        elif not lies_in_gap(line, gaps):
            value = json.loads(line)["value"] or {}
            may_lack = "aside" in value or ("source" not in value and line in found)
            if not gaps or not may_lack:
                return False
    return wanted is None


@pytest.mark.postgres(only=18)
def test_a_kill_right_behind_a_description_leaves_a_gap_that_holds_the_description_too(
    database: Database, broker: KafkaBroker, daemon: StartDaemon, unique: str, scratch: Path
):
    # GIVEN a recorded daemon
    folder = scratch / f"recording-{unique}"
    database.execute("CREATE TABLE t (id bigint PRIMARY KEY)")
    record = {"directory": str(folder), "segment_bytes": 1 << 20}
    config = configuration(unique, database.dsn(), broker.bootstrap_servers, record=record)
    process = daemon(config)
    process.await_streaming()

    def has_change(reader: Reader) -> bool:
        reader.discover()
        return any(raw.topic == f"{unique}.public.t" for raw in reader.poll())

    # WHEN it is killed as soon as a reader sees the change that the description precedes, until a kill comes before the
    # recording is written (after 0.2 s)
    with Reader(broker.bootstrap_servers, unique) as reader:
        for number in range(20):
            database.execute(f"INSERT INTO t VALUES ({number})")
            until(lambda: has_change(reader) or None, "no change came")
            process.kill()
            process.start()
            process.await_streaming()
            if len(replayed(folder)[0].get(f"{unique}.public.t", [])) <= number:
                break
    database.execute("INSERT INTO t VALUES (20)")
    await_flushed(database.dsn(), f"cdcd_{unique}")
    assert process.stop() == 0
    # THEN the replay has all but the gaps
    found, notes = replayed(folder)
    gaps = missing_in(notes)
    written = topic_records(broker.bootstrap_servers, unique)
    assert gaps, "the recording has everything, so the test shows nothing"
    assert all(replays(found.get(name, []), lines, gaps) for name, lines in written.items()), notes


@pytest.mark.postgres(only=18)
def test_a_recording_needs_neither_kafka_nor_a_daemon(database: Database, unique: str, scratch: Path):
    # GIVEN a publication, and a command that records
    folder, file = scratch / f"recording-{unique}", scratch / f"{unique}.yaml"
    database.execute("CREATE TABLE t (id bigint PRIMARY KEY, note text)")
    database.execute(f"CREATE PUBLICATION cdcd_{unique} FOR TABLE t")
    file.write_text(json.dumps(configuration(unique, database.dsn(), "127.0.0.1:1")))
    with start_cdcd("record", "--config", str(file), "--directory", str(folder)) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert "Records what is committed from" in line, line
        # WHEN rows are written, and the recorder has confirmed them
        secret = "a note that nobody else may read"
        transaction(database, f"INSERT INTO t SELECT i, '{secret} ' || i FROM generate_series(1, 500) AS i")
        ((end,),) = database.execute("SELECT pg_current_wal_lsn()")
        until(lambda: _is_confirmed(database, str(end)), "the recorder never got there")
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_S) == 0, process.stderr.read()
    # THEN the recording has them, exactly, and nothing is left on the server
    found, notes = replayed(folder)
    assert [json.loads(line)["key"]["id"] for line in found[f"{unique}.public.t"]] == list(range(1, 501))
    assert any("1 of 1 session identical to the original" in note for note in notes)
    slots = "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"
    until(lambda: not database.execute(slots) or None, "a slot is left")
    # AND a redacted copy has as many, without what they say
    target = scratch / f"redacted-{unique}"
    redact(folder, target, Range(), rules=(), notice=notes.append)
    copied, _ = replayed(target)
    assert len(copied[f"{unique}.public.t"]) == 500
    assert secret in "".join(found[f"{unique}.public.t"])
    assert not any(word in "".join(copied[f"{unique}.public.t"]) for word in ("nobody", "note that"))
    # AND a copy with modes for columns has each of these columns in its mode
    kept = scratch / f"kept-{unique}"
    made = run_cdcd(
        *("replay", str(folder), "--redact", str(kept)),
        *("--column", "public.t=replace", "--column", "public.*.note=null"),
    )
    assert made.returncode == 0, made.stderr
    assert "pseudonymous, not anonymous" in made.stderr
    nulled, _ = replayed(kept)
    rows = [json.loads(line)["value"]["after"] for line in nulled[f"{unique}.public.t"]]
    assert len(rows) == 500
    assert all(row["note"] is None for row in rows)
    refused = run_cdcd("replay", str(folder), "--redact", f"{kept}-2", "--column", "public.t.id=null")
    assert refused.returncode == 2
    assert "public.t.id is part of a key" in refused.stderr


def _is_confirmed(database: Database, end: str) -> bool | None:
    rows = database.execute(
        f"SELECT 1 FROM pg_replication_slots WHERE database = current_database() AND confirmed_flush_lsn >= '{end}'"
    )
    return True if rows else None
