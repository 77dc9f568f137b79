"""A pipeline to be broken and mended: one table, one topic, and what the daemon said and left behind.

    trial.deliver(1, 2)                     # a healthy life: both rows are in the topic, exit code 0
    before = trial.insert(3)
    …break something…
    said = trial.fail()                     # runs to its end: exit code, message, hint
    trial.assert_unconfirmed(before)
    …mend it…
    trial.deliver(3)                        # and now the topic holds 1, 2, 3, each once

Every DSN holds a password, and nothing that a process says may contain it: `close` looks.
"""

import json
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psycopg
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from psycopg.conninfo import make_conninfo

from cdcd.adapters.kafka.reading import NO_TOPIC
from deploy.local import KafkaBroker
from tests.integration.daemon import WAIT_S, Daemon, await_released, configuration, confirmed, drop_slot
from tests.integration.faults import told
from tests.integration.forked import run_cdcd
from tests.integration.kafka_rights import PASSWORD
from tests.integration.visible_records import await_decided

SECRET: Final = "hush-5ecret"

Finding = dict[str, str]
"""A row of `cdcd check`: level, subject, found, fix."""


@dataclass(frozen=True)
class Outcome:
    """How a process ended, and what it said: `output` is all of standard error."""

    code: int
    message: str
    hint: str
    output: str


@dataclass(frozen=True)
class Report:
    """What `cdcd check` found."""

    code: int
    findings: list[Finding]

    def errors(self) -> list[Finding]:
        return [finding for finding in self.findings if finding["level"] == "error"]

    def error(self, *words: str) -> Finding:
        """The one finding of level error in which all the words stand."""
        found = [one for one in self.errors() if all(word in " ".join(one.values()) for word in words)]
        assert found, f"no error with {words} among {json.dumps(self.findings, indent=1)}"
        return found[0]


class Trial:
    """One pipeline whose table is public.t (id int PRIMARY KEY, note text).

    Args:
        name: of the pipeline; its topic is `<name>.public.t`.
        dsn: the superuser's, by which the test looks and acts. The daemon's is the same unless `sections` say other.
        servers: where the daemon finds Kafka.
        reader_servers: where a reader without credentials finds it.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        dsn: str,
        servers: str,
        *,
        reader_servers: str | None = None,
        **sections: Any,
    ) -> None:
        self.name = name
        self.slot = f"cdcd_{name}"
        self.topic = f"{name}.public.t"
        self.dsn = dsn
        self.reader_servers = reader_servers or servers
        self.secrets = [SECRET]
        self.delivered: list[int] = []
        self.daemon = Daemon(folder, {})
        self.said: list[str] = []
        self.configure(**configuration(name, make_conninfo(dsn, password=SECRET), servers, **sections))

    def close(self) -> None:
        """End the daemon. Fails if anything that was said holds a secret."""
        self.daemon.kill()
        self.said.append(self.daemon.output(all_lives=True))
        for secret in self.secrets:
            assert secret not in "\n".join(self.said), f"{secret} was said"

    # Both sides.

    def configure(self, **sections: Any) -> None:
        """Lay `sections` over the configuration, for the next start; None takes a section or a key out."""
        for section, value in sections.items():
            if value is None:
                self.daemon.config.pop(section)
                continue
            old = self.daemon.config.get(section)
            merged = {**old, **value} if isinstance(old, Mapping) and isinstance(value, Mapping) else value
            if isinstance(merged, Mapping):
                merged = {key: one for key, one in merged.items() if one is not None}
            self.daemon.config[section] = merged

    def execute(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """As superuser, outside of a transaction block."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(statement.encode(), values or None)
            return cursor.fetchall() if cursor.description is not None else []

    def connect(self) -> psycopg.Connection:
        """A superuser's session, for transactions that stay open."""
        return psycopg.connect(self.dsn)

    def create_table(self) -> None:
        self.execute("CREATE TABLE IF NOT EXISTS t (id int PRIMARY KEY, note text)")

    def insert(self, *ids: int, note: str = "") -> int:
        """A transaction for each; returns where the first one stands in the WAL, short of its commit."""
        statement = "INSERT INTO t VALUES (%s, %s) RETURNING pg_current_wal_insert_lsn() - '0/0'::pg_lsn"
        reached = [int(self.execute(statement, number, note)[0][0]) for number in ids]
        return reached[0]

    def wal_end(self) -> int:
        return int(self.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")[0][0])

    def confirmed(self) -> int:
        """The slot's confirmed_flush_lsn."""
        return confirmed(self.dsn, self.slot)

    def has_slot(self) -> bool:
        return bool(self.execute("SELECT FROM pg_replication_slots WHERE slot_name = %s", self.slot))

    def drop_slot(self) -> None:
        """Drop it when nobody reads it any more."""
        drop_slot(self.dsn, self.slot)

    def advance_slot(self) -> None:
        """Move it to the end of the WAL when nobody reads it any more."""
        await_released(self.dsn, self.slot)
        self.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_insert_lsn())", self.slot)

    def walsender(self) -> int:
        """The process id of the walsender that serves the slot."""
        rows = self.execute("SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s", self.slot)
        assert rows, f"there is no slot {self.slot}"
        assert rows[0][0], f"nobody reads {self.slot}"
        return int(rows[0][0])

    # The daemon.

    def start(self, *arguments: str) -> None:
        """Returns when it streams."""
        self.daemon.start(*arguments)
        self.daemon.await_streaming()

    def deliver(self, *ids: int, arguments: tuple[str, ...] = ()) -> None:
        """Start it, if it does not run, and stop it when these rows, besides all earlier ones, are in the topic.

        Fails unless the topic then holds each once, in order, and the exit code is 0.
        """
        if not self.daemon.is_running():
            self.start(*arguments)
        self.expect(*ids)
        self.stop()

    def expect(self, *ids: int) -> None:
        """Wait until these rows are in the topic, after all earlier ones and each once."""
        self.delivered += ids
        found = self.read(len(self.delivered))
        assert found == self.delivered, self.daemon.last_words()

    def stop(self) -> None:
        """Stop it in good order. Fails unless it exits with 0 and the topic holds what is expected, and no more.

        All topics of the pipeline show then what was committed: the dead letters, for example, may have the marker of a
        transaction later than the table's topic.
        """
        assert self.daemon.stop() == 0, self.daemon.last_words()
        own = [topic for topic in self.topics() if topic.startswith(f"{self.name}.")]
        await_decided(self.reader_servers, *own)
        assert self.read() == self.delivered

    def fail(self, *arguments: str, timeout_s: float = WAIT_S) -> Outcome:
        """Start it, unless it was started; returns when it has ended by itself, as it may have before this call."""
        began = time.monotonic()
        if not self.daemon.is_awaited:
            self.daemon.start(*arguments)
        code = self.daemon.wait(timeout_s)
        outcome = _outcome(code, self.daemon.output())
        told.keep(
            "run",
            self.name,
            code=code,
            seconds=time.monotonic() - began,
            lines=len(outcome.output.splitlines()),
            message=outcome.message,
            hint=outcome.hint,
        )
        # Exit code 1 is a bug of ours, with a traceback.
        assert code != 1, outcome.output
        assert code == 0 or outcome.message, f"exit code {code} without a message:\n{outcome.output}"
        return outcome

    def await_another_try(self) -> None:
        """Start it, and kill it when a start has failed and is tried again."""
        self.daemon.start()
        self.daemon.await_event("reconnect.scheduled")
        self.daemon.kill()

    def check(self) -> Report:
        """`cdcd check`, with the configuration of the next start."""
        self.daemon.write_config()
        began = time.monotonic()
        done = command("check", "--format", "json", "--config", str(self.daemon.config_path))
        seconds = time.monotonic() - began
        self.said += [done.stdout, done.stderr]
        assert done.stdout, done.stderr
        report = Report(done.returncode, json.loads(done.stdout)["findings"])
        errors = report.errors()
        told.keep(
            "check",
            self.name,
            code=report.code,
            seconds=seconds,
            lines=len(done.stderr.splitlines()),
            message=" ".join(f"{one['code']}: {one['found']}" for one in errors),
            hint=" ".join(one["fix"] for one in errors),
        )
        return report

    # What must hold.

    def assert_unconfirmed(self, lsn: int) -> None:
        """PostgreSQL was told nothing past `lsn`: it still has what came after, and the topic has none of it."""
        assert self.confirmed() <= lsn
        assert self.read() == self.delivered

    def read(self, count: int | None = None) -> list[int]:
        """The ids in the topic for a `read_committed` reader: all there are, or wait until there are `count`."""
        return [json.loads(key)["id"] for key, _, _ in self.records(self.topic, count)]

    def records(
        self, topic: str, count: int | None = None
    ) -> list[tuple[bytes, bytes | None, dict[str, bytes]]]:
        """Key, value and headers of the topic's records; `count` as in `read`."""
        found: list[tuple[bytes, bytes | None, dict[str, bytes]]] = []
        with _reader(self.reader_servers) as consumer:
            deadline = time.monotonic() + WAIT_S
            while topic not in consumer.list_topics(timeout=WAIT_S).topics:
                if not count:
                    return []
                self._go_on(deadline, f"there is no topic {topic}")
            consumer.assign([TopicPartition(topic, 0, 0)])
            while count is None or len(found) < count:
                message = consumer.poll(0.2)
                if message is None:
                    missing = (
                        f"{topic} has {len(found)} records, not {count}" if count else f"{topic} has no end"
                    )
                    self._go_on(deadline, missing, needs_daemon=bool(count))
                elif (error := message.error()) is None:
                    found.append((message.key() or b"", message.value(), dict(_headers(message))))
                elif error.code() in NO_TOPIC:
                    # A broker that has just come back.
                    self._go_on(deadline, f"{topic} is not listed any more", needs_daemon=bool(count))
                elif error.code() != KafkaError._PARTITION_EOF:
                    raise KafkaException(error)
                elif count is None:
                    break
        return found

    def topics(self) -> list[str]:
        with _reader(self.reader_servers) as consumer:
            return list(consumer.list_topics(timeout=WAIT_S).topics)

    def _go_on(self, deadline: float, otherwise: str, *, needs_daemon: bool = True) -> None:
        assert not needs_daemon or self.daemon.is_running(), (
            f"the daemon has ended:\n{self.daemon.last_words()}"
        )
        assert time.monotonic() < deadline, f"{otherwise}:\n{self.daemon.last_words()}"


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`cdcd` with these arguments, run to its end."""
    return run_cdcd(*arguments)


def _outcome(code: int, output: str) -> Outcome:
    """How a command ended: what it said for people, or the last line of a log of JSON."""
    lines = output.splitlines()
    plain = [line for line in lines if not line.startswith("{")]
    if lines and not plain:
        last = json.loads(lines[-1])
        return Outcome(code, last.get("message", ""), last.get("hint", ""), output)
    message, _, hint = "\n".join(plain).partition("\nhint: ")
    return Outcome(code, message.removeprefix("error: "), hint, output)


def _headers(message: Message) -> list[tuple[str, bytes]]:
    headers: Any = message.headers() or []
    return list(headers)


@contextmanager
def _reader(servers: str) -> Iterator[Consumer]:
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "trial",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 20,
        }
    )
    try:
        yield consumer
    finally:
        consumer.close()


def guarded_trial(trial: Callable[..., Trial], dsn: str, broker: KafkaBroker) -> Trial:
    """A pipeline on a broker that lets nobody do anything that no ACL allows (`kafka_rights.guarded_broker`)."""
    made = trial(dsn, broker.bootstrap_servers, reader_servers=broker.admin_bootstrap_servers)
    made.secrets.append(PASSWORD)
    return made
