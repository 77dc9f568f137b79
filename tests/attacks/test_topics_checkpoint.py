"""Who can write into the checkpoint topic: forged, foreign, deep, huge and copied records, and SQL in them."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import pytest

from cdcd.core.catalog.oids import squeezed
from cdcd.core.engine.checkpoint import Checkpoint
from cdcd.core.snapshot.progress import Progress
from cdcd.core.snapshot.table_task import TableTask
from deploy.demo.topics import Reader
from deploy.local import KafkaBroker
from tests.attacks.checkpoints import bomb, cases, last_checkpoint, records_of, write
from tests.integration.conftest import Database
from tests.integration.created_topics import create_topics
from tests.integration.daemon import Daemon, configuration, until
from tests.integration.forked import run_cdcd

ENDS: Final = "the daemon ends at each start"
KEY: Final = "a key that only the pipeline has, of 40 letters"


class Pipeline:
    """A pipeline that has delivered rows and was stopped, with its checkpoint topic."""

    def __init__(self, process: Daemon, database: Database, broker: KafkaBroker, name: str) -> None:
        self.process, self.database, self.broker, self.name = process, database, broker, name
        self.topic = f"{name}.checkpoint"

    def forge(self, *values: bytes | None, key: bytes | None = None) -> None:
        """Write records as somebody else."""
        write(
            self.broker, self.topic, [(self.name.encode() if key is None else key, each) for each in values]
        )

    def deliver(self, count: int) -> None:
        """The next row comes, once, and the others do not come again."""
        self.database.execute(f"INSERT INTO orders VALUES ({count})")

        def all_there() -> list[int] | None:
            with Reader(self.broker.bootstrap_servers, self.name) as reader:
                found = [
                    json.loads(raw.value)["after"]["id"]
                    for raw in reader.read_all()
                    if raw.topic == f"{self.name}.public.orders" and raw.value
                ]
            return found if count in found else None

        assert sorted(until(all_there, "the row did not come")) == list(range(1, count + 1))


@pytest.fixture
def start(
    database: Database, broker: KafkaBroker, daemon: Callable[[Mapping[str, Any]], Daemon], unique: str
) -> Callable[..., Pipeline]:
    """Starts a pipeline, has it deliver a row, and stops it."""

    def begin(**sections: Any) -> Pipeline:
        database.execute("CREATE TABLE orders (id int PRIMARY KEY)")
        process = daemon(configuration(unique, database.dsn(), broker.bootstrap_servers, **sections))
        process.await_streaming()
        pipeline = Pipeline(process, database, broker, unique)
        pipeline.deliver(1)
        assert process.stop() == 0
        return pipeline

    return begin


def altered(written: Checkpoint, **fields: Any) -> bytes:
    """The record with other fields, as format 1 and 2 have them."""
    return json.dumps({**json.loads(written.encode()), **fields}).encode()


FORGED: Final[Mapping[str, Callable[[Checkpoint], bytes]]] = {
    "deep lists": lambda _: b"[" * 500_000,
    "deep objects": lambda _: b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "deep and well-formed": lambda _: b"[" * 50_000 + b"]" * 50_000,
    "no JSON": lambda _: b"start",
    "empty": lambda _: b"",
    "null": lambda _: b"null",
    "a list": lambda _: b"[]",
    "not UTF-8": lambda _: b"\xff\xfe\x00",
    "cut off": lambda good: good.encode()[:-1],
    "a long text": lambda _: b'"' + b"x" * 900_000 + b'"',
    "a text of quotes": lambda _: b'"' + b'\\"' * 400_000,
    "a long number": lambda _: b"9" * 900_000,
    "events_done beyond all": lambda good: altered(good, events_done=10**30),
    "events_done below zero": lambda good: altered(good, events_done=-1),
    "events_done of another type": lambda good: altered(good, events_done="1"),
    "NaN": lambda good: altered(good, timeline=float("nan")),
    "a position beyond all": lambda good: altered(good, end_lsn="FFFFFFFFF/0"),
    "a position of another type": lambda good: altered(good, end_lsn=["0/1"]),
    "a key twice": lambda good: good.encode()[:-1] + b',"end_lsn":"0/0"}',
    "half a character": lambda good: altered(good, stream="\ud800"),
    "a list that expands": lambda good: altered(
        good, snapshot={"method": "incremental", "known": squeezed(bytes(300_000_000))}
    ),
    "an oid without end": lambda good: altered(
        good,
        snapshot={
            "method": "incremental",
            "known": squeezed((500_000).to_bytes(4, "big") + b"\xff" * 500_000),
        },
    ),
    "outdated tables of another type": lambda good: altered(
        good, snapshot={"method": "incremental", "outdated": 7}
    ),
    "outdated tables that expand": lambda good: altered(
        good, snapshot={"method": "incremental", "outdated": squeezed(bytes(300_000_000))}
    ),
    "a task without a name": lambda good: altered(
        good, snapshot={"method": "incremental", "tasks": [{"oid": 1}]}
    ),
    "a list of partitions that expands": lambda good: altered(
        good, snapshot={"method": "incremental", "partitions": squeezed(b"[" * 300_000_000)}
    ),
    "a list of partitions that is none": lambda good: altered(
        good, snapshot={"method": "incremental", "partitions": squeezed(b'[[1,[2],[],["x"]]]')}
    ),
    "tasks of another type": lambda good: altered(good, snapshot={"method": "incremental", "tasks": 7}),
    "a format without its fields": lambda _: b'{"format": 7}',
    "a format of another type": lambda good: altered(good, format=[2]),
}


# A record never reaches PostgreSQL, so one version shows it; `make versions` has another one.
@pytest.mark.postgres(only=18, also=[13])
@pytest.mark.parametrize("forge", cases(FORGED, ENDS, failed=FORGED.keys() - {"half a character"}))
def test_a_record_that_is_no_checkpoint_ends_nothing(start: Callable[..., Pipeline], forge):
    pipeline = start()
    good = last_checkpoint(pipeline.broker, pipeline.topic)
    forged = forge(good)
    pipeline.forge(forged)
    pipeline.process.start()
    told = pipeline.process.await_event("checkpoint.ignored")
    assert (told["level"], told["count"], told["partition"]) == ("warning", 1, 0)
    assert told["first_offset"] == told["last_offset"]
    assert 0 < len(told["reason"]) < 1000
    pipeline.deliver(2)
    # Alerts can watch the number of ignored records.
    pipeline.process.await_metric("cdcd_ignored_records_total", lambda count: count == 1, pipeline.topic)
    assert pipeline.process.stop() == 0


@pytest.mark.worst
@pytest.mark.attack(gains=f"{ENDS}, also the commands that look", before="failed")
@pytest.mark.postgres(only=[18])
def test_deep_and_foreign_records_end_neither_the_daemon_nor_a_command(start: Callable[..., Pipeline]):
    pipeline = start()
    pipeline.forge(b"[" * 100_000)
    pipeline.forge(b"[" * 100_000, key=b"other")
    pipeline.forge(b"x", key=b"")
    file = str(pipeline.process.config_path)
    for command in (("status", "--format", "json"), ("check",), ("drop",), ("reset",)):
        done = run_cdcd(*command, "--config", file)
        assert "Traceback" not in done.stderr + done.stdout
        assert "cannot be read" not in done.stderr
        assert done.returncode in (0, 10), (command, done.stdout[-500:], done.stderr)
        if command[0] == "check":
            assert "3 records from offset" in " ".join(done.stdout.split())
    pipeline.process.start()
    assert pipeline.process.await_event("checkpoint.ignored")["count"] == 3
    pipeline.deliver(2)
    done = run_cdcd("verify", "--config", file)
    assert done.returncode == 0, done.stderr
    assert pipeline.process.stop() == 0
    done = run_cdcd("drop", "--topics", "--yes", "--config", file)
    assert done.returncode == 0, done.stderr


FOREIGN: Final[Mapping[str, tuple[bytes, bytes | None]]] = {
    "another pipeline's name": (b"other", b"{}"),
    "an empty key": (b"", b"{}"),
    "a long key": (b"k" * 500_000, b"{}"),
    "a key that is no text": (b"\xff\xfe", b"[[["),
    "another key's tombstone": (b"other", None),
}


@pytest.mark.attack(gains=ENDS, before="failed")
@pytest.mark.postgres(only=[18])
@pytest.mark.parametrize("foreign", FOREIGN.values(), ids=FOREIGN)
def test_a_record_of_another_key_ends_nothing(start: Callable[..., Pipeline], foreign):
    pipeline = start()
    key, value = foreign
    pipeline.forge(value, key=key)
    pipeline.process.start()
    pipeline.deliver(2)
    assert pipeline.process.saw("checkpoint.ignored") is (value is not None)
    assert pipeline.process.stop() == 0


@pytest.mark.attack(gains=ENDS, before="failed")
@pytest.mark.postgres(only=[18])
def test_another_pipeline_s_checkpoint_ends_nothing(start: Callable[..., Pipeline]):
    pipeline = start()
    pipeline.forge(last_checkpoint(pipeline.broker, pipeline.topic).encode(), key=b"other")
    pipeline.process.start()
    pipeline.deliver(2)
    assert pipeline.process.stop() == 0


@pytest.mark.attack(gains="the memory of the daemon, and its start takes minutes", before="failed")
@pytest.mark.postgres(only=[18])
def test_many_records_are_one_event(start: Callable[..., Pipeline]):
    pipeline = start()
    pipeline.forge(*[b"[" * 20_000] * 300)
    pipeline.process.start()
    assert pipeline.process.await_event("checkpoint.ignored")["count"] == 300
    pipeline.deliver(2)
    assert pipeline.process.peak_memory_bytes() < 400_000_000
    assert pipeline.process.stop() == 0


# Records that are well-formed.


@pytest.mark.attack(
    gains="positions go back: consumers get changes twice, or the daemon ends", before="failed"
)
@pytest.mark.postgres(only=[18])
@pytest.mark.parametrize(
    "sections", [{}, {"topics": {"checkpoint_key": KEY}}], ids=["without a key", "with a key"]
)
def test_a_copy_of_a_former_record_does_not_count(start: Callable[..., Pipeline], sections):
    pipeline = start(**sections)
    pipeline.process.start()
    pipeline.deliver(2)
    pipeline.deliver(3)
    assert pipeline.process.stop() == 0
    records = records_of(pipeline.broker, pipeline.topic)
    pipeline.forge(*[value for _, value in records[:3]])
    pipeline.process.start()
    assert "copy of a former record" in pipeline.process.await_event("checkpoint.ignored")["reason"]
    pipeline.deliver(4)
    assert pipeline.process.stop() == 0


@pytest.mark.attack(
    gains="positions go back: consumers get changes twice, or the daemon ends", before="failed"
)
@pytest.mark.postgres(only=[18])
def test_copies_that_fill_the_end_of_the_topic_do_not_count(start: Callable[..., Pipeline]):
    pipeline = start(topics={"checkpoint_key": KEY})
    pipeline.process.start()
    pipeline.deliver(2)
    assert pipeline.process.stop() == 0
    first = records_of(pipeline.broker, pipeline.topic)[0][1]
    pipeline.forge(*[first] * 3_000)
    pipeline.process.start()
    pipeline.deliver(3)
    assert pipeline.process.stop() == 0


BELIEVABLE: Final[Mapping[str, Callable[[Checkpoint], bytes]]] = {
    "ahead of the server": lambda good: altered(good, end_lsn="FFFF/0", commit_lsn="FFFF/0"),
    "behind the slot": lambda good: altered(good, end_lsn="0/1", commit_lsn="0/1", flushed_lsn="0/1"),
    "another server": lambda good: altered(good, system_identifier="1"),
    "another timeline": lambda good: altered(good, timeline=99),
    "inside a transaction": lambda good: altered(good, events_done=3),
    "a later epoch": lambda good: altered(good, epoch=10**9, end_lsn="0/1"),
    "the highest serial": lambda good: altered(good, serial=2**50, end_lsn="0/1"),
    "format 1": lambda good: good.encode(version=1).replace(b'"timeline":1', b'"timeline":9'),
    "format 3": lambda good: altered(good, format=3),
    "sealed": lambda good: altered(
        good,
        seal={
            "fence_lsn": "0/1", "system_identifier": "2", "slot_lsn": "0/1", "origin": "o", "tables": 1, "token": "t",
        },
    ),
    "a tag of another key": lambda good: replace(good, timeline=9, serial=2**49).encode(b"x" * 32, "shop"),
    "downgraded": lambda good: altered(good, downgraded=True, timeline=9),
}  # fmt: skip


@pytest.mark.attack(gains=f"{ENDS}, or leaves out changes", before="failed")
@pytest.mark.postgres(only=[13, 18])
@pytest.mark.parametrize("forge", BELIEVABLE.values(), ids=BELIEVABLE)
def test_with_a_key_a_record_without_its_tag_does_not_count(start: Callable[..., Pipeline], forge):
    pipeline = start(topics={"checkpoint_key": KEY})
    pipeline.forge(forge(last_checkpoint(pipeline.broker, pipeline.topic)))
    pipeline.process.start()
    assert pipeline.process.await_event("checkpoint.ignored")["count"] == 1
    pipeline.deliver(2)
    assert pipeline.process.stop() == 0
    assert not pipeline.process.saw("checkpoint.unsigned")


# SQL.

CONDITIONS: Final = {
    "a function": "public.evil(id) = id",
    "a subquery": "id IN (SELECT public.evil(1))",
    "an error that shows a value": "id::text::bool",
    "a sleep": "pg_sleep(1000) IS NOT NULL",
    "another statement": "true) TO STDOUT; SELECT public.evil(1); COPY (SELECT 1",
}


@pytest.mark.attack(gains="runs SQL with the rights of cdcd's role", before="failed")
@pytest.mark.postgres(only=[14, 18])
@pytest.mark.parametrize("signals", ["off", "all"])
@pytest.mark.parametrize("where", CONDITIONS.values(), ids=CONDITIONS)
def test_a_condition_in_the_topic_is_never_run(
    database: Database, start: Callable[..., Pipeline], where: str, signals: str
):
    pipeline = start(snapshot={"mode": "initial", "signals": signals})
    database.execute(
        "CREATE FUNCTION evil(i int) RETURNS int LANGUAGE plpgsql VOLATILE AS "
        "$$ BEGIN RAISE WARNING 'evil ran'; PERFORM pg_notify('evil', session_user); RETURN i; END $$"
    )
    good = last_checkpoint(pipeline.broker, pipeline.topic)
    progress = (good.snapshot or Progress()).add([TableTask("public.orders", request="forged", where=where)])
    pipeline.forge(replace(good, snapshot=progress).encode())
    with database.connect() as listening:
        listening.execute("LISTEN evil")
        pipeline.process.start()
        dropped = pipeline.process.await_event("condition.dropped")
        assert dropped["table"] == "public.orders"
        assert where not in json.dumps(dropped)
        pipeline.deliver(2)
        assert pipeline.process.stop() == 0
        assert list(listening.notifies(timeout=0.5)) == []
    assert not pipeline.process.saw("table.failed")
    assert where not in pipeline.process.output()


@pytest.mark.attack(gains="the memory of the daemon, or its end, at each start", before="failed")
@pytest.mark.postgres(only=18)
@pytest.mark.parametrize("codec", ["gzip", "zstd"])
def test_the_topic_takes_no_record_that_is_small_only_while_it_is_compressed(
    start: Callable[..., Pipeline], codec: str
):
    pipeline = start()
    assert bomb(pipeline.broker, pipeline.topic, codec, 1) == [None]
    pipeline.process.start()
    pipeline.process.await_streaming()
    pipeline.deliver(2)
    assert not pipeline.process.saw("checkpoint.ignored")


@pytest.mark.attack(gains=ENDS, before="failed")
@pytest.mark.postgres(only=18)
def test_records_that_cannot_be_decompressed_are_passed_over(
    database: Database, broker: KafkaBroker, start: Callable[..., Pipeline], unique: str
):
    # GIVEN a checkpoint topic that somebody created without the setting that refuses such records
    create_topics(broker.bootstrap_servers, f"{unique}.checkpoint", config={"cleanup.policy": "compact"})
    pipeline = start()
    # WHEN such records are behind the last checkpoint
    offsets = bomb(broker, pipeline.topic, "zstd", 30)
    pipeline.process.start()
    # THEN the daemon goes on with the checkpoint, and names the records
    told = pipeline.process.await_event("checkpoint.ignored")
    assert (told["first_offset"], told["last_offset"], told["count"]) == (offsets[0], offsets[-1], 30)
    assert "decompressed" in told["reason"]
    pipeline.process.await_streaming()
    pipeline.deliver(2)
    assert pipeline.process.stop() == 0
    # AND with the checkpoint behind these records
    pipeline.process.start()
    pipeline.process.await_streaming()
    pipeline.deliver(3)
    checked = run_cdcd("check", "--config", str(pipeline.process.config_path))
    said = " ".join(checked.stdout.split())
    assert f"--entity-name {pipeline.topic} --add-config compression.type=uncompressed" in said
