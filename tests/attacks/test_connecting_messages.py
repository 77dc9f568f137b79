"""Logical messages of a role that may only connect: none ends, fills or delays the daemon.

PostgreSQL 13 sends no logical messages to its clients. There, a few of the attacks show that nothing happens.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from deploy.local import KafkaBroker
from tests.attacks.checkpoints import cases
from tests.attacks.measured import (
    MB,
    StartDaemon,
    allowed,
    await_passed,
    await_renewed,
    filled,
    records,
    run,
)
from tests.integration.conftest import Database
from tests.integration.daemon import Daemon, configuration

RECORD_MAX = 1_000_000
"""Bytes of a record that each topic takes."""


class Attacked:
    """A database with a table, a role that may connect and nothing else, and a pipeline."""

    def __init__(self, database: Database, broker: KafkaBroker, unique: str, daemon: StartDaemon) -> None:
        self.database = database
        self.broker = broker
        self.name = unique
        self.version = database.version
        self._daemon = daemon
        self._stranger = f"{unique}_stranger"
        database.execute(f'CREATE ROLE "{self._stranger}" LOGIN')
        database.execute("CREATE TABLE t (id int PRIMARY KEY, note text)")

    def started(self, **sections: Any) -> Daemon:
        """A daemon that streams."""
        postgres = {"slot": self.name, "messages": None, **sections.pop("postgres", {})}
        servers = self.broker.bootstrap_servers
        process = self._daemon(
            configuration(self.name, self.database.dsn(), servers, postgres=postgres, **sections)
        )
        process.await_streaming()
        return process

    def standby(self, active: Daemon) -> Daemon:
        """A second instance of the same pipeline."""
        process = self._daemon(active.config)
        process.await_event("standby.waiting")
        return process

    def says(self, *statements: str) -> None:
        """The stranger runs these statements in one transaction."""
        run(self.database, *statements, user=self._stranger)

    def passes(self, process: Daemon) -> None:
        """Wait until the daemon has passed what the stranger said."""
        await_passed(process, self.database, self.name)

    def records(self, topic: str) -> list[Any]:
        return records(self.broker, f"{self.name}.{topic}")


@pytest.fixture
def attacked(database: Database, broker: KafkaBroker, unique: str, daemon: StartDaemon) -> Iterator[Attacked]:
    yield Attacked(database, broker, unique, daemon)
    database.execute(f'DROP ROLE "{unique}_stranger"')


def emit(content: str, *, prefix: str = "'x'", transactional: bool = False) -> str:
    return f"SELECT pg_logical_emit_message({str(transactional).lower()}, {prefix}, {content})"


@pytest.mark.worst
@pytest.mark.attack(gains="a daemon that is out of memory at each start, by one statement", before="failed")
def test_one_large_message_needs_no_more_memory_than_the_rule_says(attacked):
    process = attacked.started()
    attacked.says(emit(filled(100)))
    attacked.passes(process)
    assert process.peak_memory_bytes() < allowed(100 * MB)


@pytest.mark.postgres(only=18)
@pytest.mark.parametrize("megabytes", [50, 100, 200, 400])
@pytest.mark.parametrize("transactional", [False, True], ids=["alone", "in a transaction"])
@pytest.mark.attack(gains="a daemon that is out of memory at each start", before="failed")
def test_messages_of_any_size_pass(attacked, megabytes, transactional):
    process = attacked.started()
    attacked.says(emit(filled(megabytes), transactional=transactional))
    attacked.passes(process)
    assert process.peak_memory_bytes() < allowed(megabytes * MB)


@pytest.mark.postgres(only=18)
@pytest.mark.parametrize("messages", [True, "asked"], ids=["delivered", "asked"])
@pytest.mark.attack(gains="a daemon that keeps the memory of the largest message", before="failed")
def test_the_memory_goes_back_once_the_message_is_confirmed(attacked, messages):
    process = attacked.started(postgres={"messages": messages})
    attacked.says(emit(filled(200)))
    attacked.passes(process)
    assert await_renewed(process) < allowed(0)
    run(attacked.database, "INSERT INTO t VALUES (1, 'after')")
    attacked.passes(process)


@pytest.mark.postgres(only=18)
@pytest.mark.attack(
    gains="a daemon that is out of memory, by a transaction that is streamed", before="failed"
)
def test_large_messages_in_a_streamed_transaction_need_the_memory_of_one(attacked):
    process = attacked.started()
    big = emit(filled(50), transactional=True)
    attacked.says(*[emit("repeat('s', 100000)", transactional=True)] * 200, big, big, big)
    attacked.passes(process)
    assert process.peak_memory_bytes() < allowed(50 * MB)


@pytest.mark.postgres(only=18)
@pytest.mark.attack(gains="a daemon that is out of memory, by many messages at once", before="failed")
def test_many_large_messages_need_the_memory_of_one(attacked):
    process = attacked.started(postgres={"messages": True})
    for number in range(12):
        attacked.says(emit(filled(30), prefix=f"'p{number}'"))
    attacked.passes(process)
    assert process.peak_memory_bytes() < allowed(30 * MB)


@pytest.mark.postgres(only=18)
@pytest.mark.attack(gains="a daemon that is out of memory, by the prefix of a message", before="failed")
def test_a_prefix_of_any_length_is_cut(attacked):
    process = attacked.started(postgres={"messages": True})
    attacked.says(emit("'content'", prefix=filled(64)))
    attacked.passes(process)
    assert process.peak_memory_bytes() < allowed(64 * MB)
    (record,) = attacked.records("message")
    assert record.key() is None
    assert record.value() is None


@pytest.mark.postgres(only=18)
@pytest.mark.parametrize(
    "prefix",
    cases(
        {each: each for each in ("cdcd.snapshot", "cdcd.watermark", "cdcd.publish", "cdcd")},
        "a daemon that is out of memory, by a message for the daemon itself",
        failed={"cdcd"},
    ),
)
@pytest.mark.parametrize("transactional", [False, True], ids=["alone", "in a transaction"])
def test_large_messages_with_prefixes_of_cdcd_pass(attacked, prefix, transactional):
    process = attacked.started(
        snapshot={"signals": "without_where"},
        outbox={"topics": [f"{attacked.name}_events"], "messages": True},
    )
    attacked.says(emit(filled(64), prefix=f"'{prefix}'", transactional=transactional))
    attacked.passes(process)
    assert process.peak_memory_bytes() < allowed(64 * MB)


@pytest.mark.attack(
    gains="records of the stranger's choice in a topic that nobody asked for", before="failed"
)
def test_messages_that_nobody_asked_for_have_no_records(attacked):
    process = attacked.started()
    attacked.says(emit("'hello'"), emit("'hello'", transactional=True), emit(filled(2)))
    run(attacked.database, "INSERT INTO t VALUES (1, 'after')")
    attacked.passes(process)
    assert not process.saw("message.oversized")
    assert len(attacked.records("public.t")) == 1
    assert attacked.records("message") == []


@pytest.mark.attack(gains="a stop of the daemon by a message that no topic takes", before="withstood")
def test_a_message_beyond_the_limit_of_its_topic_becomes_its_size_and_digest(attacked):
    process = attacked.started(postgres={"messages": True})
    attacked.says(emit(filled(20)))
    attacked.passes(process)
    if attacked.version < 14:
        return
    assert process.await_event("message.oversized")["record_bytes"] == 20 * MB
    (record,) = attacked.records("message")
    headers = dict(record.headers())
    assert (record.key(), record.value()) == (b'{"prefix":"x"}', None)
    assert headers["cdcd.size"] == str(20 * MB).encode()
    (digest,) = attacked.database.execute(
        f"SELECT encode(sha256(convert_to({filled(20)}, 'SQL_ASCII')), 'hex')"
    )[0]
    assert headers["cdcd.sha256"].decode() == digest


@pytest.mark.postgres(only=18)
@pytest.mark.attack(gains="active and standby that end each other's sessions without end", before="failed")
def test_active_and_standby_do_not_end_each_other_over_a_message(attacked):
    active = attacked.started(postgres={"lease_s": 5})
    standby = attacked.standby(active)
    attacked.says(emit(filled(400)))
    attacked.passes(active)
    assert not standby.saw("session.ended"), standby.last_words()
    assert not standby.saw("lock.acquired")
    assert json.loads(active.page("/v1/status"))["role"] == "active"


@pytest.mark.attack(gains="a log that a stranger fills", before="withstood")
def test_large_messages_have_one_line_each(attacked):
    process = attacked.started()
    mark = process.mark()
    for _ in range(5):
        attacked.says(emit(filled(20)))
    attacked.passes(process)
    told = [event for event in process.events[mark:] if event["event"] == "message.large"]
    assert len(told) == (5 if attacked.version >= 14 else 0)
    assert all(event["bytes"] > 20 * MB for event in told)
